//! Times in a job's description: `30s`, `500ms`, `2m`.

use downpour_cluster::parse_duration;
use serde::de::{Deserialize, Deserializer, Error};
use serde::ser::Serializer;
use std::time::Duration;

pub(crate) fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    match time.subsec_millis() {
        0 => to.collect_str(&format_args!("{}s", time.as_secs())),
        _ => to.collect_str(&format_args!("{}ms", time.as_millis())),
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let text = String::deserialize(from)?;
    let wrong = || D::Error::custom(format!("'{text}' is no time like 30s, 500ms or 2m"));
    parse_duration(&text).ok_or_else(wrong)
}
