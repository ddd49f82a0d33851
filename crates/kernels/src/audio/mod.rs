//! Sound: WAV files (`wave`), spectrograms and what speech recognition makes of them (`spectrum`).

mod spectrum;
mod wave;

use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};

pub(crate) fn register(registry: &mut Registry) {
    spectrum::register(registry);
    wave::register(registry);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// The sample rate in input `i`.
fn rate(ctx: &OpContext<'_>, i: usize) -> Result<i32> {
    let t = ctx.input(i)?;
    if t.rank() != 0 {
        return invalid(format!(
            "Input sample_rate should be a scalar tensor, got {} instead.",
            t.shape()
        ));
    }
    Ok(t.scalar_value::<i32>()?)
}
