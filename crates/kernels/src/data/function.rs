//! Functions of the user inside datasets: what a dataset captures, and what a walk calls.

use super::dataset::{Dataset, Element, Iter, Place};
use super::task::promise;
use downpour_formats::data_options;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Callee, Cancellation, FunctionHandle, KernelBuilder, OpContext, StepEnv};
use downpour_tensor::{DType, Tensor};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A function with the inputs it has captured, as a dataset keeps it.
pub(super) struct Captured {
    callee: Callee,
    handle: FunctionHandle,
}

impl Captured {
    /// The function `callee` with the inputs `captured` of the op.
    pub(super) fn new(
        ctx: &OpContext<'_>,
        callee: &Callee,
        captured: Range<usize>,
    ) -> Result<Captured> {
        let captured = captured.map(|i| ctx.input(i).cloned());
        Captured::of(ctx.env(), callee, captured.collect::<Result<_>>()?)
    }

    /// The function `callee` with these inputs.
    pub(super) fn of(env: &StepEnv, callee: &Callee, captured: Vec<Tensor>) -> Result<Captured> {
        Ok(Captured {
            callee: callee.clone(),
            handle: callee.handle(env, captured)?,
        })
    }

    pub(super) fn is_stateful(&self) -> bool {
        self.handle.is_stateful()
    }

    /// The function for one walk. What has state has it once for each iterator, so that a walk
    /// started anew draws the same random numbers.
    pub(super) fn at(&self, place: &Place) -> Result<Fun> {
        let handle = if self.handle.is_stateful() {
            let library = place.functions(&**self.handle.library());
            let captured = self.handle.captured().clone();
            self.callee.handle_in(library, &place.device, captured)?
        } else {
            self.handle.clone()
        };
        Ok(Fun {
            work: Work::Function(handle),
            context: None,
        })
    }
}

/// What a user calls a dataset: the name in its metadata, else its type and a number.
pub(super) fn dataset_name(b: &KernelBuilder<'_>) -> Result<Naming> {
    let given = match b.attrs().find("metadata") {
        Some(_) => data_options::metadata_name(b.attrs().bytes("metadata")?),
        None => None,
    };
    Ok(Naming {
        given,
        op: b.node.op_name().to_owned(),
    })
}

/// Gives each dataset that an op makes its name.
pub(super) struct Naming {
    given: Option<String>,
    op: String,
}

impl Naming {
    pub(super) fn next(&self) -> String {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        match &self.given {
            Some(name) => name.clone(),
            None => format!("{}:{}", self.op, NUMBER.fetch_add(1, Ordering::Relaxed)),
        }
    }
}

/// What is done with an element where no graph says it.
pub(super) type Native = Arc<dyn Fn(Element) -> Result<Vec<Tensor>> + Send + Sync>;

#[derive(Clone)]
enum Work {
    Function(FunctionHandle),
    Native(Native),
}

/// A function as a walk calls it.
#[derive(Clone)]
pub(super) struct Fun {
    work: Work,
    /// What an error says before its text.
    context: Option<Arc<str>>,
}

impl Fun {
    /// Work of our own.
    pub(super) fn native(work: Native) -> Fun {
        Fun {
            work: Work::Native(work),
            context: None,
        }
    }

    /// The same with errors that say which dataset's function it was, and where.
    pub(super) fn of(mut self, dataset: &str, place: &Place) -> Fun {
        let context = format!(
            "Error in user-defined function passed to {dataset} transformation with iterator: {}: ",
            place.prefix
        );
        self.context = Some(context.into());
        self
    }

    /// Calls the function. Dropping the future cancels the call.
    pub(super) async fn call(&self, args: Element) -> Result<Vec<Tensor>> {
        let handle = match &self.work {
            Work::Function(handle) => handle,
            Work::Native(work) => return work(args),
        };
        let cancellation = Cancellation::new();
        let under_way = UnderWay(Some(cancellation.clone()));
        let (fulfil, outcome) = promise();
        handle.call(args, &cancellation, move |outcome| fulfil.set(outcome));
        let outcome = outcome.await;
        under_way.finish();
        outcome.map_err(|e| match &self.context {
            Some(context) => Status {
                message: format!("{context}{}", e.message),
                ..e
            },
            None => e,
        })
    }

    /// Calls a function that makes a dataset, and starts a walk over it at `place`.
    pub(super) async fn walk(&self, args: Element, place: &Place) -> Result<Iter> {
        let made = self.call(args).await?;
        let [dataset] = made.as_slice() else {
            return Err(no_dataset());
        };
        if dataset.dtype() != DType::Variant || !dataset.shape().is_scalar() {
            return Err(no_dataset());
        }
        Dataset::from_tensor(dataset)?.iterate(place)
    }
}

fn no_dataset() -> Status {
    Status::invalid_argument("Function must return a single scalar of dtype DT_VARIANT.")
}

/// A call under way; dropped before its end, it cancels the call.
struct UnderWay(Option<Arc<Cancellation>>);

impl UnderWay {
    fn finish(mut self) {
        self.0 = None;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Some(call) = &self.0 {
            call.cancel(Status::cancelled("Function was cancelled"));
        }
    }
}

/// What a map makes of its function's outcome: one that is out of range ends the walk, unless
/// the map promised to give as many elements as it takes.
pub(super) fn mapped(outcome: Result<Vec<Tensor>>, preserve: bool) -> Result<Option<Element>> {
    match outcome {
        Ok(element) => Ok(Some(element)),
        Err(e) if e.code == Code::OutOfRange && preserve => Err(Status::invalid_argument(format!(
            "Function invocation produced OutOfRangeError: {}",
            e.message
        ))),
        Err(e) if e.code == Code::OutOfRange => Ok(None),
        Err(e) => Err(e),
    }
}

/// The one scalar that a function was to return.
pub(super) fn only<T: downpour_tensor::Element>(results: &[Tensor], refused: &str) -> Result<T> {
    match results {
        [one] if one.dtype() == T::DTYPE && one.num_elements() == 1 => Ok(one.scalar_value()?),
        _ => Err(Status::invalid_argument(refused)),
    }
}
