//! String by string: case, white space, length.

use super::map;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("StringLower", |b| {
        case(b, str::to_lowercase, <[u8]>::to_ascii_lowercase)
    });
    r.add("StringUpper", |b| {
        case(b, str::to_uppercase, <[u8]>::to_ascii_uppercase)
    });
    r.add("StringStrip", |_| {
        Built::cheap(|ctx| map(ctx, |s| Ok(strip(s))))
    });
    r.add("StringLength", string_length);
}

fn case(
    b: &KernelBuilder<'_>,
    unicode: fn(&str) -> String,
    ascii: fn(&[u8]) -> Vec<u8>,
) -> Result<Built> {
    let encoding = b.attrs().bytes("encoding")?.clone();
    match encoding.as_ref() {
        b"" => Built::cheap(move |ctx| map(ctx, |s| Ok(ascii(s).into()))),
        b"utf-8" => {
            Built::cheap(move |ctx| map(ctx, |s| Ok(unicode(&String::from_utf8_lossy(s)).into())))
        }
        other => Err(Status::invalid_argument(format!(
            "only utf-8 or '' (no encoding) is supported, received {}",
            String::from_utf8_lossy(other)
        ))),
    }
}

/// White space as C's `isspace` has it.
pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

fn strip(s: &Bytes) -> Bytes {
    let start = s.iter().position(|&b| !is_space(b)).unwrap_or(s.len());
    let end = s
        .iter()
        .rposition(|&b| !is_space(b))
        .map_or(start, |i| i + 1);
    s.slice(start..end)
}

/// Whether a byte goes on with a UTF-8 character rather than beginning one.
pub(super) fn is_trail(byte: u8) -> bool {
    byte & 0xC0 == 0x80
}

fn string_length(b: &KernelBuilder<'_>) -> Result<Built> {
    let characters = b.attrs().bytes("unit")?.as_ref() == b"UTF8_CHAR";
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let length = |s: &Bytes| match characters {
            true => s.iter().filter(|&&b| !is_trail(b)).count() as i32,
            false => s.len() as i32,
        };
        let lengths = input.as_strings()?.iter().map(length).collect();
        let out = Tensor::from_vec(lengths, input.shape().clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_graph::AttrValue;
    use downpour_tensor::Tensor;

    fn run(op: &str, text: &'static [u8], attrs: &[(&str, AttrValue)]) -> Tensor {
        let input = Tensor::string(Bytes::from_static(text));
        run_op(op, vec![input], attrs).unwrap().remove(0)
    }

    fn text(tensor: &Tensor) -> &[u8] {
        &tensor.as_strings().unwrap()[0]
    }

    #[test]
    fn without_an_encoding_only_ascii_changes_case() {
        let utf8 = ("encoding", AttrValue::Str(Bytes::from_static(b"utf-8")));
        let input = "aBÉß".as_bytes();
        assert_eq!(text(&run("StringLower", input, &[])), "abÉß".as_bytes());
        let out = run("StringUpper", input, std::slice::from_ref(&utf8));
        assert_eq!(text(&out), "ABÉSS".as_bytes());
        let out = run("StringLower", b"\xffAb", &[utf8]);
        assert_eq!(text(&out), "\u{fffd}ab".as_bytes());
    }

    #[test]
    fn stripping_and_measuring() {
        assert_eq!(
            text(&run("StringStrip", b" a b\t\n\x0b\x0c\r", &[])),
            b"a b"
        );
        assert_eq!(text(&run("StringStrip", b"  ", &[])), b"");
        let unit = ("unit", AttrValue::Str(Bytes::from_static(b"UTF8_CHAR")));
        let out = run("StringLength", "aé".as_bytes(), &[unit]);
        assert_eq!(out.scalar_value::<i32>().unwrap(), 2);
        let out = run("StringLength", "aé".as_bytes(), &[]);
        assert_eq!(out.scalar_value::<i32>().unwrap(), 3);
    }
}
