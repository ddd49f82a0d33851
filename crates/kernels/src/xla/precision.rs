//! `XlaReducePrecision`: floats rounded to fewer bits of exponent and mantissa.

use super::invalid;
use crate::types::{FLOATS, with_type};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{Element, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("XlaReducePrecision", &[("T", FLOATS)], reduce);
}

/// A float's bits, and how many of them are the exponent's and the mantissa's.
trait Bits: Element {
    const EXPONENT: u32;
    const MANTISSA: u32;
    fn bits(self) -> u64;
    fn from(bits: u64) -> Self;
}

macro_rules! bits {
    ($($t:ty: $raw:ty, $e:expr, $m:expr;)*) => {
        $(impl Bits for $t {
            const EXPONENT: u32 = $e;
            const MANTISSA: u32 = $m;
            fn bits(self) -> u64 { self.to_bits().into() }
            fn from(bits: u64) -> Self { <$t>::from_bits(bits as $raw) }
        })*
    };
}
bits! {
    f32: u32, 8, 23;
    f64: u64, 11, 52;
    half::f16: u16, 5, 10;
    half::bf16: u16, 8, 7;
}

fn reduce(b: &KernelBuilder<'_>) -> Result<Built> {
    let (e, m) = (
        b.attrs().int("exponent_bits")?,
        b.attrs().int("mantissa_bits")?,
    );
    if e < 1 {
        return invalid("Expected exponent_bits >= 1 for reduce-precision.");
    }
    if m < 0 {
        return invalid("Expected non-negative mantissa_bits for reduce-precision.");
    }
    Built::cheap(move |ctx| {
        let x = ctx.take(0)?;
        let out = with_type!(x.dtype(), T in floats => {
            let values = x.as_slice::<T>()?.iter();
            let values: Vec<T> = values.map(|v| rounded(*v, e.min(64) as u32, m.min(64) as u32)).collect();
            Tensor::from_vec(values, x.shape().clone())?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

fn rounded<T: Bits>(v: T, exponent: u32, mantissa: u32) -> T {
    let sign = 1u64 << (T::EXPONENT + T::MANTISSA);
    let special = ((1u64 << T::EXPONENT) - 1) << T::MANTISSA;
    let all = v.bits();
    let (negative, mut bits) = (all & sign, all & (sign - 1));
    if bits > special {
        return v;
    }
    if mantissa < T::MANTISSA {
        // To nearest, ties to even; a carry moves the exponent.
        let cut = T::MANTISSA - mantissa;
        let last = (bits >> cut) & 1;
        bits = (bits + (1 << (cut - 1)) - 1 + last) & !((1u64 << cut) - 1);
    }
    if exponent < T::EXPONENT {
        let bias = (1u64 << (T::EXPONENT - 1)) - 1;
        let reach = (1u64 << (exponent - 1)) - 1;
        let (low, high) = (bias - reach, bias + reach);
        let now = bits >> T::MANTISSA;
        if now > high {
            bits = special;
        } else if now <= low {
            // XLA flushes what would be subnormal.
            bits = 0;
        }
    }
    T::from(negative | bits)
}

#[cfg(test)]
mod tests {
    use super::rounded;

    #[test]
    fn halves_of_a_step_go_to_the_even_neighbour() {
        let to = |v: f32| rounded(v, 8, 1);
        assert_eq!([to(1.25), to(1.75), to(3.9)], [1.0, 2.0, 4.0]);
        assert_eq!(rounded(70000.0f32, 5, 10), f32::INFINITY);
        assert_eq!(rounded(-1e-9f32, 5, 10).to_bits(), (-0.0f32).to_bits());
        assert!(rounded(f32::NAN, 5, 2).is_nan());
    }
}
