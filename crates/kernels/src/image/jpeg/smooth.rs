//! What libjpeg-turbo does to a progressive file that ended early: coefficients of low frequency
//! that did not come are estimated from the averages of the 5x5 blocks around (after section K.8
//! of the standard), so that the image has no edges between blocks.

use super::idct::Block;
use super::markers::{Scan, ZIGZAG};

/// How exact the first coefficients are: the lowest bit that is known, -1 before any.
pub(super) type Bits = [i8; KNOWN];

/// The average and nine coefficients, in zigzag order.
const KNOWN: usize = 10;

/// How far the scans of a component have come.
#[derive(Clone)]
pub(super) struct Progress {
    now: Bits,
    before: Bits,
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            now: [-1; KNOWN],
            before: [-1; KNOWN],
        }
    }
}

impl Progress {
    /// Notes a scan when it begins.
    pub(super) fn note(&mut self, scan: &Scan, first: bool) {
        let [low, high] = scan.band.map(usize::from);
        for i in low.min(1)..KNOWN {
            self.before[i] = if first { 0 } else { self.now[i] };
        }
        for bit in self.now.iter_mut().take(high + 1).skip(low) {
            *bit = scan.bits[1] as i8;
        }
    }

    /// Whether anything is to be estimated, if the average is known at all.
    pub(super) fn is_partial(&self) -> Option<bool> {
        (self.now[0] >= 0).then(|| self.now[1..].iter().any(|b| *b != 0))
    }

    /// What is known of rows that the last scan reached, or of the others.
    pub(super) fn bits(&self, reached: bool, scans: usize) -> Bits {
        match (reached, scans) {
            (true, _) => self.now,
            (false, 0..=1) => [-1; KNOWN],
            (false, _) => self.before,
        }
    }
}

/// Whether estimates can be divided by these quantisers.
pub(super) fn is_divisible(quantisers: &[u16; 64]) -> bool {
    ZIGZAG[..KNOWN]
        .iter()
        .all(|at| quantisers[usize::from(*at)] != 0)
}

/// Weights of the averages around, row by row.
type Weights = [i8; 25];

/// Where nothing but averages is known, in zigzag order from the first coefficient on.
#[rustfmt::skip]
const ALONE: [Weights; 9] = [
    [-1, -1, 0, 1, 1, -3, 13, 0, -13, 3, -3, 38, 0, -38, 3, -3, 13, 0, -13, 3, -1, -1, 0, 1, 1],
    [-1, -3, -3, -3, -1, -1, 13, 38, 13, -1, 0, 0, 0, 0, 0, 1, -13, -38, -13, 1, 1, 3, 3, 3, 1],
    [0, 0, 1, 0, 0, 0, 2, 7, 2, 0, 0, -5, -14, -5, 0, 0, 2, 7, 2, 0, 0, 0, 1, 0, 0],
    [-1, 0, 0, 0, 1, 0, 9, 0, -9, 0, 0, 0, 0, 0, 0, 0, -9, 0, 9, 0, 1, 0, 0, 0, -1],
    [0, 0, 0, 0, 0, 0, 2, -5, 2, 0, 1, 7, -14, 7, 1, 0, 2, -5, 2, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, 2, 0, -2, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, -3, 1, 0, 0, 0, 0, 0, 0, 0, -1, 3, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, 0, -1, 0, 0, -3, 0, 3, 0, 0, 1, 0, -1, 0, 0, 0, 0, 0, 0],
    [0, 0, 0, 0, 0, 0, 1, 2, 1, 0, 0, 0, 0, 0, 0, 0, -1, -2, -1, 0, 0, 0, 0, 0, 0],
];

/// Where some coefficients are known, for the first five.
#[rustfmt::skip]
const AMONG: [Weights; 5] = [
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -7, 50, 0, -50, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    [0, 0, -7, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 0, 0, -50, 0, 0, 0, 0, 7, 0, 0],
    [0, 0, -1, 0, 0, 0, 0, 13, 0, 0, 0, 0, -24, 0, 0, 0, 0, 13, 0, 0, 0, 0, -1, 0, 0],
    [0, -1, 0, 1, 0, -1, 10, 0, -10, 1, 0, 0, 0, 0, 0, 1, -10, 0, 10, -1, 0, 1, 0, -1, 0],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, -1, 13, -24, 13, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
];

/// The average itself; the middle one weighs more than fits into eight bits.
#[rustfmt::skip]
const AVERAGE: [i16; 25] = [
    -2, -6, -8, -6, -2, -6, 6, 42, 6, -6, -8, 42, 152, 42, -8, -6, 6, 42, 6, -6, -2, -6, -8, -6, -2,
];

/// Fills in what is not known of a block. `around` holds the averages of the blocks around it.
pub(super) fn estimate(block: &mut Block, around: &[i16; 25], bits: &Bits, quantisers: &[u16; 64]) {
    let alone = bits[1..].iter().all(|b| *b == -1);
    let kernels: &[Weights] = if alone { &ALONE } else { &AMONG };
    let base = i64::from(quantisers[0]);
    let divided = |sum: i64, quantiser: u16, bits: i8| {
        let (sum, quantiser) = (sum * base, i64::from(quantiser));
        let mut size = ((quantiser << 7) + sum.abs()) / (quantiser << 8);
        if bits > 0 {
            size = size.min((1 << bits) - 1);
        }
        (if sum < 0 { -size } else { size }) as i16
    };
    for (i, weights) in (1..).zip(kernels) {
        let at = usize::from(ZIGZAG[i]);
        if bits[i] != 0 && block[at] == 0 {
            let pairs = weights.iter().zip(around);
            let sum = pairs.map(|(w, v)| i64::from(*w) * i64::from(*v)).sum();
            block[at] = divided(sum, quantisers[at], bits[i]);
        }
    }
    if alone {
        let pairs = AVERAGE.iter().zip(around);
        let sum = pairs.map(|(w, v)| i64::from(*w) * i64::from(*v)).sum();
        block[0] = divided(sum, quantisers[0], 0);
    }
}
