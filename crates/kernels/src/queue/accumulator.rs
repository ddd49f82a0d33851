//! Conditional accumulators: gradients are added as they come, those computed too long ago are
//! dropped, and whoever takes waits until enough have come.

use super::gradient::{ACCUMULATED, Gradient, Rows};
use super::shared_handle::{Access, Home};
use super::wait::{Done, Ended, Waiting, tell};
use downpour_graph::{Result, Status};
use downpour_runtime::{
    AsyncOp, Built, Cancellation, KernelBuilder, OpContext, Registry, Resource,
};
use downpour_tensor::{DType, PartialShape, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

/// TensorFlow's C++ type of all accumulators.
const ACCUMULATOR_TYPE: &str = "N10tensorflow26ConditionalAccumulatorBaseE";

pub(super) fn register(r: &mut Registry) {
    let types = &[("dtype", ACCUMULATED)];
    for op in ["ConditionalAccumulator", "ResourceConditionalAccumulator"] {
        r.add_typed(op, types, |b| accumulator(b, false));
    }
    r.add_typed("SparseConditionalAccumulator", types, |b| {
        accumulator(b, true)
    });
    for op in [
        "AccumulatorApplyGradient",
        "ResourceAccumulatorApplyGradient",
    ] {
        r.add_typed(op, types, |b| apply(b, false));
    }
    r.add_typed("SparseAccumulatorApplyGradient", types, |b| apply(b, true));
    for op in ["AccumulatorTakeGradient", "ResourceAccumulatorTakeGradient"] {
        r.add_typed(op, types, |b| take(b, false));
    }
    r.add_typed("SparseAccumulatorTakeGradient", types, |b| take(b, true));
    for op in [
        "AccumulatorSetGlobalStep",
        "ResourceAccumulatorSetGlobalStep",
    ] {
        r.add(op, set_global_step);
    }
    for op in [
        "AccumulatorNumAccumulated",
        "ResourceAccumulatorNumAccumulated",
    ] {
        r.add(op, |b| {
            let access = Access::new(b, ACCUMULATOR_TYPE);
            Built::cheap(move |ctx| {
                let count = access.of_ctx::<Accumulator>(ctx)?.state.lock().count;
                ctx.set_output(0, Tensor::scalar(i32::try_from(count).unwrap_or(i32::MAX)));
                Ok(())
            })
        });
    }
}

/// What a `Take` gets: the sum of so many gradients.
type Taken = (Gradient, usize);

/// An accumulator.
pub(super) struct Accumulator {
    dtype: DType,
    shape: PartialShape,
    mean: bool,
    sparse: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Gradients of earlier steps are dropped.
    step: i64,
    count: usize,
    sum: Option<Gradient>,
    /// How many gradients each `Take` waits for.
    takes: Waiting<usize, Taken>,
}

impl Resource for Accumulator {
    fn type_name(&self) -> &'static str {
        ACCUMULATOR_TYPE
    }
}

impl Accumulator {
    fn new(dtype: DType, shape: PartialShape, mean: bool, sparse: bool) -> Accumulator {
        Accumulator {
            dtype,
            shape,
            mean,
            sparse,
            state: Mutex::default(),
        }
    }

    /// Adds the gradient that `read` gives, unless it is stale.
    fn apply(
        &self,
        step: i64,
        given: Option<&[i64]>,
        read: impl FnOnce() -> Result<Gradient>,
    ) -> Result<()> {
        let ended = {
            let mut state = self.state.lock();
            if step < state.step {
                return Ok(());
            }
            let gradient = read()?;
            gradient.check(&self.shape, state.sum.as_ref(), given)?;
            match &mut state.sum {
                Some(sum) => sum.add(gradient)?,
                empty => *empty = Some(gradient),
            }
            state.count += 1;
            flush(&mut state)
        };
        tell(ended);
        Ok(())
    }

    /// Takes the sum once there are `wanted` gradients.
    fn take(self: &Arc<Self>, wanted: usize, cancellation: &Arc<Cancellation>, done: Done<Taken>) {
        let (refused, ended) = {
            let mut state = self.state.lock();
            let this = self.clone();
            let cancel = move |id| this.cancel(id);
            let refused = state.takes.push(wanted, cancellation, cancel, done).err();
            (refused, flush(&mut state))
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(cancelled()));
        }
    }

    fn cancel(&self, id: u64) {
        let ended = {
            let mut state = self.state.lock();
            let gone = state.takes.remove(id).map(|a| a.end(Err(cancelled())));
            let mut ended = flush(&mut state);
            ended.extend(gone);
            ended
        };
        tell(ended);
    }
}

/// Serves the takes that have what they wait for, in order.
fn flush(state: &mut State) -> Vec<Ended<Taken>> {
    let mut ended = Vec::new();
    while let Some(&mut wanted) = state.takes.front_mut()
        && wanted <= state.count
        && let Some(sum) = state.sum.take()
        && let Some(attempt) = state.takes.pop()
    {
        let count = std::mem::take(&mut state.count);
        state.step = state.step.wrapping_add(1);
        ended.push(attempt.end(Ok((sum, count))));
    }
    ended
}

fn cancelled() -> Status {
    Status::cancelled("TakeGrad operation was cancelled")
}

fn accumulator(b: &KernelBuilder<'_>, sparse: bool) -> Result<Built> {
    let home = Home::<Accumulator>::new(b, ACCUMULATOR_TYPE)?;
    let (dtype, shape) = (b.attrs().dtype("dtype")?, b.attrs().shape("shape")?.clone());
    let mean = b.attrs().str("reduction_type")? == "MEAN";
    Built::cheap(move |ctx| {
        // Whatever a sharing node declares, the first one's declaration stands.
        home.get(ctx, || {
            Ok(Accumulator::new(dtype, shape.clone(), mean, sparse))
        })?;
        home.emit(ctx)
    })
}

/// Refuses an op that does not fit the accumulator: both are declared apart.
fn check_fit(accumulator: &Accumulator, dtype: DType, sparse: bool) -> Result<()> {
    let kind = |sparse| if sparse { "sparse" } else { "dense" };
    if accumulator.dtype == dtype && accumulator.sparse == sparse {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "Signature mismatch, have: a {} gradient of {dtype} expected: a {} gradient of {}",
        kind(sparse),
        kind(accumulator.sparse),
        accumulator.dtype
    )))
}

fn not_scalar(what: &str, tensor: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "Argument {what} must be scalar, but had bad shape {}",
        tensor.shape()
    ))
}

fn apply(b: &KernelBuilder<'_>, sparse: bool) -> Result<Built> {
    let access = Access::new(b, ACCUMULATOR_TYPE);
    let dtype = b.attrs().dtype("dtype")?;
    let has_shape = sparse && b.attrs().bool("has_known_shape")?;
    Built::cheap(move |ctx| {
        let accumulator = access.of_ctx::<Accumulator>(ctx)?;
        check_fit(&accumulator, dtype, sparse)?;
        let step = ctx.input(1)?;
        if step.rank() != 0 {
            return Err(not_scalar("local_step", step));
        }
        let step = step.scalar_value::<i64>()?;
        if !sparse {
            let gradient = ctx.take(2)?;
            return accumulator.apply(step, None, || Ok(Gradient::Dense(gradient)));
        }
        let given = match has_shape {
            true => Some(ctx.input(4)?.as_slice::<i64>()?.to_vec()),
            false => None,
        };
        let values = ctx.take(3)?;
        let indices = ctx.input(2)?;
        let read = || Ok(Gradient::Sparse(Rows::new(indices, values)?));
        accumulator.apply(step, given.as_deref(), read)
    })
}

fn take(b: &KernelBuilder<'_>, sparse: bool) -> Result<Built> {
    let access = Access::new(b, ACCUMULATOR_TYPE);
    let dtype = b.attrs().dtype("dtype")?;
    Built::waiting(move |op| {
        let ready = access.of_op::<Accumulator>(&op).and_then(|accumulator| {
            check_fit(&accumulator, dtype, sparse)?;
            Ok((accumulator, required(&op)?))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((accumulator, wanted)) => {
                let cancellation = op.env().cancellation.clone();
                let from = accumulator.clone();
                let done = Box::new(move |r: Result<Taken>| {
                    op.finish(
                        r.and_then(|(sum, count)| sum.outputs(&from.shape, from.mean, count)),
                    );
                });
                accumulator.take(wanted, &cancellation, done);
            }
        }
    })
}

/// How many gradients a `Take` waits for.
fn required(op: &AsyncOp) -> Result<usize> {
    let tensor = op.input(1)?;
    if tensor.rank() != 0 {
        return Err(not_scalar("num_required", tensor));
    }
    let n = tensor.scalar_value::<i32>()?;
    match usize::try_from(n) {
        Ok(n) if n > 0 => Ok(n),
        _ => Err(Status::invalid_argument(format!(
            "Argument num_required must be positive, but was {n}"
        ))),
    }
}

fn set_global_step(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, ACCUMULATOR_TYPE);
    Built::cheap(move |ctx: &mut OpContext<'_>| {
        let accumulator = access.of_ctx::<Accumulator>(ctx)?;
        let step = ctx.input(1)?;
        if step.rank() != 0 {
            // TensorFlow's text names another argument; clients see that one.
            return Err(not_scalar("num_required", step));
        }
        accumulator.state.lock().step = step.scalar_value()?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn make(mean: bool) -> Arc<Accumulator> {
        let shape = PartialShape::unknown();
        Arc::new(Accumulator::new(DType::Float, shape, mean, false))
    }

    fn give(a: &Accumulator, step: i64, value: f32) {
        a.apply(step, None, || Ok(Gradient::Dense(Tensor::scalar(value))))
            .unwrap();
    }

    fn take(a: &Arc<Accumulator>, c: &Arc<Cancellation>, n: usize) -> Receiver<Result<f32>> {
        let (tx, rx) = channel();
        let from = a.clone();
        let value = move |(sum, count): Taken| {
            let out = sum.outputs(&from.shape, from.mean, count).unwrap();
            out[0].scalar_value().unwrap()
        };
        let done = move |r: Result<Taken>| tx.send(r.map(value)).unwrap();
        a.take(n, c, Box::new(done));
        rx
    }

    #[test]
    fn takes_wait_their_turn_and_make_earlier_gradients_stale() {
        let (a, c) = (make(true), Cancellation::new());
        let (two, one) = (take(&a, &c, 2), take(&a, &c, 1));
        give(&a, 0, 1.0);
        assert!(two.try_recv().is_err() && one.try_recv().is_err());
        give(&a, 0, 2.0);
        assert_eq!(two.try_recv().unwrap().unwrap(), 1.5);
        give(&a, 0, 3.0);
        assert!(one.try_recv().is_err());
        give(&a, 1, 7.0);
        assert_eq!(one.try_recv().unwrap().unwrap(), 7.0);
    }

    #[test]
    fn a_take_gets_all_that_has_come_and_a_sum_is_not_divided() {
        let (a, c) = (make(false), Cancellation::new());
        for value in [1.0, 2.0, 4.0] {
            give(&a, 5, value);
        }
        assert_eq!(take(&a, &c, 1).try_recv().unwrap().unwrap(), 7.0);
    }

    #[test]
    fn a_cancelled_take_makes_way_for_the_next() {
        let (a, mine, other) = (make(true), Cancellation::new(), Cancellation::new());
        let (first, second) = (take(&a, &mine, 3), take(&a, &other, 1));
        give(&a, 0, 4.0);
        assert!(second.try_recv().is_err());
        mine.cancel(Status::cancelled("stop"));
        let e = first.try_recv().unwrap().unwrap_err();
        assert_eq!(e.message, "TakeGrad operation was cancelled");
        assert_eq!(second.try_recv().unwrap().unwrap(), 4.0);
    }
}
