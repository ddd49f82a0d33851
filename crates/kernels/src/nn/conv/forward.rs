//! The convolution itself: every output pixel is a row of a product whose left operand is read
//! straight from the padded image and whose right operand is the filter in panels.
#![allow(unsafe_code, reason = "threads write disjoint rows of one output")]

use super::image::Frame;
use super::shape::Geometry;
use super::zones;
use crate::linalg::tile::{Sweep, Tiled, in_turn};
use crate::nn::float::{Parts, assume_set};
use downpour_graph::{Result, Status};
use downpour_runtime::parallel_for;

/// Bytes of a padded block that should stay in the second-level cache.
const BLOCK_BYTES: usize = 512 << 10;

/// What is done to a block of finished output rows (`[pixels, channels]`) while it is in cache.
pub(crate) type Epilogue<'a, T> = &'a (dyn Fn(&mut [T]) + Sync);

/// The right operand of a product, copied into panels group by group.
pub(crate) struct Panels<T> {
    pub(crate) data: Vec<T>,
    /// Elements of one group.
    pub(crate) group: usize,
    /// Elements of one panel.
    pub(crate) panel: usize,
}

impl<T: Tiled> Panels<T> {
    /// `groups` matrices of `depth` rows and `cols` columns; `at(group, row)` gives a row's
    /// elements.
    pub(crate) fn rows<'a>(
        groups: usize,
        depth: usize,
        cols: usize,
        at: impl Fn(usize, usize) -> &'a [T],
    ) -> Panels<T> {
        let mut p = Panels::zeros(groups, depth, cols);
        let width = T::kernel().width;
        for g in 0..groups {
            for k in 0..depth {
                for (i, part) in at(g, k).chunks(width).enumerate() {
                    let to = g * p.group + i * p.panel + k * width;
                    p.data[to..to + part.len()].copy_from_slice(part);
                }
            }
        }
        p
    }

    /// As [`Panels::rows`], from columns: `at(group, run)` gives `run` rows of all columns, each
    /// column's side by side, and from one column to the next `stride` elements.
    pub(crate) fn columns<'a>(
        [groups, runs]: [usize; 2],
        run: usize,
        cols: usize,
        stride: usize,
        at: impl Fn(usize, usize) -> &'a [T],
    ) -> Panels<T> {
        let mut p = Panels::zeros(groups, runs * run, cols);
        let width = T::kernel().width;
        for g in 0..groups {
            for r in 0..runs {
                let from = at(g, r);
                for c in (0..cols).step_by(width) {
                    let to = g * p.group + c / width * p.panel + r * run * width;
                    let from = (&from[c * stride..], stride);
                    let to = (&mut p.data[to..], width);
                    T::kernel().transpose(from, to, width.min(cols - c), run);
                }
            }
        }
        p
    }

    /// Refuses panels of more than `limit` bytes: narrow matrices grow when they are cut.
    pub(crate) fn check(groups: usize, depth: usize, cols: usize, limit: usize) -> Result<()> {
        let width = T::kernel().width;
        let bytes = cols
            .div_ceil(width)
            .saturating_mul(width)
            .saturating_mul(depth)
            .saturating_mul(groups)
            .saturating_mul(size_of::<T>());
        if bytes > limit {
            return Err(Status::resource_exhausted(format!(
                "OOM: {groups} matrices of {depth} by {cols} elements are too large"
            )));
        }
        Ok(())
    }

    fn zeros(groups: usize, depth: usize, cols: usize) -> Panels<T> {
        let kernel = T::kernel();
        let group = kernel.packed_len(depth, cols);
        Panels {
            data: vec![T::default(); groups * group],
            group,
            panel: depth * kernel.width,
        }
    }

    /// The panels of one group.
    pub(crate) fn of(&self, group: usize) -> &[T] {
        &self.data[group * self.group..(group + 1) * self.group]
    }
}

/// Computes the convolution of `x` with `filter` (both dense, channels last) into `out`.
pub(crate) fn run<T: Tiled>(
    g: &Geometry,
    x: &[T],
    filter: &[T],
    out: &Parts<'_, T>,
    limit: usize,
    epilogue: Option<Epilogue<'_, T>>,
) -> Result<()> {
    let (cg, og) = (g.group_in(), g.group_out());
    let depth = g.taps() * cg;
    Panels::<T>::check(g.groups, depth, og, limit)?;
    let panels = Panels::rows(g.groups, depth, og, |group, k| {
        &filter[k * g.out_c + group * og..][..og]
    });
    if zones::pay(g) {
        zones::run(g, x, &panels, out, epilogue);
        return Ok(());
    }
    let unit = Units::new(g, size_of::<T>());
    let frame = |rows: std::ops::Range<usize>| frame_of(g, rows);
    frame(0..unit.rows).check(size_of::<T>(), limit)?;
    let pitch = frame(0..unit.rows).pitch();
    let (rows, out_rows) = row_offsets(g, unit.rows, pitch);
    let row_work = g.w.output * g.out_c * depth;
    let grain = (super::GRAIN / (row_work * unit.rows).max(1)).max(1);
    parallel_for(unit.count, grain, |units| {
        let mut padded = Vec::new();
        for u in units {
            let (n, ys) = unit.get(u);
            let image = g.h.input * g.w.input * g.in_c;
            let image = &x[n * image..(n + 1) * image];
            let f = frame(ys.clone());
            let a: &[T] = if f.is_inside(g.h.input, g.w.input) {
                let start = f.rows.start as usize * pitch;
                &image[start..start + f.len()]
            } else {
                padded.clear();
                f.copy(image, g.h.input, g.w.input, &mut padded);
                &padded
            };
            let pixels = ys.len() * g.w.output;
            let start = (n * g.h.output + ys.start) * g.w.output * g.out_c;
            // SAFETY: units are disjoint blocks of rows of the output.
            let part = unsafe { out.part(start, pixels * g.out_c) };
            for group in 0..g.groups {
                let (segments, len) = segments(g, pitch, group);
                let sweep = Sweep {
                    a,
                    rows: &rows[..pixels],
                    segments: &segments,
                    len,
                    step: 1,
                    b: panels.of(group),
                    stride: T::kernel().width,
                    panel: panels.panel,
                    cols: og,
                    out_rows: &out_rows[..pixels],
                };
                T::kernel().write(&sweep, &mut part[group * og..]);
            }
            if let Some(epilogue) = epilogue {
                // SAFETY: the sweeps over all groups set every element of the part.
                epilogue(unsafe { assume_set(part) });
            }
        }
    });
    Ok(())
}

/// The part of the input that output rows `rows` see.
pub(crate) fn frame_of(g: &Geometry, rows: std::ops::Range<usize>) -> Frame {
    let (h, w) = (&g.h, &g.w);
    let top = (rows.start * h.stride) as isize - h.before as isize;
    let bottom = ((rows.end.max(1) - 1) * h.stride + (h.window.max(1) - 1) * h.dilation + 1)
        as isize
        - h.before as isize;
    let left = -(w.before as isize);
    let right = ((w.output.max(1) - 1) * w.stride + (w.window.max(1) - 1) * w.dilation + 1)
        as isize
        - w.before as isize;
    // Without padding on either side, whole rows of the image serve as they are.
    let cols = if left == 0 && right <= w.input as isize {
        0..w.input as isize
    } else {
        left..right
    };
    Frame {
        rows: top..bottom.max(top),
        cols,
        channels: g.in_c,
    }
}

/// Where each pixel of `rows` output rows begins, in the frame and in the output.
fn row_offsets(g: &Geometry, rows: usize, pitch: usize) -> (Vec<usize>, Vec<usize>) {
    let mut at = Vec::with_capacity(rows * g.w.output);
    for y in 0..rows {
        for x in 0..g.w.output {
            at.push(y * g.h.stride * pitch + x * g.w.stride * g.in_c);
        }
    }
    let out = (0..at.len()).map(|i| i * g.out_c).collect();
    (at, out)
}

/// The runs of one window from its first element: whole filter rows where taps are neighbours.
pub(crate) fn segments(g: &Geometry, pitch: usize, group: usize) -> (Vec<(usize, usize)>, usize) {
    let (h, w) = (&g.h, &g.w);
    if g.groups == 1 && w.dilation == 1 {
        let len = w.window * g.in_c;
        let rows = (0..h.window).map(|y| y * h.dilation * pitch);
        return (in_turn(rows, len), len);
    }
    let mut taps = Vec::with_capacity(g.taps());
    for y in 0..h.window {
        for x in 0..w.window {
            taps.push(y * h.dilation * pitch + x * w.dilation * g.in_c + group * g.group_in());
        }
    }
    (in_turn(taps, g.group_in()), g.group_in())
}

/// How the output rows of all images are cut into blocks for threads and caches.
struct Units {
    rows: usize,
    per_image: usize,
    count: usize,
    height: usize,
}

impl Units {
    fn new(g: &Geometry, element: usize) -> Units {
        let height = g.h.output;
        let row = frame_of(g, 0..1).pitch() * element * g.h.stride;
        let fit = (BLOCK_BYTES / row.max(1)).max(1);
        // A few images alone would leave threads idle.
        let spread = (height * g.batch).div_ceil(16).max(1);
        let rows = height.min(fit).min(spread.max(4)).max(1);
        let per_image = height.div_ceil(rows);
        Units {
            rows,
            per_image,
            count: g.batch * per_image,
            height,
        }
    }

    fn get(&self, unit: usize) -> (usize, std::ops::Range<usize>) {
        let start = unit % self.per_image * self.rows;
        (
            unit / self.per_image,
            start..(start + self.rows).min(self.height),
        )
    }
}
