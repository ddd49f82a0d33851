//! `StringFormat`: tensors put into a template.

use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("StringFormat", string_format);
}

fn string_format(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let (template, placeholder) = (attrs.bytes("template")?, attrs.bytes("placeholder")?);
    let summarize = attrs.int("summarize")?;
    let parts = split(template, placeholder);
    let inputs = attrs.dtypes("T")?.len();
    if parts.len() - 1 != inputs {
        return Err(Status::invalid_argument(format!(
            "num placeholders in template and num inputs must match: {} vs. {inputs}",
            parts.len() - 1
        )));
    }
    Built::cheap(move |ctx| {
        let mut out = parts.first().map_or_else(Vec::new, |p| p.to_vec());
        for (i, part) in parts.iter().skip(1).enumerate() {
            out.extend_from_slice(ctx.input(i)?.summarize_nested(summarize).as_bytes());
            out.extend_from_slice(part);
        }
        ctx.set_output(0, Tensor::string(out));
        Ok(())
    })
}

/// The texts around the placeholders.
fn split(template: &Bytes, placeholder: &[u8]) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let (mut start, mut at) = (0, 0);
    while at + placeholder.len() <= template.len() && !placeholder.is_empty() {
        if template[at..].starts_with(placeholder) {
            parts.push(template.slice(start..at));
            at += placeholder.len();
            start = at;
        } else {
            at += 1;
        }
    }
    parts.push(template.slice(start..));
    parts
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_graph::{AttrList, AttrValue};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn tensors_stand_where_the_placeholders_stood() {
        let matrix = Tensor::from_vec(vec![1i32, 2, 3, 4], [2, 2]).unwrap();
        let types = AttrValue::List(AttrList::Type(vec![DType::Int64, DType::Int32]));
        let attrs = [
            ("T", types),
            ("template", AttrValue::Str(Bytes::from_static(b"a{}b{}c"))),
            ("placeholder", AttrValue::Str(Bytes::from_static(b"{}"))),
        ];
        let inputs = vec![Tensor::vector((0..10i64).collect()), matrix];
        let out = run_op("StringFormat", inputs, &attrs).unwrap();
        let text = &out[0].as_strings().unwrap()[0];
        assert_eq!(text, "a[0 1 2 ... 7 8 9]b[[1 2]\n [3 4]]c");
    }
}
