//! One loop, several instruction sets: a [`Loop`] is compiled for plain x86-64, for AVX2 with FMA
//! and for AVX-512, and the best one the machine has is chosen at run time.
//!
//! Everything a loop calls per element must be inlined into it: a call that stays a call is
//! compiled for the plain set, where a fused multiply-add is a function of the C library. So
//! loops are `for` loops, not closures given to iterators, and large bodies are
//! `#[inline(always)]` functions.
#![allow(
    unsafe_code,
    reason = "calling code compiled for instructions the machine was seen to have"
)]

/// What loop bodies may ask of the instruction set.
pub(crate) trait Isa: Copy + Send + Sync + 'static {
    /// `a * b + c`, with one rounding where that costs nothing.
    fn madd(a: f32, b: f32, c: f32) -> f32;
}

/// The instructions every machine of this architecture has.
#[derive(Clone, Copy)]
pub(crate) struct Plain;

impl Isa for Plain {
    #[inline(always)]
    fn madd(a: f32, b: f32, c: f32) -> f32 {
        if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
            a.mul_add(b, c)
        } else {
            a * b + c
        }
    }
}

/// Instruction sets with fused multiply-add.
#[derive(Clone, Copy)]
pub(crate) struct Fused;

impl Isa for Fused {
    #[inline(always)]
    fn madd(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// Asks for the `len` elements from `slice[at]` on, which a loop will want soon, line by line. Outside of the slice nothing happens.
#[inline(always)]
pub(crate) fn prefetch_run<T>(slice: &[T], at: usize, len: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let start = slice.as_ptr().wrapping_add(at).cast::<i8>();
        // Beyond four lines the machine sees by itself that a run goes on. Written out: a loop costs more than it does.
        let ask = |line: usize| {
            if len > 64 * line / size_of::<T>().max(1) {
                // SAFETY: a hint that reads nothing, wherever it points, and every machine of this architecture has it.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(64 * line)) };
            }
        };
        ask(0);
        ask(1);
        ask(2);
        ask(3);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, at, len);
}

/// A loop with what it works on. `run` must be `#[inline(always)]`.
pub(crate) trait Loop {
    /// What the loop gives.
    type Out;
    /// Runs it.
    fn run<I: Isa>(self) -> Self::Out;
}

/// Runs a loop with the best instructions there are.
#[inline]
pub(crate) fn dispatch<L: Loop>(l: L) -> L::Out {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: the machine has these instructions.
        AVX512 => return unsafe { wide(l) },
        // SAFETY: the machine has these instructions.
        AVX2 => return unsafe { middle(l) },
        _ => {}
    }
    l.run::<Plain>()
}

#[cfg(target_arch = "x86_64")]
const PLAIN: u8 = 1;
#[cfg(target_arch = "x86_64")]
const AVX2: u8 = 2;
#[cfg(target_arch = "x86_64")]
const AVX512: u8 = 3;

/// What the machine has. Asked for once a loop, also where a loop is a single row of a table, so the answer is kept.
#[cfg(target_arch = "x86_64")]
#[inline]
fn level() -> u8 {
    use std::sync::atomic::{AtomicU8, Ordering};
    static LEVEL: AtomicU8 = AtomicU8::new(0);
    #[cold]
    fn detect() -> u8 {
        use std::arch::is_x86_feature_detected as has;
        let avx2 = has!("avx2") && has!("fma");
        let avx512 = has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512dq");
        let found = match (avx2, avx512) {
            (true, true) => AVX512,
            (true, false) => AVX2,
            _ => PLAIN,
        };
        LEVEL.store(found, Ordering::Relaxed);
        found
    }
    match LEVEL.load(Ordering::Relaxed) {
        0 => detect(),
        known => known,
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma")]
fn wide<L: Loop>(l: L) -> L::Out {
    l.run::<Fused>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn middle<L: Loop>(l: L) -> L::Out {
    l.run::<Fused>()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Poly<'a>(&'a [f32]);

    impl Loop for Poly<'_> {
        type Out = Vec<f32>;
        #[inline(always)]
        fn run<I: Isa>(self) -> Vec<f32> {
            self.0.iter().map(|&x| I::madd(x, x, 1.0)).collect()
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_sums() {
        let xs: Vec<f32> = (0..100).map(|x| x as f32).collect();
        let want: Vec<f32> = xs.iter().map(|x| x * x + 1.0).collect();
        assert_eq!(dispatch(Poly(&xs)), want);
        assert_eq!(Poly(&xs).run::<Plain>(), want);
        assert_eq!(Poly(&xs).run::<Fused>(), want);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma")
        {
            // SAFETY: just checked.
            assert_eq!(unsafe { middle(Poly(&xs)) }, want);
        }
    }

    #[test]
    fn asking_for_memory_changes_nothing_also_beyond_the_end() {
        let xs = [1u8, 2, 3];
        prefetch_run(&xs, 0, 3);
        prefetch_run(&xs, 2, usize::MAX / 2);
        prefetch_run::<()>(&[], 5, 3);
        assert_eq!(xs, [1, 2, 3]);
    }
}
