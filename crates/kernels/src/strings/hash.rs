//! String hashes: FarmHash64 (`StringToHashBucketFast`), SipHash-2-4 (`…Strong`) and the legacy
//! hash. Their values are stored in models, so they can never change.

use crate::args::ints;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("StringToHashBucketFast", |b| buckets(b, fingerprint64));
    r.add("StringToHashBucket", |b| {
        buckets(b, |s| hash64(s, 0xDE_CAFC_AFFE))
    });
    r.add("StringToHashBucketStrong", strong);
    r.add("_TensorToHashBucketFast", |b| {
        let buckets = b.attrs().int("num_buckets")? as u64;
        Built::cheap(move |ctx| {
            // As the decimal digits of its integers would be.
            let input = ctx.input(0)?;
            let signed = [DType::Int8, DType::Int16, DType::Int32, DType::Int64];
            if !signed.contains(&input.dtype()) {
                return Err(Status::invalid_argument(format!(
                    "Type not supported: {}",
                    input.dtype()
                )));
            }
            let texts: Vec<String> = ints(input)?.iter().map(i64::to_string).collect();
            let hashes = texts
                .iter()
                .map(|s| (fingerprint64(s.as_bytes()) % buckets.max(1)) as i64);
            let out = Tensor::from_vec(hashes.collect(), input.shape().clone())?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
}

fn buckets(b: &KernelBuilder<'_>, hash: fn(&[u8]) -> u64) -> Result<Built> {
    let buckets = b.attrs().int("num_buckets")? as u64;
    Built::cheap(move |ctx| compute(ctx, buckets, hash))
}

fn strong(b: &KernelBuilder<'_>) -> Result<Built> {
    let buckets = b.attrs().int("num_buckets")? as u64;
    let &[key0, key1] = b.attrs().ints("key")? else {
        return Err(Status::invalid_argument("Key must have 2 elements"));
    };
    Built::cheap(move |ctx| compute(ctx, buckets, |s| sip_hash(key0 as u64, key1 as u64, s)))
}

fn compute(ctx: &mut OpContext<'_>, buckets: u64, hash: impl Fn(&[u8]) -> u64) -> Result<()> {
    let input = ctx.input(0)?;
    let hashes = input
        .as_strings()?
        .iter()
        .map(|s| (hash(s) % buckets.max(1)) as i64);
    let out = Tensor::from_vec(hashes.collect(), input.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

pub(super) const K0: u64 = 0xc3a5_c85c_97cb_3127;
pub(super) const K1: u64 = 0xb492_b66f_be98_f273;
const K2: u64 = 0x9ae1_6a3b_2f90_404f;

/// Eight bytes at `at`, little-endian; beyond the end there are zeros (never asked for).
pub(super) fn u64_at(s: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(bytes) = s.get(at..at + 8) {
        word.copy_from_slice(bytes);
    }
    u64::from_le_bytes(word)
}

fn u32_at(s: &[u8], at: usize) -> u64 {
    let mut word = [0; 4];
    if let Some(bytes) = s.get(at..at + 4) {
        word.copy_from_slice(bytes);
    }
    u32::from_le_bytes(word).into()
}

pub(super) fn shift_mix(v: u64) -> u64 {
    v ^ v >> 47
}

pub(super) fn hash_16(u: u64, v: u64, mul: u64) -> u64 {
    let a = shift_mix((u ^ v).wrapping_mul(mul));
    shift_mix((v ^ a).wrapping_mul(mul)).wrapping_mul(mul)
}

/// FarmHash's `Fingerprint64`: the same on every machine, for ever.
pub(crate) fn fingerprint64(s: &[u8]) -> u64 {
    match s.len() {
        0..=16 => short(s),
        17..=32 => medium(s).0,
        33..=64 => long(s),
        _ => very_long(s),
    }
}

fn short(s: &[u8]) -> u64 {
    let len = s.len() as u64;
    let mul = K2.wrapping_add(len * 2);
    match s {
        [] => K2,
        [first, ..] if s.len() < 4 => {
            let (a, b, c) = (*first, s[s.len() >> 1], s[s.len() - 1]);
            let y = u64::from(a) + (u64::from(b) << 8);
            let z = len + (u64::from(c) << 2);
            shift_mix(y.wrapping_mul(K2) ^ z.wrapping_mul(K0)).wrapping_mul(K2)
        }
        _ if s.len() < 8 => hash_16(len + (u32_at(s, 0) << 3), u32_at(s, s.len() - 4), mul),
        _ => {
            let a = u64_at(s, 0).wrapping_add(K2);
            let b = u64_at(s, s.len() - 8);
            let c = b.rotate_right(37).wrapping_mul(mul).wrapping_add(a);
            let d = a.rotate_right(25).wrapping_add(b).wrapping_mul(mul);
            hash_16(c, d, mul)
        }
    }
}

/// The hash of 17 to 32 bytes, and the sum that longer strings build on.
fn medium(s: &[u8]) -> (u64, u64) {
    let n = s.len();
    let mul = K2.wrapping_add(n as u64 * 2);
    let first = if n <= 32 { K1 } else { K2 };
    let a = u64_at(s, 0).wrapping_mul(first);
    let b = u64_at(s, 8);
    let c = u64_at(s, n - 8).wrapping_mul(mul);
    let d = u64_at(s, n - 16).wrapping_mul(K2);
    let y = a
        .wrapping_add(b)
        .rotate_right(43)
        .wrapping_add(c.rotate_right(30))
        .wrapping_add(d);
    let z = a
        .wrapping_add(b.wrapping_add(K2).rotate_right(18))
        .wrapping_add(c);
    (hash_16(y, z, mul), y)
}

fn long(s: &[u8]) -> u64 {
    let n = s.len();
    let mul = K2.wrapping_add(n as u64 * 2);
    let (z, y) = medium(s);
    let a = u64_at(s, 0).wrapping_mul(K2);
    let e = u64_at(s, 16).wrapping_mul(mul);
    let f = u64_at(s, 24);
    let g = y.wrapping_add(u64_at(s, n - 32)).wrapping_mul(mul);
    let h = z.wrapping_add(u64_at(s, n - 24)).wrapping_mul(mul);
    hash_16(
        e.wrapping_add(f)
            .rotate_right(43)
            .wrapping_add(g.rotate_right(30))
            .wrapping_add(h),
        e.wrapping_add(f.wrapping_add(a).rotate_right(18))
            .wrapping_add(g),
        mul,
    )
}

fn weak_32(s: &[u8], at: usize, a: u64, b: u64) -> (u64, u64) {
    let (w, x) = (u64_at(s, at), u64_at(s, at + 8));
    let (y, z) = (u64_at(s, at + 16), u64_at(s, at + 24));
    let a = a.wrapping_add(w);
    let b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    let a = a.wrapping_add(x).wrapping_add(y);
    let b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

fn very_long(s: &[u8]) -> u64 {
    let n = s.len();
    let seed: u64 = 81;
    let mut x = seed.wrapping_mul(K2).wrapping_add(u64_at(s, 0));
    let mut y = seed.wrapping_mul(K1).wrapping_add(113);
    let mut z = shift_mix(y.wrapping_mul(K2).wrapping_add(113)).wrapping_mul(K2);
    let (mut v, mut w) = ((0u64, 0u64), (0u64, 0u64));
    let end = (n - 1) / 64 * 64;
    let tail = (n as u64 - 1) & 63;
    let mut round = |at: usize, mul: u64, scale: u64, v: &mut (u64, u64), w: &mut (u64, u64)| {
        x = x
            .wrapping_add(y)
            .wrapping_add(v.0)
            .wrapping_add(u64_at(s, at + 8))
            .rotate_right(37)
            .wrapping_mul(mul);
        y = y
            .wrapping_add(v.1)
            .wrapping_add(u64_at(s, at + 48))
            .rotate_right(42)
            .wrapping_mul(mul);
        x ^= w.1.wrapping_mul(scale);
        y = y
            .wrapping_add(v.0.wrapping_mul(scale))
            .wrapping_add(u64_at(s, at + 40));
        z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(mul);
        *v = weak_32(s, at, v.1.wrapping_mul(mul), x.wrapping_add(w.0));
        *w = weak_32(
            s,
            at + 32,
            z.wrapping_add(w.1),
            y.wrapping_add(u64_at(s, at + 16)),
        );
        std::mem::swap(&mut z, &mut x);
        (x, y, z)
    };
    let mut state = (0, 0, 0);
    for at in (0..end).step_by(64) {
        state = round(at, K1, 1, &mut v, &mut w);
    }
    let mul = K1.wrapping_add((state.2 & 0xff) << 1);
    w.0 = w.0.wrapping_add(tail);
    v.0 = v.0.wrapping_add(w.0);
    w.0 = w.0.wrapping_add(v.0);
    let (x, y, z) = round(n - 64, mul, 9, &mut v, &mut w);
    hash_16(
        hash_16(v.0, w.0, mul)
            .wrapping_add(shift_mix(y).wrapping_mul(K0))
            .wrapping_add(z),
        hash_16(v.1, w.1, mul).wrapping_add(x),
        mul,
    )
}

/// TensorFlow's own `Hash64` (MurmurHash64A).
pub(crate) fn hash64(s: &[u8], seed: u64) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut h = seed ^ (s.len() as u64).wrapping_mul(M);
    let chunks = s.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        let mut k = u64_at(chunk, 0).wrapping_mul(M);
        k ^= k >> 47;
        h = (h ^ k.wrapping_mul(M)).wrapping_mul(M);
    }
    if !rest.is_empty() {
        let word = rest.iter().rev().fold(0u64, |w, &b| w << 8 | u64::from(b));
        h = (h ^ word).wrapping_mul(M);
    }
    h = shift_mix(h).wrapping_mul(M);
    shift_mix(h)
}

/// SipHash-2-4.
pub(crate) fn sip_hash(key0: u64, key1: u64, s: &[u8]) -> u64 {
    let mut v = [
        key0 ^ 0x736f_6d65_7073_6575,
        key1 ^ 0x646f_7261_6e64_6f6d,
        key0 ^ 0x6c79_6765_6e65_7261,
        key1 ^ 0x7465_6462_7974_6573,
    ];
    fn round(v: &mut [u64; 4]) {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32);
        v[2] = v[2].wrapping_add(v[1]);
        v[0] = v[0].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[2] = v[2].rotate_left(32);
    }
    let mut absorb = |word: u64| {
        v[3] ^= word;
        round(&mut v);
        round(&mut v);
        v[0] ^= word;
    };
    let chunks = s.chunks_exact(8);
    let rest = chunks.remainder();
    for chunk in chunks {
        absorb(u64_at(chunk, 0));
    }
    let word = rest.iter().rev().fold(0u64, |w, &b| w << 8 | u64::from(b));
    absorb(word | (s.len() as u64) << 56);
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs() -> [String; 8] {
        [
            String::new(),
            "a".into(),
            "hello".into(),
            "x".repeat(20),
            "y".repeat(40),
            "z".repeat(64),
            "w".repeat(65),
            "abc".repeat(100),
        ]
    }

    /// Values of TensorFlow 2.21 for `num_buckets = 2^62`.
    #[test]
    fn hashes_are_tensorflows() {
        let mask = |h: u64| h & ((1 << 62) - 1);
        let fast = inputs().map(|s| mask(fingerprint64(s.as_bytes())));
        let expect = [
            1936946117179621455,
            3694432073954588131,
            3786372426573024488,
            3621402210320469444,
            276292113409495006,
            294799756062990872,
            3272011567211491968,
            3509445216459295841,
        ];
        assert_eq!(fast, expect);
        let legacy = inputs().map(|s| mask(hash64(s.as_bytes(), 0xDE_CAFC_AFFE)));
        let expect = [
            105434511174508091,
            2996632905371535868,
            1331861223480393034,
            2648813785153059629,
            2760375234777655417,
            160759053204327832,
            752361075503145470,
            2676236409203126621,
        ];
        assert_eq!(legacy, expect);
        let strong = inputs().map(|s| mask(sip_hash(123, -456i64 as u64, s.as_bytes())));
        let expect = [
            139821925654099718,
            3586765532990731589,
            2336341553116584560,
            3467508369598422538,
            1498781294234284318,
            3700662788341522423,
            4297242252051561713,
            1085575585470323110,
        ];
        assert_eq!(strong, expect);
    }
}
