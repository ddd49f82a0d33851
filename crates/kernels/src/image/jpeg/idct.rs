//! Coefficients back into samples, in libjpeg-turbo's arithmetic to the bit.
//!
//! Two transforms of 8x8: the accurate one after Loeffler, Ligtenberg and Moschytz with 13 bits
//! of fraction, the fast one after Arai, Agui and Nakajima with 8. Smaller outputs are made by the
//! accurate method's shortened forms. Values are kept in 16 bits between the passes and wrap or
//! saturate where the vector instructions of libjpeg-turbo do: a first pass over an average alone is
//! a shift, which wraps. Each step works on eight lanes at once: columns first, then rows.

/// A block's coefficients in natural order.
pub(super) type Block = [i16; 64];

/// Eight lanes.
type Lanes = [i16; 8];

/// Which transform makes a component's samples, with the factors of its coefficients.
pub(super) struct Transform {
    kind: Kind,
    factors: Block,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Accurate,
    Fast,
    Four,
    Two,
    One,
}

impl Transform {
    /// For blocks of `size` samples a side (1, 2, 4 or 8) and these quantisers.
    pub(super) fn new(size: usize, fast: bool, quantisers: &[u16; 64]) -> Transform {
        let kind = match size {
            1 => Kind::One,
            2 => Kind::Two,
            4 => Kind::Four,
            _ if fast => Kind::Fast,
            _ => Kind::Accurate,
        };
        let factors = match kind {
            Kind::Fast => std::array::from_fn(|i| {
                let scale = (SCALES[i / 8] * SCALES[i % 8] * 16384.0).round() as i32;
                ((i32::from(quantisers[i]) * scale + (1 << 11)) >> 12) as i16
            }),
            _ => quantisers.map(|q| q as i16),
        };
        Transform { kind, factors }
    }

    /// Writes a block's samples into rows that are `stride` apart. `flat`: all coefficients but the
    /// average are zero.
    pub(super) fn run(&self, block: &Block, flat: bool, out: &mut [u8], stride: usize) {
        if flat {
            return self.fill(block[0], out, stride);
        }
        let rows: [Lanes; 8] = std::array::from_fn(|y| {
            std::array::from_fn(|x| block[y * 8 + x].wrapping_mul(self.factors[y * 8 + x]))
        });
        match self.kind {
            Kind::Accurate => {
                let half = match rows[1..] == [[0; 8]; 7] {
                    true => [rows[0].map(|v| v << 2); 8],
                    false => accurate::<11>(&rows),
                };
                let done = accurate::<18>(&transposed(&half));
                store(&transposed(&done), out, stride);
            }
            Kind::Fast => {
                let half = fast(&rows);
                let done = fast(&transposed(&half)).map(|lane| lane.map(|v| v >> 5));
                store(&transposed(&done), out, stride);
            }
            Kind::Four => {
                let half = match rows[1..4] == [[0; 8]; 3] && rows[5..] == [[0; 8]; 3] {
                    true => [rows[0].map(|v| v << 2); 4],
                    false => four::<12>(&rows),
                };
                let mut wide = [[0; 8]; 8];
                wide[..4].copy_from_slice(&half);
                let done = four::<19>(&transposed(&wide));
                small(&done, out, stride);
            }
            Kind::Two => {
                let half = two::<13>(&rows);
                let mut wide = [[0; 8]; 8];
                wide[..2].copy_from_slice(&half);
                let done = two::<20>(&transposed(&wide));
                small(&done, out, stride);
            }
            Kind::One => self.fill(block[0], out, stride),
        }
    }

    /// A block of which only the average is not zero.
    fn fill(&self, average: i16, out: &mut [u8], stride: usize) {
        let (size, value) = match self.kind {
            Kind::One => {
                // This one looks its result up in a table of ten bits.
                let value = i32::from(average) * i32::from(self.factors[0]);
                let value = ((((value + 4) >> 3) + 512) & 1023) - 512;
                (1, value as i16)
            }
            kind => {
                let value = average.wrapping_mul(self.factors[0]);
                match kind {
                    Kind::Fast => (8, value >> 5),
                    Kind::Accurate => (8, last_step(value << 2)),
                    Kind::Four => (4, last_step(value << 2)),
                    _ => (2, last_step(saturated(i32::from(value) << 2))),
                }
            }
        };
        let value = sample(value);
        for y in 0..size {
            out[y * stride..y * stride + size].fill(value);
        }
    }
}

/// What the second pass of an accurate transform makes of a row that is an average alone.
fn last_step(value: i16) -> i16 {
    ((i32::from(value) + (1 << 4)) >> 5) as i16
}

/// The scales of the fast method's inputs: `sqrt(2) cos(k pi / 16)`.
const SCALES: [f64; 8] = [
    1.0,
    1.387039845,
    1.306562965,
    1.175875602,
    1.0,
    0.785694958,
    0.541196100,
    0.275899379,
];

#[inline]
fn transposed(rows: &[Lanes; 8]) -> [Lanes; 8] {
    std::array::from_fn(|x| std::array::from_fn(|y| rows[y][x]))
}

/// A sample from a value around zero.
#[inline]
fn sample(value: i16) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

#[inline]
fn store(rows: &[Lanes; 8], out: &mut [u8], stride: usize) {
    for (y, row) in rows.iter().enumerate() {
        let to = &mut out[y * stride..y * stride + 8];
        to.copy_from_slice(&row.map(sample));
    }
}

/// Stores fewer than eight rows and columns; `columns` are what the second pass made.
fn small<const N: usize>(columns: &[Lanes; N], out: &mut [u8], stride: usize) {
    for y in 0..N {
        for (to, column) in out[y * stride..y * stride + N].iter_mut().zip(columns) {
            *to = sample(column[y]);
        }
    }
}

#[inline]
fn each(f: impl Fn(usize) -> i32) -> [i32; 8] {
    std::array::from_fn(f)
}

/// Rounded and shifted, saturated to 16 bits.
#[inline]
fn round<const SHIFT: i32>(value: i32) -> i16 {
    saturated(value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT)
}

#[inline]
fn saturated(value: i32) -> i16 {
    value.clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

#[inline]
fn descale<const SHIFT: i32>(values: [i32; 8]) -> Lanes {
    values.map(round::<SHIFT>)
}

#[inline]
fn wide(a: i16) -> i32 {
    i32::from(a)
}

/// One dimension of the accurate transform; 13 bits of fraction less `SHIFT` stay.
fn accurate<const SHIFT: i32>(v: &[Lanes; 8]) -> [Lanes; 8] {
    let mut out = [[0; 8]; 8];
    for i in 0..8 {
        let [v0, v1, v2, v3] = [v[0][i], v[1][i], v[2][i], v[3][i]];
        let [v4, v5, v6, v7] = [v[4][i], v[5][i], v[6][i], v[7][i]];
        let even2 = wide(v2) * 4433 + wide(v6) * (4433 - 15137);
        let even3 = wide(v2) * (4433 + 6270) + wide(v6) * 4433;
        let even0 = wide(v0.wrapping_add(v4)) << 13;
        let even1 = wide(v0.wrapping_sub(v4)) << 13;
        let (sum3, sum1) = (wide(v7.wrapping_add(v3)), wide(v5.wrapping_add(v1)));
        let z3 = sum3 * (9633 - 16069) + sum1 * 9633;
        let z4 = sum3 * 9633 + sum1 * (9633 - 3196);
        let odd0 = (wide(v7) * (2446 - 7373) + wide(v1) * -7373).wrapping_add(z3);
        let odd1 = (wide(v5) * (16819 - 20995) + wide(v3) * -20995).wrapping_add(z4);
        let odd2 = (wide(v5) * -20995 + wide(v3) * (25172 - 20995)).wrapping_add(z3);
        let odd3 = (wide(v7) * -7373 + wide(v1) * (12299 - 7373)).wrapping_add(z4);
        let (t0, t3) = (even0.wrapping_add(even3), even0.wrapping_sub(even3));
        let (t1, t2) = (even1.wrapping_add(even2), even1.wrapping_sub(even2));
        out[0][i] = round::<SHIFT>(t0.wrapping_add(odd3));
        out[1][i] = round::<SHIFT>(t1.wrapping_add(odd2));
        out[2][i] = round::<SHIFT>(t2.wrapping_add(odd1));
        out[3][i] = round::<SHIFT>(t3.wrapping_add(odd0));
        out[4][i] = round::<SHIFT>(t3.wrapping_sub(odd0));
        out[5][i] = round::<SHIFT>(t2.wrapping_sub(odd1));
        out[6][i] = round::<SHIFT>(t1.wrapping_sub(odd2));
        out[7][i] = round::<SHIFT>(t0.wrapping_sub(odd3));
    }
    out
}

/// Times a factor with eight bits of fraction: the high half of a product of 16 bits.
#[inline]
fn times(v: i16, factor: i16) -> i16 {
    ((wide(v << 2) * wide(factor << 6)) >> 16) as i16
}

/// One dimension of the fast transform.
fn fast(v: &[Lanes; 8]) -> [Lanes; 8] {
    let mut out = [[0; 8]; 8];
    let plus = i16::wrapping_add;
    let minus = i16::wrapping_sub;
    for i in 0..8 {
        let [v0, v1, v2, v3] = [v[0][i], v[1][i], v[2][i], v[3][i]];
        let [v4, v5, v6, v7] = [v[4][i], v[5][i], v[6][i], v[7][i]];
        let (t10, t11) = (plus(v0, v4), minus(v0, v4));
        let t13 = plus(v2, v6);
        let t12 = minus(times(minus(v2, v6), 362), t13);
        let (e0, e3) = (plus(t10, t13), minus(t10, t13));
        let (e1, e2) = (plus(t11, t12), minus(t11, t12));
        let (z13, z10) = (plus(v5, v3), minus(v5, v3));
        let (z11, z12) = (plus(v1, v7), minus(v1, v7));
        let o7 = plus(z11, z13);
        let o11 = times(minus(z11, z13), 362);
        let z5 = times(plus(z10, z12), 473);
        let o10 = minus(times(z12, 277), z5);
        // 2.613 is too much for 16 bits.
        let o12 = plus(minus(times(z10, 256 - 669), z10), z5);
        let o6 = minus(o12, o7);
        let o5 = minus(o11, o6);
        let o4 = plus(o10, o5);
        out[0][i] = plus(e0, o7);
        out[1][i] = plus(e1, o6);
        out[2][i] = plus(e2, o5);
        out[3][i] = minus(e3, o4);
        out[4][i] = plus(e3, o4);
        out[5][i] = minus(e2, o5);
        out[6][i] = minus(e1, o6);
        out[7][i] = minus(e0, o7);
    }
    out
}

/// One dimension from eight coefficients to four samples.
fn four<const SHIFT: i32>(v: &[Lanes; 8]) -> [Lanes; 4] {
    let even = each(|i| wide(v[2][i]) * 15137 + wide(v[6][i]) * -6270);
    let base = each(|i| wide(v[0][i]) << 14);
    let odd0 = each(|i| {
        (wide(v[7][i]) * -1730 + wide(v[5][i]) * 11893)
            .wrapping_add(wide(v[3][i]) * -17799 + wide(v[1][i]) * 8697)
    });
    let odd2 = each(|i| {
        (wide(v[7][i]) * -4176 + wide(v[5][i]) * -4926)
            .wrapping_add(wide(v[3][i]) * 7373 + wide(v[1][i]) * 20995)
    });
    let t10 = each(|i| base[i].wrapping_add(even[i]));
    let t12 = each(|i| base[i].wrapping_sub(even[i]));
    [
        descale::<SHIFT>(each(|i| t10[i].wrapping_add(odd2[i]))),
        descale::<SHIFT>(each(|i| t12[i].wrapping_add(odd0[i]))),
        descale::<SHIFT>(each(|i| t12[i].wrapping_sub(odd0[i]))),
        descale::<SHIFT>(each(|i| t10[i].wrapping_sub(odd2[i]))),
    ]
}

/// One dimension from eight coefficients to two samples.
fn two<const SHIFT: i32>(v: &[Lanes; 8]) -> [Lanes; 2] {
    let base = each(|i| wide(v[0][i]) << 15);
    let odd = each(|i| {
        (wide(v[7][i]) * -5906 + wide(v[5][i]) * 6967)
            .wrapping_add(wide(v[3][i]) * -10426 + wide(v[1][i]) * 29692)
    });
    [
        descale::<SHIFT>(each(|i| base[i].wrapping_add(odd[i]))),
        descale::<SHIFT>(each(|i| base[i].wrapping_sub(odd[i]))),
    ]
}
