//! Making, joining, cutting and rearranging tensors.

use crate::literal::{IntoShape, IntoTensor};
use crate::{Graph, Operation, Output};
use downpour_graph::{AttrList, AttrValue, Status};
use downpour_tensor::DType;
use std::collections::BTreeMap;
use std::panic::Location;

impl Graph {
    /// A constant.
    #[track_caller]
    pub fn constant(&self, value: impl IntoTensor) -> Output {
        let value = value.into_tensor();
        let op = self.op("Const").attr("dtype", value.dtype());
        op.attr("value", AttrValue::Tensor(value)).output()
    }

    /// A tensor that every step must be fed with.
    #[track_caller]
    pub fn placeholder(&self, name: &str, dtype: DType, shape: impl IntoShape) -> Output {
        let op = self.op("Placeholder").name(name).attr("dtype", dtype);
        op.attr("shape", AttrValue::Shape(shape.into_shape()))
            .output()
    }

    /// A tensor that a step may be fed with.
    #[track_caller]
    pub fn placeholder_with_default(
        &self,
        name: &str,
        default: &Output,
        shape: impl IntoShape,
    ) -> Output {
        let op = self.op("PlaceholderWithDefault").name(name).input(default);
        op.attr("shape", AttrValue::Shape(shape.into_shape()))
            .output()
    }

    /// Zeros.
    #[track_caller]
    pub fn zeros(&self, dtype: DType, shape: impl IntoShape) -> Output {
        self.filled(dtype, shape, 0.0)
    }

    /// Ones.
    #[track_caller]
    pub fn ones(&self, dtype: DType, shape: impl IntoShape) -> Output {
        self.filled(dtype, shape, 1.0)
    }

    /// A tensor of one number.
    #[track_caller]
    pub fn filled(&self, dtype: DType, shape: impl IntoShape, value: f64) -> Output {
        let shape = shape.into_shape();
        let (Some(full), Some(value)) = (shape.to_shape(), crate::literal::number(value, dtype))
        else {
            let error = Status::invalid_argument(format!(
                "a tensor of {} and shape {shape} cannot be filled with {value}",
                dtype.name()
            ));
            self.fail(error, Location::caller());
            return self.invalid();
        };
        let dims: Vec<i32> = full.iter().map(|d| *d as i32).collect();
        let (dims, value) = (self.constant(dims), self.constant(value));
        self.op("Fill").input(&dims).input(&value).output()
    }

    /// Does nothing once all of `operations` are done.
    ///
    /// Those of one device are awaited there, so that one signal per device travels, not one per
    /// operation.
    #[track_caller]
    pub fn group(&self, name: &str, operations: &[Operation]) -> Operation {
        let gathered = self.gathered(&format!("{name}/group_deps"), operations);
        let op = self.op("NoOp").name(name);
        gathered.iter().fold(op, |op, o| op.control(o)).build()
    }

    /// As [`Graph::group`], named after the current scope.
    #[track_caller]
    pub fn group_scope(&self, operations: &[Operation]) -> Operation {
        let gathered = self.gathered("group_deps", operations);
        let op = self.op("NoOp").name_of_scope();
        gathered.iter().fold(op, |op, o| op.control(o)).build()
    }

    /// One operation per device that waits for those of them that are there.
    #[track_caller]
    fn gathered(&self, name: &str, operations: &[Operation]) -> Vec<Operation> {
        let mut devices: BTreeMap<String, Vec<&Operation>> = BTreeMap::new();
        for operation in operations {
            devices
                .entry(operation.device())
                .or_default()
                .push(operation);
        }
        if devices.len() < 2 {
            return operations.to_vec();
        }
        let wait = |(device, operations): (String, Vec<&Operation>)| match operations.as_slice() {
            [one] => (*one).clone(),
            _ => self.without_device(|| {
                let op = self.op("NoOp").name(name).device(&device);
                operations.iter().fold(op, |op, o| op.control(o)).build()
            }),
        };
        devices.into_iter().map(wait).collect()
    }

    /// `start, start + step, …` below `limit`.
    #[track_caller]
    pub fn range(&self, start: i32, limit: i32, step: i32) -> Output {
        let op = self.op("Range").input(&self.constant(start));
        op.input(&self.constant(limit))
            .input(&self.constant(step))
            .output()
    }
}

impl Output {
    /// The same value under a name of its own.
    #[track_caller]
    pub fn named(&self, name: &str) -> Output {
        self.graph().op("Identity").name(name).input(self).output()
    }

    /// The same value, available once `operations` are done.
    #[track_caller]
    pub fn after(&self, operations: &[Operation]) -> Output {
        let mut op = self.graph().op("Identity").input(self);
        for operation in operations {
            op = op.control(operation);
        }
        op.output()
    }

    /// Its shape, computed by the step, as int32.
    #[track_caller]
    pub fn shape_op(&self) -> Output {
        let graph = self.graph().innermost();
        if let (false, Some(shape)) = (graph.is(self.graph()), self.shape().to_shape()) {
            // A known shape is no reason to pass the tensor into a function's body.
            return graph.constant(shape.iter().map(|d| *d as i32).collect::<Vec<_>>());
        }
        self.computed_shape(DType::Int32)
    }

    /// Its shape as int32 or int64, computed by the step whether it is known or not.
    #[track_caller]
    pub(crate) fn computed_shape(&self, dtype: DType) -> Output {
        let graph = self.graph();
        let make = || {
            let op = graph.op("Shape").input(self);
            op.attr("out_type", dtype).output()
        };
        // A body that needs no more than the shape is passed no more, unless it is passed as is.
        match graph.innermost().is(graph) || self.operation().op() == "Placeholder" {
            true => make(),
            false => graph.itself(|| graph.without_control(make)),
        }
    }

    /// Number of elements, computed by the step, as int32.
    #[track_caller]
    pub fn size_op(&self) -> Output {
        self.graph().op("Size").input(self).output()
    }

    /// The same elements in another shape; -1 stands for what remains.
    #[track_caller]
    pub fn reshape(&self, dims: &[i32]) -> Output {
        let dims = self.graph().constant(dims);
        self.reshape_to(&dims)
    }

    /// The same elements in a shape that the step computes.
    #[track_caller]
    pub fn reshape_to(&self, shape: &Output) -> Output {
        self.graph().op("Reshape").input(self).input(shape).output()
    }

    /// Dimensions in another order.
    #[track_caller]
    pub fn transpose(&self, order: &[i32]) -> Output {
        let order = self.graph().constant(order);
        self.graph()
            .op("Transpose")
            .input(self)
            .input(&order)
            .output()
    }

    /// One more dimension, of length 1.
    #[track_caller]
    pub fn expand_dims(&self, axis: i32) -> Output {
        let axis = self.graph().constant(axis);
        self.graph()
            .op("ExpandDims")
            .input(self)
            .input(&axis)
            .output()
    }

    /// Without these dimensions of length 1; without any such if none are given.
    #[track_caller]
    pub fn squeeze(&self, axes: &[i32]) -> Output {
        let axes = axes.iter().map(|a| i64::from(*a)).collect();
        let op = self.graph().op("Squeeze").input(self);
        op.attr("squeeze_dims", AttrValue::List(AttrList::Int(axes)))
            .output()
    }

    /// `size` elements from `begin`, for each dimension; -1 is all that follow.
    #[track_caller]
    pub fn slice(&self, begin: &[i32], size: &[i32]) -> Output {
        let (begin, size) = (self.graph().constant(begin), self.graph().constant(size));
        let op = self.graph().op("Slice").input(self);
        op.input(&begin).input(&size).output()
    }

    /// Repeated along each dimension.
    #[track_caller]
    pub fn tile(&self, times: &[i32]) -> Output {
        let times = self.graph().constant(times);
        self.graph().op("Tile").input(self).input(&times).output()
    }

    /// Zeros before and after, for each dimension.
    #[track_caller]
    pub fn pad(&self, around: &[[i32; 2]]) -> Output {
        let sizes = downpour_tensor::Tensor::vector(around.concat());
        let flat = sizes.clone();
        let sizes = self
            .graph()
            .constant(sizes.reshaped([around.len(), 2]).unwrap_or(flat));
        self.graph().op("Pad").input(self).input(&sizes).output()
    }

    /// Rows (or slices along `axis`) at these positions.
    #[track_caller]
    pub fn gather(&self, positions: &Output, axis: i32) -> Output {
        let axis = self.graph().constant(axis);
        let op = self.graph().op("GatherV2").input(self);
        op.input(positions).input(&axis).output()
    }

    /// 1 at each of these positions among `depth`, 0 elsewhere.
    #[track_caller]
    pub fn one_hot(&self, depth: i32, dtype: DType) -> Output {
        let graph = self.graph();
        let (Some(on), Some(off)) = (
            crate::literal::number(1.0, dtype),
            crate::literal::number(0.0, dtype),
        ) else {
            let error = Status::invalid_argument(format!("one_hot of {}", dtype.name()));
            graph.fail(error, Location::caller());
            return graph.invalid();
        };
        let op = graph.op("OneHot").input(self).input(&graph.constant(depth));
        op.input(&graph.constant(on))
            .input(&graph.constant(off))
            .output()
    }

    /// Equal parts along an axis.
    #[track_caller]
    pub fn split(&self, parts: usize, axis: i32) -> Vec<Output> {
        let axis = self.graph().constant(axis);
        let op = self.graph().op("Split").input(&axis).input(self);
        op.attr("num_split", parts as i64).outputs()
    }

    /// The slices along an axis.
    #[track_caller]
    pub fn unstack(&self, count: usize, axis: i32) -> Vec<Output> {
        let op = self.graph().op("Unpack").input(self);
        op.attr("num", count as i64)
            .attr("axis", i64::from(axis))
            .outputs()
    }
}

/// Tensors one after the other along an axis.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, concat};
/// let g = Graph::new();
/// let (a, b) = (g.constant([[1.0f32], [2.0]]), g.constant([[3.0f32, 4.0], [5.0, 6.0]]));
/// let rows = concat(&[a, b], 1);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let rows = session.fetch(&rows)?;
/// assert_eq!((rows.dims(), rows.as_slice()?), (&[2, 3][..], &[1.0f32, 3.0, 4.0, 2.0, 5.0, 6.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn concat(parts: &[Output], axis: i32) -> Output {
    let graph = parts[0].graph();
    let axis = graph.constant(axis);
    graph.op("ConcatV2").inputs(parts).input(&axis).output()
}

/// Tensors of one shape as slices along a new axis.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, stack};
/// let g = Graph::new();
/// let parts = [g.constant([1.0f32, 2.0, 3.0]), g.constant([4.0f32, 5.0, 6.0])];
/// let (rows, columns) = (stack(&parts, 0), stack(&parts, 1));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&rows)?.dims(), [2, 3]);
/// let columns = session.fetch(&columns)?;
/// assert_eq!((columns.dims(), columns.as_slice()?), (&[3, 2][..], &[1.0f32, 4.0, 2.0, 5.0, 3.0, 6.0][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// If there are none.
#[track_caller]
pub fn stack(parts: &[Output], axis: i32) -> Output {
    let op = parts[0].graph().op("Pack").inputs(parts);
    op.attr("axis", i64::from(axis)).output()
}
