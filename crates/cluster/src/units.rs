//! Times and sizes as users write them, with their units.

use std::time::Duration;

/// What `parse_duration` takes.
pub(crate) const DURATION: &str = "a time like 30s, 500ms or 2m";

/// Reads `30s`, `500ms`, `2m`, `1h`, or a number of seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?;
    let scale = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        _ => return None,
    };
    let seconds = digits.trim().parse::<f64>().ok()? * scale;
    // A year is for ever, and adding it to a clock is safe.
    (0.0..=31_536_000.0)
        .contains(&seconds)
        .then(|| Duration::from_secs_f64(seconds))
}

/// What `parse_bytes` takes.
pub(crate) const BYTES: &str = "a size like 512M or 12G";

/// Reads `512M`, `12G`, `1.5GiB`, or a number of bytes. A unit is a power of 1024.
pub fn parse_bytes(text: &str) -> Option<usize> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.get(digits.len()..)?.to_ascii_uppercase();
    let scale = match unit.trim_end_matches('B').trim_end_matches('I') {
        "" => 1u64,
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1 << 40,
        _ => return None,
    };
    let bytes = digits.trim().parse::<f64>().ok()? * scale as f64;
    // More than an address can say is no limit, and less than a page no memory.
    (4096.0..=1e18).contains(&bytes).then_some(bytes as usize)
}
