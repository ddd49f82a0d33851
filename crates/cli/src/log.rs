//! Where a task's log goes and how: to stderr, at the levels asked for, as text for people or as JSON for
//! machines, one object a line.

use crate::refusal::has_colour;
use anyhow::{Result, bail};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

/// Whether all that this process says is JSON.
static IS_JSON: AtomicBool = AtomicBool::new(false);

/// Whether all that this process says is to be JSON, for machines that read it.
pub(crate) fn is_json() -> bool {
    IS_JSON.load(Ordering::Relaxed)
}

/// A line of JSON as the log's own are.
pub(crate) fn json_line(level: &str, message: &str) -> String {
    let mut timestamp = String::new();
    // A text takes whatever is written to it.
    let _ = SystemTime.format_time(&mut Writer::new(&mut timestamp));
    let line =
        serde_json::json!({"timestamp": timestamp, "level": level, "message": message.trim_end()});
    format!("{line}\n")
}

/// Writes a message to `to`, as text or as one line of JSON.
pub(crate) fn say(mut to: impl Write, message: &str) {
    // A closed stream is no reason not to go on.
    let _ = match is_json() {
        true => to.write_all(json_line("INFO", message).as_bytes()),
        false => to.write_all(message.as_bytes()),
    };
    let _ = to.flush();
}

/// Begins to log. Only warnings if nothing was said.
pub(crate) fn start(levels: Option<&str>, format: Option<&str>) -> Result<()> {
    let filter = filter(levels.unwrap_or("warn"))?;
    let made = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr);
    match format.unwrap_or("text") {
        "text" => made
            .with_ansi(has_colour(std::io::stderr().is_terminal()))
            .init(),
        "json" => {
            IS_JSON.store(true, Ordering::Relaxed);
            made.json()
                .flatten_event(true)
                .with_current_span(false)
                .init();
            std::panic::set_hook(Box::new(|panic| {
                let _ =
                    std::io::stderr().write_all(json_line("ERROR", &panic.to_string()).as_bytes());
            }));
        }
        other => bail!("--log-format is '{other}'; it must be text or json"),
    }
    Ok(())
}

/// Levels, alone or for parts: `info,downpour_net=debug`. A word that is neither would otherwise be
/// taken for the name of a part and silence everything else.
fn filter(text: &str) -> Result<EnvFilter> {
    let wrong = format!(
        "--log is '{text}'; it must be one of {}, or a list like info,downpour_net=debug",
        LEVELS.join(", ")
    );
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    for part in &parts {
        let level = part.rsplit('=').next().unwrap_or(part);
        let is_level = LEVELS.iter().any(|l| l.eq_ignore_ascii_case(level));
        let is_name = !part.contains('=') && part.starts_with("downpour");
        if !is_level && !is_name {
            bail!(wrong);
        }
    }
    EnvFilter::try_new(parts.join(",")).or_else(|_| bail!(wrong))
}

#[cfg(test)]
mod tests {
    use super::filter;

    #[test]
    fn levels_are_understood_and_other_words_refused() {
        for good in [
            "info",
            "WARN",
            "off",
            "info,downpour_net=debug",
            "downpour_master",
            "warn, downpour::serve=trace",
        ] {
            assert!(filter(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "verbose",
            "2",
            "info,",
            "downpour_net=loud",
            "=",
            "info;debug",
        ] {
            let said = filter(bad).unwrap_err().to_string();
            assert!(
                said.starts_with(&format!("--log is '{bad}'; it must be one of off, ")),
                "{said}"
            );
        }
    }
}
