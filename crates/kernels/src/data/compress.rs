//! `CompressElement` and `UncompressElement`: the components of an element as one Snappy block inside a variant.

use bytes::Bytes;
use downpour_formats::snappy;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Buffer, DType, Shape, Tensor, Variant, VariantValue};
use std::any::Any;

pub(super) fn register(r: &mut Registry) {
    r.add("CompressElement", |_| Built::costly(compress));
    r.add("UncompressElement", uncompress);
}

#[derive(Debug)]
struct Compressed {
    data: Bytes,
    components: Vec<Component>,
    /// Bytes before compression.
    size: usize,
}

#[derive(Debug)]
struct Component {
    dtype: DType,
    shape: Shape,
    /// Bytes of each string, or of the whole tensor.
    lengths: Vec<usize>,
}

impl VariantValue for Compressed {
    fn type_name(&self) -> &str {
        "tensorflow::data::CompressedElement"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn compress(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut plain = Vec::new();
    let mut components = Vec::with_capacity(ctx.num_inputs());
    for tensor in ctx.inputs(0..ctx.num_inputs())? {
        let lengths = match (tensor.buffer(), tensor.as_strings()) {
            (Some(buffer), _) => {
                plain.extend_from_slice(buffer.as_bytes());
                vec![buffer.as_bytes().len()]
            }
            (None, Ok(strings)) => {
                strings.iter().for_each(|s| plain.extend_from_slice(s));
                strings.iter().map(Bytes::len).collect()
            }
            _ => {
                return Err(Status::unimplemented(format!(
                    "an element with a component of type {} cannot be compressed",
                    tensor.dtype()
                )));
            }
        };
        components.push(Component {
            dtype: tensor.dtype(),
            shape: tensor.shape().clone(),
            lengths,
        });
    }
    let compressed = Compressed {
        data: snappy::compress(&plain)?.into(),
        components,
        size: plain.len(),
    };
    ctx.set_output(0, Tensor::variant(Variant::new(compressed)));
    Ok(())
}

fn uncompress(b: &KernelBuilder<'_>) -> Result<Built> {
    let types = b.attrs().dtypes("output_types")?.to_vec();
    Built::costly(move |ctx| {
        let input = ctx.input(0)?.clone();
        let first = input.as_variants()?.first();
        let Some(element) = first.and_then(Variant::downcast::<Compressed>) else {
            let found = first.map_or_else(String::new, |v| v.0.type_name().to_owned());
            return Err(Status::invalid_argument(format!(
                "Tensor does not contain a compressed element. Instead got type: {found}"
            )));
        };
        let have = element.components.len();
        if have != types.len() {
            return Err(Status::failed_precondition(format!(
                "Expected {} outputs from uncompress, but got {have}",
                types.len()
            )));
        }
        let mut rest = Bytes::from(snappy::uncompress(&element.data, element.size)?);
        for (i, (part, wanted)) in element.components.iter().zip(&types).enumerate() {
            if part.dtype != *wanted {
                return Err(Status::failed_precondition(format!(
                    "Expected a tensor of type {wanted} but got a tensor of type {}",
                    part.dtype
                )));
            }
            let pieces: Vec<Bytes> = part.lengths.iter().map(|n| rest.split_to(*n)).collect();
            let tensor = match part.dtype {
                DType::String => Tensor::strings(pieces, part.shape.clone())?,
                dtype => {
                    let bytes = pieces.concat();
                    Tensor::from_buffer(dtype, part.shape.clone(), Buffer::copy_from(&bytes))?
                }
            };
            ctx.set_output(i, tensor);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::{AttrList, AttrValue};
    use downpour_tensor::{DType, PartialShape, Tensor};

    #[test]
    fn what_was_compressed_comes_back() {
        let types = AttrValue::List(AttrList::Type(vec![DType::Int32, DType::String]));
        let words = ["a", "", "bcd"].map(|s| s.into()).to_vec();
        let inputs = vec![
            Tensor::vector(vec![7i32; 1000]),
            Tensor::strings(words, [3]).unwrap(),
        ];
        let packed = run_op("CompressElement", inputs, &[("input_types", types.clone())]).unwrap();
        let shapes = AttrValue::List(AttrList::Shape(vec![PartialShape::unknown(); 2]));
        let attrs = [("output_types", types), ("output_shapes", shapes.clone())];
        let back = run_op("UncompressElement", packed.clone(), &attrs).unwrap();
        assert_eq!(back[0].as_slice::<i32>().unwrap(), [7; 1000]);
        assert_eq!(back[1].as_strings().unwrap()[2], "bcd");
        let other = AttrValue::List(AttrList::Type(vec![DType::Int64, DType::String]));
        let attrs = [("output_types", other), ("output_shapes", shapes)];
        let e = run_op("UncompressElement", packed, &attrs).unwrap_err();
        assert!(
            e.message
                .starts_with("Expected a tensor of type int64 but got"),
            "{}",
            e.message
        );
    }
}
