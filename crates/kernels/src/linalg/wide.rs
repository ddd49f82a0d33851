//! One loop, several instruction sets: [`wide_fn!`] compiles a function's body for plain x86-64,
//! for AVX2 and for AVX-512 and picks at run time. What the body calls per element must be
//! inlined into it. No fused multiply-add is introduced, so all of them give the same bits.

/// Which instructions this machine has: 4 with AVX-512, 3 with AVX2, else 0.
pub(crate) fn level() -> u8 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::is_x86_feature_detected as has;
        if has!("avx512f") && has!("avx512vl") && has!("avx512bw") && has!("avx512dq") {
            return 4;
        }
        if has!("avx2") {
            return 3;
        }
    }
    0
}

/// Defines functions whose loops use the widest vectors of the machine.
macro_rules! wide_fn {
    ($($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $t:ty),* $(,)?) $(-> $ret:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            #[allow(unsafe_code, reason = "calls code compiled for instructions that were seen to be there")]
            #[allow(clippy::too_many_arguments, reason = "an inner loop takes what it reads")]
            $vis fn $name($($arg: $t),*) $(-> $ret)? {
                #[inline(always)]
                #[allow(clippy::too_many_arguments, reason = "an inner loop takes what it reads")]
                fn body($($arg: $t),*) $(-> $ret)? $body
                #[cfg(target_arch = "x86_64")]
                {
                    #[target_feature(enable = "avx512f,avx512vl,avx512bw,avx512dq")]
                    #[allow(clippy::too_many_arguments, reason = "an inner loop takes what it reads")]
                    fn v4($($arg: $t),*) $(-> $ret)? { body($($arg),*) }
                    #[target_feature(enable = "avx2")]
                    #[allow(clippy::too_many_arguments, reason = "an inner loop takes what it reads")]
                    fn v3($($arg: $t),*) $(-> $ret)? { body($($arg),*) }
                    match $crate::linalg::wide::level() {
                        // SAFETY: the machine has these instructions.
                        4 => return unsafe { v4($($arg),*) },
                        // SAFETY: the machine has these instructions.
                        3 => return unsafe { v3($($arg),*) },
                        _ => {}
                    }
                }
                body($($arg),*)
            }
        )*
    };
}
pub(crate) use wide_fn;

#[cfg(test)]
mod tests {
    wide_fn! {
        fn sums(a: &mut [f32], b: &[f32]) -> usize {
            a.iter_mut().zip(b).for_each(|(a, b)| *a += *b);
            a.len()
        }
    }

    #[test]
    fn every_version_runs_the_same_body() {
        let mut a = vec![1.0f32; 100];
        let b: Vec<f32> = (0..100).map(|i| i as f32).collect();
        assert_eq!(sums(&mut a, &b), 100);
        assert!(a.iter().enumerate().all(|(i, &v)| v == 1.0 + i as f32));
    }
}
