//! Lists of tensors as values: what loops collect and read one by one. A list is never changed;
//! `set` and `push` return another one. Gradients flow through all of it.

use crate::literal::IntoShape;
use crate::{Graph, Output};
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, PartialShape};

/// A list of tensors of one type, possibly of different shapes.
///
/// ```
/// use downpour_build::{Graph, TensorList};
/// let g = Graph::new();
/// let x = g.constant([[1.0f32, 2.0], [3.0, 4.0]]);
/// let list = TensorList::from_tensor(&x);
/// let one = g.constant(1i32);
/// let changed = list.set(&one, &(list.get(&one) * 10.0));
/// assert_eq!(changed.stack().shape().to_string(), "[2,2]");
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorList {
    handle: Output,
    dtype: DType,
    shape: PartialShape,
    /// Number of elements, if known.
    len: Option<usize>,
}

impl TensorList {
    /// A list of `count` elements that must be set before they are read; `stack` takes those that
    /// are not for zeros. `shape` is what is known of each one's.
    #[track_caller]
    pub fn reserve(graph: &Graph, dtype: DType, shape: impl IntoShape, count: &Output) -> Self {
        let shape = shape.into_shape();
        let dims = shape_constant(graph, &shape);
        let op = graph.op("TensorListReserve").input(&dims).input(count);
        let list = TensorList::of(op.attr("element_dtype", dtype).output(), dtype, shape);
        let len = crate::shape::ints(&count.graph().inner.lock(), count.endpoint());
        let len = len.and_then(|v| v.first().copied().flatten());
        TensorList {
            len: len.and_then(|n| n.try_into().ok()),
            ..list
        }
    }

    /// A list without elements, to push on.
    #[track_caller]
    pub fn empty(graph: &Graph, dtype: DType, shape: impl IntoShape) -> TensorList {
        let shape = shape.into_shape();
        let (dims, unbounded) = (shape_constant(graph, &shape), graph.constant(-1i32));
        let op = graph.op("EmptyTensorList").input(&dims).input(&unbounded);
        TensorList::of(op.attr("element_dtype", dtype).output(), dtype, shape)
    }

    /// The slices of a tensor along its first dimension.
    #[track_caller]
    pub fn from_tensor(tensor: &Output) -> TensorList {
        let shape = match tensor.shape().dims() {
            Some([_, rest @ ..]) => PartialShape::from_dims(rest.iter().copied()),
            _ => PartialShape::unknown(),
        };
        let graph = tensor.graph();
        let dims = shape_constant(graph, &shape);
        let op = graph.op("TensorListFromTensor").input(tensor).input(&dims);
        let list = TensorList::of(op.output(), tensor.dtype(), shape);
        let len = tensor.shape().dims().and_then(|d| d.first().copied()?);
        TensorList { len, ..list }
    }

    /// The list behind a handle, such as a loop's variable.
    pub fn from_handle(handle: &Output) -> Result<TensorList> {
        match handle.behind() {
            Some((dtype, shape)) if handle.dtype() == DType::Variant => Ok(TensorList {
                handle: handle.clone(),
                dtype,
                shape,
                len: None,
            }),
            _ => Err(Status::invalid_argument(format!(
                "'{}' is no list of tensors that this graph made",
                handle.name()
            ))),
        }
    }

    fn of(handle: Output, dtype: DType, shape: PartialShape) -> TensorList {
        handle.set_behind(dtype, shape.clone());
        TensorList {
            handle,
            dtype,
            shape,
            len: None,
        }
    }

    /// This list at a later time: what a loop returned for it.
    pub(crate) fn at(&self, handle: &Output) -> TensorList {
        TensorList {
            handle: handle.clone(),
            ..self.clone()
        }
    }

    /// Its handle: what a loop's variable holds.
    pub fn handle(&self) -> &Output {
        &self.handle
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// What is known of the shape of each element.
    pub fn element_shape(&self) -> &PartialShape {
        &self.shape
    }

    /// Number of elements, computed by the step.
    #[track_caller]
    pub fn len_op(&self) -> Output {
        let op = self.handle.graph().op("TensorListLength");
        op.input(&self.handle).output()
    }

    /// The element at a position.
    #[track_caller]
    pub fn get(&self, index: &Output) -> Output {
        let graph = self.handle.graph();
        let op = graph.op("TensorListGetItem").input(&self.handle);
        let op = op.input(index).input(&shape_constant(graph, &self.shape));
        let item = op.attr("element_dtype", self.dtype).output();
        item.set_shape(&self.shape);
        item
    }

    /// This list with another element at a position.
    #[track_caller]
    pub fn set(&self, index: &Output, item: &Output) -> TensorList {
        let op = self.handle.graph().op("TensorListSetItem");
        let op = op.input(&self.handle).input(index).input(item);
        let list = TensorList::of(op.output(), self.dtype, self.shape.clone());
        TensorList {
            len: self.len,
            ..list
        }
    }

    /// This list with one more element behind the others.
    #[track_caller]
    pub fn push(&self, item: &Output) -> TensorList {
        let op = self.handle.graph().op("TensorListPushBack");
        let op = op.input(&self.handle).input(item);
        TensorList::of(op.output(), self.dtype, self.shape.clone())
    }

    /// This list without its last element, and that element.
    #[track_caller]
    pub fn pop(&self) -> (TensorList, Output) {
        let graph = self.handle.graph();
        let op = graph.op("TensorListPopBack").input(&self.handle);
        let op = op.input(&shape_constant(graph, &self.shape));
        let op = op.attr("element_dtype", self.dtype).build();
        op.output(1).set_shape(&self.shape);
        let list = TensorList::of(op.output(0), self.dtype, self.shape.clone());
        (list, op.output(1))
    }

    /// All elements along a new first dimension.
    #[track_caller]
    pub fn stack(&self) -> Output {
        let graph = self.handle.graph();
        let op = graph.op("TensorListStack").input(&self.handle);
        let op = op.input(&shape_constant(graph, &self.shape));
        let count = self.len.map_or(-1, |n| n as i64);
        let op = op.attr("element_dtype", self.dtype);
        let stacked = op.attr("num_elements", count).output();
        self.shape_stacked(&stacked, self.len);
        stacked
    }

    /// The elements at these positions along a new first dimension.
    #[track_caller]
    pub fn gather(&self, positions: &Output) -> Output {
        let graph = self.handle.graph();
        let op = graph.op("TensorListGather").input(&self.handle);
        let op = op.input(positions);
        let op = op.input(&shape_constant(graph, &self.shape));
        let stacked = op.attr("element_dtype", self.dtype).output();
        let count = positions.shape().dims().and_then(|d| d.first().copied()?);
        self.shape_stacked(&stacked, count);
        stacked
    }

    fn shape_stacked(&self, stacked: &Output, count: Option<usize>) {
        if let Some(dims) = self.shape.dims() {
            let dims = std::iter::once(count).chain(dims.iter().copied());
            stacked.set_shape(&PartialShape::from_dims(dims));
        }
    }
}

impl Output {
    /// Says what is behind a handle.
    pub(crate) fn set_behind(&self, dtype: DType, shape: PartialShape) {
        if !self.is_invalid() {
            let mut inner = self.graph().inner.lock();
            inner.handles.insert(self.endpoint(), (dtype, shape));
        }
    }

    /// Adds to what is known of the shape. What contradicts is not believed.
    pub(crate) fn set_shape(&self, shape: &PartialShape) {
        if self.is_invalid() {
            return;
        }
        let merged = crate::shape::merge(&self.shape(), shape);
        let mut inner = self.graph().inner.lock();
        let shapes = inner.shapes.get_mut(self.endpoint().node.index());
        if let (Some(known), Ok(merged)) = (shapes.and_then(|s| s.get_mut(self.index())), merged) {
            *known = merged;
        }
    }
}

/// A partial shape as list operations take it: -1 for what is not known.
#[track_caller]
pub(crate) fn shape_constant(graph: &Graph, shape: &PartialShape) -> Output {
    match shape.dims() {
        None => graph.constant(-1i32),
        Some(dims) => {
            let dims = dims.iter().map(|d| d.map_or(-1, |d| d as i32));
            graph.constant(dims.collect::<Vec<_>>())
        }
    }
}
