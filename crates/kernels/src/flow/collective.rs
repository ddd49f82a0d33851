//! Collective ops in a group of one task and one device, in which every exchange gives back what
//! was put in. Larger groups meet through other ops here: see `docs/ops_missing_math.md`.

use crate::args::{int, shape};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const NUMBERS: &[DType] = &[
    DType::BFloat16,
    DType::Float,
    DType::Half,
    DType::Double,
    DType::Int32,
    DType::Int64,
];

pub(crate) fn register(r: &mut Registry) {
    for op in ["CollectiveReduce", "CollectiveGather"] {
        r.add_typed(op, &[("T", NUMBERS)], |b| {
            let size = b.attrs().int("group_size")?;
            check_size(size)?;
            Built::cheap(move |ctx| alone(ctx, size))
        });
    }
    for op in ["CollectiveReduceV2", "CollectiveGatherV2"] {
        r.add_typed(op, &[("T", NUMBERS)], |_| {
            Built::cheap(|ctx| {
                let size = keys(ctx, 1)?;
                alone(ctx, size)
            })
        });
    }
    r.add("CollectiveBcastSend", send);
    r.add("CollectiveBcastSendV2", |_| {
        Built::cheap(|ctx| {
            let size = keys(ctx, 1)?;
            alone(ctx, size)
        })
    });
    r.add("CollectiveBcastRecv", |b| {
        let (size, key) = (b.attrs().int("group_size")?, b.attrs().int("instance_key")?);
        check_size(size)?;
        Built::cheap(move |_| no_source(size, key))
    });
    r.add("CollectiveBcastRecvV2", |_| {
        Built::cheap(|ctx| {
            let (size, key) = (keys(ctx, 0)?, int(ctx.input(2)?)?);
            shape(ctx.input(3)?)?;
            no_source(size, key)
        })
    });
    r.add("CollectiveAssignGroupV2", |_| Built::cheap(assign));
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn check_size(size: i64) -> Result<()> {
    if size <= 0 {
        return invalid(format!(
            "group_size must be positive integer but got {size}"
        ));
    }
    Ok(())
}

/// The group's size in input `first`, the keys behind it checked.
fn keys(ctx: &OpContext<'_>, first: usize) -> Result<i64> {
    for (i, name) in ["group_size", "group_key", "instance_key"]
        .iter()
        .enumerate()
    {
        let t = ctx.input(first + i)?;
        if t.rank() != 0 {
            return invalid(format!(
                "Unexpected dimensions on input {name}, got {}",
                t.shape()
            ));
        }
    }
    let size = int(ctx.input(first)?)?;
    check_size(size)?;
    Ok(size)
}

fn too_many(size: i64) -> Status {
    Status::unimplemented(format!(
        "Collective ops between {size} devices are not supported by this server: its groups have one"
    ))
}

fn alone(ctx: &mut OpContext<'_>, size: i64) -> Result<()> {
    if size != 1 {
        return Err(too_many(size));
    }
    ctx.forward(0, 0);
    Ok(())
}

fn send(b: &KernelBuilder<'_>) -> Result<Built> {
    let size = b.attrs().int("group_size")?;
    check_size(size)?;
    let declared = b.attrs().shape("shape")?.clone();
    Built::cheap(move |ctx| {
        if declared.to_shape().as_ref() != Some(ctx.input(0)?.shape()) {
            return Err(Status::internal(format!(
                "Declared shape of op {}: Broadcast(1) does not match shape of input",
                ctx.name()
            )));
        }
        alone(ctx, size)
    })
}

/// Receivers alone have nobody to receive from.
fn no_source(size: i64, key: i64) -> Result<()> {
    if size != 1 {
        return Err(too_many(size));
    }
    Err(Status::internal(format!(
        "Collective ops is aborted by: Instance {key} found no source for broadcast.  This could mean that there were group_size={size} BcastRecvs but no BcastSend.\nThe error could be from a previous operation. Restart your program to reset."
    )))
}

/// The size and key of the group, a row of input 0, that has the device of input 1.
fn assign(ctx: &mut OpContext<'_>) -> Result<()> {
    let (groups, device, base) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let &[_, width] = groups.dims() else {
        return invalid(format!(
            "group_assignment must be a 2-d Tensor, but received tensor of shape: {}",
            groups.shape()
        ));
    };
    for (name, t) in [("device_index", device), ("base_key", base)] {
        if t.rank() != 0 {
            return invalid(format!(
                "{name} must be a scalar, but received tensor of shape: {}",
                t.shape()
            ));
        }
    }
    let (device, base) = (device.scalar_value::<i32>()?, base.scalar_value::<i32>()?);
    let found = groups.as_slice::<i32>()?.iter().position(|d| *d == device);
    let Some(at) = found else {
        return invalid(format!(
            "device_index {device} is not found in group_assignment Tensor<type: int32 shape: {} values: {}>",
            groups.shape(),
            groups.summarize(3)
        ));
    };
    let (size, key) = (width as i32, base.wrapping_add((at / width) as i32));
    ctx.set_output(0, Tensor::scalar(size));
    ctx.set_output(1, Tensor::scalar(key));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op, text};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn a_group_of_one_gives_back_what_it_was_given() {
        let reduce = |size: i32| {
            let key = || Tensor::scalar(1i32);
            run_op(
                "CollectiveReduceV2",
                vec![floats(&[1.0, 2.0]), Tensor::scalar(size), key(), key()],
                &[
                    ("T", DType::Float.into()),
                    ("merge_op", "Add".into()),
                    ("final_op", "Id".into()),
                ],
            )
        };
        assert_eq!(reduce(1).unwrap()[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(
            text(reduce(0)),
            "group_size must be positive integer but got 0"
        );
        assert!(text(reduce(2)).starts_with("Collective ops between 2 devices"));
    }
}
