//! `ParseTensor` and `SerializeTensor`: a `TensorProto` in a string.

use super::invalid;
use crate::array::COMMON_AND_STRING;
use downpour_formats::tensor_proto::{ParseError, parse, serialize_fields};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("ParseTensor", parse_tensor);
    for types in [COMMON_AND_STRING, &[DType::Variant]] {
        r.add_typed("SerializeTensor", &[("T", types)], |_| {
            Built::costly(|ctx| {
                let bytes = serialize_fields(ctx.input(0)?)?;
                ctx.set_output(0, Tensor::string(bytes));
                Ok(())
            })
        });
    }
}

fn parse_tensor(b: &KernelBuilder<'_>) -> Result<Built> {
    let out_type = b.attrs().dtype("out_type")?;
    Built::costly(move |ctx| {
        let serialized = ctx.input(0)?;
        let (0, [bytes]) = (serialized.rank(), serialized.as_strings()?) else {
            return invalid(format!(
                "Expected `serialized` to be a scalar, got shape: {}",
                serialized.shape()
            ));
        };
        let budget = ctx.device().room() as u64;
        let tensor = parse(bytes, budget).map_err(|e| match e {
            ParseError::Proto => Status::invalid_argument(format!(
                "Could not parse `serialized` as TensorProto, base64: {}",
                base64(bytes)
            )),
            ParseError::Tensor => Status::invalid_argument("Cannot parse tensor from proto"),
        })?;
        if tensor.dtype() != out_type {
            return invalid(format!(
                "Type mismatch between parsed tensor ({}) and dtype ({out_type})",
                tensor.dtype()
            ));
        }
        ctx.set_output(0, tensor);
        Ok(())
    })
}

/// Base 64 with padding, of no more than an error can carry.
fn base64(bytes: &[u8]) -> String {
    const MOST: usize = 3 << 10;
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for group in bytes[..bytes.len().min(MOST)].chunks(3) {
        let mut word = [0; 4];
        word[1..=group.len()].copy_from_slice(group);
        let word = u32::from_be_bytes(word);
        for i in 0..4 {
            let digit = DIGITS[(word >> (18 - 6 * i)) as usize & 63];
            out.push(if i > group.len() { '=' } else { digit.into() });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::base64;
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn base64_is_padded() {
        for (text, expect) in [
            ("", ""),
            ("a", "YQ=="),
            ("ab", "YWI="),
            ("bogus", "Ym9ndXM="),
        ] {
            assert_eq!(base64(text.as_bytes()), expect);
        }
    }

    #[test]
    fn a_tensor_larger_than_the_budget_is_refused_before_it_is_made() {
        // A splat of 2^40 floats in a few bytes.
        let proto =
            b"\x08\x01\x12\x0a\x12\x08\x08\x80\x80\x80\x80\x80\x80\x01\x2a\x04\x00\x00\x80\x3f";
        let inputs = vec![Tensor::string(&proto[..])];
        assert!(run_op("ParseTensor", inputs, &[("out_type", DType::Float.into())]).is_err());
    }
}
