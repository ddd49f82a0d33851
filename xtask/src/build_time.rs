//! `cargo xtask build-time`: what README's first command costs a newcomer: wall and processor time of its build from
//! nothing (dependencies included, downloads not), the crates that take most of it, and the size of the program.
//!
//! Each crate's processor time is taken by a wrapper around rustc, which is this program again.

use crate::process::{cargo, run, target_dir};
use anyhow::{Context as _, Result, bail};
use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// The variable that makes this program the wrapper; its value is the file for the times.
const LOG: &str = "DOWNPOUR_RUSTC_TIMES";

/// How many crates are shown.
const SHOWN: usize = 12;

/// The kernel's unit of processor time in `/proc`, which Linux has kept at a hundredth of a second on every machine.
const TICKS_PER_SECOND: f64 = 100.0;

/// Builds from nothing in a folder of its own, or with `--here` what is not built yet, and prints what it cost.
pub(crate) fn measure(args: &[String]) -> Result<()> {
    let is_here = match args {
        [] => false,
        [flag] if flag == "--here" => true,
        other => bail!("build-time knows --here, not {}", other.join(" ")),
    };
    let target = match is_here {
        true => target_dir(),
        false => target_dir().join("build-time"),
    };
    if !is_here && target.exists() {
        fs::remove_dir_all(&target).context("cannot empty the folder of the last measurement")?;
    }
    fs::create_dir_all(&target)?;
    let log = target.join("rustc-times");
    fs::write(&log, "")?;
    run(cargo().args(["fetch", "--quiet"]))?;
    let start = Instant::now();
    run(cargo()
        .args(["build", "--release", "--package", "downpour-cli"])
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTC_WRAPPER", std::env::current_exe()?)
        .env(LOG, &log))?;
    let wall = start.elapsed().as_secs_f64();
    let times = by_crate(&fs::read_to_string(&log)?);
    let total: f64 = times.values().sum();
    let mut longest: Vec<(&String, &f64)> = times.iter().collect();
    longest.sort_by(|a, b| b.1.total_cmp(a.1));
    println!("processor s  crate");
    for (name, seconds) in longest.into_iter().take(SHOWN) {
        println!("{seconds:>11.1}  {name}");
    }
    println!(
        "build: {wall:.0} s, {total:.0} s of processors, {} crates",
        times.len()
    );
    if !is_here {
        println!("downpour, stripped: {:.1} MB", stripped_size()?);
    }
    Ok(())
}

/// The size of the program in 10⁶ bytes without symbols.
fn stripped_size() -> Result<f64> {
    let built = target_dir().join("build-time/release/downpour");
    let copy = target_dir().join("build-time/downpour");
    run(Command::new("strip").arg("-o").arg(&copy).arg(built))?;
    Ok(fs::metadata(copy)?.len() as f64 / 1e6)
}

/// Sums up lines `crate seconds`; build scripts count as one.
fn by_crate(log: &str) -> BTreeMap<String, f64> {
    let mut times = BTreeMap::new();
    for line in log.lines() {
        if let Some((name, seconds)) = line.split_once(' ')
            && let Ok(seconds) = seconds.parse::<f64>()
        {
            *times.entry(name.to_owned()).or_insert(0.0) += seconds;
        }
    }
    times
}

/// If cargo runs this program as its wrapper: runs rustc as told, notes what it cost, and says how it ended.
pub(crate) fn as_rustc_wrapper() -> Option<ExitCode> {
    let log = std::env::var_os(LOG)?;
    let mut args = std::env::args_os().skip(1);
    let rustc = args.next()?;
    let args: Vec<_> = args.collect();
    let status = Command::new(rustc).args(&args).status();
    let code = match status {
        Ok(status) => status.code().and_then(|code| u8::try_from(code).ok()),
        Err(_) => None,
    };
    let named = args.iter().position(|arg| arg == "--crate-name");
    if let Some(name) = named.and_then(|at| args.get(at + 1))
        && name != "___"
        && let Some(seconds) = children_seconds()
        && let Ok(mut log) = OpenOptions::new().append(true).open(log)
    {
        // A lost line makes the table incomplete, not the build wrong.
        let _ = writeln!(log, "{} {seconds:.2}", name.to_string_lossy());
    }
    Some(ExitCode::from(code.unwrap_or(101)))
}

/// Processor time of the processes that this one has waited for.
fn children_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(13);
    let user: f64 = fields.next()?.parse().ok()?;
    let system: f64 = fields.next()?.parse().ok()?;
    Some((user + system) / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_a_crate_add_up() {
        let times = by_crate("wire 1.5\nbuild_script_build 0.25\nbuild_script_build 0.5\nnoise\n");
        assert_eq!(times["build_script_build"], 0.75);
        assert_eq!(times.len(), 2);
    }

    #[test]
    fn processor_time_of_children_is_seen() {
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let before = children_seconds().unwrap();
        assert!(
            Command::new("sh")
                .args(["-c", script])
                .status()
                .unwrap()
                .success()
        );
        assert!(children_seconds().unwrap() > before);
    }
}
