//! `_Send` and `_Recv`: hand-over of a tensor through the step's rendezvous, or from the task
//! that has it. Numbered edges between tasks are the executor's.

use crate::list::travel::revived;
use downpour_graph::{DeviceName, Result, Status};
use downpour_runtime::{
    Built, Delivery, KernelBuilder, NodeInfo, Receiver, Registry, StepEnv, Value, Variable,
};
use smallvec::smallvec;
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    for op in ["_Send", "_HostSend"] {
        r.add(op, send);
    }
    for op in ["_Recv", "_HostRecv"] {
        r.add(op, recv);
    }
}

/// The part of a rendezvous key that is the same for every run of a node.
fn key_prefix(b: &KernelBuilder<'_>) -> Result<String> {
    let attrs = b.attrs();
    Ok(format!(
        "{};{:016x};{};{}",
        attrs.str("send_device")?,
        attrs.int("send_device_incarnation")? as u64,
        attrs.str("recv_device")?,
        attrs.str("tensor_name")?
    ))
}

fn send(b: &KernelBuilder<'_>) -> Result<Built> {
    let prefix = key_prefix(b)?;
    let is_pushed = is_pushed(b);
    Built::cheap(move |ctx| {
        let (frame, iter) = ctx.frame_iter();
        let key = format!("{prefix};{frame}:{iter}");
        let env = ctx.env();
        if let Ok(variable) = ctx.input_ref(0) {
            return offer_reading(env, &key, variable, ctx.info());
        }
        // A dead input arrives as no input at all.
        let tensor = ctx.take(0).ok();
        match &env.remote {
            Some(remote) if is_pushed => remote.push(env, &key, Delivery { tensor }),
            _ => env.rendezvous.send(&key, Delivery { tensor }),
        }
    })
}

/// Offers a variable that is read when its receiver asks for it. TensorFlow's partitioner lets only the receiver wait
/// for what happens before the read.
fn offer_reading(
    env: &Arc<StepEnv>,
    key: &str,
    variable: Arc<Variable>,
    info: &NodeInfo,
) -> Result<()> {
    let step = env.step_id;
    let source = info.input_names.first().cloned().unwrap_or_default();
    let read = move |receiver: Receiver| {
        receiver(match variable.read_by(step) {
            Some(tensor) => Ok(Delivery {
                tensor: Some(tensor),
            }),
            None => Err(Status::failed_precondition(format!(
                "Attempting to use uninitialized value {source}"
            ))),
        });
    };
    env.rendezvous.offer(key, Box::new(read))
}

fn recv(b: &KernelBuilder<'_>) -> Result<Built> {
    let prefix = key_prefix(b)?;
    let dtype = b.attrs().dtype("tensor_type")?;
    let is_pushed = is_pushed(b);
    let is_remote = !is_same_task(b.attrs().str("send_device")?, &b.device.name) && !is_client(b)?;
    Built::waiting(move |op| {
        let (frame, iter) = op.frame_iter();
        let key = format!("{prefix};{frame}:{iter}");
        let env = op.env().clone();
        let finish = move |delivery: Result<Delivery>| {
            op.finish_values(delivery.and_then(|d| match d.tensor {
                None => Ok(smallvec![None]),
                Some(t) if t.dtype() == dtype => Ok(smallvec![Some(Value::Tensor(revived(t)?))]),
                Some(t) => Err(Status::invalid_argument(format!(
                    "a tensor of type {} was sent where {dtype} is received",
                    t.dtype()
                ))),
            }));
        };
        match &env.remote {
            Some(remote) if is_pushed => remote.await_pushed(&env, &key, Box::new(finish)),
            Some(remote) if is_remote => remote.recv(&env, &key, Box::new(finish)),
            _ => env.rendezvous.recv(&key, finish),
        }
    })
}

/// Whether the sender sends unasked, as the master has agreed with both tasks.
fn is_pushed(b: &KernelBuilder<'_>) -> bool {
    b.attrs().bool("_pushed").unwrap_or(false)
}

/// Whether the value comes from the client, wherever its device is said to be.
fn is_client(b: &KernelBuilder<'_>) -> Result<bool> {
    b.attrs().bool("client_terminated")
}

fn is_same_task(a: &str, b: &str) -> bool {
    let task = |name: &str| DeviceName::parse(name).map(|d| d.task_name());
    matches!((task(a), task(b)), (Ok(a), Ok(b)) if a == b)
}
