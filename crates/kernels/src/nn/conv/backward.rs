//! The gradients of a convolution, as products of the same form as the convolution itself.
//!
//! Input: a pixel of the input gathers from the windows that cover it. Pixels that lie alike
//! between strides (one class per residue) see the same taps, so each class is a convolution of
//! the output's gradient with a part of the filter, turned around.
//! Filter: an element of the filter is a row whose reduction runs over all windows. Images are
//! cut into parts with a sum each; how many depends on the shape alone, and the sums are added in
//! order, so the result does not depend on threads.
#![allow(unsafe_code, reason = "threads write disjoint rows of one output")]

use super::forward::{Panels, frame_of};
use super::image::Frame;
use super::shape::Geometry;
use super::share;
use super::zones;
use crate::linalg::tile::{Arithmetic, Sweep, Tiled, in_turn};
use crate::nn::float::{Parts, assume_set};
use crate::nn::window::Axis;
use downpour_graph::Result;
use downpour_runtime::parallel_for;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Pixels of the input in one direction that see the same taps.
struct Class {
    /// First such pixel of the whole input and the distance to the next.
    first: usize,
    step: usize,
    /// `(tap, output position relative to the pixel's quotient)`.
    taps: Vec<(usize, isize)>,
    /// Quotient of the first pixel.
    base: isize,
}

/// All classes of an axis: pixel `p` has residue `(p + before) % stride`.
fn classes(a: &Axis) -> Vec<Class> {
    let (stride, before) = (a.stride as isize, a.before as isize);
    // More residues than pixels would be empty classes.
    (0..a.stride.min(a.input))
        .map(|first| {
            let t = first as isize + before;
            let (base, residue) = (t.div_euclid(stride), t.rem_euclid(stride));
            let taps = (0..a.window).rev().filter_map(|k| {
                let d = residue - (k * a.dilation) as isize;
                (d.rem_euclid(stride) == 0).then(|| (k, d.div_euclid(stride)))
            });
            Class {
                first,
                step: a.stride,
                taps: taps.collect(),
                base,
            }
        })
        .collect()
}

/// Output positions that pixels `pixels` may reach.
fn reach(a: &Axis, pixels: &Range<usize>) -> Range<isize> {
    let stride = a.stride as isize;
    let extent = (a.window.max(1) - 1) as isize * a.dilation as isize;
    let low = (pixels.start as isize + a.before as isize - extent).div_euclid(stride);
    let high = (pixels.end as isize - 1 + a.before as isize).div_euclid(stride);
    low..(high + 1).max(low)
}

/// Computes the gradient of the input from `dy` and `filter` into `out`.
pub(crate) fn input<T: Tiled>(
    g: &Geometry,
    dy: &[T],
    filter: &[T],
    out: &Parts<'_, T>,
    limit: usize,
) -> Result<()> {
    let (cg, og) = (g.group_in(), g.group_out());
    let (rows, cols) = (classes(&g.h), classes(&g.w));
    // One set of panels for each pair of classes: taps in the order of the output's pixels.
    Panels::<T>::check(g.groups, g.taps() * og, cg, limit)?;
    let panels: Vec<Panels<T>> = rows
        .iter()
        .flat_map(|r| cols.iter().map(move |c| (r, c)))
        .map(|(r, c)| {
            let taps = r.taps.len() * c.taps.len();
            Panels::columns([g.groups, taps], og, cg, g.out_c, |group, tap| {
                let (kh, _) = r.taps[tap / c.taps.len()];
                let (kw, _) = c.taps[tap % c.taps.len()];
                &filter[(kh * g.w.window + kw) * cg * g.out_c + group * og..]
            })
        })
        .collect();
    if let (Some(turned), [panels]) = (zones::turned(g), &panels[..])
        && zones::pay(&turned)
    {
        zones::run(&turned, dy, panels, out, None);
        return Ok(());
    }
    let height = g.h.input;
    let block = (height * g.batch).div_ceil(16).max(4).min(height).max(1);
    let per_image = height.div_ceil(block);
    let frame = |ys: &Range<usize>| Frame {
        rows: reach(&g.h, ys),
        cols: reach(&g.w, &(0..g.w.input)),
        channels: g.out_c,
    };
    frame(&(0..block)).check(size_of::<T>(), limit)?;
    let work = block * g.w.input * g.in_c * og * g.taps();
    let grain = (super::GRAIN / work.max(1)).max(1);
    parallel_for(g.batch * per_image, grain, |units| {
        let mut padded = Vec::new();
        let (mut at, mut to) = (Vec::new(), Vec::new());
        for u in units {
            let n = u / per_image;
            let start = u % per_image * block;
            let ys = start..(start + block).min(height);
            let f = frame(&ys);
            let image = g.h.output * g.w.output * g.out_c;
            let image = &dy[n * image..(n + 1) * image];
            let pitch = f.pitch();
            let dy: &[T] = if f.is_inside(g.h.output, g.w.output) {
                let start = f.rows.start as usize * pitch;
                &image[start..start + f.len()]
            } else {
                padded.clear();
                f.copy(image, g.h.output, g.w.output, &mut padded);
                &padded
            };
            let row = g.w.input * g.in_c;
            // SAFETY: units are disjoint blocks of rows of the output.
            let part = unsafe { out.part((n * height + ys.start) * row, ys.len() * row) };
            for (i, r) in rows.iter().enumerate() {
                for (j, c) in cols.iter().enumerate() {
                    at.clear();
                    to.clear();
                    let skip = ys.start.saturating_sub(r.first).div_ceil(r.step);
                    for (q, y) in (r.first..ys.end).step_by(r.step).enumerate().skip(skip) {
                        for (p, x) in (c.first..g.w.input).step_by(c.step).enumerate() {
                            // The least tap offset is negative or zero; runs are relative to it.
                            let oy = r.base + q as isize - f.rows.start;
                            let ox = c.base + p as isize - f.cols.start;
                            at.push(oy * pitch as isize + ox * g.out_c as isize);
                            to.push(((y - ys.start) * g.w.input + x) * g.in_c);
                        }
                    }
                    sweep_class(
                        g,
                        (r, c),
                        &panels[i * cols.len() + j],
                        pitch,
                        dy,
                        &at,
                        &to,
                        part,
                    );
                }
            }
        }
    });
    Ok(())
}

/// Computes the pixels of one pair of classes. `at` are their places in the padded gradient, to
/// which the (negative) tap offsets are added.
#[expect(
    clippy::too_many_arguments,
    reason = "one step of the loop above, which owns all of these"
)]
fn sweep_class<T: Tiled>(
    g: &Geometry,
    (r, c): (&Class, &Class),
    panels: &Panels<T>,
    pitch: usize,
    padded: &[T],
    at: &[isize],
    to: &[usize],
    part: &mut [MaybeUninit<T>],
) {
    let (cg, og) = (g.group_in(), g.group_out());
    let offset = |tap: (isize, isize)| tap.0 * pitch as isize + tap.1 * g.out_c as isize;
    let all = r
        .taps
        .iter()
        .flat_map(|a| c.taps.iter().map(move |b| (a.1, b.1)));
    let least = all.clone().map(offset).min().unwrap_or(0);
    let mut segments: Vec<usize> = all.map(|t| (offset(t) - least) as usize).collect();
    let mut len = og;
    // Taps that are neighbours in the gradient make one long run.
    let run = c.taps.len();
    let even = c.taps.windows(2).all(|p| p[1].1 == p[0].1 + 1);
    if g.groups == 1 && run > 1 && even {
        segments = segments.into_iter().step_by(run).collect();
        len = og * run;
    }
    let rows: Vec<usize> = if segments.is_empty() {
        vec![0; at.len()]
    } else {
        at.iter().map(|&a| (a + least) as usize).collect()
    };
    for group in 0..g.groups {
        let shifted = in_turn(segments.iter().map(|s| s + group * og), len);
        let sweep = Sweep {
            a: padded,
            rows: &rows,
            segments: &shifted,
            len,
            step: 1,
            b: panels.of(group),
            stride: T::kernel().width,
            panel: panels.panel,
            cols: cg,
            out_rows: to,
        };
        T::kernel().write(&sweep, &mut part[group * cg..]);
    }
}

/// Most bytes that the sums of all parts may take together.
const SUM_BYTES: usize = 8 << 20;

/// Pixels that one product should at least reduce over: fewer spend their time on the sums.
const MIN_PIXELS: usize = 256;

/// Computes the gradient of the filter from `x` and `dy` into `out`.
pub(crate) fn filter<T: Tiled + Arithmetic>(
    g: &Geometry,
    x: &[T],
    dy: &[T],
    out: &Parts<'_, T>,
    limit: usize,
) -> Result<()> {
    let cg = g.group_in();
    let rows = g.taps() * cg;
    let size = rows * g.out_c;
    let pixels = g.h.output * g.w.output;
    if g.batch == 0 || pixels == 0 || size == 0 {
        // SAFETY: nobody else writes.
        unsafe { out.part(0, size) }.fill(MaybeUninit::new(T::default()));
        return Ok(());
    }
    let frame = frame_of(g, 0..g.h.output);
    frame.check(size_of::<T>(), limit)?;
    let zoned = zones::pay_for_filter::<T>(g);
    let most = if zoned { 8 } else { 16 };
    let parts = (SUM_BYTES / (size * size_of::<T>()))
        .clamp(1, most)
        .min(g.batch);
    let cuts = match zoned {
        true => 32usize.div_ceil(parts).min(g.taps()),
        false => 8usize.div_ceil(parts).min(rows.div_ceil(64)),
    };
    let together = MIN_PIXELS.div_ceil(pixels);
    Panels::<T>::check(g.groups, together * pixels, g.group_out(), limit)?;
    let mut sums: Vec<T> = Vec::with_capacity(size * (parts - 1));
    let shared = Parts::spare(&mut sums);
    let job = Filter {
        g,
        x,
        dy,
        frame: &frame,
    };
    share(parts * cuts, g.work(), |u| {
        let (part, cut) = (u / cuts, u % cuts);
        let images = g.batch * part / parts..g.batch * (part + 1) / parts;
        let rs = match zoned {
            true => g.taps() * cut / cuts * cg..g.taps() * (cut + 1) / cuts * cg,
            false => rows * cut / cuts..rows * (cut + 1) / cuts,
        };
        // SAFETY: each unit has its own part's sum, and of that its own rows.
        let sum = unsafe {
            let (start, len) = (rs.start * g.out_c, rs.len() * g.out_c);
            match part {
                0 => out.part(start, len),
                p => shared.part((p - 1) * size + start, len),
            }
        };
        match zoned {
            true => zones::filter(
                g,
                (x, dy),
                images,
                rs.start / cg..rs.end / cg,
                together,
                sum,
            ),
            false => job.sum(images, rs, together, sum),
        }
    });
    parallel_for(size, super::GRAIN / (8 * parts), |places| {
        for p in 0..parts - 1 {
            // SAFETY: every unit set its part of a sum, and threads have their own places of each.
            let (first, sum) = unsafe {
                let sum = shared.part(p * size + places.start, places.len());
                let first = out.part(places.start, places.len());
                (assume_set(first), assume_set(sum))
            };
            first.iter_mut().zip(sum).for_each(|(a, b)| *a = a.plus(*b));
        }
    });
    Ok(())
}

struct Filter<'a, T> {
    g: &'a Geometry,
    x: &'a [T],
    dy: &'a [T],
    frame: &'a Frame,
}

impl<T: Tiled> Filter<'_, T> {
    /// Sets `sum` to what `images` give to rows `rows` of the filter.
    fn sum(
        &self,
        images: Range<usize>,
        rows: Range<usize>,
        together: usize,
        sum: &mut [MaybeUninit<T>],
    ) {
        let g = self.g;
        let (cg, og) = (g.group_in(), g.group_out());
        let pixels = g.h.output * g.w.output;
        let (image, pitch) = (g.h.input * g.w.input * g.in_c, self.frame.pitch());
        let direct = self.frame.is_inside(g.h.input, g.w.input)
            && self.frame.rows == (0..g.h.input as isize);
        let framed = if direct { image } else { self.frame.len() };
        let out_rows: Vec<usize> = (0..rows.len()).map(|r| r * g.out_c).collect();
        let mut padded = Vec::new();
        let width = T::kernel().width;
        // Whole panels of the gradient may be read where they are.
        let in_place = og == g.out_c && (og == width || og == T::kernel().lanes);
        for first in images.clone().step_by(together) {
            let count = together.min(images.end - first);
            let a: &[T] = if direct {
                &self.x[first * image..(first + count) * image]
            } else {
                padded.clear();
                for n in first..first + count {
                    let from = &self.x[n * image..(n + 1) * image];
                    self.frame.copy(from, g.h.input, g.w.input, &mut padded);
                }
                &padded
            };
            let dy = &self.dy[first * pixels * g.out_c..(first + count) * pixels * g.out_c];
            let lines = (0..count).flat_map(|n| (0..g.h.output).map(move |y| (n, y)));
            let starts = lines.map(|(n, y)| n * framed + y * g.h.stride * pitch);
            let segments = in_turn(starts, g.w.output);
            let packed;
            let (b, stride, panel, group_len) = if in_place {
                (dy, g.out_c, 0, 0)
            } else {
                packed = Panels::rows(g.groups, count * pixels, og, |group, k| {
                    &dy[k * g.out_c + group * og..][..og]
                });
                (&packed.data[..], width, packed.panel, packed.group)
            };
            for group in 0..g.groups {
                let at: Vec<usize> = rows
                    .clone()
                    .map(|r| {
                        let (tap, c) = (r / cg, r % cg);
                        let (y, x) = (tap / g.w.window, tap % g.w.window);
                        y * g.h.dilation * pitch + x * g.w.dilation * g.in_c + group * cg + c
                    })
                    .collect();
                let sweep = Sweep {
                    a,
                    rows: &at,
                    segments: &segments,
                    len: g.w.output,
                    step: g.w.stride * g.in_c,
                    b: &b[group * group_len..],
                    stride,
                    panel,
                    cols: og,
                    out_rows: &out_rows,
                };
                let sum = &mut sum[group * og..];
                if first == images.start {
                    T::kernel().write(&sweep, sum);
                } else {
                    // SAFETY: the rows this sweep adds to were set for the first image; what
                    // lies between them belongs to other groups and is not touched.
                    T::kernel().add(&sweep, unsafe { assume_set(sum) });
                }
            }
        }
    }
}
