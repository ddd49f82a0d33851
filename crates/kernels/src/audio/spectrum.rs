//! `AudioSpectrogram` and `Mfcc`.

use super::{invalid, rate};
use crate::math::fft::{Lines, RealPlan};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};
use num_complex::Complex64;
use std::f64::consts::PI;

pub(crate) fn register(r: &mut Registry) {
    r.add("AudioSpectrogram", spectrogram);
    r.add("Mfcc", mfcc);
}

fn spectrogram(b: &KernelBuilder<'_>) -> Result<Built> {
    let (window, stride) = (b.attrs().int("window_size")?, b.attrs().int("stride")?);
    let squared = b.attrs().bool("magnitude_squared")?;
    if window < 2 {
        return invalid(format!("window size must be > 1, got {window}"));
    }
    if stride < 1 {
        return invalid(format!("stride must be strictly positive, got {stride}"));
    }
    Built::costly(move |ctx| transform(ctx, window as usize, stride as usize, squared))
}

fn transform(ctx: &mut OpContext<'_>, window: usize, stride: usize, squared: bool) -> Result<()> {
    let x = ctx.input(0)?;
    let &[samples, channels] = x.dims() else {
        return invalid(format!("input must be 2-dimensional{}", x.shape()));
    };
    let Some(length) = window.checked_next_power_of_two() else {
        return invalid(format!("window size {window} is too large"));
    };
    let slices = match samples.checked_sub(window) {
        Some(rest) => 1 + rest / stride,
        None => 0,
    };
    let bins = length / 2 + 1;
    let shape = Shape::checked([channels, slices, bins].map(|d| d as i64))?;
    let mut out: Vec<f32> = ctx.vec(&shape)?;
    if slices > 0 {
        ctx.check_alloc(downpour_tensor::DType::Complex128, &Shape::from([length]))?;
        let from = x.as_slice::<f32>()?;
        let plan = RealPlan::new(length, false);
        let hann: Vec<f64> = (0..window)
            .map(|i| 0.5 - 0.5 * (2.0 * PI * i as f64 / window as f64).cos())
            .collect();
        let (mut data, mut lines) = (Vec::new(), Lines::default());
        let mut spectrum = vec![Complex64::ZERO; bins];
        for c in 0..channels {
            for s in 0..slices {
                data.clear();
                data.extend(
                    (0..window).map(|i| f64::from(from[(s * stride + i) * channels + c]) * hann[i]),
                );
                data.resize(length, 0.0);
                plan.forward(&data, &mut spectrum, &mut lines);
                out.extend(spectrum.iter().map(|v| match squared {
                    true => v.norm_sqr() as f32,
                    false => v.norm_sqr().sqrt() as f32,
                }));
            }
        }
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

fn mfcc(b: &KernelBuilder<'_>) -> Result<Built> {
    let bank = Bank {
        high: b.attrs().float("upper_frequency_limit")?.into(),
        low: b.attrs().float("lower_frequency_limit")?.into(),
        channels: b.attrs().int("filterbank_channel_count")?,
        coefficients: b.attrs().int("dct_coefficient_count")?,
    };
    Built::costly(move |ctx| run_mfcc(ctx, bank))
}

#[derive(Clone, Copy)]
struct Bank {
    high: f64,
    low: f64,
    channels: i64,
    coefficients: i64,
}

/// Triangles on the mel scale: for each bin the channel it falls to, and its share of it; the rest
/// goes to the channel above.
struct Filters {
    bins: std::ops::RangeInclusive<usize>,
    band: Vec<i64>,
    share: Vec<f64>,
}

fn mel(frequency: f64) -> f64 {
    1127.0 * (frequency / 700.0).ln_1p()
}

impl Bank {
    fn filters(&self, bins: usize, rate: f64) -> Option<Filters> {
        let sound = self.channels >= 1
            && self.coefficients >= 1
            && self.coefficients <= self.channels
            && rate > 0.0
            && bins >= 2
            && self.low >= 0.0
            && self.high > self.low;
        if !sound {
            return None;
        }
        let (low, span) = (mel(self.low), mel(self.high) - mel(self.low));
        let step = span / (self.channels + 1) as f64;
        let centers: Vec<f64> = (0..=self.channels)
            .map(|i| low + step * (i + 1) as f64)
            .collect();
        let hertz = 0.5 * rate / (bins - 1) as f64;
        let first = (1.5 + self.low / hertz) as usize;
        let last = (self.high / hertz) as usize;
        let (mut band, mut share) = (vec![-2; bins], vec![0.0; bins]);
        let mut channel = 0;
        for i in first..=last.min(bins - 1) {
            let at = mel(i as f64 * hertz);
            while channel < self.channels && centers[channel as usize] < at {
                channel += 1;
            }
            band[i] = channel - 1;
            share[i] = match channel {
                0 => (centers[0] - at) / (centers[0] - low),
                c => {
                    let (below, above) = (centers[c as usize - 1], centers[c as usize]);
                    (above - at) / (above - below)
                }
            };
        }
        Some(Filters {
            bins: first..=last.min(bins - 1),
            band,
            share,
        })
    }
}

fn run_mfcc(ctx: &mut OpContext<'_>, bank: Bank) -> Result<()> {
    let x = ctx.input(0)?;
    let &[channels, samples, bins] = x.dims() else {
        return invalid(format!("spectrogram must be 3-dimensional{}", x.shape()));
    };
    let rate = rate(ctx, 1)?;
    let Some(filters) = bank.filters(bins, rate.into()) else {
        return invalid(format!(
            "Mfcc initialization failed for channel count {bins}, sample rate {rate} and filterbank_channel_count {}",
            bank.channels
        ));
    };
    let (width, count) = (bank.channels as usize, bank.coefficients as usize);
    let shape = Shape::checked([channels, samples, count].map(|d| d as i64))?;
    ctx.check_alloc(
        downpour_tensor::DType::Double,
        &Shape::checked([width as i64, count as i64])?,
    )?;
    let norm = (2.0 / width as f64).sqrt();
    let cosines: Vec<f64> = (0..count * width)
        .map(|at| {
            let (i, j) = ((at / width) as f64, (at % width) as f64);
            norm * (i * PI / width as f64 * (j + 0.5)).cos()
        })
        .collect();
    let mut out: Vec<f32> = ctx.vec(&shape)?;
    for spectrum in x.as_slice::<f32>()?.chunks(bins.max(1)) {
        let mut energy = vec![0.0f64; width];
        for i in filters.bins.clone() {
            let value = f64::from(spectrum[i]).sqrt();
            let (own, channel) = (value * filters.share[i], filters.band[i]);
            if let Some(to) = usize::try_from(channel)
                .ok()
                .and_then(|c| energy.get_mut(c))
            {
                *to += own;
            }
            if let Some(to) = usize::try_from(channel + 1)
                .ok()
                .and_then(|c| energy.get_mut(c))
            {
                *to += value - own;
            }
        }
        energy.iter_mut().for_each(|v| *v = v.max(1e-12).ln());
        out.extend(cosines.chunks(width).map(|row| {
            let sum: f64 = row.iter().zip(&energy).map(|(a, b)| a * b).sum();
            sum as f32
        }));
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}
