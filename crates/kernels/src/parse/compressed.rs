//! `DecodeCompressed`: strings out of zlib or gzip streams, each within the size of one tensor.

use super::invalid;
use downpour_formats::record::Compression;
use downpour_formats::stream::inflate;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("DecodeCompressed", decode_compressed);
}

fn decode_compressed(b: &KernelBuilder<'_>) -> Result<Built> {
    let compression = match b.attrs().bytes("compression_type")?.as_ref() {
        b"" => Compression::None,
        b"ZLIB" => Compression::Zlib,
        b"GZIP" => Compression::Gzip,
        b"ZSTD" => return Err(Status::unimplemented("ZSTD is not supported here")),
        _ => return invalid("Only ZLIB, ZSTD, GZIP or NONE are supported compressions"),
    };
    Built::costly(move |ctx| {
        let limit = ctx.device().room();
        let mut strings = ctx.take(0)?;
        if compression != Compression::None {
            // All strings of the tensor share one budget: many small bombs are one large one.
            let mut left = limit;
            let mut out = Vec::with_capacity(strings.num_elements());
            for s in strings.as_strings()? {
                let text = inflate(s, compression, left);
                let text = text.map_err(|e| match e.code {
                    Code::ResourceExhausted => ctx.device().no_room(limit.saturating_add(1)),
                    _ => e,
                })?;
                left -= text.len().min(left);
                out.push(text);
            }
            strings = Tensor::strings(out, strings.shape().clone())?;
        }
        ctx.set_output(0, strings);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{run_op, text};
    use bytes::Bytes;
    use downpour_graph::Code;
    use downpour_tensor::Tensor;

    /// A zlib stream of one stored block.
    fn stored(data: &[u8]) -> Bytes {
        let mut out = vec![0x78, 0x01];
        let n = data.len() as u16;
        out.push(1);
        out.extend(n.to_le_bytes());
        out.extend((!n).to_le_bytes());
        out.extend(data);
        let (mut a, mut b) = (1u32, 0u32);
        for byte in data {
            a = (a + u32::from(*byte)) % 65521;
            b = (b + a) % 65521;
        }
        out.extend((b << 16 | a).to_be_bytes());
        out.into()
    }

    #[test]
    fn streams_are_inflated_within_one_budget() {
        let zlib = [("compression_type", "ZLIB".into())];
        let one = Tensor::strings(vec![stored(b"abc"), stored(b"")], [2]).unwrap();
        let out = run_op("DecodeCompressed", vec![one], &zlib).unwrap();
        assert_eq!(out[0].as_strings().unwrap(), [&b"abc"[..], &b""[..]]);
        let many = vec![stored(&[7; 60_000]); 1200];
        let many = Tensor::strings(many, [1200]).unwrap();
        let e = run_op("DecodeCompressed", vec![many], &zlib).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
        let none = [("compression_type", "SNAPPY".into())];
        assert_eq!(
            text(run_op("DecodeCompressed", vec![Tensor::string("x")], &none)),
            "Only ZLIB, ZSTD, GZIP or NONE are supported compressions"
        );
    }
}
