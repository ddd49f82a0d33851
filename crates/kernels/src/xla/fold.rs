//! `XlaReduce`, `XlaVariadicReduce`, `XlaVariadicReduceV2`, `XlaReduceWindow`: a function folds the
//! elements of each group, one call for each element, in the order in which they lie.

use super::{invalid, positions};
use crate::args::{ints, shape_of};
use crate::array::units::{Unit, with_unit};
use crate::flow::series::{self, Series};
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Callee, Caller, KernelBuilder, Registry};
use downpour_tensor::{Shape, Tensor};
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    for op in ["XlaReduce", "XlaVariadicReduce", "XlaVariadicReduceV2"] {
        r.add(op, reduce);
    }
    r.add("XlaReduceWindow", window);
}

/// Which elements of the operands make each element of the result.
struct Groups {
    shape: Shape,
    members: Vec<Vec<usize>>,
}

fn reduce(b: &KernelBuilder<'_>) -> Result<Built> {
    let callee = b.callee("reducer")?;
    let dims = b.attrs().ints("dimensions_to_reduce")?.to_vec();
    let operands = b.node.output_types.len();
    Built::waiting(move |op| begin(op, &callee, operands, |op| by_dimensions(op, &dims)))
}

fn window(b: &KernelBuilder<'_>) -> Result<Built> {
    let callee = b.callee("computation")?;
    Built::waiting(move |op| begin(op, &callee, 1, by_windows))
}

fn by_dimensions(op: &AsyncOp, reduced: &[i64]) -> Result<Groups> {
    let x = op.input(0)?;
    let rank = x.rank();
    if reduced.iter().any(|d| !(0..rank as i64).contains(d)) {
        return invalid(format!(
            "dimensions_to_reduce are out of range for an operand of shape {}",
            x.shape()
        ));
    }
    let kept: Vec<usize> = (0..rank)
        .filter(|d| !reduced.contains(&(*d as i64)))
        .collect();
    let shape: Shape = kept.iter().map(|d| x.dims()[*d]).collect();
    let strides = shape.strides();
    let mut members = vec![Vec::new(); shape.num_elements()];
    let mut next = 0;
    positions(x.dims(), |at| {
        let cell: usize = kept.iter().zip(&strides).map(|(d, s)| at[*d] * s).sum();
        members[cell].push(next);
        next += 1;
    });
    Ok(Groups { shape, members })
}

/// Windows over an operand that is spread by `base` and padded; the padding counts for nothing.
fn by_windows(op: &AsyncOp) -> Result<Groups> {
    let x = op.input(0)?;
    let rank = x.rank();
    let list = |i: usize, len: usize| -> Result<Vec<i64>> {
        let values = ints(op.input(i)?)?;
        match values.len() == len {
            true => Ok(values),
            false => invalid(format!(
                "a window over {rank} dimensions needs {len} numbers, got {}",
                values.len()
            )),
        }
    };
    let (size, stride) = (list(2, rank)?, list(3, rank)?);
    let (base, dilation, padding) = (list(4, rank)?, list(5, rank)?, list(6, 2 * rank)?);
    let all = size.iter().chain(&stride).chain(&base).chain(&dilation);
    if all.clone().any(|v| *v < 1) {
        return invalid("sizes, strides and dilations of a window must be positive");
    }
    let mut dims = Vec::with_capacity(rank);
    for d in 0..rank {
        let spread =
            i128::from(base[d]) * (x.dims()[d] as i128 - 1).max(0) + i128::from(x.dims()[d] > 0);
        let wide = spread + i128::from(padding[2 * d]) + i128::from(padding[2 * d + 1]);
        let extent = (i128::from(size[d]) - 1) * i128::from(dilation[d]) + 1;
        let count = if wide < extent {
            0
        } else {
            (wide - extent) / i128::from(stride[d]) + 1
        };
        dims.push(i64::try_from(count).unwrap_or(i64::MAX));
    }
    let shape = shape_of(&dims)?;
    op.env()
        .device
        .memory
        .check(x.dtype(), &shape, &op.env().device.name)?;
    let strides = x.shape().strides();
    let taps: Vec<usize> = size.iter().map(|v| *v as usize).collect();
    let mut members = Vec::with_capacity(shape.num_elements());
    positions(shape.dims(), |at| {
        let mut found = Vec::new();
        positions(&taps, |tap| {
            let place = (0..rank).map(|d| {
                let wide = i128::from(stride[d]) * at[d] as i128
                    + i128::from(dilation[d]) * tap[d] as i128
                    - i128::from(padding[2 * d]);
                let (own, rest) = (wide / i128::from(base[d]), wide % i128::from(base[d]));
                let inside = wide >= 0 && rest == 0 && own < x.dims()[d] as i128;
                inside.then(|| own as usize * strides[d])
            });
            found.extend(place.sum::<Option<usize>>());
        });
        members.push(found);
    });
    Ok(Groups { shape, members })
}

/// A fold under way.
struct Fold {
    op: Option<AsyncOp>,
    caller: Arc<Caller>,
    callee: Callee,
    operands: Vec<Tensor>,
    start: Vec<Tensor>,
    groups: Groups,
    /// The group and the member of it that come next.
    at: (usize, usize),
    folded: Vec<Tensor>,
    done: Vec<Vec<Tensor>>,
}

fn begin(
    op: AsyncOp,
    callee: &Callee,
    count: usize,
    groups: impl FnOnce(&AsyncOp) -> Result<Groups>,
) {
    let ready = || -> Result<_> {
        let operands = (0..count)
            .map(|i| op.input(i).cloned())
            .collect::<Result<Vec<_>>>()?;
        let start = (count..2 * count)
            .map(|i| op.input(i).cloned())
            .collect::<Result<Vec<_>>>()?;
        if operands.iter().any(|t| t.shape() != operands[0].shape()) {
            return invalid("all operands of a reduction must have one shape");
        }
        if start.iter().any(|t| t.rank() != 0) {
            return invalid("initial values of a reduction must be scalars");
        }
        Ok((operands, start, groups(&op)?, op.caller()?))
    };
    match ready() {
        Ok((operands, start, groups, caller)) => series::run(Fold {
            op: Some(op),
            caller,
            callee: callee.clone(),
            folded: start.clone(),
            operands,
            start,
            groups,
            at: (0, 0),
            done: Vec::new(),
        }),
        Err(e) => op.finish(Err(e)),
    }
}

impl Fold {
    fn end(&mut self, outcome: Result<Vec<Tensor>>) -> Option<(Callee, Vec<Tensor>)> {
        if let Some(op) = self.op.take() {
            op.finish(outcome);
        }
        None
    }

    fn outputs(&self) -> Result<Vec<Tensor>> {
        let of = |i: usize| -> Result<Tensor> {
            let dtype = self.operands[i].dtype();
            Ok(with_unit!(dtype, U => {
                let mut values = Vec::with_capacity(self.done.len());
                for cell in &self.done {
                    values.push(U::view(&cell[i])?[0].clone());
                }
                U::tensor(dtype, values, self.groups.shape.clone())?
            }))
        };
        (0..self.operands.len()).map(of).collect()
    }
}

impl Series for Fold {
    fn caller(&self) -> &Arc<Caller> {
        &self.caller
    }

    fn next(&mut self, last: Option<Result<Vec<Tensor>>>) -> Option<(Callee, Vec<Tensor>)> {
        match last {
            Some(Ok(results)) => {
                let fits = results.len() == self.operands.len()
                    && results
                        .iter()
                        .zip(&self.start)
                        .all(|(r, s)| r.rank() == 0 && r.dtype() == s.dtype());
                if !fits {
                    return self.end(Err(Status::invalid_argument(
                        "a reducer must give scalars of its operands' types",
                    )));
                }
                self.folded = results;
            }
            Some(Err(e)) => return self.end(Err(e)),
            None => {}
        }
        while let Some(members) = self.groups.members.get(self.at.0) {
            if let Some(&member) = members.get(self.at.1) {
                self.at.1 += 1;
                let mut args = std::mem::take(&mut self.folded);
                for t in &self.operands {
                    match element(t, member) {
                        Ok(v) => args.push(v),
                        Err(e) => return self.end(Err(e)),
                    }
                }
                return Some((self.callee.clone(), args));
            }
            let cell = std::mem::replace(&mut self.folded, self.start.clone());
            self.done.push(cell);
            self.at = (self.at.0 + 1, 0);
        }
        let outcome = self.outputs();
        self.end(outcome)
    }
}

fn element(t: &Tensor, at: usize) -> Result<Tensor> {
    let dtype = t.dtype();
    Ok(with_unit!(dtype, U => {
        U::tensor(dtype, vec![U::view(t)?[at].clone()], Shape::scalar())?
    }))
}
