//! `Batch` hands a batch's rows to the last of its members, `BatchFunction` calls a function with
//! them and gives each member its share of the results.

use super::rows::{concat, cut, none_of};
use super::scheduler::{Batcher, Job, Options, Part};
use super::timer;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Callee, Device, KernelBuilder, Registry};
use downpour_tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Keys of `Batch`'s members; unique in the process.
static NEXT: AtomicI64 = AtomicI64::new(1);

pub(crate) fn register(r: &mut Registry) {
    r.add("Batch", |b| {
        let count = b.attrs().dtypes("T")?.len();
        build(b, count, None)
    });
    r.add("BatchFunction", |b| {
        let count = b.attrs().dtypes("Tin")?.len();
        build(b, count, Some(b.callee("f")?))
    });
}

fn build(b: &KernelBuilder<'_>, count: usize, callee: Option<Callee>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    let queue = b.attrs().str("batching_queue")?.to_owned();
    let (options, timer) = (options(b)?, timer(b.device)?);
    Built::waiting(move |op| {
        let device = op.env().device.clone();
        let (place, call) = (device.clone(), callee.clone());
        let found = device.resources.find_or_create(&container, &name, || {
            Ok(Batcher::new(
                options.clone(),
                timer.clone(),
                match call {
                    None => Box::new(move |options, parts, free| {
                        hand_over(&place, options, parts);
                        free();
                    }),
                    Some(callee) => Box::new(move |options, parts, free| {
                        compute(&place, options, &callee, parts, free);
                    }),
                },
            ))
        });
        match found {
            Ok(batcher) => {
                // Spread out: keys must not be mistaken for positions.
                let id = NEXT
                    .fetch_add(1, Ordering::Relaxed)
                    .wrapping_mul(0x9E37_79B9_7F4A_7C15u64 as i64);
                batcher.submit(&queue, op, count, id);
            }
            Err(e) => op.finish(Err(e)),
        }
    })
}

fn options(b: &KernelBuilder<'_>) -> Result<Options> {
    let attrs = b.attrs();
    let sizes = attrs.ints("allowed_batch_sizes")?;
    let max_batch = attrs.int("max_batch_size")?;
    let split = attrs.bool("enable_large_batch_splitting").unwrap_or(false);
    if sizes.windows(2).any(|w| w[0] >= w[1]) {
        return Err(Status::invalid_argument(
            "allowed_batch_sizes entries must be monotonically increasing",
        ));
    }
    if sizes
        .last()
        .is_some_and(|last| !split && *last != max_batch)
    {
        return Err(Status::invalid_argument(
            "final entry in allowed_batch_sizes must equal max_batch_size when enable_large_batch_splitting is False",
        ));
    }
    let positive = |name: &str, value: i64| {
        usize::try_from(value)
            .ok()
            .filter(|v| *v > 0)
            .ok_or_else(|| {
                Status::invalid_argument(format!("{name} must be positive; was {value}"))
            })
    };
    let timeout = attrs.int("batch_timeout_micros")?;
    let timeout = u64::try_from(timeout).map_err(|_| {
        Status::invalid_argument(format!(
            "batch_timeout_micros must be non-negative; was {timeout}"
        ))
    })?;
    Ok(Options {
        slots: positive("num_batch_threads", attrs.int("num_batch_threads")?)?,
        max_batch: positive("max_batch_size", max_batch)?,
        timeout: Duration::from_micros(timeout),
        max_enqueued: positive("max_enqueued_batches", attrs.int("max_enqueued_batches")?)?,
        allowed: sizes.iter().map(|s| (*s).max(0) as usize).collect(),
        split,
    })
}

/// A batch's inputs, joined, and padded by copies of its first row.
fn joined(device: &Device, options: &Options, parts: &[Part]) -> Result<Vec<Tensor>> {
    let size: usize = parts.iter().map(|p| p.size).sum();
    let padding = options.padded(size) - size;
    let count = parts.first().map_or(0, |p| p.inputs.len());
    if parts.iter().any(|p| p.inputs.len() != count) {
        return Err(Status::invalid_argument(
            "Batching inputs must have equal number of edges",
        ));
    }
    (0..count)
        .map(|i| {
            let mut column: Vec<&Tensor> = parts.iter().map(|p| &p.inputs[i]).collect();
            let first = match padding {
                0 => None,
                _ => cut(column[0], &[1])?.pop(),
            };
            if let Some(first) = &first {
                column.extend(std::iter::repeat_n(first, padding));
            }
            concat(device, &column)
        })
        .collect()
}

fn fail(parts: &[Part], e: &Status) {
    for part in parts {
        part.job.end(Err(e.clone()));
    }
}

/// Gives the last member all rows and an index of whose they are, the others none.
fn hand_over(device: &Device, options: &Options, parts: Vec<Part>) {
    let outputs = joined(device, options, &parts).and_then(|rows| {
        let index: Vec<i64> = parts
            .iter()
            .scan(0i64, |start, part| {
                let (from, to) = (*start, *start + part.size as i64);
                *start = to;
                Some([part.job.id, from, to])
            })
            .flatten()
            .collect();
        let index = Tensor::from_vec(index, [parts.len(), 3])?;
        let last = parts.len() - 1;
        let member = |(i, part): (usize, &Part)| -> Result<(Arc<Job>, Vec<Tensor>)> {
            let mut outputs = match i == last {
                true => rows.clone(),
                false => part.inputs.iter().map(none_of).collect::<Result<_>>()?,
            };
            outputs.push(match i == last {
                true => index.clone(),
                false => Tensor::from_vec(Vec::<i64>::new(), [0, 3])?,
            });
            outputs.push(Tensor::scalar(part.job.id));
            Ok((part.job.clone(), outputs))
        };
        parts
            .iter()
            .enumerate()
            .map(member)
            .collect::<Result<Vec<_>>>()
    });
    match outputs {
        Ok(outputs) => {
            for (job, outputs) in outputs {
                job.end(Ok(outputs));
            }
        }
        Err(e) => fail(&parts, &e),
    }
}

/// Calls the function with the batch's rows, in the name of the last member that still waits.
fn compute(
    device: &Arc<Device>,
    options: &Options,
    callee: &Callee,
    parts: Vec<Part>,
    free: Box<dyn FnOnce() + Send>,
) {
    let Some((caller, job)) = parts
        .iter()
        .rev()
        .find_map(|p| Some((p.job.caller()?, p.job.clone())))
    else {
        return free();
    };
    let call = caller.and_then(|caller| {
        let mut args = joined(device, options, &parts)?;
        args.extend(job.captured.iter().cloned());
        Ok((caller, args))
    });
    let (caller, args) = match call {
        Ok(call) => call,
        Err(e) => {
            fail(&parts, &e);
            return free();
        }
    };
    let size: usize = parts.iter().map(|p| p.size).sum();
    let padded = options.padded(size);
    caller.call(callee, args, move |outcome| {
        match outcome.and_then(|outputs| shares(&outputs, &parts, padded)) {
            Ok(shares) => {
                for (part, share) in parts.iter().zip(shares) {
                    part.job.part_done(part.index, share);
                }
            }
            Err(e) => fail(&parts, &e),
        }
        free();
    });
}

/// Each part's rows of the function's results.
fn shares(outputs: &[Tensor], parts: &[Part], padded: usize) -> Result<Vec<Vec<Tensor>>> {
    let sizes: Vec<usize> = parts.iter().map(|p| p.size).collect();
    let mut shares: Vec<Vec<Tensor>> = vec![Vec::new(); parts.len()];
    for output in outputs {
        if output.rank() == 0 {
            return Err(Status::failed_precondition(
                "Batched output tensor has 0 dimensions",
            ));
        }
        if output.dims()[0] != padded {
            return Err(Status::failed_precondition(
                "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input tensors",
            ));
        }
        for (share, rows) in shares.iter_mut().zip(cut(output, &sizes)?) {
            share.push(rows);
        }
    }
    Ok(shares)
}
