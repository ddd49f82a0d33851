//! Runs one kernel: notes it in the trace and turns its panic into an error.

use downpour_graph::{Result, Status};
use downpour_runtime::{Kernel, NodeInfo, NodeTrace, OpContext, StepEnv, Trace, Value};
use downpour_tensor::account::{self, Refused, Stopped};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Runs a kernel, notes it in the step's trace and turns its panic into an error.
pub(crate) fn run_kernel(
    kernel: &dyn Kernel,
    env: &Arc<StepEnv>,
    info: &NodeInfo,
    scheduled_ns: i64,
    frame_iter: (u64, u64),
    (inputs, outputs): (&mut [Option<Value>], &mut [Option<Value>]),
) -> Result<()> {
    let mut ctx = OpContext::new(env, info, inputs, outputs, frame_iter);
    let start = env.trace.as_ref().map(|t| t.now());
    let outcome = account::in_kernel(info.can_stop, || {
        catch_unwind(AssertUnwindSafe(|| kernel.compute(&mut ctx)))
    });
    if let (Some(trace), Some(start)) = (&env.trace, start) {
        record(trace, info, scheduled_ns, start, ctx.values().1);
    }
    outcome.unwrap_or_else(|panic| {
        if let Some(refused) = panic.downcast_ref::<Refused>() {
            let (bytes, device) = (refused.bytes, &env.device);
            let what = format!(
                "OOM when allocating tensor of {bytes} bytes on {} by allocator cpu",
                device.name
            );
            return Err(device.exhausted(&what, refused));
        }
        if panic.is::<Stopped>() {
            let reason = env.cancellation.reason();
            return Err(reason.unwrap_or_else(|| Status::cancelled("Step was cancelled")));
        }
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Status::internal(format!(
            "the kernel of op {} panicked (please report this): {text}",
            info.node.op_name()
        )))
    })
}

pub(crate) fn record(
    trace: &Trace,
    info: &NodeInfo,
    scheduled_ns: i64,
    start_ns: i64,
    outputs: &[Option<Value>],
) {
    let outputs = outputs
        .iter()
        .enumerate()
        .filter_map(|(i, v)| match v {
            Some(Value::Tensor(t)) => Some((i as u32, t.dtype(), t.shape().clone(), t.byte_len())),
            _ => None,
        })
        .collect();
    trace.record(NodeTrace {
        name: info.name.clone(),
        op: info.node.op_name().to_owned(),
        inputs: info.input_names.clone(),
        scheduled_ns: if scheduled_ns == 0 {
            start_ns
        } else {
            scheduled_ns
        },
        start_ns,
        end_ns: trace.now(),
        thread: thread_number(),
        outputs,
    });
}

fn thread_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|n| *n)
}
