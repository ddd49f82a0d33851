//! `_UnaryOpsComposition`: functions of one tensor one after the other, as TensorFlow's optimizer
//! joins them.

use super::activation::{elu, relu, relu6, selu};
use super::binary::no_code;
use super::broadcast_loop::map;
use super::unary::{Choice, named};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType;

pub(crate) fn register(r: &mut Registry) {
    const TYPES: &[DType] = &[DType::Float, DType::Half, DType::Double];
    r.add_typed("_UnaryOpsComposition", &[("T", TYPES)], compose);
}

fn compose(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    let names = b.attrs().byte_strings("op_names")?;
    if names.is_empty() {
        return Err(Status::invalid_argument(
            "Unary op composition must have at least one op",
        ));
    }
    let mut kernels = Vec::with_capacity(names.len());
    for name in names {
        let name = String::from_utf8_lossy(name);
        let choice: Option<Choice> = match &*name {
            "Elu" => Some(elu),
            "Relu" => Some(relu),
            "Relu6" => Some(relu6),
            "Selu" => Some(selu),
            other => named(other),
        };
        let Some(choice) = choice else {
            return Err(Status::invalid_argument(format!(
                "Do not have a compute function registered for op: {name}"
            )));
        };
        kernels.push(choice(dtype).ok_or_else(|| no_code(dtype))?);
    }
    Built::cheap(move |ctx| {
        let mut x = ctx.take(0)?;
        for kernel in &kernels {
            x = map(ctx, &**kernel, x)?;
        }
        ctx.set_output(0, x);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op, text};
    use downpour_graph::{AttrList, AttrValue};
    use downpour_tensor::DType;

    #[test]
    fn functions_follow_one_another() {
        let run = |names: &[&'static str]| {
            let names = names.iter().map(|n| (*n).into()).collect();
            let names = AttrValue::List(AttrList::Str(names));
            let attrs = [("T", DType::Float.into()), ("op_names", names)];
            run_op("_UnaryOpsComposition", vec![floats(&[-4.0, 9.0])], &attrs)
        };
        let out = run(&["Abs", "Sqrt", "Neg"]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [-2.0, -3.0]);
        assert_eq!(
            text(run(&["Zzz"])),
            "Do not have a compute function registered for op: Zzz"
        );
    }
}
