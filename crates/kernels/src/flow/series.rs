//! One call of a function after another, as a loop does, without a stack that grows and without
//! a thread that waits.
//!
//! A call may end before it returns (then the series goes on here) or later on another thread
//! (then it goes on there). A long series gives its thread back now and then.

use downpour_graph::Result;
use downpour_runtime::{Callee, Caller};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// Calls on the thread of whoever started the series.
const BORROWED_CALLS: u32 = 64;

/// Calls on an executor thread before others get their turn.
const TURN_CALLS: u32 = 4096;

/// What is called next.
pub(crate) trait Series: Send + Sized + 'static {
    /// Who calls.
    fn caller(&self) -> &Arc<Caller>;

    /// The next call, given the outcome of the last one; `None` ends the series.
    fn next(&mut self, last: Option<Result<Vec<Tensor>>>) -> Option<(Callee, Vec<Tensor>)>;
}

/// Where a call and the series it belongs to meet again.
enum Meeting<S> {
    Nobody,
    /// The call is over, the series still on its way here.
    Outcome(Result<Vec<Tensor>>),
    /// The series waits.
    Waiting(S),
}

/// Runs a series from its first call on.
pub(crate) fn run<S: Series>(series: S) {
    go_on(series, None, false);
}

fn go_on<S: Series>(mut series: S, mut last: Option<Result<Vec<Tensor>>>, own_thread: bool) {
    let meeting = Arc::new(Mutex::new(Meeting::Nobody));
    let calls = if own_thread {
        TURN_CALLS
    } else {
        BORROWED_CALLS
    };
    for _ in 0..calls {
        let Some((callee, args)) = series.next(last.take()) else {
            return;
        };
        let (caller, there) = (series.caller().clone(), meeting.clone());
        let done = move |outcome| {
            let mut here = there.lock();
            match std::mem::replace(&mut *here, Meeting::Nobody) {
                Meeting::Waiting(series) => {
                    drop(here);
                    go_on(series, Some(outcome), false);
                }
                _ => *here = Meeting::Outcome(outcome),
            }
        };
        match own_thread {
            true => caller.call_here(&callee, args, done),
            false => caller.call(&callee, args, done),
        }
        let mut here = meeting.lock();
        match std::mem::replace(&mut *here, Meeting::Nobody) {
            Meeting::Outcome(outcome) => last = Some(outcome),
            _ => {
                *here = Meeting::Waiting(series);
                return;
            }
        }
    }
    let device = series.caller().env().device.clone();
    device.spawn(move || go_on(series, last, true));
}
