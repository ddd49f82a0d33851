//! Runs of arithmetic: on single numbers at once, on arrays of one shape block by block, so that
//! what passes between members never leaves the processor's cache.

use downpour_runtime::{Arithmetic, OpContext, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;

/// What a group of arithmetic computes. Slots are its inputs and then the members' results.
pub(super) struct Formula {
    num_inputs: usize,
    members: Vec<Member>,
}

struct Member {
    op: Arithmetic,
    /// Two for every op; of a unary one the first counts.
    operands: [usize; 2],
}

/// Numbers of a block: two rows of them and a result stay in the nearest cache.
const BLOCK: usize = 1024;

/// Numbers below which a part is not worth a thread.
const GRAIN: usize = 64 << 10;

/// What a slot holds while arrays are worked on.
#[derive(Clone, Copy)]
enum Held {
    /// The same number everywhere; the row of the scratch memory that is full of it.
    Number(f32, usize),
    /// An input, by its number.
    Array(usize),
    /// A member's result, in a row of the scratch memory.
    Row(usize),
    /// The shape of a spread.
    Shape,
}

impl Formula {
    pub(super) fn new(
        num_inputs: usize,
        members: Vec<(Arithmetic, SmallVec<[usize; 3]>)>,
    ) -> Formula {
        let members = members.into_iter().map(|(op, inputs)| {
            let operand = |i: usize| inputs.get(i).copied().unwrap_or_default();
            Member {
                op,
                operands: [operand(0), operand(1)],
            }
        });
        Formula {
            num_inputs,
            members: members.collect(),
        }
    }

    /// Computes the result, unless the inputs' shapes ask for more than arithmetic.
    pub(super) fn run(&self, ctx: &mut OpContext<'_>) -> bool {
        let result = match self.number(ctx) {
            Some(number) => Some(Tensor::scalar(number)),
            None => self.array(ctx),
        };
        let is_done = result.is_some();
        if let Some(result) = result {
            ctx.set_output(0, result);
        }
        is_done
    }

    /// All members on single numbers; `None` when an input is anything else.
    fn number(&self, ctx: &OpContext<'_>) -> Option<f32> {
        let mut values: SmallVec<[f32; 16]> = SmallVec::new();
        for i in 0..self.num_inputs {
            let tensor = ctx.input(i).ok()?;
            if tensor.rank() != 0 {
                return None;
            }
            values.push(*tensor.as_slice::<f32>().ok()?.first()?);
        }
        for step in &self.members {
            let [a, b] = step.operands;
            values.push(match step.op {
                Arithmetic::Unary(f, _) => f(*values.get(a)?),
                Arithmetic::Binary(f, _) => f(*values.get(a)?, *values.get(b)?),
                Arithmetic::Spread { .. } => return None,
            });
        }
        values.last().copied()
    }

    /// All members on arrays of one shape and numbers; the result takes the place of one of the arrays,
    /// one that nobody else uses if there is one. `None` when shapes are to be stretched otherwise.
    fn array(&self, ctx: &mut OpContext<'_>) -> Option<Tensor> {
        let home = self.home(ctx)?;
        let shape = ctx.input(home).ok()?.shape().clone();
        let mut slots = Vec::with_capacity(self.num_inputs + self.members.len());
        let mut rows = 0;
        let mut row = || {
            rows += 1;
            rows - 1
        };
        for i in 0..self.num_inputs {
            let tensor = ctx.input(i).ok()?;
            slots.push(if tensor.dtype() != DType::Float {
                // That it is the right one is checked where it is used.
                Held::Shape
            } else if tensor.num_elements() == 1 && tensor.rank() <= shape.rank() {
                Held::Number(*tensor.as_slice::<f32>().ok()?.first()?, row())
            } else if *tensor.shape() == shape {
                Held::Array(i)
            } else {
                return None;
            });
        }
        for step in &self.members {
            let [a, b] = step.operands;
            slots.push(match (step.op, slots[a], slots[b]) {
                (Arithmetic::Spread { same_rank }, held @ Held::Number(..), Held::Shape) => {
                    let rank = ctx.input(a).ok()?.rank();
                    if same_rank && rank != shape.rank() || !names(ctx.input(b).ok()?, &shape) {
                        return None;
                    }
                    held
                }
                (Arithmetic::Spread { .. }, ..) => return None,
                (Arithmetic::Unary(f, _), Held::Number(a, _), _) => Held::Number(f(a), row()),
                (Arithmetic::Binary(f, _), Held::Number(a, _), Held::Number(b, _)) => {
                    Held::Number(f(a, b), row())
                }
                _ => Held::Row(row()),
            });
        }
        let Some(Held::Row(last)) = slots.last().copied() else {
            return None;
        };
        let mut out = ctx.take(home).ok()?;
        let inputs: Vec<&[f32]> = (0..self.num_inputs)
            .map(|i| match ctx.input(i) {
                Ok(tensor) => tensor.as_slice::<f32>().unwrap_or_default(),
                Err(_) => &[],
            })
            .collect();
        let all = out.make_mut::<f32>().expect("an array of floats");
        let size = all.len().min(BLOCK);
        parallel_ranges(all, 1, GRAIN, |first, part| {
            let mut scratch = vec![0.0f32; rows * size];
            for slot in &slots {
                if let Held::Number(number, row) = slot {
                    scratch[row * size..(row + 1) * size].fill(*number);
                }
            }
            for (b, block) in part.chunks_mut(size).enumerate() {
                let from = first + b * size;
                self.block(&slots, &inputs, home, (from, block), (&mut scratch, size));
                block.copy_from_slice(&scratch[last * size..][..block.len()]);
            }
        });
        Some(out)
    }

    /// The array whose memory the result gets.
    fn home(&self, ctx: &OpContext<'_>) -> Option<usize> {
        let is_array = |i: &usize| {
            ctx.input(*i)
                .is_ok_and(|t| t.dtype() == DType::Float && t.num_elements() > 1)
        };
        let is_free = |i: &usize| {
            let buffer = ctx.input(*i).ok().and_then(Tensor::buffer);
            buffer.is_some_and(|b| b.is_unique())
        };
        let arrays = || (0..self.num_inputs).filter(is_array);
        arrays().find(is_free).or_else(|| arrays().next())
    }

    /// Every member on the numbers from `from` on, whose place is `block`; results in `scratch`, whose
    /// rows have `size`.
    fn block(
        &self,
        slots: &[Held],
        inputs: &[&[f32]],
        home: usize,
        (from, block): (usize, &[f32]),
        (scratch, size): (&mut [f32], usize),
    ) {
        let n = block.len();
        for (step, held) in self.members.iter().zip(&slots[self.num_inputs..]) {
            let Held::Row(to) = *held else {
                continue;
            };
            let (done, rest) = scratch.split_at_mut(to * size);
            let to = &mut rest[..n];
            let [a, b] = step.operands.map(|slot| match slots[slot] {
                Held::Array(i) if i == home => block,
                Held::Array(i) => &inputs[i][from..from + n],
                Held::Row(row) | Held::Number(_, row) => {
                    done.get(row * size..row * size + n).unwrap_or_default()
                }
                Held::Shape => &[],
            });
            match step.op {
                Arithmetic::Unary(_, f) => f(a, to),
                Arithmetic::Binary(_, f) => f(a, b, to),
                Arithmetic::Spread { .. } => {}
            }
        }
    }
}

/// Whether a tensor of whole numbers is that shape.
fn names(tensor: &Tensor, shape: &Shape) -> bool {
    let dims = shape.iter().map(|d| *d as i64);
    match tensor.dtype() {
        _ if tensor.rank() != 1 => false,
        DType::Int32 => (tensor.as_slice::<i32>())
            .is_ok_and(|given| given.iter().map(|d| i64::from(*d)).eq(dims)),
        DType::Int64 => {
            (tensor.as_slice::<i64>()).is_ok_and(|given| given.iter().copied().eq(dims))
        }
        _ => false,
    }
}
