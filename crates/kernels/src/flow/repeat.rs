//! Functional loops: `While` and `For`. One iteration's results are the next one's arguments.

use crate::flow::branch::truth;
use crate::flow::series::{self, Series};
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Callee, Caller, KernelBuilder, Registry, checked_outputs};
use downpour_tensor::Tensor;
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    for op in ["While", "StatelessWhile", "_While", "XlaWhile"] {
        r.add(op, while_op);
    }
    r.add("For", for_op);
}

/// An op that ends when its loop does.
struct Running {
    op: Option<AsyncOp>,
    caller: Arc<Caller>,
}

impl Running {
    /// Ends the op.
    fn end<T>(&mut self, outcome: Result<Vec<Tensor>>) -> Option<T> {
        if let Some(op) = self.op.take() {
            let outcome = outcome.and_then(|outputs| checked_outputs(&op, outputs));
            op.finish(outcome);
        }
        None
    }
}

/// Starts a loop over an op's inputs from `first` on.
fn start<S: Series>(mut op: AsyncOp, first: usize, make: impl FnOnce(Running, Vec<Tensor>) -> S) {
    let args = (first..op.inputs.len()).map(|i| op.take(i));
    let args = args.collect::<Result<Vec<_>>>();
    match args.and_then(|args| Ok((args, op.caller()?))) {
        Ok((args, caller)) => {
            let op = Some(op);
            series::run(make(Running { op, caller }, args));
        }
        Err(e) => op.finish(Err(e)),
    }
}

struct While {
    running: Running,
    cond: Callee,
    body: Callee,
    args: Vec<Tensor>,
    /// Whether the call under way is the condition's.
    deciding: bool,
}

fn while_op(b: &KernelBuilder<'_>) -> Result<Built> {
    let (cond, body) = (b.callee("cond")?, b.callee("body")?);
    Built::waiting(move |op| {
        start(op, 0, |running, args| While {
            running,
            cond: cond.clone(),
            body: body.clone(),
            args,
            deciding: false,
        });
    })
}

impl Series for While {
    fn caller(&self) -> &Arc<Caller> {
        &self.running.caller
    }

    fn next(&mut self, last: Option<Result<Vec<Tensor>>>) -> Option<(Callee, Vec<Tensor>)> {
        let results = match last.transpose() {
            Ok(results) => results,
            Err(e) => return self.running.end(Err(e)),
        };
        match results {
            Some(results) if self.deciding => match decision(&results) {
                Ok(true) => {
                    self.deciding = false;
                    // The condition has let go of the arguments: the body owns them.
                    return Some((self.body.clone(), std::mem::take(&mut self.args)));
                }
                Ok(false) => {
                    let args = std::mem::take(&mut self.args);
                    return self.running.end(Ok(args));
                }
                Err(e) => return self.running.end(Err(e)),
            },
            Some(results) => {
                if let Err(e) = self.check(&results) {
                    return self.running.end(Err(e));
                }
                self.args = results;
            }
            None => {}
        }
        self.deciding = true;
        Some((self.cond.clone(), self.args.clone()))
    }
}

impl While {
    /// Refuses results that cannot be the next iteration's arguments.
    fn check(&self, results: &[Tensor]) -> Result<()> {
        let wanted = self.running.op.as_ref();
        let wanted = wanted.map_or(&[][..], |op| &op.info().node.input_types);
        if results.len() != wanted.len() {
            return Err(Status::invalid_argument(format!(
                "While loop body returned {} arguments. Expected: {}.",
                results.len(),
                wanted.len()
            )));
        }
        for (i, (result, (dtype, _))) in results.iter().zip(wanted).enumerate() {
            if result.dtype() != *dtype {
                return Err(Status::invalid_argument(format!(
                    "Expected type {dtype} for return value {i} but got {}.",
                    result.dtype()
                )));
            }
        }
        Ok(())
    }
}

fn decision(results: &[Tensor]) -> Result<bool> {
    match results {
        [one] => truth(one),
        _ => Err(Status::invalid_argument(format!(
            "Expected a single scalar return value from WhileOp cond, got {} tensors.",
            results.len()
        ))),
    }
}

struct For {
    running: Running,
    body: Callee,
    values: Vec<Tensor>,
    at: i32,
    limit: i32,
    delta: i32,
}

fn for_op(b: &KernelBuilder<'_>) -> Result<Built> {
    let body = b.callee("body")?;
    Built::waiting(move |op| {
        let bounds = (|| {
            let at = bound(&op, 0, "start")?;
            let (limit, delta) = (bound(&op, 1, "limit")?, bound(&op, 2, "delta")?);
            let ahead = match delta {
                0 => at == limit,
                1.. => at <= limit,
                _ => at >= limit,
            };
            match ahead {
                true => Ok((at, limit, delta)),
                false => Err(Status::invalid_argument(format!(
                    "Invalid start/limit/delta: {at} {limit} {delta}"
                ))),
            }
        })();
        match bounds {
            Ok((at, limit, delta)) => start(op, 3, |running, values| For {
                running,
                body: body.clone(),
                values,
                at,
                limit,
                delta,
            }),
            Err(e) => op.finish(Err(e)),
        }
    })
}

fn bound(op: &AsyncOp, i: usize, label: &str) -> Result<i32> {
    let t = op.input(i)?;
    if t.rank() != 0 {
        return Err(Status::invalid_argument(format!(
            "{label} must be a scalar, but {}",
            t.shape()
        )));
    }
    Ok(t.scalar_value::<i32>()?)
}

impl Series for For {
    fn caller(&self) -> &Arc<Caller> {
        &self.running.caller
    }

    fn next(&mut self, last: Option<Result<Vec<Tensor>>>) -> Option<(Callee, Vec<Tensor>)> {
        match last {
            Some(Err(e)) => return self.running.end(Err(e)),
            Some(Ok(results)) => {
                self.values = results;
                // An index that would leave its type is past any limit.
                let Some(at) = self.at.checked_add(self.delta) else {
                    let values = std::mem::take(&mut self.values);
                    return self.running.end(Ok(values));
                };
                self.at = at;
            }
            None => {}
        }
        let over = match self.delta {
            1.. => self.at >= self.limit,
            _ => self.at <= self.limit,
        };
        let values = std::mem::take(&mut self.values);
        if over {
            return self.running.end(Ok(values));
        }
        let wanted = self.running.op.as_ref().map_or(0, |op| op.inputs.len() - 3);
        if values.len() > wanted {
            return self.running.end(Err(Status::invalid_argument(format!(
                "For loop body returned {} arguments. Expected: {wanted}",
                values.len()
            ))));
        }
        let mut args = Vec::with_capacity(values.len() + 1);
        args.push(Tensor::scalar(self.at));
        args.extend(values);
        Some((self.body.clone(), args))
    }
}
