//! Rows of components into pixels: libjpeg's fixed-point conversions, and TensorFlow's own of inks.

use super::markers::Space;

/// Writes one row of pixels of 1 or 3 channels. `lines` holds a row of each component.
pub(super) fn convert(space: Space, adobe: bool, lines: &[&[u8]], channels: usize, out: &mut [u8]) {
    match (space, channels, lines) {
        (Space::Rgb, 1, [r, g, b, ..]) => {
            for (to, ((r, g), b)) in out.iter_mut().zip(r.iter().zip(*g).zip(*b)) {
                let [r, g, b] = [*r, *g, *b].map(u32::from);
                *to = ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8;
            }
        }
        (_, 1, [y, ..]) => out.copy_from_slice(&y[..out.len()]),
        (Space::Gray, _, [y, ..]) => {
            for (to, y) in out.chunks_exact_mut(3).zip(*y) {
                to.fill(*y);
            }
        }
        (Space::Rgb, _, [r, g, b, ..]) => {
            for (to, ((r, g), b)) in out.chunks_exact_mut(3).zip(r.iter().zip(*g).zip(*b)) {
                to.copy_from_slice(&[*r, *g, *b]);
            }
        }
        (Space::Ycc, _, [y, cb, cr, ..]) => ycc_rows(y, cb, cr, out),
        (Space::Cmyk | Space::Ycck, _, [c, m, y, k]) => {
            for (x, to) in out.chunks_exact_mut(3).enumerate() {
                let mut inks = [c[x], m[x], y[x]];
                if space == Space::Ycck {
                    inks = rgb(inks).map(|v| 255 - v);
                }
                to.copy_from_slice(&inks.map(|ink| without_ink(ink, k[x], adobe)));
            }
        }
        _ => out.fill(0),
    }
}

/// Adobe stores its inks inverted.
fn without_ink(ink: u8, black: u8, adobe: bool) -> u8 {
    let (ink, black) = (u16::from(ink), u16::from(black));
    let product = match adobe {
        true => ink * black,
        false => (255 - ink) * (255 - black),
    };
    (product / 255) as u8
}

/// Luminance and colour differences into red, green and blue, in 16 bits of fraction. The factors
/// are 1.402, -0.34414, -0.71414 and 1.772 less whole numbers: 16 bits are enough for them then.
#[inline]
fn rgb([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (i16::from(y), i16::from(cb) - 128, i16::from(cr) - 128);
    let part = |sum: i32| ((sum + 32768) >> 16) as i16;
    let (wide_cb, wide_cr) = (i32::from(cb), i32::from(cr));
    let limit = |v: i16| v.clamp(0, 255) as u8;
    [
        limit(y + cr + part(wide_cr * 26345)),
        limit(y - cr + part(wide_cb * -22554 + wide_cr * 18734)),
        limit(y + 2 * cb + part(wide_cb * -14942)),
    ]
}

/// Sixteen pixels at a time, so that the arithmetic is done in vectors.
fn ycc_rows(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    const STEP: usize = 16;
    let (ys, y_rest) = y.as_chunks::<STEP>();
    let (cbs, cb_rest) = cb.as_chunks::<STEP>();
    let (crs, cr_rest) = cr.as_chunks::<STEP>();
    let (outs, out_rest) = out.as_chunks_mut::<{ 3 * STEP }>();
    for (to, ((y, cb), cr)) in outs.iter_mut().zip(ys.iter().zip(cbs).zip(crs)) {
        let mut pixels = [0u32; STEP];
        for (i, pixel) in pixels.iter_mut().enumerate() {
            let [r, g, b] = rgb([y[i], cb[i], cr[i]]).map(u32::from);
            *pixel = r | g << 8 | b << 16;
        }
        // Each pixel is stored with a byte too many, which the next one replaces.
        let mut packed = [0; 3 * STEP + 1];
        for (i, pixel) in pixels.iter().enumerate() {
            packed[3 * i..3 * i + 4].copy_from_slice(&pixel.to_le_bytes());
        }
        to.copy_from_slice(&packed[..3 * STEP]);
    }
    let rest = y_rest.iter().zip(cb_rest).zip(cr_rest);
    for (to, ((y, cb), cr)) in out_rest.chunks_exact_mut(3).zip(rest) {
        to.copy_from_slice(&rgb([*y, *cb, *cr]));
    }
}
