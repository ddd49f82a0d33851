//! `MapDefun`: a function called once for each row of its arguments.

use crate::list::pieces::{join, row};
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Callee, KernelBuilder, Registry};
use downpour_tensor::{PartialShape, Shape, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    r.add("MapDefun", map_defun);
}

fn map_defun(b: &KernelBuilder<'_>) -> Result<Built> {
    let callee = b.callee("f")?;
    let count = b.attrs().dtypes("Targuments")?.len();
    let shapes: Arc<[PartialShape]> = b.attrs().shapes("output_shapes")?.into();
    if shapes.len() != b.node.output_types.len() {
        return Err(Status::invalid_argument(
            "Length of output_shapes and output_types must match.",
        ));
    }
    Built::waiting(move |mut op| {
        let args = (0..op.inputs.len()).map(|i| op.take(i));
        let args = args.collect::<Result<Vec<_>>>();
        let checked = args.and_then(|args| Ok((check(&args[..count])?, args)));
        let (batch, mut args) = match checked {
            Ok(checked) => checked,
            Err(e) => return op.finish(Err(e)),
        };
        let captured = args.split_off(count);
        let device = op.env().device.clone();
        let map = Arc::new(Map {
            shapes: shapes.clone(),
            rows: Mutex::new(Rows {
                results: vec![None; batch],
                // One more than there are calls: none may end the op before all have begun.
                outstanding: 1,
                error: None,
            }),
            op: Mutex::new(Some(op)),
        });
        let callee = callee.clone();
        device.spawn(move || {
            for i in 0..batch {
                if !map.start(i, &callee, &args, &captured) {
                    break;
                }
            }
            map.one_done();
        });
    })
}

/// The number of rows, which all arguments must share.
fn check(args: &[Tensor]) -> Result<usize> {
    let batch = args.first().and_then(|t| t.dims().first().copied());
    for (i, arg) in args.iter().enumerate() {
        let Some(rows) = arg.dims().first() else {
            return Err(Status::invalid_argument(format!(
                "All inputs must have rank at least 1. Input {i} has a rank of 0."
            )));
        };
        if let Some(batch) = batch.filter(|b| b != rows) {
            return Err(Status::invalid_argument(format!(
                "All inputs must have the same dimension 0. Input {i} has leading dimension {rows}, while all previous inputs have leading dimension {batch}"
            )));
        }
    }
    Ok(batch.unwrap_or(0))
}

/// The calls of one run.
struct Map {
    shapes: Arc<[PartialShape]>,
    rows: Mutex<Rows>,
    op: Mutex<Option<AsyncOp>>,
}

struct Rows {
    results: Vec<Option<Vec<Tensor>>>,
    outstanding: usize,
    error: Option<Status>,
}

impl Map {
    /// Starts call `i`; `false` if there is no point in going on.
    fn start(
        self: &Arc<Self>,
        i: usize,
        callee: &Callee,
        args: &[Tensor],
        captured: &[Tensor],
    ) -> bool {
        // Each call has its own caller: the failure of one must not pass for that of another.
        let caller = match self.op.lock().as_ref().map(AsyncOp::caller) {
            Some(Ok(caller)) => caller,
            Some(Err(e)) => return self.fail(e),
            None => return false,
        };
        let rows = args.iter().map(|t| row(t, i)).collect::<Result<Vec<_>>>();
        let mut all = match rows {
            Ok(rows) => rows,
            Err(e) => return self.fail(e),
        };
        all.extend(captured.iter().cloned());
        {
            let mut rows = self.rows.lock();
            if rows.error.is_some() {
                return false;
            }
            rows.outstanding += 1;
        }
        let map = self.clone();
        caller.call_here(callee, all, move |outcome| {
            match outcome.and_then(|results| map.checked(results)) {
                Ok(results) => map.rows.lock().results[i] = Some(results),
                Err(e) => {
                    map.fail(e);
                }
            }
            map.one_done();
        });
        true
    }

    fn fail(&self, e: Status) -> bool {
        self.rows.lock().error.get_or_insert(e);
        false
    }

    /// Refuses results that are not those the node declares.
    fn checked(&self, results: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let op = self.op.lock();
        let Some(op) = &*op else { return Ok(results) };
        let wanted = &op.info().node.output_types;
        if results.len() != wanted.len() {
            return Err(Status::invalid_argument(
                "Mismatch in number of function outputs.",
            ));
        }
        for (i, (result, (dtype, _))) in results.iter().zip(wanted).enumerate() {
            if result.dtype() != *dtype {
                return Err(Status::invalid_argument(format!(
                    "Mismatch in function return type and expected output type for output: {i}"
                )));
            }
            if !self.shapes[i].admits(result.shape()) {
                return Err(mismatch(result.shape(), &self.shapes[i].to_string()));
            }
        }
        Ok(results)
    }

    fn one_done(&self) {
        let (results, error) = {
            let mut rows = self.rows.lock();
            rows.outstanding -= 1;
            if rows.outstanding > 0 {
                return;
            }
            (std::mem::take(&mut rows.results), rows.error.take())
        };
        if let Some(op) = self.op.lock().take() {
            let outcome = match error {
                Some(e) => Err(e),
                None => self.stack(&op, results),
            };
            op.finish(outcome);
        }
    }

    /// The calls' results, each as one tensor.
    fn stack(&self, op: &AsyncOp, results: Vec<Option<Vec<Tensor>>>) -> Result<Vec<Tensor>> {
        let device = &op.env().device;
        let results: Vec<Vec<Tensor>> = results.into_iter().flatten().collect();
        let outputs = &op.info().node.output_types;
        let stacked = outputs.iter().enumerate().map(|(i, (dtype, _))| {
            let column: Vec<&Tensor> = results.iter().map(|r| &r[i]).collect();
            let inner = match column.first() {
                Some(first) => first.shape().clone(),
                None => self.shapes[i].to_shape().ok_or_else(|| {
                    Status::internal(format!(
                        "Missing {i}-th output from {{{{node {}}}}}",
                        op.info().name
                    ))
                })?,
            };
            if let Some(other) = column.iter().find(|t| *t.shape() != inner) {
                return Err(mismatch(other.shape(), &inner.to_string()));
            }
            let mut dims = vec![column.len() as i64];
            dims.extend(inner.dims().iter().map(|d| *d as i64));
            join(device, *dtype, crate::args::shape_of(&dims)?, &column)
        });
        stacked.collect()
    }
}

fn mismatch(given: &Shape, wanted: &str) -> Status {
    Status::invalid_argument(format!(
        "Mismatch in function retval shape, {given}, and expected output shape, {wanted}."
    ))
}
