//! Runs elementwise kernels over tensors: broadcasting, threads, and where the result goes. It
//! goes into an operand's memory when that operand has the result's type and shape and this was
//! its last use.
#![allow(
    unsafe_code,
    reason = "bytes of any type, written by several threads in disjoint parts"
)]

use super::elementwise::{Binary, COSTLY_GRAIN, Convert, Steps, Unary, strides};
use crate::broadcast::Broadcast;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, parallel_for};
use downpour_tensor::{Buffer, DType, Shape, Tensor};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a block that is staged beside its final place; it stays in the first-level cache.
const STAGE: usize = 8 << 10;
/// Most bytes of operands that are not worth a walk.
const TINY: usize = 64;
/// Runs shorter than this are gathered into blocks before a kernel sees them.
const SHORT_ROW: usize = 64;

/// Runs a kernel over a tensor, in place if this was its last use.
pub(crate) fn map(ctx: &OpContext<'_>, kernel: &dyn Unary, mut x: Tensor) -> Result<Tensor> {
    let (size, n) = (kernel.size(), x.num_elements());
    if x.is_unique() {
        let at = Shared(bytes_mut(&mut x)?.as_mut_ptr());
        parallel_for(n, kernel.grain(), |r| {
            // SAFETY: the tensor has `n` elements of `size` bytes, is ours alone, and ranges
            // given to threads are disjoint.
            unsafe { kernel.run(at.at(r.start * size), r.len()) }
        });
        return Ok(x);
    }
    let from = bytes(&x)?;
    let fill = |to: *mut u8| {
        let to = Shared(to);
        let block = STAGE / size;
        parallel_for(n, kernel.grain(), |r| {
            for start in r.clone().step_by(block) {
                let len = block.min(r.end - start);
                let from = &from[start * size..(start + len) * size];
                // SAFETY: `to` has room for as many bytes as `from` has; ranges given to threads
                // are disjoint; the block is initialised by the copy before the kernel sees it.
                unsafe {
                    let to = to.at(start * size);
                    std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
                    kernel.run(to, len);
                }
            }
        });
    };
    // SAFETY: the ranges cover all elements.
    unsafe { fresh(ctx, x.dtype(), x.shape(), fill) }
}

/// Runs a converting kernel over a tensor.
pub(crate) fn map_to(ctx: &OpContext<'_>, kernel: &dyn Convert, x: &Tensor) -> Result<Tensor> {
    let (size, n) = (kernel.size_in(), x.num_elements());
    let from = bytes(x)?;
    let size_out = kernel.output().size().unwrap_or(0);
    let fill = |to: *mut u8| {
        let to = Shared(to);
        parallel_for(n, COSTLY_GRAIN, |r| {
            let from = &from[r.start * size..r.end * size];
            // SAFETY: `to` has room for `n` elements of `size_out` bytes; ranges are disjoint.
            unsafe { kernel.run(to.at(r.start * size_out), from.as_ptr(), r.len()) }
        });
    };
    // SAFETY: the ranges cover all elements.
    unsafe { fresh(ctx, kernel.output(), x.shape(), fill) }
}

/// What a binary kernel made: a tensor, or the news that it refused some element.
pub(crate) enum Zipped {
    /// The result.
    Done(Tensor),
    /// Some element was refused.
    Refused,
    /// The shapes do not broadcast; the operands come back.
    Mismatch(Tensor, Tensor),
}

/// Which operand's memory takes the result.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Left,
    Right,
    Fresh,
}

/// Runs a kernel over two tensors with broadcasting.
pub(crate) fn zip(
    ctx: &OpContext<'_>,
    kernel: &dyn Binary,
    mut x: Tensor,
    mut y: Tensor,
) -> Result<Zipped> {
    let same = x.shape() == y.shape();
    let dtype = kernel.output().unwrap_or(x.dtype());
    if same && dtype == x.dtype() && x.byte_len() <= TINY && x.is_unique() {
        let good = in_place(kernel, &mut x, &y)?;
        return Ok(if good {
            Zipped::Done(x)
        } else {
            Zipped::Refused
        });
    }
    let bc = if same {
        let n = x.num_elements();
        Broadcast {
            shape: x.shape().clone(),
            sizes: smallvec::smallvec![n],
            left: smallvec::smallvec![1],
            right: smallvec::smallvec![1],
        }
    } else {
        match Broadcast::new(x.dims(), y.dims()) {
            Some(bc) => bc,
            None => return Ok(Zipped::Mismatch(x, y)),
        }
    };
    check_dims(&bc, &x, &y)?;
    let fits = |t: &Tensor| t.dtype() == dtype && t.shape() == &bc.shape && t.is_unique();
    let target = if fits(&x) {
        Target::Left
    } else if fits(&y) {
        Target::Right
    } else {
        Target::Fresh
    };
    let size_out = dtype
        .size()
        .ok_or_else(|| Status::internal(format!("{dtype} is not plain")))?;
    let walk = |out: *mut u8, a: *const u8, b: *const u8| {
        let walk = Walk {
            kernel,
            bc: &bc,
            size_out,
            target,
            out: Shared(out),
            a: Shared(a.cast_mut()),
            b: Shared(b.cast_mut()),
        };
        walk.run()
    };
    let mut good = true;
    let out = match target {
        Target::Left => {
            let b = bytes(&y)?.as_ptr();
            let a = bytes_mut(&mut x)?.as_mut_ptr();
            good = walk(a, a, b);
            x
        }
        Target::Right => {
            let a = bytes(&x)?.as_ptr();
            let b = bytes_mut(&mut y)?.as_mut_ptr();
            good = walk(b, a, b);
            y
        }
        Target::Fresh => {
            let (a, b) = (bytes(&x)?.as_ptr(), bytes(&y)?.as_ptr());
            // SAFETY: the walk writes every element of the broadcast shape.
            unsafe { fresh(ctx, dtype, &bc.shape, |out| good = walk(out, a, b))? }
        }
    };
    Ok(if good {
        Zipped::Done(out)
    } else {
        Zipped::Refused
    })
}

/// Runs a kernel over two tensors of one shape and at most [`TINY`] bytes, into the first: what a
/// loop counter or a learning rate goes through, where the walk would take longer than the sum.
fn in_place(kernel: &dyn Binary, x: &mut Tensor, y: &Tensor) -> Result<bool> {
    let n = x.num_elements();
    if n == 0 {
        return Ok(true);
    }
    let b = bytes(y)?.as_ptr();
    let to = bytes_mut(x)?;
    let mut stage = Tiny([MaybeUninit::uninit(); TINY]);
    let a = stage.0.as_mut_ptr().cast::<u8>();
    // SAFETY: all three hold `n` elements (`y` has the shape of `x`, and both are of the kernel's
    // type); the stage is aligned for any element, set by the copy, and apart from the others.
    unsafe {
        std::ptr::copy_nonoverlapping(to.as_ptr(), a, to.len());
        Ok(kernel.run(to.as_mut_ptr(), a, b, n, Steps::Both))
    }
}

/// Room for a tiny operand.
#[repr(align(16))]
struct Tiny([MaybeUninit<u8>; TINY]);

/// Refuses shapes that take turns in repeating more often than TensorFlow's kernels can follow.
pub(crate) fn check_dims(bc: &Broadcast, x: &Tensor, y: &Tensor) -> Result<()> {
    if bc.sizes.len() <= 5 {
        return Ok(());
    }
    Err(Status::unimplemented(format!(
        "Broadcast between {} and {} is not supported yet.",
        x.shape(),
        y.shape()
    )))
}

/// The walk of a binary kernel over broadcast operands. `out` is the memory of `a` or of `b` when
/// `target` says so. The pointers cover what `bc` describes.
struct Walk<'a> {
    kernel: &'a dyn Binary,
    bc: &'a Broadcast,
    size_out: usize,
    target: Target,
    out: Shared,
    a: Shared,
    b: Shared,
}

impl Walk<'_> {
    fn run(&self) -> bool {
        let total = self.bc.shape.num_elements();
        if total == 0 {
            return true;
        }
        let good = AtomicBool::new(true);
        let note = |fine: bool| {
            if !fine {
                good.store(false, Ordering::Relaxed);
            }
        };
        let (rows, n) = (self.bc.row_count(), self.bc.row_len());
        let grain = self.kernel.grain();
        if rows == 1 {
            parallel_for(n, grain, |r| {
                note(self.block(r.start, r.start, r.start, r.len()))
            });
        } else if n >= SHORT_ROW {
            parallel_for(rows, grain.div_ceil(n), |r| {
                self.bc.rows_in(r, |out, l, r| note(self.row(out, l, r, n)));
            });
        } else {
            parallel_for(rows, grain.div_ceil(n), |r| note(self.short_rows(r)));
        }
        good.into_inner()
    }

    /// A run from these offsets.
    fn row(&self, out: usize, l: usize, r: usize, n: usize) -> bool {
        self.stretch(out, l, r, n)
    }

    /// A part of the only run: offsets of operands that stay put are not moved.
    fn block(&self, out: usize, l: usize, r: usize, n: usize) -> bool {
        let (sl, sr) = self.bc.steps();
        self.stretch(out, l * sl, r * sr, n)
    }

    fn steps(&self) -> Steps {
        match self.bc.steps() {
            (0, 1) => Steps::Right,
            (1, 0) => Steps::Left,
            // Both stay only where there is a single element.
            _ => Steps::Both,
        }
    }

    fn stretch(&self, out: usize, l: usize, r: usize, n: usize) -> bool {
        let size = self.kernel.size_in();
        let (steps, target) = (self.steps(), self.target);
        // SAFETY: offsets and lengths come from the walk over `bc`, which stays inside the
        // operands; parts given to threads are disjoint in `out`. When `out` is an operand's
        // memory, that operand's part is staged first, so the kernel's blocks never overlap; no
        // other part of that operand is read through these elements, because it has the
        // result's shape.
        unsafe {
            let (to, a, b) = (
                self.out.at(out * self.size_out),
                self.a.at(l * size),
                self.b.at(r * size),
            );
            if target == Target::Fresh {
                return self.kernel.run(to, a, b, n, steps);
            }
            let mut stage = Stage::new();
            let block = STAGE / size;
            let mut good = true;
            for start in (0..n).step_by(block) {
                let len = block.min(n - start);
                let (sa, sb) = strides(steps);
                let (mut a, mut b) = (
                    a.cast_const().add(start * sa * size),
                    b.cast_const().add(start * sb * size),
                );
                let staged = stage.ptr();
                if target == Target::Left {
                    std::ptr::copy_nonoverlapping(a, staged, len * size);
                    a = staged;
                } else {
                    std::ptr::copy_nonoverlapping(b, staged, len * size);
                    b = staged;
                }
                good &= self
                    .kernel
                    .run(to.add(start * self.size_out), a, b, len, steps);
            }
            good
        }
    }

    /// Several short runs, gathered into blocks that move both operands by one.
    fn short_rows(&self, rows: std::ops::Range<usize>) -> bool {
        let (n, size) = (self.bc.row_len(), self.kernel.size_in());
        let (sl, sr) = self.bc.steps();
        let (mut left, mut right) = (Stage::new(), Stage::new());
        let (left, right) = (left.ptr(), right.ptr());
        let at_once = STAGE / (n * size);
        let mut good = true;
        for start in rows.clone().step_by(at_once) {
            let part = start..rows.end.min(start + at_once);
            let len = part.len() * n * size;
            let mut filled = 0;
            // SAFETY: the walk stays inside the operands; `filled` stays below `len`, which fits
            // into a stage; the staged blocks are initialised for `len` bytes before the kernel
            // reads them, and `out` is disjoint from them and from other threads' parts.
            unsafe {
                self.bc.rows_in(part.clone(), |_, l, r| {
                    gather(left.add(filled), self.a.at(l * size), n, sl, size);
                    gather(right.add(filled), self.b.at(r * size), n, sr, size);
                    filled += n * size;
                });
                debug_assert_eq!(filled, len);
                let to = self.out.at(start * n * self.size_out);
                good &= self
                    .kernel
                    .run(to, left, right, part.len() * n, Steps::Both);
            }
        }
        good
    }
}

/// Combines tensors of one type and shape from the first to the last, block by block, so that
/// partial results stay in the first-level cache. The result takes the memory of the first input
/// that nobody else holds.
pub(crate) fn fold(
    ctx: &OpContext<'_>,
    kernel: &dyn Binary,
    mut inputs: Vec<Tensor>,
) -> Result<Tensor> {
    let target = inputs.iter().position(Tensor::is_unique);
    let mut at = Vec::with_capacity(inputs.len());
    for (i, t) in inputs.iter_mut().enumerate() {
        at.push(Shared(if Some(i) == target {
            bytes_mut(t)?.as_mut_ptr()
        } else {
            bytes(t)?.as_ptr().cast_mut()
        }));
    }
    let [first, middle @ .., last] = at.as_slice() else {
        return inputs
            .pop()
            .ok_or_else(|| Status::invalid_argument("there is nothing to combine"));
    };
    let (size, n) = (kernel.size_in(), inputs[0].num_elements());
    let overlaps = target == Some(inputs.len() - 1);
    let grain = (kernel.grain() / at.len()).max(STAGE / size);
    let fill = |out: Shared| {
        parallel_for(n, grain, |r| {
            let (mut one, mut two) = (Stage::new(), Stage::new());
            let (mut from, mut to) = (one.ptr(), two.ptr());
            for start in r.clone().step_by(STAGE / size) {
                let len = (STAGE / size).min(r.end - start);
                let skip = start * size;
                // SAFETY: every input and `out` have `n` elements of `size` bytes; ranges given
                // to threads are disjoint. The kernel writes to a stage it does not read, or to
                // `out`, which is either fresh or an input whose block has been read before; if
                // that input is the last one, its block is read into a stage first.
                unsafe {
                    let mut acc = first.at(skip).cast_const();
                    for next in middle {
                        kernel.run(to, acc, next.at(skip), len, Steps::Both);
                        acc = to;
                        std::mem::swap(&mut from, &mut to);
                    }
                    if overlaps {
                        kernel.run(to, acc, last.at(skip), len, Steps::Both);
                        std::ptr::copy_nonoverlapping(to, out.at(skip), len * size);
                    } else if acc == out.at(skip).cast_const() {
                        // Two inputs, the first of which takes the result.
                        std::ptr::copy_nonoverlapping(acc, to, len * size);
                        kernel.run(out.at(skip), to, last.at(skip), len, Steps::Both);
                    } else {
                        kernel.run(out.at(skip), acc, last.at(skip), len, Steps::Both);
                    }
                }
            }
        });
    };
    match target {
        Some(i) => {
            fill(at[i]);
            Ok(inputs.swap_remove(i))
        }
        None => {
            let (dtype, shape) = (inputs[0].dtype(), inputs[0].shape().clone());
            // SAFETY: the ranges cover all elements.
            unsafe { fresh(ctx, dtype, &shape, |out| fill(Shared(out))) }
        }
    }
}

/// Memory for one staged block, aligned for any element.
#[repr(align(64))]
struct Stage([MaybeUninit<u8>; STAGE]);

impl Stage {
    fn new() -> Stage {
        Stage([MaybeUninit::uninit(); STAGE])
    }

    fn ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr().cast()
    }
}

/// A pointer that threads may share because each touches its own part.
#[derive(Clone, Copy)]
pub(crate) struct Shared(pub(crate) *mut u8);

// SAFETY: whoever dereferences it says why the parts are disjoint.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// `bytes` further on.
    ///
    /// # Safety
    /// The result must be inside the same allocation.
    pub(crate) unsafe fn at(&self, bytes: usize) -> *mut u8 {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(bytes) }
    }
}

/// An empty tensor's, or a fresh one's, memory as a tensor.
///
/// # Safety
/// `fill` must write all bytes of a tensor of that type and shape, with valid elements.
pub(crate) unsafe fn fresh(
    ctx: &OpContext<'_>,
    dtype: DType,
    shape: &Shape,
    fill: impl FnOnce(*mut u8),
) -> Result<Tensor> {
    ctx.check_alloc(dtype, shape)?;
    let size = dtype
        .size()
        .ok_or_else(|| Status::internal(format!("{dtype} is not plain")))?;
    // SAFETY: the caller's promise.
    let buffer = unsafe { Buffer::build(shape.num_elements() * size, fill) };
    Ok(Tensor::from_buffer(dtype, shape.clone(), buffer)?)
}

/// The bytes of a plain tensor.
pub(crate) fn bytes(tensor: &Tensor) -> Result<&[u8]> {
    match tensor.buffer() {
        Some(b) => Ok(b.as_bytes()),
        None => Err(not_plain(tensor.dtype())),
    }
}

/// The bytes of a plain tensor, for writing.
pub(crate) fn bytes_mut(tensor: &mut Tensor) -> Result<&mut [u8]> {
    let dtype = tensor.dtype();
    tensor.buffer_mut().ok_or_else(|| not_plain(dtype))
}

fn not_plain(dtype: DType) -> Status {
    Status::internal(format!("a tensor of {dtype} has no plain bytes"))
}

/// Copies `n` elements, or one `n` times when the step is 0.
///
/// # Safety
/// `to` must have room for `n` elements of `size` bytes, `from` must hold the elements read, and
/// both must be aligned for their size (up to 8).
unsafe fn gather(to: *mut u8, from: *const u8, n: usize, step: usize, size: usize) {
    /// # Safety
    /// As for [`gather`], with `T` of the element's size.
    unsafe fn repeat<T: Copy>(to: *mut u8, from: *const u8, n: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            let value = from.cast::<T>().read_unaligned();
            for i in 0..n {
                to.cast::<T>().add(i).write_unaligned(value);
            }
        }
    }
    // SAFETY: the caller's promise.
    unsafe {
        if step == 1 {
            std::ptr::copy_nonoverlapping(from, to, n * size);
            return;
        }
        match size {
            1 => repeat::<u8>(to, from, n),
            2 => repeat::<u16>(to, from, n),
            4 => repeat::<u32>(to, from, n),
            8 => repeat::<u64>(to, from, n),
            _ => (0..n).for_each(|i| std::ptr::copy_nonoverlapping(from, to.add(i * size), size)),
        }
    }
}
