//! Convolutions that leave the padding out. Pixels at an edge see fewer taps of the filter than
//! those inside. Pixels that see the same taps make a zone, whatever image they belong to, and each
//! zone is a product over its own taps: nothing is multiplied with the zeros of a padding, and no
//! image is copied into a frame of them. Of a 14 by 14 image under 5 by 5 taps that is a sixth.
#![allow(unsafe_code, reason = "zones are written between each other's pixels")]

use super::forward::{Epilogue, Panels};
use super::shape::Geometry;
use super::share;
use crate::linalg::tile::{Sweep, Tiled};
use crate::nn::float::{Parts, assume_set};
use crate::nn::window::Axis;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Images whose pixels are put together, so that zones of few pixels fill whole tiles.
const IMAGES: usize = 8;

/// Multiplications of one unit of work.
const UNIT: usize = 8 << 20;

/// Elements of the largest image for which it is tried: of larger ones the edges are little, and
/// several together leave the caches.
const MAX_IMAGE: usize = 128 << 10;

/// Outputs side by side whose windows meet the input with the same taps.
#[derive(Debug, PartialEq)]
struct Zone {
    outputs: Range<usize>,
    taps: Range<usize>,
}

fn zones(a: &Axis) -> Vec<Zone> {
    let mut zones: Vec<Zone> = Vec::new();
    for o in 0..a.output {
        let first = a.before.saturating_sub(o * a.stride).min(a.window);
        let end = (a.input + a.before).saturating_sub(o * a.stride);
        let taps = first..end.min(a.window).max(first);
        match zones.last_mut() {
            Some(zone) if zone.taps == taps => zone.outputs.end = o + 1,
            _ => zones.push(Zone {
                outputs: o..o + 1,
                taps,
            }),
        }
    }
    zones
}

/// Images that are put together.
fn together(g: &Geometry) -> usize {
    IMAGES.min(g.batch).max(1)
}

fn is_simple(g: &Geometry) -> bool {
    g.groups == 1 && g.h.dilation == 1 && g.w.dilation == 1
}

/// Whether leaving the padding out saves more than the smaller tiles at the edges cost.
pub(super) fn pay(g: &Geometry) -> bool {
    let image = g.h.input * g.w.input * g.in_c;
    if !is_simple(g) || image > MAX_IMAGE {
        return false;
    }
    // What pixels cost that do not fill a tile, seen from eight rows.
    let tiles = |pixels: usize| pixels / 8 * 8 + [0, 3, 5, 5, 5, 8, 8, 8][pixels % 8];
    let (ys, xs) = (zones(&g.h), zones(&g.w));
    let each = ys.iter().flat_map(|y| xs.iter().map(move |x| (y, x)));
    let cost: usize = each
        .map(|(y, x)| {
            let pixels = y.outputs.len() * x.outputs.len() * together(g);
            tiles(pixels) * y.taps.len() * x.taps.len()
        })
        .sum();
    let padded = g.h.output * g.w.output * together(g) * g.taps();
    cost < padded - padded / 16
}

/// The convolution of the output's gradient that gives the input's, if it is one.
pub(super) fn turned(g: &Geometry) -> Option<Geometry> {
    if !is_simple(g) || g.h.stride != 1 || g.w.stride != 1 {
        return None;
    }
    let turn = |a: &Axis| {
        Some(Axis {
            input: a.output,
            output: a.input,
            before: a.window.checked_sub(1 + a.before)?,
            ..*a
        })
    };
    Some(Geometry {
        h: turn(&g.h)?,
        w: turn(&g.w)?,
        in_c: g.out_c,
        out_c: g.in_c,
        ..g.clone()
    })
}

/// Some pixels of a zone.
struct Piece {
    /// Pixels of the whole zone in one image, and how many of the zone come before these.
    each: usize,
    before: usize,
    /// Where each pixel's first tap lies in the input, and the pixel in the output.
    rows: Vec<usize>,
    out_rows: Vec<usize>,
    runs: Vec<(usize, usize)>,
    len: usize,
}

/// All zones of `images` images, in pieces.
fn pieces(g: &Geometry, images: usize, tile: usize) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (ys, xs) = (zones(&g.h), zones(&g.w));
    for (y, x) in ys.iter().flat_map(|y| xs.iter().map(move |x| (y, x))) {
        let empty = y.taps.is_empty() || x.taps.is_empty();
        let len = x.taps.len() * g.in_c;
        let runs: Vec<(usize, usize)> = match empty {
            true => Vec::new(),
            false => y
                .taps
                .clone()
                .map(|k| {
                    let line = (k - y.taps.start) * g.w.input * g.in_c;
                    (line, (k * g.w.window + x.taps.start) * g.in_c)
                })
                .collect(),
        };
        let (mut rows, mut out_rows) = (Vec::new(), Vec::new());
        for n in 0..images {
            for oy in y.outputs.clone() {
                for ox in x.outputs.clone() {
                    let at = |a: &Axis, o: usize, z: &Zone| o * a.stride + z.taps.start - a.before;
                    rows.push(match empty {
                        true => 0,
                        false => {
                            let line = n * g.h.input + at(&g.h, oy, y);
                            (line * g.w.input + at(&g.w, ox, x)) * g.in_c
                        }
                    });
                    out_rows.push(((n * g.h.output + oy) * g.w.output + ox) * g.out_c);
                }
            }
        }
        let work = (runs.len() * len * g.out_c).max(1);
        let size = (UNIT / work).max(1).next_multiple_of(tile);
        let parts = rows.chunks(size).zip(out_rows.chunks(size));
        pieces.extend(parts.enumerate().map(|(i, (rows, out_rows))| Piece {
            each: y.outputs.len() * x.outputs.len(),
            before: i * size,
            rows: rows.to_vec(),
            out_rows: out_rows.to_vec(),
            runs: runs.clone(),
            len,
        }));
    }
    pieces
}

/// Computes the convolution of `x` with a filter in panels into `out`.
pub(super) fn run<T: Tiled>(
    g: &Geometry,
    x: &[T],
    panels: &Panels<T>,
    out: &Parts<'_, T>,
    epilogue: Option<Epilogue<'_, T>>,
) {
    let kernel = T::kernel();
    let images = together(g);
    let pieces = pieces(g, images, kernel.rows);
    let (from, to) = (
        g.h.input * g.w.input * g.in_c,
        g.h.output * g.w.output * g.out_c,
    );
    let groups = g.batch.div_ceil(images);
    share(groups * pieces.len(), g.work(), |unit| {
        let piece = &pieces[unit % pieces.len()];
        let first = unit / pieces.len() * images;
        let count = images.min(g.batch - first);
        // Of the last images there may be fewer.
        let pixels = (count * piece.each).saturating_sub(piece.before);
        let pixels = pixels.min(piece.rows.len());
        let sweep = Sweep {
            a: &x[first * from..(first + count) * from],
            rows: &piece.rows[..pixels],
            segments: &piece.runs,
            len: piece.len,
            step: 1,
            b: &panels.data,
            stride: kernel.width,
            panel: panels.panel,
            cols: g.out_c,
            out_rows: &piece.out_rows[..pixels],
        };
        let (all, len) = out.all();
        let (start, len) = (first * to, len - first * to);
        // SAFETY: every pixel is in one piece alone, so nobody else writes these; `run_at` checks
        // that they lie within `out`.
        unsafe { kernel.run_at(&sweep, all.add(start), len, false) };
        let Some(epilogue) = epilogue else { return };
        let neighbours = |a: &usize, b: &usize| a + g.out_c == *b;
        for line in piece.out_rows[..pixels].chunk_by(neighbours) {
            // SAFETY: as above, and these pixels were set just now.
            epilogue(unsafe { assume_set(out.part(start + line[0], line.len() * g.out_c)) });
        }
    });
}

/// Whether the filter's gradient is computed tap by tap, each over the windows that meet the input
/// with it: where a tap's channels are whole tiles and the gradient's are whole vectors.
pub(super) fn pay_for_filter<T: Tiled>(g: &Geometry) -> bool {
    let kernel = T::kernel();
    let met = |a: &Axis| -> usize { (0..a.window).map(|k| windows(a, k).len()).sum() };
    let padded = g.h.output * g.w.output * g.taps();
    is_simple(g)
        && g.in_c.is_multiple_of(kernel.rows)
        && g.out_c.is_multiple_of(kernel.lanes)
        && met(&g.h) * met(&g.w) < padded - padded / 32
}

/// The windows that meet the input with tap `k`.
fn windows(a: &Axis, k: usize) -> Range<usize> {
    let first = a.before.saturating_sub(k).div_ceil(a.stride).min(a.output);
    let end = (a.input + a.before).saturating_sub(k).div_ceil(a.stride);
    first..end.min(a.output).max(first)
}

/// Sets `sum` to what `images` of `x` and of the gradient `dy` give to taps `taps` of the filter,
/// `together` images at a time.
pub(super) fn filter<T: Tiled>(
    g: &Geometry,
    (x, dy): (&[T], &[T]),
    images: Range<usize>,
    taps: Range<usize>,
    together: usize,
    sum: &mut [MaybeUninit<T>],
) {
    let kernel = T::kernel();
    let (from, to) = (g.h.input * g.w.input, g.h.output * g.w.output);
    let channels: Vec<usize> = (0..g.in_c).collect();
    let out_rows: Vec<usize> = channels.iter().map(|c| c * g.out_c).collect();
    let size = g.in_c * g.out_c;
    let mut runs = Vec::new();
    for first in images.clone().step_by(together) {
        let end = (first + together).min(images.end);
        for (tap, sum) in taps.clone().zip(sum.chunks_mut(size)) {
            let (ky, kx) = (tap / g.w.window, tap % g.w.window);
            let (ys, xs) = (windows(&g.h, ky), windows(&g.w, kx));
            runs.clear();
            if !xs.is_empty() {
                let lines = (0..end - first).flat_map(|n| ys.clone().map(move |y| (n, y)));
                runs.extend(lines.map(|(n, y)| {
                    let line = (y * g.h.stride + ky - g.h.before) * g.w.input;
                    let pixel = line + xs.start * g.w.stride + kx - g.w.before;
                    let window = y * g.w.output + xs.start;
                    ((n * from + pixel) * g.in_c, n * to + window)
                }));
            }
            let sweep = Sweep {
                a: &x[first * from * g.in_c..end * from * g.in_c],
                rows: &channels,
                segments: &runs,
                len: xs.len(),
                step: g.w.stride * g.in_c,
                b: &dy[first * to * g.out_c..end * to * g.out_c],
                stride: g.out_c,
                panel: kernel.width,
                cols: g.out_c,
                out_rows: &out_rows,
            };
            if first == images.start {
                kernel.write(&sweep, sum);
            } else {
                // SAFETY: all of it was set for the first images.
                kernel.add(&sweep, unsafe { assume_set(sum) });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::window::Padding;

    fn axis(input: usize, window: usize, stride: usize, pad: usize) -> Axis {
        let padding = Padding::Explicit([(pad, pad), (pad, pad)]);
        Axis::new(input, window, stride, 1, &padding, 0).unwrap()
    }

    #[test]
    fn zones_and_windows_are_what_lies_within_the_input() {
        for (input, window, stride, pad) in [
            (14, 5, 1, 2),
            (7, 3, 2, 1),
            (2, 5, 1, 4),
            (3, 3, 1, 5),
            (9, 2, 3, 0),
            (5, 5, 4, 3),
        ] {
            let a = axis(input, window, stride, pad);
            let meets = |o: usize, k: usize| (pad..pad + input).contains(&(o * stride + k));
            let zones = zones(&a);
            let outputs: Vec<usize> = zones.iter().flat_map(|z| z.outputs.clone()).collect();
            assert_eq!(outputs, (0..a.output).collect::<Vec<_>>());
            for o in 0..a.output {
                let zone = zones.iter().find(|z| z.outputs.contains(&o)).unwrap();
                for k in 0..window {
                    assert_eq!(zone.taps.contains(&k), meets(o, k), "{a:?} {o} {k}");
                    assert_eq!(windows(&a, k).contains(&o), meets(o, k), "{a:?} {o} {k}");
                }
            }
        }
        let all = |a: &Axis| zones(a).len();
        assert_eq!((all(&axis(14, 5, 1, 2)), all(&axis(14, 5, 1, 0))), (5, 1));
    }

    #[test]
    fn zones_pay_where_edges_are_a_good_part_of_the_image() {
        let square = |batch, input, window, pad, in_c| Geometry {
            batch,
            h: axis(input, window, 1, pad),
            w: axis(input, window, 1, pad),
            in_c,
            out_c: 64,
            groups: 1,
        };
        let mnist = square(64, 14, 5, 2, 32);
        assert!(pay(&mnist) && pay(&turned(&mnist).unwrap()) && pay_for_filter::<f32>(&mnist));
        assert!(
            !pay(&square(64, 14, 5, 0, 32)) && !pay_for_filter::<f32>(&square(64, 14, 5, 0, 32))
        );
        assert!(!pay(&square(1, 224, 3, 1, 64)));
        assert!(!pay_for_filter::<f32>(&square(64, 28, 5, 2, 1)));
        assert!(
            turned(&square(8, 3, 3, 4, 8)).is_none(),
            "more padding than taps"
        );
    }
}
