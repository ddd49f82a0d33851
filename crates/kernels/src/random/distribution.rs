//! From blocks of random words to elements of a distribution, filling whole outputs in parallel.
//! The group an element belongs to fixes the block it comes from, whatever the threads do.

use super::philox::{Philox, RESERVED_PER_OUTPUT, WORDS, Words, unit_f32, unit_f64};
use crate::types::with_type;
use downpour_graph::Result;
use downpour_runtime::{OpContext, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use half::{bf16, f16};

/// A distribution of floating-point numbers without parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Floats {
    /// Even in [0, 1).
    Uniform,
    /// Mean 0, deviation 1.
    Normal,
    /// As `Normal`, but drawn again when two or more deviations away.
    Truncated,
}

/// A floating-point type that can be drawn. `GROUP` elements come from one block.
pub(super) trait Draw: Element + Sized {
    const GROUP: usize;
    /// The array of one group.
    type Group: AsRef<[Self]> + Copy + Default + AsMut<[Self]>;
    fn uniform(block: [u32; WORDS]) -> Self::Group;
    fn normal(block: [u32; WORDS]) -> Self::Group;
    fn truncated(words: &mut Words) -> Self::Group;
}

/// Draws `shape` elements of `dtype`.
pub(super) fn draw(
    ctx: &OpContext<'_>,
    kind: Floats,
    dtype: DType,
    shape: &Shape,
    philox: impl FnOnce() -> Philox,
) -> Result<Tensor> {
    let mut out = ctx.zeros(dtype, shape)?;
    if out.num_elements() == 0 {
        return Ok(out);
    }
    with_type!(dtype, T in floats => {
        let (out, philox) = (out.make_mut::<T>()?, philox());
        match kind {
            Floats::Uniform => fill(out, <T as Draw>::GROUP, philox, T::uniform),
            Floats::Normal => fill(out, <T as Draw>::GROUP, philox, T::normal),
            Floats::Truncated => fill_truncated(out, philox),
        }
    });
    Ok(out)
}

/// Fills `out`, each group of `group` elements from the block of its own number.
pub(super) fn fill<T: Element, G: AsRef<[T]>>(
    out: &mut [T],
    group: usize,
    philox: Philox,
    make: impl Fn([u32; WORDS]) -> G + Sync,
) {
    let whole = out.len() / group * group;
    let (head, tail) = out.split_at_mut(whole);
    parallel_ranges(head, group, 4096, |first, rows| {
        let mut philox = philox.skipped(first as u64);
        for row in rows.chunks_exact_mut(group) {
            row.copy_from_slice(make(philox.block()).as_ref());
        }
    });
    if !tail.is_empty() {
        let last = make(philox.skipped((whole / group) as u64).block());
        for (to, from) in tail.iter_mut().zip(last.as_ref()) {
            *to = *from;
        }
    }
}

/// Fills `out` with truncated normals: each group starts at a place of its own because it needs
/// an unknown number of blocks.
fn fill_truncated<T: Draw>(out: &mut [T], philox: Philox) {
    let skip = T::GROUP as u64 * RESERVED_PER_OUTPUT / WORDS as u64;
    let group = |number: usize| {
        T::truncated(&mut Words::new(
            philox.skipped((number as u64).wrapping_mul(skip)),
        ))
    };
    let whole = out.len() / T::GROUP * T::GROUP;
    let (head, tail) = out.split_at_mut(whole);
    parallel_ranges(head, T::GROUP, 1024, |first, rows| {
        for (i, row) in rows.chunks_exact_mut(T::GROUP).enumerate() {
            row.copy_from_slice(group(first + i).as_ref());
        }
    });
    if !tail.is_empty() {
        for (to, from) in tail.iter_mut().zip(group(whole / T::GROUP).as_ref()) {
            *to = *from;
        }
    }
}

/// Bound of the truncated normal distribution.
const TRUNCATE: f32 = 2.0;

/// Two independent normal numbers from two words.
#[inline]
fn box_muller_f32(x0: u32, x1: u32) -> [f32; 2] {
    let u = unit_f32(x0).max(1.0e-7);
    // TensorFlow multiplies by the double 2π and rounds once.
    let angle = (std::f64::consts::TAU * f64::from(unit_f32(x1))) as f32;
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = angle.sin_cos();
    [sin * radius, cos * radius]
}

/// Two independent normal numbers from four words.
#[inline]
fn box_muller_f64(x: [u32; WORDS]) -> [f64; 2] {
    let u = unit_f64(x[0], x[1]).max(1.0e-7);
    let angle = std::f64::consts::TAU * unit_f64(x[2], x[3]);
    let radius = (-2.0 * u.ln()).sqrt();
    let (sin, cos) = angle.sin_cos();
    [sin * radius, cos * radius]
}

#[inline]
fn normal_f32(b: [u32; WORDS]) -> [f32; 4] {
    let ([a, b], [c, d]) = (box_muller_f32(b[0], b[1]), box_muller_f32(b[2], b[3]));
    [a, b, c, d]
}

fn truncated_f32(words: &mut Words) -> [f32; 4] {
    let mut out = [0.0; 4];
    let mut n = 0;
    loop {
        let x0 = words.u32();
        for value in box_muller_f32(x0, words.u32()) {
            if value.abs() < TRUNCATE {
                out[n] = value;
                n += 1;
                if n == out.len() {
                    return out;
                }
            }
        }
    }
}

impl Draw for f32 {
    const GROUP: usize = 4;
    type Group = [f32; 4];
    #[inline]
    fn uniform(block: [u32; WORDS]) -> [f32; 4] {
        block.map(unit_f32)
    }
    #[inline]
    fn normal(block: [u32; WORDS]) -> [f32; 4] {
        normal_f32(block)
    }
    fn truncated(words: &mut Words) -> [f32; 4] {
        truncated_f32(words)
    }
}

impl Draw for f16 {
    const GROUP: usize = 4;
    type Group = [f16; 4];
    fn uniform(block: [u32; WORDS]) -> [f16; 4] {
        // Ten bits below 1.0, exactly representable.
        block.map(|x| f16::from_f32(f16::from_bits(15 << 10 | (x & 0x3ff) as u16).to_f32() - 1.0))
    }
    fn normal(block: [u32; WORDS]) -> [f16; 4] {
        normal_f32(block).map(f16::from_f32)
    }
    fn truncated(words: &mut Words) -> [f16; 4] {
        truncated_f32(words).map(f16::from_f32)
    }
}

impl Draw for bf16 {
    const GROUP: usize = 4;
    type Group = [bf16; 4];
    fn uniform(block: [u32; WORDS]) -> [bf16; 4] {
        block.map(|x| bf16::from_f32(bf16::from_bits(127 << 7 | (x & 0x7f) as u16).to_f32() - 1.0))
    }
    fn normal(block: [u32; WORDS]) -> [bf16; 4] {
        normal_f32(block).map(bf16::from_f32)
    }
    fn truncated(words: &mut Words) -> [bf16; 4] {
        truncated_f32(words).map(bf16::from_f32)
    }
}

impl Draw for f64 {
    const GROUP: usize = 2;
    type Group = [f64; 2];
    fn uniform(b: [u32; WORDS]) -> [f64; 2] {
        [unit_f64(b[0], b[1]), unit_f64(b[2], b[3])]
    }
    fn normal(block: [u32; WORDS]) -> [f64; 2] {
        box_muller_f64(block)
    }
    fn truncated(words: &mut Words) -> [f64; 2] {
        let mut out = [0.0; 2];
        let mut n = 0;
        loop {
            let block = [words.u32(), words.u32(), words.u32(), words.u32()];
            for value in box_muller_f64(block) {
                if value.abs() < TRUNCATE.into() {
                    out[n] = value;
                    n += 1;
                    if n == out.len() {
                        return out;
                    }
                }
            }
        }
    }
}

/// Draws uniform integers in [low, high) (int32, int64; the caller has checked the order), or
/// over the type's whole range (also unsigned) when there are no bounds.
pub(super) fn draw_ints(
    ctx: &OpContext<'_>,
    dtype: DType,
    shape: &Shape,
    bounds: Option<(i64, i64)>,
    philox: impl FnOnce() -> Philox,
) -> Result<Tensor> {
    let mut out = ctx.zeros(dtype, shape)?;
    if out.num_elements() == 0 {
        return Ok(out);
    }
    let philox = philox();
    let pairs = |b: [u32; WORDS]| {
        [
            u64::from(b[0]) | u64::from(b[1]) << 32,
            u64::from(b[2]) | u64::from(b[3]) << 32,
        ]
    };
    match (dtype, bounds) {
        (DType::Int32, Some((low, high))) => {
            let (low, range) = (low as u32, (high as u32).wrapping_sub(low as u32).max(1));
            fill(out.make_mut::<i32>()?, 4, philox, |b| {
                b.map(|x| low.wrapping_add(x % range) as i32)
            });
        }
        (_, Some((low, high))) => {
            let (low, range) = (low as u64, (high as u64).wrapping_sub(low as u64).max(1));
            fill(out.make_mut::<i64>()?, 2, philox, |b| {
                pairs(b).map(|x| low.wrapping_add(x % range) as i64)
            });
        }
        (DType::Int32, None) => {
            fill(out.make_mut::<i32>()?, 4, philox, |b| b.map(|x| x as i32));
        }
        (DType::UInt32, None) => fill(out.make_mut::<u32>()?, 4, philox, |b| b),
        (DType::UInt64, None) => fill(out.make_mut::<u64>()?, 2, philox, pairs),
        (_, None) => fill(out.make_mut::<i64>()?, 2, philox, |b| {
            pairs(b).map(|x| x as i64)
        }),
    }
    Ok(out)
}
