//! `SdcaFprint`: FarmHash's fingerprints of 128 bits, by which TensorFlow's SDCA optimizer calls its examples. They are
//! kept in tables, so they can never change.

use super::hash::{K0, K1, fingerprint64, hash_16, shift_mix, u64_at};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("SdcaFprint", |_| Built::costly(run));
}

fn run(ctx: &mut OpContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    if input.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "Input must be a vector, got shape {}",
            input.shape()
        )));
    }
    let mut out = Vec::with_capacity(2 * input.num_elements());
    for text in input.as_strings()? {
        let (low, high) = fingerprint128(text);
        // 0 and 1 stand for empty places of a table.
        let low = if low >= 2 { low } else { low.wrapping_sub(2) };
        out.extend([low as i64, high as i64]);
    }
    let rows = input.num_elements();
    ctx.set_output(0, Tensor::from_vec(out, [rows, 2])?);
    Ok(())
}

const MUL: u64 = 0x9ddf_ea08_eb38_2d69;

fn hash_2(u: u64, v: u64) -> u64 {
    hash_16(u, v, MUL)
}

/// 32 bytes, in two words with two words of before.
fn weak_hash(s: &[u8], at: usize, mut a: u64, mut b: u64) -> (u64, u64) {
    let [w, x, y, z] = [0, 8, 16, 24].map(|i| u64_at(s, at + i));
    a = a.wrapping_add(w);
    b = b.wrapping_add(a).wrapping_add(z).rotate_right(21);
    let c = a;
    a = a.wrapping_add(x).wrapping_add(y);
    b = b.wrapping_add(a.rotate_right(44));
    (a.wrapping_add(z), b.wrapping_add(c))
}

/// Both halves of `Fingerprint128`, the lower one first.
fn fingerprint128(s: &[u8]) -> (u64, u64) {
    let (start, seed) = match s.len() {
        0..16 => (0, (K0, K1)),
        _ => (16, (u64_at(s, 0), u64_at(s, 8).wrapping_add(K0))),
    };
    if s.len() - start < 128 {
        murmur(&s[start..], seed)
    } else {
        long(s, start, seed)
    }
}

fn murmur(s: &[u8], (mut a, mut b): (u64, u64)) -> (u64, u64) {
    let n = s.len();
    let (mut c, mut d);
    if n <= 16 {
        a = shift_mix(a.wrapping_mul(K1)).wrapping_mul(K1);
        c = b.wrapping_mul(K1).wrapping_add(fingerprint64(s));
        let last = if n >= 8 { u64_at(s, 0) } else { c };
        d = shift_mix(a.wrapping_add(last));
    } else {
        c = hash_2(u64_at(s, n - 8).wrapping_add(K1), a);
        d = hash_2(b.wrapping_add(n as u64), c.wrapping_add(u64_at(s, n - 16)));
        a = a.wrapping_add(d);
        let mut at = 0;
        while at + 16 < n {
            a ^= shift_mix(u64_at(s, at).wrapping_mul(K1)).wrapping_mul(K1);
            a = a.wrapping_mul(K1);
            b ^= a;
            c ^= shift_mix(u64_at(s, at + 8).wrapping_mul(K1)).wrapping_mul(K1);
            c = c.wrapping_mul(K1);
            d ^= c;
            at += 16;
        }
    }
    a = hash_2(a, c);
    b = hash_2(d, b);
    (a ^ b, hash_2(b, a))
}

fn long(s: &[u8], start: usize, (mut x, mut y): (u64, u64)) -> (u64, u64) {
    let get = |at: usize| u64_at(s, at);
    let mut len = s.len() - start;
    let mut at = start;
    let mut z = (len as u64).wrapping_mul(K1);
    let mut v = (0, 0);
    let mut w = (0, 0);
    v.0 = (y ^ K1)
        .rotate_right(49)
        .wrapping_mul(K1)
        .wrapping_add(get(at));
    v.1 = u64::rotate_right(v.0, 42)
        .wrapping_mul(K1)
        .wrapping_add(get(at + 8));
    w.0 = y
        .wrapping_add(z)
        .rotate_right(35)
        .wrapping_mul(K1)
        .wrapping_add(x);
    w.1 = x
        .wrapping_add(get(at + 88))
        .rotate_right(53)
        .wrapping_mul(K1);
    while len >= 128 {
        for _ in 0..2 {
            let sum = x.wrapping_add(y).wrapping_add(v.0);
            x = sum
                .wrapping_add(get(at + 8))
                .rotate_right(37)
                .wrapping_mul(K1);
            y = y
                .wrapping_add(v.1)
                .wrapping_add(get(at + 48))
                .rotate_right(42)
                .wrapping_mul(K1);
            x ^= w.1;
            y = y.wrapping_add(v.0).wrapping_add(get(at + 40));
            z = z.wrapping_add(w.0).rotate_right(33).wrapping_mul(K1);
            v = weak_hash(s, at, v.1.wrapping_mul(K1), x.wrapping_add(w.0));
            w = weak_hash(
                s,
                at + 32,
                z.wrapping_add(w.1),
                y.wrapping_add(get(at + 16)),
            );
            std::mem::swap(&mut z, &mut x);
            at += 64;
        }
        len -= 128;
    }
    x = x.wrapping_add(v.0.wrapping_add(z).rotate_right(49).wrapping_mul(K0));
    y = y.wrapping_mul(K0).wrapping_add(w.1.rotate_right(37));
    z = z.wrapping_mul(K0).wrapping_add(w.0.rotate_right(27));
    w.0 = w.0.wrapping_mul(9);
    v.0 = v.0.wrapping_mul(K0);
    // The rest in steps of 32 bytes from the end; the last may reach back into what was read.
    let mut done = 0;
    while done < len {
        done += 32;
        let from = s.len() - done;
        y = x
            .wrapping_add(y)
            .rotate_right(42)
            .wrapping_mul(K0)
            .wrapping_add(v.1);
        w.0 = w.0.wrapping_add(get(from + 16));
        x = x.wrapping_mul(K0).wrapping_add(w.0);
        z = z.wrapping_add(w.1).wrapping_add(get(from));
        w.1 = w.1.wrapping_add(v.0);
        v = weak_hash(s, from, v.0.wrapping_add(z), v.1);
        v.0 = v.0.wrapping_mul(K0);
    }
    x = hash_2(x, v.0);
    y = hash_2(y.wrapping_add(z), w.0);
    (
        hash_2(x.wrapping_add(v.1), w.1).wrapping_add(y),
        hash_2(x.wrapping_add(w.1), y.wrapping_add(v.1)),
    )
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::Tensor;

    // Of TensorFlow 2.21, for the bytes 7i + n modulo 256, i below n.
    #[rustfmt::skip]
    const WANTED: &[(usize, i64, i64)] = &[
        (0, 4463240938071824939, 4374473821787594281), (1, -3031513573221019310, -4975547386205173904),
        (3, -7916747174816798327, -6785186172275026381), (4, 373797687616831961, 5484855694044555683),
        (7, -3505116750066774874, -8513540659798911788), (8, -6278997919919160156, -5454354129141503731),
        (9, 2126163192826612764, -5686312583864369242), (15, 185489846221326583, -7427985263623917396),
        (16, -143878671975529173, -1001422539681817232), (17, -297878190495770457, 497097386691029322),
        (31, 3865243859734855421, 1924573662601850489), (32, -5226905447997941029, 6013129464268260807),
        (33, -8750119541055416195, -1545235590043606842), (100, -2182071940193619700, 96583560637599031),
        (127, -1881397624401460798, -5698599641440647707), (128, 1661463914854375848, -2593170899866919501),
        (143, 1133767180607000595, -7802771042198866512), (144, 5345387712913962805, -7600385498292688170),
        (145, -3543376309231284959, 3795034514761370062), (200, 5516952698963918962, 2613173948873906511),
        (256, 4747138437780830235, -4028770681181155804), (300, 5688742793642106390, -626192450358776532),
        (1000, 7365945182066124990, -2302161934609488284),
    ];

    #[test]
    fn fingerprints_are_tensorflows_for_every_length_class() {
        let texts = WANTED.iter().map(|&(n, ..)| {
            let text: Vec<u8> = (0..n).map(|i| (i * 7 + n) as u8).collect();
            text.into()
        });
        let input = Tensor::strings(texts.collect(), [WANTED.len()]).unwrap();
        let out = run_op("SdcaFprint", vec![input], &[]).unwrap();
        let want: Vec<i64> = WANTED
            .iter()
            .flat_map(|&(_, low, high)| [low, high])
            .collect();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), want);
        assert_eq!(out[0].dims(), [WANTED.len(), 2]);
        assert!(run_op("SdcaFprint", vec![Tensor::string("x")], &[]).is_err());
    }
}
