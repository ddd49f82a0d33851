//! Ops on strings. A string is bytes: nothing here assumes UTF-8 unless the op says so.

mod as_string;
mod base64;
mod edit;
mod fingerprint;
mod fingerprint128;
mod format;
pub(crate) mod hash;
mod join;
mod ngrams;
pub(crate) mod number;
mod pack;
mod pattern;
pub(crate) mod printf;
mod raw;
mod regex;
mod script;
mod script_table;
mod split;
mod substr;
mod unicode;

use bytes::Bytes;
use downpour_graph::Result;
use downpour_runtime::{OpContext, Registry, parallel_ranges};
use downpour_tensor::Tensor;
use parking_lot::Mutex;

pub(crate) fn register(registry: &mut Registry) {
    as_string::register(registry);
    base64::register(registry);
    edit::register(registry);
    fingerprint::register(registry);
    fingerprint128::register(registry);
    format::register(registry);
    hash::register(registry);
    join::register(registry);
    ngrams::register(registry);
    number::register(registry);
    raw::register(registry);
    regex::register(registry);
    script::register(registry);
    split::register(registry);
    substr::register(registry);
    unicode::register(registry);
}

/// Sets output 0 to input 0 with `f` applied to every string. Strings come out no longer than a
/// small multiple of what they were, so no budget is asked.
fn map(ctx: &mut OpContext<'_>, f: impl Fn(&Bytes) -> Result<Bytes> + Sync) -> Result<()> {
    let mut strings = ctx.take(0)?;
    // The first string that is refused, whichever thread meets it.
    let refused = Mutex::new(None);
    parallel_ranges(
        strings.make_mut_strings()?,
        1,
        MAP_GRAIN,
        |first, strings| {
            for (i, s) in strings.iter_mut().enumerate() {
                match f(s) {
                    Ok(new) => *s = new,
                    Err(e) => {
                        let mut refused = refused.lock();
                        if refused.as_ref().is_none_or(|(at, _)| first + i < *at) {
                            *refused = Some((first + i, e));
                        }
                        return;
                    }
                }
            }
        },
    );
    if let Some((_, e)) = refused.into_inner() {
        return Err(e);
    }
    ctx.set_output(0, strings);
    Ok(())
}

/// Strings worth a thread of their own.
const MAP_GRAIN: usize = 1 << 10;

/// The string scalar in input `i`, or `None` if it has another shape.
fn scalar<'a>(ctx: &'a OpContext<'_>, i: usize) -> Result<Option<&'a Bytes>> {
    let tensor: &Tensor = ctx.input(i)?;
    Ok(match (tensor.rank(), tensor.as_strings()?) {
        (0, [value]) => Some(value),
        _ => None,
    })
}
