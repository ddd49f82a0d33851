//! The ops on tensor arrays. Their flow inputs only order them.

use super::array::{Spec, TYPE, TensorArray};
use super::pieces::{cut, join, pack, row};
use super::shapes::{split_first, with_first};
use super::step_handle::StepHandle;
use crate::args;
use crate::array::{ALL, PAD, STITCH};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Shape, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the arrays of the process, as their names show.
static NEXT: AtomicU64 = AtomicU64::new(0);

const ARRAYS: &str = "_tensor_arrays";
const GRADIENTS: &str = "_tensor_array_grads";

pub(super) fn register(r: &mut Registry) {
    for op in ["TensorArray", "TensorArrayV2", "TensorArrayV3"] {
        r.add(op, create);
    }
    for op in [
        "TensorArrayGrad",
        "TensorArrayGradV2",
        "TensorArrayGradV3",
        "TensorArrayGradWithShape",
    ] {
        r.add(op, gradient);
    }
    for op in [
        "TensorArrayWrite",
        "TensorArrayWriteV2",
        "TensorArrayWriteV3",
    ] {
        r.add_typed(op, &[("T", ALL)], write);
    }
    for op in ["TensorArrayRead", "TensorArrayReadV2", "TensorArrayReadV3"] {
        r.add_typed(op, &[("dtype", ALL)], read);
    }
    for op in [
        "TensorArrayGather",
        "TensorArrayGatherV2",
        "TensorArrayGatherV3",
    ] {
        r.add_typed(op, &[("dtype", STITCH)], |b| gather(b, false));
    }
    r.add_typed("TensorArrayPack", &[("dtype", STITCH)], |b| gather(b, true));
    for op in [
        "TensorArrayConcat",
        "TensorArrayConcatV2",
        "TensorArrayConcatV3",
    ] {
        r.add_typed(op, &[("dtype", PAD)], concat);
    }
    for op in [
        "TensorArrayScatter",
        "TensorArrayScatterV2",
        "TensorArrayScatterV3",
    ] {
        r.add_typed(op, &[("T", ALL)], |b| scatter(b, false));
    }
    r.add_typed("TensorArrayUnpack", &[("T", ALL)], |b| scatter(b, true));
    for op in [
        "TensorArraySplit",
        "TensorArraySplitV2",
        "TensorArraySplitV3",
    ] {
        r.add_typed(op, &[("T", ALL)], split);
    }
    for op in ["TensorArraySize", "TensorArraySizeV2", "TensorArraySizeV3"] {
        r.add(op, size);
    }
    for op in [
        "TensorArrayClose",
        "TensorArrayCloseV2",
        "TensorArrayCloseV3",
    ] {
        r.add(op, close);
    }
}

fn handle(b: &KernelBuilder<'_>) -> StepHandle {
    StepHandle::new(b, TYPE, "Tensor array handle must be 2-element vector")
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn create(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    let attrs = b.attrs();
    let dtype = attrs.dtype("dtype")?;
    let element_shape = attrs.shape("element_shape")?.clone();
    let dynamic = attrs.bool("dynamic_size")?;
    let clear_after_read = attrs.bool("clear_after_read")?;
    let identical_shapes = match attrs.find("identical_element_shapes") {
        Some(_) => attrs.bool("identical_element_shapes")?,
        None => false,
    };
    let name = match &*attrs.name("tensor_array_name")? {
        "" => b.node.name.to_string(),
        name => name.to_owned(),
    };
    Built::cheap(move |ctx| {
        let given = ctx.input(0)?;
        if !given.shape().is_scalar() {
            return invalid(format!(
                "TensorArray size must be scalar, but had shape: {}",
                given.shape()
            ));
        }
        let Ok(size) = usize::try_from(args::int(given)?) else {
            return invalid("Size should be >= 0.".into());
        };
        let name = format!("{name}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let spec = Spec {
            name: name.clone(),
            dtype,
            identical_shapes,
            clear_after_read,
            gradient: false,
        };
        let array = TensorArray::new(ctx.device(), spec, size, element_shape.clone(), dynamic)?;
        let key = format!("{ARRAYS}{name}");
        ctx.env().step_resources.insert("", &key, Arc::new(array));
        emit(ctx, &handle, ARRAYS, &name)
    })
}

/// Sets the handle and, where there is one, the flow.
fn emit(ctx: &mut OpContext<'_>, handle: &StepHandle, prefix: &str, name: &str) -> Result<()> {
    handle.emit(ctx, prefix, name)?;
    ctx.set_output(1, Tensor::scalar(0f32));
    Ok(())
}

fn gradient(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    let source = b.attrs().str("source")?.to_owned();
    Built::cheap(move |ctx| {
        let name = match handle.key(ctx)? {
            (Some(prefix), name) if prefix == ARRAYS => name,
            (Some(prefix), _) => {
                return invalid(format!(
                    "Input container should be '{ARRAYS}',  but received '{prefix}'"
                ));
            }
            (None, key) => match key.strip_prefix(ARRAYS) {
                // The key of a gradient begins like that of an array.
                Some(name) if !key.starts_with(GRADIENTS) => name.to_owned(),
                _ => return invalid(format!("Wrong input container. {key}")),
            },
        };
        let array = handle.find::<TensorArray>(ctx)?;
        let mut outer = Shape::scalar();
        if ctx.num_inputs() > 2 {
            let given = ctx.input(2)?;
            if given.rank() != 1 {
                return invalid(format!(
                    "shape must be a vector of {{int32,int64}}, got shape {}",
                    given.shape()
                ));
            }
            outer = args::shape(given)?;
        }
        let name = format!("{name}@{source}");
        let key = format!("{GRADIENTS}{name}");
        let device = ctx.device();
        // The array's size is fixed and its being open is checked even where the gradients exist.
        let made = array.gradients(device, name.clone(), outer.dims())?;
        ctx.env()
            .step_resources
            .find_or_create("", &key, || Ok(made))?;
        emit(ctx, &handle, GRADIENTS, &name)
    })
}

/// The one index of a read or write.
fn index(ctx: &OpContext<'_>) -> Result<i64> {
    let given = ctx.input(1)?;
    if !given.shape().is_scalar() {
        return invalid(format!(
            "TensorArray index must be scalar, but had shape: {}",
            given.shape()
        ));
    }
    args::int(given)
}

fn check_written(array: &TensorArray, value: &Tensor) -> Result<()> {
    if value.dtype() != array.spec.dtype {
        return invalid(format!(
            "TensorArray dtype is {} but Op is trying to write dtype {}.",
            array.spec.dtype,
            value.dtype()
        ));
    }
    Ok(())
}

fn check_requested(array: &TensorArray, dtype: DType) -> Result<()> {
    if dtype != array.spec.dtype {
        return invalid(format!(
            "TensorArray dtype is {} but Op requested dtype {dtype}.",
            array.spec.dtype
        ));
    }
    Ok(())
}

/// Passes the flow on, which is the last input.
fn pass_flow(ctx: &mut OpContext<'_>) {
    ctx.forward(ctx.num_inputs().saturating_sub(1), 0);
}

fn write(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    Built::cheap(move |ctx| {
        let index = index(ctx)?;
        let array = handle.find::<TensorArray>(ctx)?;
        check_written(&array, ctx.input(2)?)?;
        let value = ctx.take(2)?;
        array.write(ctx, index, value)?;
        pass_flow(ctx);
        Ok(())
    })
}

fn read(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    let dtype = b.attrs().dtype("dtype")?;
    Built::cheap(move |ctx| {
        let index = index(ctx)?;
        let array = handle.find::<TensorArray>(ctx)?;
        check_requested(&array, dtype)?;
        if let Some(value) = array.read(ctx, [index])?.pop() {
            ctx.set_output(0, value);
        }
        Ok(())
    })
}

fn gather(b: &KernelBuilder<'_>, whole: bool) -> Result<Built> {
    let handle = handle(b);
    let dtype = b.attrs().dtype("dtype")?;
    let element_shape = b.attrs().shape("element_shape")?.clone();
    Built::cheap(move |ctx| {
        let array = handle.find::<TensorArray>(ctx)?;
        check_requested(&array, dtype)?;
        array.refine_shape(&element_shape)?;
        let indices = if whole {
            (0..array.packed_size()? as i64).collect()
        } else {
            index_vector(ctx.input(1)?)?
        };
        let device = ctx.device();
        if indices.is_empty() {
            let Some(inner) = element_shape.to_shape() else {
                return Err(Status::unimplemented(format!(
                    "TensorArray has size zero, but element shape {element_shape} is not fully defined. Currently only static shapes are supported when packing zero-size TensorArrays."
                )));
            };
            ctx.set_output(0, pack(device, dtype, &inner, &[])?);
            return Ok(());
        }
        let values = array.read(ctx, indices)?;
        let inner = values[0].shape();
        if !element_shape.admits(inner) {
            return invalid(format!(
                "TensorArray was passed element_shape {element_shape} which does not match the Tensor at index 0: {inner}"
            ));
        }
        if let Some((i, other)) = values.iter().enumerate().find(|(_, v)| v.shape() != inner) {
            return invalid(format!(
                "TensorArray has inconsistent shapes.  Index 0 has shape: {inner} but index {i} has shape: {}",
                other.shape()
            ));
        }
        let parts: Vec<&Tensor> = values.iter().collect();
        ctx.set_output(0, pack(device, dtype, inner, &parts)?);
        Ok(())
    })
}

fn index_vector(given: &Tensor) -> Result<Vec<i64>> {
    if given.rank() != 1 {
        return invalid(format!(
            "Expected indices to be a vector, but received shape: {}",
            given.shape()
        ));
    }
    args::ints(given)
}

fn concat(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    let dtype = b.attrs().dtype("dtype")?;
    let except0 = b.attrs().shape("element_shape_except0")?.clone();
    Built::cheap(move |ctx| {
        let array = handle.find::<TensorArray>(ctx)?;
        check_requested(&array, dtype)?;
        let size = array.packed_size()?;
        let (whole, lengths) = if size == 0 {
            let Some(inner) = except0.to_shape() else {
                return Err(Status::unimplemented(format!(
                    "TensorArray has size zero, but element_shape_except0 {except0} is not fully defined. Currently only static shapes are supported when concatenating zero-size TensorArrays."
                )));
            };
            (pack(ctx.device(), dtype, &inner, &[])?, Vec::new())
        } else {
            let values = array.read(ctx, 0..size as i64)?;
            concatenated(ctx, dtype, &except0, &values)?
        };
        ctx.set_output(0, whole);
        ctx.set_output(1, Tensor::vector(lengths));
        Ok(())
    })
}

/// At least one value, joined along their first dimension, and the sizes of that dimension.
fn concatenated(
    ctx: &OpContext<'_>,
    dtype: DType,
    except0: &PartialShape,
    values: &[Tensor],
) -> Result<(Tensor, Vec<i64>)> {
    let mut lengths = Vec::with_capacity(values.len());
    let (mut inner, mut total) = (Shape::scalar(), 0usize);
    for (i, value) in values.iter().enumerate() {
        let Some((length, rest)) = split_first(value.shape()) else {
            return invalid(format!(
                "Concat saw a scalar shape at index {i} but requires at least vectors.  Did you mean to call pack?"
            ));
        };
        lengths.push(length as i64);
        total = total.saturating_add(length);
        if i == 0 {
            if !except0.admits(&rest) {
                return invalid(format!(
                    "TensorArray was passed element_shape_except0 {except0} but index 0 has (excepting dimension 0) shape: {rest} which does not match."
                ));
            }
            inner = rest;
        } else if rest != inner {
            return invalid(format!(
                "TensorArray has inconsistent shapes.  Index 0 has (excepting dimension 0) shape: {inner} but index {i} has (excepting dimension 0) shape: {rest}"
            ));
        }
    }
    let parts: Vec<&Tensor> = values.iter().collect();
    let whole = join(ctx.device(), dtype, with_first(total, &inner)?, &parts)?;
    Ok((whole, lengths))
}

fn scatter(b: &KernelBuilder<'_>, whole: bool) -> Result<Built> {
    let handle = handle(b);
    let value_at = if whole { 1 } else { 2 };
    Built::cheap(move |ctx| {
        let array = handle.find::<TensorArray>(ctx)?;
        let value = ctx.input(value_at)?;
        check_written(&array, value)?;
        let Some(&rows) = value.dims().first() else {
            return invalid(format!(
                "Input value for unpack must be at least a vector but received shape: {}",
                value.shape()
            ));
        };
        let mut size = array.size()? as i64;
        let indices: Vec<i64> = if whole {
            (0..rows as i64).collect()
        } else {
            index_vector(ctx.input(1)?)?
        };
        if indices.len() != rows {
            return invalid(format!(
                "Expected len(indices) == values.shape[0], but saw: {} vs. {rows}",
                indices.len()
            ));
        }
        let max = indices.iter().copied().max().unwrap_or(-1);
        if array.is_dynamic() {
            size = size.max(max + 1);
        }
        if whole && rows as i64 != size {
            return invalid(format!(
                "Input value must have first dimension equal to the array size ({rows} vs. {size})"
            ));
        }
        if max >= size {
            return invalid(format!(
                "Max scatter index must be < array size ({max} vs. {size})"
            ));
        }
        if whole {
            array.mark(rows);
        }
        let elements = indices.into_iter().enumerate();
        array.write_many(ctx, elements.map(|(i, at)| (at, row(value, i))))?;
        pass_flow(ctx);
        Ok(())
    })
}

fn split(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    Built::cheap(move |ctx| {
        let array = handle.find::<TensorArray>(ctx)?;
        let (value, lengths) = (ctx.input(1)?, ctx.input(2)?);
        check_written(&array, value)?;
        if lengths.rank() != 1 {
            return invalid(format!(
                "Expected lengths to be a vector, received shape: {}",
                lengths.shape()
            ));
        }
        let lengths = args::ints(lengths)?;
        let Some(&rows) = value.dims().first() else {
            return invalid(format!(
                "Expected value to be at least a vector, but received shape: {}",
                value.shape()
            ));
        };
        let sum = lengths.iter().fold(0i64, |sum, &l| sum.saturating_add(l));
        if sum != rows as i64 {
            return invalid(format!(
                "Expected sum of lengths to be equal to values.shape[0], but sum of lengths is {sum} and value's shape is: {}",
                value.shape()
            ));
        }
        let mut size = array.size()?;
        if array.is_dynamic() {
            size = size.max(lengths.len());
        }
        if size != lengths.len() {
            return invalid(format!(
                "TensorArray's size is not equal to the size of lengths ({size} vs. {}), and the TensorArray is not marked as dynamically resizeable",
                lengths.len()
            ));
        }
        // TensorFlow ends the process on a negative length.
        let lengths = lengths
            .into_iter()
            .map(|l| {
                usize::try_from(l)
                    .map_err(|_| Status::invalid_argument(format!("Length {l} must be >= 0")))
            })
            .collect::<Result<Vec<usize>>>()?;
        array.mark(size);
        let pieces = cut(value, &lengths)?.into_iter().enumerate();
        array.write_many(ctx, pieces.map(|(i, piece)| (i as i64, Ok(piece))))?;
        pass_flow(ctx);
        Ok(())
    })
}

fn size(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    Built::cheap(move |ctx| {
        let size = handle.find::<TensorArray>(ctx)?.size()?;
        ctx.set_output(0, Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX)));
        Ok(())
    })
}

fn close(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    Built::cheap(move |ctx| {
        handle.find::<TensorArray>(ctx)?.close();
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, node, run_graph};
    use downpour_graph::{NodeDef, Result};
    use downpour_tensor::{DType, Tensor};

    /// A graph over one array of floats: `size` and any number of values come as arguments.
    struct Program {
        nodes: Vec<NodeDef>,
        args: Vec<Tensor>,
        flow: String,
    }

    impl Program {
        fn new(size: i32) -> Program {
            let mut p = Program {
                nodes: Vec::new(),
                args: Vec::new(),
                flow: "array:1".into(),
            };
            let size = p.arg(Tensor::scalar(size));
            let attrs = [("dtype", DType::Float.into())];
            p.nodes
                .push(node("array", "TensorArrayV3", &[&size], &attrs));
            p
        }

        fn arg(&mut self, value: Tensor) -> String {
            let i = self.args.len();
            let attrs = [("T", value.dtype().into()), ("index", (i as i64).into())];
            self.args.push(value);
            self.nodes.push(node(&format!("a{i}"), "_Arg", &[], &attrs));
            format!("a{i}")
        }

        fn write(&mut self, handle: &str, index: i32, value: &[f32]) {
            let (index, value) = (self.arg(Tensor::scalar(index)), self.arg(floats(value)));
            let name = format!("write_{value}");
            let inputs = [handle, &index, &value, &self.flow];
            let t = [("T", DType::Float.into())];
            self.nodes
                .push(node(&name, "TensorArrayWriteV3", &inputs, &t));
            self.flow = name;
        }

        fn gradient(&mut self) {
            let (inputs, attrs) = (["array", &self.flow], [("source", "g".into())]);
            self.nodes
                .push(node("grad", "TensorArrayGradV3", &inputs, &attrs));
            self.flow = "grad:1".into();
        }

        fn read(mut self, handle: &str, indices: &[i32]) -> Result<Tensor> {
            let indices = self.arg(Tensor::vector(indices.to_vec()));
            let inputs = [handle, &indices, &self.flow];
            let dtype = [("dtype", DType::Float.into())];
            self.nodes
                .push(node("all", "TensorArrayGatherV3", &inputs, &dtype));
            let attrs = [("T", DType::Float.into()), ("index", 0i64.into())];
            self.nodes.push(node("out", "_Retval", &["all"], &attrs));
            Ok(run_graph(self.nodes, self.args)?.remove(0))
        }
    }

    #[test]
    fn elements_come_back_in_the_order_asked_for() {
        let mut p = Program::new(2);
        p.write("array", 0, &[1.0, 2.0]);
        p.write("array", 1, &[3.0, 4.0]);
        let out = p.read("array", &[1, 0]).unwrap();
        assert_eq!(out.dims(), [2, 2]);
        assert_eq!(out.as_slice::<f32>().unwrap(), [3.0, 4.0, 1.0, 2.0]);
    }

    #[test]
    fn a_slot_is_written_once_and_read_once() {
        let mut p = Program::new(2);
        p.write("array", 0, &[1.0]);
        p.write("array", 0, &[1.0]);
        let e = p.read("array", &[0]).unwrap_err();
        assert!(
            e.message.contains(
                "Could not write to TensorArray index 0 because it has already been written to."
            ),
            "{}",
            e.message
        );
        let mut p = Program::new(2);
        p.write("array", 0, &[1.0]);
        let e = p.read("array", &[0, 0]).unwrap_err();
        assert!(
            e.message.contains("Could not read index 0 twice"),
            "{}",
            e.message
        );
    }

    #[test]
    fn gradients_of_a_slot_add_up_and_are_zero_where_none_came() {
        let mut p = Program::new(2);
        p.write("array", 0, &[1.0, 2.0]);
        p.write("array", 1, &[1.0, 2.0]);
        p.gradient();
        p.write("grad", 0, &[1.0, 2.0]);
        p.write("grad", 0, &[10.0, 20.0]);
        let out = p.read("grad", &[0, 1]).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [11.0, 22.0, 0.0, 0.0]);
    }

    #[test]
    fn a_hostile_size_is_refused_without_an_allocation() {
        let e = Program::new(i32::MAX).read("array", &[]).unwrap_err();
        assert_eq!(
            e.code,
            downpour_graph::Code::ResourceExhausted,
            "{}",
            e.message
        );
    }
}
