//! `DecodeJSONExample`: an `Example` in protobuf's JSON form becomes its binary form.

use super::invalid;
use bytes::Bytes;
use downpour_formats::example::json::json_to_example;
use downpour_graph::Result;
use downpour_runtime::{Built, Registry};

pub(super) fn register(r: &mut Registry) {
    r.add("DecodeJSONExample", |_| {
        Built::costly(|ctx| {
            let mut strings = ctx.take(0)?;
            for s in strings.make_mut_strings()? {
                *s = decode(s)?;
            }
            ctx.set_output(0, strings);
            Ok(())
        })
    });
}

fn decode(json: &[u8]) -> Result<Bytes> {
    match json_to_example(json) {
        Ok(bytes) => Ok(bytes.into()),
        Err(e) => invalid(format!("Error while parsing JSON: {e}")),
    }
}
