//! `AudioSummaryV2` and `AudioSummary`: samples as 16-bit WAV files.

use super::{numbered, scalar};
use bytes::Bytes;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("AudioSummaryV2", |b| {
        let most = b.attrs().int("max_outputs")?;
        Built::costly(move |ctx| {
            let rate = ctx.input(2)?.as_slice::<f32>()?.first().copied();
            audio_summary(ctx, most, rate.unwrap_or(0.0))
        })
    });
    r.add("AudioSummary", old_audio_summary);
}

fn old_audio_summary(b: &KernelBuilder<'_>) -> Result<Built> {
    let (most, rate) = (
        b.attrs().int("max_outputs")?,
        b.attrs().float("sample_rate")?,
    );
    Built::costly(move |ctx| audio_summary(ctx, most, rate))
}

fn audio_summary(ctx: &mut OpContext<'_>, most: i64, rate: f32) -> Result<()> {
    let tag = scalar(ctx, 0, "Tag must be a scalar")?;
    let bytes = encode_summary(audio_values(ctx.input(1)?, &tag, most, rate)?)?;
    ctx.set_output(0, Tensor::string(bytes));
    Ok(())
}

/// The entries of a summary that plays at most `most` clips.
pub(super) fn audio_values(
    tensor: &Tensor,
    tag: &[u8],
    most: i64,
    rate: f32,
) -> Result<Vec<SummaryValue>> {
    let (batch, frames, channels) = match *tensor.dims() {
        [batch, frames] => (batch, frames, 1),
        [batch, frames, channels] => (batch, frames, channels),
        _ => {
            return Err(Status::invalid_argument(format!(
                "Tensor must be 3-D or 2-D, got: {}",
                tensor.shape()
            )));
        }
    };
    if rate.is_nan() || rate <= 0.0 {
        return Err(Status::invalid_argument("sample_rate must be > 0"));
    }
    let samples = tensor.as_slice::<f32>()?;
    let count = batch.min(usize::try_from(most).unwrap_or(0));
    let mut values = Vec::with_capacity(count);
    for i in 0..count {
        let samples = &samples[i * frames * channels..(i + 1) * frames * channels];
        let content = SummaryContent::Audio {
            sample_rate: rate,
            num_channels: channels as i64,
            length_frames: frames as i64,
            encoded: wav(samples, rate, channels)?,
        };
        values.push(SummaryValue::new(numbered(tag, "audio", i, most), content));
    }
    Ok(values)
}

/// A RIFF file of 16-bit PCM samples.
fn wav(samples: &[f32], rate: f32, channels: usize) -> Result<Bytes> {
    const HEADER: u32 = 44;
    let rate = (rate.round_ties_even() as u32).max(1);
    let too_large = || Status::invalid_argument("the audio does not fit into a WAV file");
    let channels = u16::try_from(channels).map_err(|_| too_large())?;
    let frame = channels.checked_mul(2).ok_or_else(too_large)?;
    let data = u32::try_from(samples.len() * 2).map_err(|_| too_large())?;
    let riff = data.checked_add(HEADER - 8).ok_or_else(too_large)?;
    let mut out = Vec::with_capacity((HEADER + data) as usize);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&riff.to_le_bytes());
    out.extend_from_slice(b"WAVEfmt \x10\0\0\0\x01\0");
    out.extend_from_slice(&channels.to_le_bytes());
    out.extend_from_slice(&rate.to_le_bytes());
    out.extend_from_slice(&rate.wrapping_mul(frame.into()).to_le_bytes());
    out.extend_from_slice(&frame.to_le_bytes());
    out.extend_from_slice(b"\x10\0data");
    out.extend_from_slice(&data.to_le_bytes());
    for sample in samples {
        // The cast saturates, and turns NaN into silence.
        let sample = (sample * 32768.0).round() as i16;
        out.extend_from_slice(&sample.to_le_bytes());
    }
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wav_file_is_tensorflows_byte_for_byte() {
        let expect = b"RIFF.\0\0\0WAVEfmt \x10\0\0\0\x01\0\x01\0d\0\0\0\xc8\0\0\0\x02\0\x10\0data\
            \x0a\0\0\0\0@\0\xc0\xff\x7f\0\x80\xff\x7f";
        let got = wav(&[0.5, -0.5, 1.0, -1.0, 2.0], 100.0, 1).unwrap();
        assert_eq!(got, &expect[..]);
        assert!(wav(&[], 1.0, 70_000).is_err());
    }
}
