//! Calls of functions: `PartitionedCall` and its relatives, and what stands in for values of
//! branches that were not taken.

use crate::list::travel::revived;
use downpour_graph::{Attrs, DeviceName, FunctionRef, Result, Status};
use downpour_runtime::{
    AsyncOp, Built, Callee, Caller, KernelBuilder, Registry, RemoteCall, call_op, checked_outputs,
};
use downpour_tensor::{Shape, Tensor};
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    for op in ["PartitionedCall", "StatefulPartitionedCall"] {
        r.add(op, call);
    }
    for op in ["XlaLaunch", "XlaLaunchV2"] {
        r.add(op, launch);
    }
    r.add("RemoteCall", remote_call);
    r.add("SymbolicGradient", symbolic_gradient);
    r.add("FakeParam", fake_param);
    for op in ["PyFunc", "PyFuncStateless", "EagerPyFunc"] {
        r.add(op, py_func);
    }
    r.add("DeviceIndex", device_index);
}

fn call(b: &KernelBuilder<'_>) -> Result<Built> {
    let callee = b.callee("f")?;
    Built::waiting(move |op| match op.caller() {
        Ok(caller) => partitioned_call(op, &callee, &caller),
        Err(e) => op.finish(Err(e)),
    })
}

fn partitioned_call(mut op: AsyncOp, callee: &Callee, caller: &Arc<Caller>) {
    let given = op.inputs.len();
    let args = caller.function(callee).and_then(|f| {
        let wanted = f.arg_types.len();
        if wanted != given {
            return Err(Status::invalid_argument(format!(
                "InstantiateOptions.input_devices must have the same length as the number of arguments: input_devices length = {given} number of arguments = {wanted}"
            )));
        }
        (0..given).map(|i| op.take(i)).collect::<Result<Vec<_>>>()
    });
    let args = match args {
        Ok(args) => args,
        Err(e) => return op.finish(Err(e)),
    };
    let name = callee.name().to_owned();
    caller.call(callee, args, move |outcome| {
        let outcome = match outcome {
            Ok(outputs) => declared(&op, outputs),
            // The outermost call says which function it was; inner ones are part of its body.
            Err(e) if op.env().depth == 0 => Err(Status {
                message: format!(
                    "{{{{function_node {name}}}}} {{{{function_node {name}}}}} {}",
                    e.message
                ),
                ..e
            }),
            Err(e) => Err(e),
        };
        op.finish(outcome);
    });
}

/// A function that TensorFlow would compile first; its arguments are the constants, the others and
/// the resources, in this order.
fn launch(b: &KernelBuilder<'_>) -> Result<Built> {
    let callee = b.callee("function")?;
    Built::waiting(move |op| call_op(op, &callee, 0))
}

/// Refuses results that are not those the node declares.
pub(crate) fn declared(op: &AsyncOp, mut outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let (node, name) = (&op.info().node, &op.info().name);
    for (i, (wanted, _)) in node.output_types.iter().enumerate() {
        let Some(output) = outputs.get(i) else {
            return Err(Status::internal(format!(
                "Missing {i}-th output from {{{{node {name}}}}}"
            )));
        };
        if output.dtype() != *wanted {
            return Err(Status::internal(format!(
                "Output {i} of type {} does not match declared output type {wanted} for node {{{{node {name}}}}}",
                output.dtype()
            )));
        }
    }
    outputs.truncate(node.output_types.len());
    Ok(outputs)
}

/// The gradient of a function: one the library names, or one worked out from its body.
fn symbolic_gradient(b: &KernelBuilder<'_>) -> Result<Built> {
    let mut gradient = FunctionRef {
        name: "SymbolicGradient".to_owned(),
        attrs: Attrs::default(),
    };
    gradient.attrs.set("f", b.attrs().func("f")?.clone());
    let callee = Callee::new(&gradient);
    Built::waiting(move |op| call_op(op, &callee, 0))
}

/// A call on the device that input 0 names; what the name leaves open is as here.
fn remote_call(b: &KernelBuilder<'_>) -> Result<Built> {
    let (callee, function) = (b.callee("f")?, b.attrs().func("f")?.clone());
    let own = DeviceName::parse(&b.device.name).map_err(|e| Status::internal(e.to_string()))?;
    Built::waiting(move |op| {
        let target = op.input(0).and_then(|t| {
            let name = t.as_strings()?.first().cloned().unwrap_or_default();
            let name = String::from_utf8_lossy(&name).into_owned();
            match DeviceName::parse(&name) {
                Ok(wanted) => Ok(wanted.or(&own)),
                Err(_) => Err(Status::invalid_argument(format!(
                    "Could not parse {name} into a device specification."
                ))),
            }
        });
        match target {
            Ok(target) if target.intersects(&own) => call_op(op, &callee, 1),
            Ok(target) if target.task_name() != own.task_name() => {
                call_elsewhere(op, target.to_string(), &function)
            }
            Ok(target) => match op.caller_on(&target.to_string()) {
                Some(Ok(caller)) => call_sibling(op, &callee, &caller),
                Some(Err(e)) => op.finish(Err(e)),
                None => op.finish(Err(Status::invalid_argument(format!(
                    "{target} unknown device."
                )))),
            },
            Err(e) => op.finish(Err(e)),
        }
    })
}

/// A call on another device of this task.
fn call_sibling(mut op: AsyncOp, callee: &Callee, caller: &Arc<Caller>) {
    let args = (1..op.inputs.len()).map(|i| op.take(i));
    match args.collect::<Result<Vec<_>>>() {
        Ok(args) => caller.call(callee, args, move |outcome| {
            let outcome = outcome.and_then(|outputs| checked_outputs(&op, outputs));
            op.finish(outcome);
        }),
        Err(e) => op.finish(Err(e)),
    }
}

fn call_elsewhere(mut op: AsyncOp, target: String, function: &FunctionRef) {
    let env = op.env().clone();
    let Some(remote) = env.remote.clone() else {
        let unknown = Status::invalid_argument(format!("{target} unknown device."));
        return op.finish(Err(unknown));
    };
    let args = (1..op.inputs.len()).map(|i| op.take(i));
    let args = match args.collect::<Result<Vec<_>>>() {
        Ok(args) => args,
        Err(e) => return op.finish(Err(e)),
    };
    let types = op.info().node.output_types.iter();
    let call = RemoteCall {
        target,
        function: function.clone(),
        args,
        ret_types: types.map(|(dtype, _)| *dtype).collect(),
    };
    let done = move |outcome: Result<Vec<Tensor>>| {
        let outcome = outcome
            .and_then(|outputs| outputs.into_iter().map(revived).collect())
            .and_then(|outputs| checked_outputs(&op, outputs));
        op.finish(outcome);
    };
    remote.call(&env, call, Box::new(done));
}

/// A value of the right type for an output that the branch taken does not have; its dimensions
/// that are not known are zero.
fn fake_param(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let dims = b.attrs().shape("shape")?.dims().map(|dims| {
        let dims = dims.iter().map(|d| d.map_or(0, |d| d as i64));
        dims.collect::<Vec<_>>()
    });
    let shape = Shape::checked(dims.unwrap_or_default())?;
    b.device.check_alloc(dtype, &shape)?;
    let value = Tensor::zeros(dtype, shape)?;
    Built::cheap(move |ctx| {
        ctx.set_output(0, value.clone());
        Ok(())
    })
}

/// Python code lives in the client's process: here, as in any other server, it is not found.
fn py_func(b: &KernelBuilder<'_>) -> Result<Built> {
    let token = b.attrs().str("token")?.to_owned();
    Built::cheap(move |_| {
        Err(Status::invalid_argument(format!(
            "ValueError: Could not find callback with key={token} in the registry."
        )))
    })
}

/// Which of the named kinds of device this is; their number if none.
fn device_index(b: &KernelBuilder<'_>) -> Result<Built> {
    let names = b.attrs().byte_strings("device_names")?;
    let index = names
        .iter()
        .position(|n| **n == *b"CPU")
        .unwrap_or(names.len());
    let index = Tensor::scalar(index as i32);
    Built::cheap(move |ctx| {
        ctx.set_output(0, index.clone());
        Ok(())
    })
}
