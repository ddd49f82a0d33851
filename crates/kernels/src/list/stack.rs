//! Stacks: what the forward part of a loop leaves for its gradient.

use super::step_handle::StepHandle;
use crate::args;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry, Resource};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

const TYPE: &str = "N10tensorflow5StackE";

/// Numbers the stacks of the process, as their names show.
static NEXT: AtomicU64 = AtomicU64::new(0);

pub(super) fn register(r: &mut Registry) {
    for op in ["Stack", "StackV2"] {
        r.add(op, create);
    }
    for op in ["StackPush", "StackPushV2"] {
        r.add(op, push);
    }
    for op in ["StackPop", "StackPopV2"] {
        r.add(op, pop);
    }
    for op in ["StackClose", "StackCloseV2"] {
        r.add(op, close);
    }
}

struct Stack {
    name: String,
    dtype: DType,
    max_size: usize,
    /// `None` once closed.
    elements: Mutex<Option<Vec<Tensor>>>,
}

impl Resource for Stack {
    fn type_name(&self) -> &'static str {
        TYPE
    }
}

impl Stack {
    fn closed(&self) -> Status {
        Status::invalid_argument(format!("Stack[{}] has already been closed.", self.name))
    }

    fn push(&self, tensor: Tensor) -> Result<()> {
        let mut elements = self.elements.lock();
        let elements = elements.as_mut().ok_or_else(|| self.closed())?;
        if elements.len() >= self.max_size {
            return Err(Status::invalid_argument(format!(
                "Stack[{}] overflowed its max_size ({})",
                self.name, self.max_size
            )));
        }
        elements.push(tensor);
        Ok(())
    }

    fn pop(&self) -> Result<Tensor> {
        let mut elements = self.elements.lock();
        let elements = elements.as_mut().ok_or_else(|| self.closed())?;
        elements.pop().ok_or_else(|| {
            Status::invalid_argument(format!("Stack[{}] is empty when calling Pop().", self.name))
        })
    }
}

fn handle(b: &KernelBuilder<'_>) -> StepHandle {
    StepHandle::new(b, TYPE, "Stack handle must have two elements")
}

fn create(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    let dtype = b.attrs().dtype("elem_type")?;
    let name = match &*b.attrs().name("stack_name")? {
        "" => b.node.name.to_string(),
        name => name.to_owned(),
    };
    Built::cheap(move |ctx| {
        let mut max_size = i32::MAX as usize;
        if ctx.num_inputs() > 0 {
            let given = ctx.input(0)?;
            if !given.shape().is_scalar() {
                return Err(Status::invalid_argument(format!(
                    "Stack size must be a scalar, but had shape: {}",
                    given.shape()
                )));
            }
            max_size = usize::try_from(args::int(given)?).unwrap_or(max_size);
        }
        let name = format!("{name}_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let key = format!("_stacks{name}");
        ctx.env().step_resources.find_or_create("", &key, || {
            Ok(Stack {
                name: name.clone(),
                dtype,
                max_size,
                elements: Mutex::new(Some(Vec::new())),
            })
        })?;
        handle.emit(ctx, "_stacks", &name)
    })
}

fn push(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    Built::cheap(move |ctx| {
        let stack = handle.find::<Stack>(ctx)?;
        let element = ctx.input(1)?.clone();
        if element.dtype() != stack.dtype {
            return Err(Status::invalid_argument(format!(
                "Must have type {} but got {}",
                stack.dtype.number(),
                element.dtype().number()
            )));
        }
        stack.push(element)?;
        ctx.forward(1, 0);
        Ok(())
    })
}

fn pop(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    let dtype = b.output_type(0)?;
    Built::cheap(move |ctx| {
        let element = handle.find::<Stack>(ctx)?.pop()?;
        if element.dtype() != dtype {
            return Err(Status::internal(format!(
                "Output 0 of type {} does not match declared output type {dtype} for node {{{{node {}}}}}",
                element.dtype(),
                ctx.name()
            )));
        }
        ctx.set_output(0, element);
        Ok(())
    })
}

fn close(b: &KernelBuilder<'_>) -> Result<Built> {
    let handle = handle(b);
    Built::cheap(move |ctx| {
        *handle.find::<Stack>(ctx)?.elements.lock() = None;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::floats;

    #[test]
    fn the_last_element_comes_first_and_limits_hold() {
        let stack = Stack {
            name: "s_7".into(),
            dtype: DType::Float,
            max_size: 2,
            elements: Mutex::new(Some(Vec::new())),
        };
        stack.push(floats(&[1.0])).unwrap();
        stack.push(floats(&[2.0])).unwrap();
        let full = stack.push(floats(&[3.0])).unwrap_err();
        assert_eq!(full.message, "Stack[s_7] overflowed its max_size (2)");
        assert_eq!(stack.pop().unwrap().as_slice::<f32>().unwrap(), [2.0]);
        assert_eq!(stack.pop().unwrap().as_slice::<f32>().unwrap(), [1.0]);
        let empty = stack.pop().unwrap_err();
        assert_eq!(empty.message, "Stack[s_7] is empty when calling Pop().");
        *stack.elements.lock() = None;
        let closed = stack.push(floats(&[1.0])).unwrap_err();
        assert_eq!(closed.message, "Stack[s_7] has already been closed.");
    }
}
