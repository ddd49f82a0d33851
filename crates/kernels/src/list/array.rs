//! The tensor array: slots that are written once and, mostly, read once. The array of an array's
//! gradients adds up what is written to a slot.

use super::shapes::{merge, prepend};
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Resource};
use downpour_tensor::{DType, PartialShape, Shape, Tensor};
use parking_lot::Mutex;

/// TensorFlow's C++ type of tensor arrays.
pub(super) const TYPE: &str = "N10tensorflow11TensorArrayE";

#[derive(Clone, Default)]
struct Slot {
    /// Absent where nothing was written, where only a shape is known, and after a clearing read.
    tensor: Option<Tensor>,
    shape: Shape,
    written: bool,
    read: bool,
    cleared: bool,
}

struct State {
    slots: Vec<Slot>,
    element_shape: PartialShape,
    dynamic: bool,
    /// Size when a whole tensor was last cut into it; for gradients, the one of their array. Later
    /// elements have no part in the gradient of that tensor.
    marked: Option<usize>,
    closed: bool,
}

/// What stays as it was declared.
pub(super) struct Spec {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) identical_shapes: bool,
    pub(super) clear_after_read: bool,
    /// Whether it holds gradients: writes to a slot then add up.
    pub(super) gradient: bool,
}

/// A tensor array.
pub(super) struct TensorArray {
    pub(super) spec: Spec,
    state: Mutex<State>,
}

impl Resource for TensorArray {
    fn type_name(&self) -> &'static str {
        TYPE
    }
}

/// Room for so many slots, within the memory budget.
fn check_size(device: &Device, size: usize) -> Result<()> {
    let bytes = size.saturating_mul(size_of::<Slot>());
    device.check_alloc(DType::UInt8, &Shape::from([bytes]))
}

impl TensorArray {
    pub(super) fn new(
        device: &Device,
        spec: Spec,
        size: usize,
        element_shape: PartialShape,
        dynamic: bool,
    ) -> Result<TensorArray> {
        check_size(device, size)?;
        let state = State {
            slots: vec![Slot::default(); size],
            element_shape,
            dynamic,
            marked: None,
            closed: false,
        };
        Ok(TensorArray {
            spec,
            state: Mutex::new(state),
        })
    }

    /// An array for the gradients of this one, whose elements have the dimensions `outer` before
    /// those of this one's. From now on this one's size is fixed.
    pub(super) fn gradients(
        &self,
        device: &Device,
        name: String,
        outer: &[usize],
    ) -> Result<TensorArray> {
        let mut state = self.state.lock();
        state.dynamic = false;
        self.check_open(&state)?;
        check_size(device, state.slots.len())?;
        let slots = state.slots.iter().map(|slot| Slot {
            shape: outer.iter().chain(slot.shape.dims()).copied().collect(),
            written: slot.written,
            ..Slot::default()
        });
        let spec = Spec {
            name,
            dtype: self.spec.dtype,
            identical_shapes: self.spec.identical_shapes,
            clear_after_read: true,
            gradient: true,
        };
        let gradients = State {
            slots: slots.collect(),
            element_shape: prepend(outer, &state.element_shape),
            dynamic: false,
            marked: state.marked,
            closed: false,
        };
        Ok(TensorArray {
            spec,
            state: Mutex::new(gradients),
        })
    }

    /// Number of slots.
    pub(super) fn size(&self) -> Result<usize> {
        let state = self.state.lock();
        self.check_open(&state)?;
        Ok(state.slots.len())
    }

    /// Number of slots to pack or concatenate.
    pub(super) fn packed_size(&self) -> Result<usize> {
        let state = self.state.lock();
        self.check_open(&state)?;
        let size = state.slots.len();
        Ok(match state.marked {
            Some(marked) if self.spec.gradient => marked.min(size),
            _ => size,
        })
    }

    /// Notes that a tensor is cut into the first `size` slots.
    pub(super) fn mark(&self, size: usize) {
        if !self.spec.gradient {
            self.state.lock().marked = Some(size);
        }
    }

    /// Whether writes may make it larger.
    pub(super) fn is_dynamic(&self) -> bool {
        self.state.lock().dynamic
    }

    /// Adds knowledge of the shape of its elements.
    pub(super) fn refine_shape(&self, shape: &PartialShape) -> Result<()> {
        let mut state = self.state.lock();
        state.element_shape = merge(&state.element_shape, shape)?;
        Ok(())
    }

    /// Drops everything; only closing again is possible from now on.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.slots.clear();
        state.closed = true;
    }

    /// Writes one element.
    pub(super) fn write(&self, ctx: &OpContext<'_>, index: i64, value: Tensor) -> Result<()> {
        self.write_to(ctx, &mut self.state.lock(), index, value)
    }

    /// Writes many elements, up to the first that is refused.
    pub(super) fn write_many(
        &self,
        ctx: &OpContext<'_>,
        elements: impl IntoIterator<Item = (i64, Result<Tensor>)>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        for (index, value) in elements {
            self.write_to(ctx, &mut state, index, value?)?;
        }
        Ok(())
    }

    /// Reads elements, up to the first that is refused.
    pub(super) fn read(
        &self,
        ctx: &OpContext<'_>,
        indices: impl IntoIterator<Item = i64>,
    ) -> Result<Vec<Tensor>> {
        let mut state = self.state.lock();
        indices
            .into_iter()
            .map(|i| self.read_from(ctx, &mut state, i))
            .collect()
    }

    fn check_open(&self, state: &State) -> Result<()> {
        if state.closed {
            return Err(Status::invalid_argument(format!(
                "TensorArray {} has already been closed.",
                self.spec.name
            )));
        }
        Ok(())
    }

    fn refused(&self, what: String) -> Status {
        Status::invalid_argument(format!("TensorArray {}: {what}", self.spec.name))
    }

    fn write_to(
        &self,
        ctx: &OpContext<'_>,
        state: &mut State,
        index: i64,
        value: Tensor,
    ) -> Result<()> {
        self.check_open(state)?;
        let size = state.slots.len();
        let at = usize::try_from(index).ok();
        let Some(at) = at.filter(|&at| at < size || state.dynamic) else {
            return Err(self.refused(format!(
                "Tried to write to index {index} but array is not resizeable and size is: {size}"
            )));
        };
        if at >= size {
            check_size(ctx.device(), at + 1)?;
            state.slots.resize(at + 1, Slot::default());
        }
        let cannot = |why: String| {
            Err(self.refused(format!(
                "Could not write to TensorArray index {index} because {why}"
            )))
        };
        if !state.element_shape.admits(value.shape()) {
            return cannot(format!(
                "the value shape is {} which is incompatible with the TensorArray's inferred element shape: {} (consider setting infer_shape=False).",
                value.shape(),
                state.element_shape
            ));
        }
        if self.spec.identical_shapes && state.element_shape.to_shape().is_none() {
            state.element_shape = value.shape().into();
        }
        let slot = &mut state.slots[at];
        if slot.read {
            return cannot("it has already been read.".into());
        }
        if slot.written && !self.spec.gradient {
            return cannot("it has already been written to.".into());
        }
        if !slot.written {
            slot.shape = value.shape().clone();
            slot.tensor = Some(value);
            slot.written = true;
            return Ok(());
        }
        if *value.shape() != slot.shape {
            return Err(self.refused(format!(
                "Could not aggregate to TensorArray index {index} because the existing shape is {} but the new input shape is {}.",
                slot.shape,
                value.shape()
            )));
        }
        slot.tensor = Some(match slot.tensor.take() {
            Some(sum) if sum.num_elements() > 0 => add(ctx, sum, value)?,
            _ => value,
        });
        Ok(())
    }

    fn read_from(&self, ctx: &OpContext<'_>, state: &mut State, index: i64) -> Result<Tensor> {
        self.check_open(state)?;
        let size = state.slots.len();
        let slot = usize::try_from(index).ok();
        let Some(slot) = slot.and_then(|at| state.slots.get_mut(at)) else {
            return Err(Status::invalid_argument(format!(
                "Tried to read from index {index} but array size is: {size}"
            )));
        };
        if slot.cleared {
            return Err(self.refused(format!(
                "Could not read index {index} twice because it was cleared after a previous read (perhaps try setting clear_after_read = false?)."
            )));
        }
        if slot.tensor.is_none() {
            if !slot.written {
                slot.shape = state.element_shape.to_shape().ok_or_else(|| {
                    self.refused(format!(
                        "Could not read from TensorArray index {index}.  Furthermore, the element shape is not fully defined: {}.  It is possible you are working with a resizeable TensorArray and stop_gradients is not allowing the gradients to be written.  If you set the full element_shape property on the forward TensorArray, the proper all-zeros tensor will be returned instead of incurring this error.",
                        state.element_shape
                    ))
                })?;
            }
            slot.tensor = Some(zeros(ctx, self.spec.dtype, &slot.shape)?);
        }
        slot.read = true;
        let value = if self.spec.clear_after_read {
            slot.cleared = true;
            slot.tensor.take()
        } else {
            slot.tensor.clone()
        };
        value.ok_or_else(|| Status::internal("a slot lost its tensor"))
    }
}

fn zeros(ctx: &OpContext<'_>, dtype: DType, shape: &Shape) -> Result<Tensor> {
    if dtype.size().is_none() {
        return Err(Status::invalid_argument(format!(
            "tensor_array::TensorSetZero type not supported: {dtype}"
        )));
    }
    ctx.zeros(dtype, shape)
}

fn add(ctx: &OpContext<'_>, sum: Tensor, value: Tensor) -> Result<Tensor> {
    let dtype = sum.dtype();
    if !crate::types::NUMBERS.contains(&dtype) {
        return Err(Status::invalid_argument(format!(
            "tensor_array::AddToTensor type not supported: {dtype}"
        )));
    }
    crate::math::sum(ctx, dtype, vec![sum, value])
}
