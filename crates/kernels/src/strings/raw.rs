//! `DecodeRaw` and `DecodePaddedRaw`: bytes of strings as numbers.

use crate::args::int;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{Buffer, DType, Shape, Tensor};

const PADDED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::UInt16,
    DType::UInt8,
    DType::Int16,
    DType::Int8,
    DType::Int64,
    DType::BFloat16,
];

pub(super) fn register(r: &mut Registry) {
    r.add("DecodeRaw", decode_raw);
    r.add_typed(
        "DecodePaddedRaw",
        &[("out_type", PADDED)],
        decode_padded_raw,
    );
}

struct Layout {
    dtype: DType,
    /// Bytes of one element.
    size: usize,
    /// Bytes whose order is turned; 1 where nothing is to be turned.
    swap: usize,
}

fn layout(b: &KernelBuilder<'_>) -> Result<Layout> {
    let dtype = b.attrs().dtype("out_type")?;
    let size = dtype
        .size()
        .ok_or_else(|| Status::internal(format!("{dtype} has no bytes")))?;
    let word = if dtype.is_complex() { size / 2 } else { size };
    let little = b.attrs().bool("little_endian")?;
    Ok(Layout {
        dtype,
        size,
        swap: if little { 1 } else { word },
    })
}

impl Layout {
    fn tensor(&self, mut bytes: Vec<u8>, shape: Shape) -> Result<Tensor> {
        if self.swap > 1 {
            bytes.chunks_exact_mut(self.swap).for_each(<[u8]>::reverse);
        }
        Ok(Tensor::from_buffer(
            self.dtype,
            shape,
            Buffer::copy_from(&bytes),
        )?)
    }
}

fn decode_raw(b: &KernelBuilder<'_>) -> Result<Built> {
    let layout = layout(b)?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let strings = input.as_strings()?;
        let length = strings.first().map_or(0, |s| s.len());
        if let Some((i, s)) = strings.iter().enumerate().find(|(_, s)| s.len() != length) {
            return Err(Status::invalid_argument(format!(
                "DecodeRaw requires input strings to all be the same size, but element {i} has size {length} != {}",
                s.len()
            )));
        }
        if length % layout.size != 0 {
            return Err(Status::invalid_argument(format!(
                "Input to DecodeRaw has length {length} that is not a multiple of {}, the size of {}",
                layout.size, layout.dtype
            )));
        }
        let shape: Shape = (input.dims().iter().copied())
            .chain([length / layout.size])
            .collect();
        let out = match (strings, layout.swap, input.rank()) {
            // One string in order: its bytes are the tensor's.
            ([one], 1, _) => Tensor::from_buffer(
                layout.dtype,
                shape,
                Buffer::from_bytes(one.clone(), layout.size.min(8)),
            )?,
            _ => {
                ctx.check_alloc(layout.dtype, &shape)?;
                layout.tensor(strings.concat(), shape)?
            }
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

fn decode_padded_raw(b: &KernelBuilder<'_>) -> Result<Built> {
    let layout = layout(b)?;
    Built::cheap(move |ctx| {
        let (input, length) = (ctx.input(0)?, ctx.input(1)?);
        if length.rank() != 0 {
            return Err(Status::invalid_argument(format!(
                "k must be scalar, got shape {}",
                length.shape()
            )));
        }
        let given = int(length)?;
        let length = match usize::try_from(given) {
            Ok(length) if length > 0 => length,
            _ => {
                return Err(Status::invalid_argument(format!(
                    "fixed_length ({given}) must be greater than zero."
                )));
            }
        };
        if length % layout.size != 0 {
            return Err(Status::invalid_argument(format!(
                "fixed_length ({length}) must be a multiple of the size of out_type ({})",
                layout.size
            )));
        }
        let dims = input.dims().iter().map(|&d| d as i64);
        let shape = Shape::checked(dims.chain([(length / layout.size) as i64]))?;
        ctx.check_alloc(layout.dtype, &shape)?;
        let mut bytes = vec![0; input.num_elements() * length];
        for (to, from) in bytes.chunks_exact_mut(length).zip(input.as_strings()?) {
            let n = from.len().min(length);
            to[..n].copy_from_slice(&from[..n]);
        }
        let out = layout.tensor(bytes, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_tensor::{DType, Tensor};

    fn strings(values: &[&'static [u8]]) -> Tensor {
        let values: Vec<Bytes> = values.iter().map(|s| Bytes::from_static(s)).collect();
        let n = values.len();
        Tensor::strings(values, [n]).unwrap()
    }

    #[test]
    fn bytes_become_numbers_in_either_order() {
        let input = strings(&[b"\x01\x02\x03\x04", b"abcd"]);
        let int16 = ("out_type", DType::Int16.into());
        let out = run_op(
            "DecodeRaw",
            vec![input.clone()],
            std::slice::from_ref(&int16),
        )
        .unwrap();
        assert_eq!(out[0].as_slice::<i16>().unwrap(), [513, 1027, 25185, 25699]);
        let big = [int16.clone(), ("little_endian", false.into())];
        let out = run_op("DecodeRaw", vec![input], &big).unwrap();
        assert_eq!(out[0].as_slice::<i16>().unwrap(), [258, 772, 24930, 25444]);
        let uneven = strings(&[b"abc", b"ab"]);
        let e = run_op("DecodeRaw", vec![uneven], std::slice::from_ref(&int16)).unwrap_err();
        assert!(
            e.message.contains("but element 1 has size 3 != 2"),
            "{}",
            e.message
        );
        let out = run_op(
            "DecodeRaw",
            vec![strings(&[])],
            std::slice::from_ref(&int16),
        )
        .unwrap();
        assert_eq!(out[0].dims(), [0, 0]);
        let padded = vec![strings(&[b"\x01\x02\x03", b"a"]), Tensor::scalar(4i32)];
        let out = run_op("DecodePaddedRaw", padded, &big).unwrap();
        assert_eq!(out[0].as_slice::<i16>().unwrap(), [258, 768, 24832, 0]);
    }
}
