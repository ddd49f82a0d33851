//! `DecodeWav` and `EncodeWav`: 16-bit PCM in RIFF files.

use super::{invalid, rate};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add("DecodeWav", |b| {
        let channels = b.attrs().int("desired_channels")?;
        let samples = b.attrs().int("desired_samples")?;
        Built::costly(move |ctx| decode(ctx, channels, samples))
    });
    r.add("EncodeWav", |_| Built::costly(encode));
}

/// Reads a file from front to back; nothing beyond its end.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, n: usize) -> Result<&'a [u8]> {
        match self.0.split_at_checked(n) {
            Some((taken, rest)) => {
                self.0 = rest;
                Ok(taken)
            }
            None => invalid("Data too short when trying to read string"),
        }
    }

    fn expect(&mut self, wanted: &str) -> Result<()> {
        let found = self.bytes(wanted.len())?;
        if found != wanted.as_bytes() {
            return invalid(format!(
                "Header mismatch: Expected {wanted} but found {}",
                String::from_utf8_lossy(found)
            ));
        }
        Ok(())
    }

    fn u16(&mut self) -> Result<u16> {
        let b = self.bytes(2)?;
        Ok(u16::from_le_bytes([b[0], b[1]]))
    }

    fn u32(&mut self) -> Result<u32> {
        let b = self.bytes(4)?;
        Ok(u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }
}

struct Sound<'a> {
    channels: usize,
    rate: u32,
    data: &'a [u8],
}

fn parse(file: &[u8]) -> Result<Sound<'_>> {
    let mut r = Reader(file);
    r.expect("RIFF")?;
    r.u32()?;
    r.expect("WAVE")?;
    r.expect("fmt ")?;
    let size = r.u32()?;
    if size != 16 && size != 18 {
        return invalid(format!(
            "Bad format chunk size for WAV: Expected 16 or 18, but got{size}"
        ));
    }
    let format = r.u16()?;
    if format != 1 {
        return invalid(format!(
            "Bad audio format for WAV: Expected 1 (PCM), but got{format}"
        ));
    }
    let channels = r.u16()?;
    if channels < 1 {
        return invalid(format!(
            "Bad number of channels for WAV: Expected at least 1, but got {channels}"
        ));
    }
    let rate = r.u32()?;
    let (per_second, per_sample, bits) = (r.u32()?, r.u16()?, r.u16()?);
    if bits != 16 {
        return invalid(format!(
            "Can only read 16-bit WAV files, but received {bits}"
        ));
    }
    let wanted = u32::from(channels) * 2;
    if u32::from(per_sample) != wanted {
        return invalid(format!(
            "Bad bytes per sample in WAV header: Expected {wanted} but got {per_sample}"
        ));
    }
    let wanted = u64::from(per_sample) * u64::from(rate);
    if u64::from(per_second) != wanted {
        return invalid(format!(
            "Bad bytes per second in WAV header: Expected {wanted} but got {per_second} (sample_rate={rate}, bytes_per_sample={per_sample})"
        ));
    }
    if size == 18 {
        r.bytes(2)?;
    }
    // Other chunks may come first, and behind.
    let mut found = None;
    while !r.0.is_empty() {
        let name = r.bytes(4)?;
        let len = r.u32()?;
        if len > i32::MAX as u32 {
            return invalid("WAV data chunk is too large");
        }
        let data = r.bytes(len as usize)?;
        if name == b"data" {
            if found.is_some() {
                return invalid("More than one data chunk found in WAV");
            }
            found = Some(data);
        }
    }
    match found {
        Some(data) => Ok(Sound {
            channels: channels.into(),
            rate,
            data,
        }),
        None => invalid("No data chunk found in WAV"),
    }
}

fn decode(ctx: &mut OpContext<'_>, channels: i64, samples: i64) -> Result<()> {
    let contents = ctx.input(0)?;
    let (0, [file]) = (contents.rank(), contents.as_strings()?) else {
        return invalid(format!(
            "contents must be scalar, got shape {}",
            contents.shape()
        ));
    };
    let sound = parse(file)?;
    let given = sound.data.len() / (2 * sound.channels);
    let channels = usize::try_from(channels).unwrap_or(sound.channels);
    let samples = usize::try_from(samples).unwrap_or(given);
    let shape = Shape::checked([samples as i64, channels as i64])?;
    let mut out: Vec<f32> = ctx.vec(&shape)?;
    for i in 0..samples {
        for c in 0..channels {
            // The last channel stands for those that the file does not have.
            let at = 2 * (i * sound.channels + c.min(sound.channels - 1));
            out.push(match sound.data.get(at..at + 2) {
                Some(b) if i < given => f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0,
                _ => 0.0,
            });
        }
    }
    let rate = sound.rate as i32;
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    ctx.set_output(1, Tensor::scalar(rate));
    Ok(())
}

fn encode(ctx: &mut OpContext<'_>) -> Result<()> {
    let audio = ctx.input(0)?;
    let &[samples, channels] = audio.dims() else {
        return invalid(format!("audio must be 2-dimensional{}", audio.shape()));
    };
    let rate = rate(ctx, 1)?;
    if rate <= 0 {
        return invalid(format!(
            "sample_rate must be in (0, 2^32), got: {}",
            rate as u32
        ));
    }
    if channels == 0 {
        return invalid("audio is null");
    }
    let bytes = samples.checked_mul(channels).and_then(|n| n.checked_mul(2));
    let sizes = bytes.filter(|n| *n < (u32::MAX - 36) as usize);
    let (Some(bytes), Ok(channels)) = (sizes, u16::try_from(channels)) else {
        return invalid("Provided channels and frames cannot be encoded as a WAV.");
    };
    ctx.check_alloc(DType::UInt8, &Shape::from([bytes]))?;
    let rate = rate as u32;
    let mut out = Vec::with_capacity(44 + bytes);
    out.extend(b"RIFF");
    out.extend((bytes as u32 + 36).to_le_bytes());
    out.extend(b"WAVEfmt ");
    out.extend(16u32.to_le_bytes());
    out.extend(1u16.to_le_bytes());
    out.extend(channels.to_le_bytes());
    out.extend(rate.to_le_bytes());
    out.extend(rate.wrapping_mul(2 * u32::from(channels)).to_le_bytes());
    out.extend(channels.wrapping_mul(2).to_le_bytes());
    out.extend(16u16.to_le_bytes());
    out.extend(b"data");
    out.extend((bytes as u32).to_le_bytes());
    for v in audio.as_slice::<f32>()? {
        // The cast cuts to what 16 bits hold.
        out.extend(((v * 32768.0).round() as i16).to_le_bytes());
    }
    ctx.set_output(0, Tensor::string(out));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{run_op, text};
    use downpour_tensor::Tensor;

    #[test]
    fn sound_survives_a_file() {
        let audio = Tensor::from_vec(vec![0.5f32, -1.0, 0.25, 2.0], [2, 2]).unwrap();
        let file = run_op("EncodeWav", vec![audio, Tensor::scalar(8000i32)], &[]).unwrap();
        let attrs = [
            ("desired_channels", (-1i64).into()),
            ("desired_samples", 3i64.into()),
        ];
        let back = run_op("DecodeWav", file.clone(), &attrs).unwrap();
        let heard = back[0].as_slice::<f32>().unwrap();
        assert_eq!(heard, [0.5, -1.0, 0.25, 32767.0 / 32768.0, 0.0, 0.0]);
        assert_eq!(back[1].scalar_value::<i32>().unwrap(), 8000);
        let cut = Tensor::string(file[0].as_strings().unwrap()[0].slice(..40));
        assert_eq!(
            text(run_op("DecodeWav", vec![cut], &attrs)),
            "Data too short when trying to read string"
        );
    }
}
