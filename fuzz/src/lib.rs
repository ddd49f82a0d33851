//! A small mutation fuzzer that needs only the stable toolchain: seeds are bent at random and fed
//! to a target for a bounded time. A panic, an input that takes too long or memory that grows past
//! its bound is a finding: the input is written to a file and the process exits with 1.
//!
//! Each file of `src/bin` is one target; `cargo xtask fuzz` runs them all. A finding becomes a
//! seed or a unit test beside the decoder.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a fuzzer tells its user what it found"
)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Longest time one input may take.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Most memory the process may hold at any time.
const MAX_RESIDENT: usize = 1 << 30;
/// Longest input that mutation makes.
const MAX_LENGTH: usize = 64 << 10;

/// Runs `target` on mutations of `seeds` for the time the command line gives.
pub fn fuzz(name: &str, seeds: Vec<Vec<u8>>, target: impl Fn(&[u8])) -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(e) => {
            eprintln!("{e}");
            return ExitCode::from(2);
        }
    };
    if let Some(path) = &options.replay {
        let input = std::fs::read(path).unwrap_or_else(|e| {
            eprintln!("cannot read {}: {e}", path.display());
            Vec::new()
        });
        target(&input);
        return ExitCode::SUCCESS;
    }
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut random = Random(options.seed | 1);
    let start = Instant::now();
    let mut runs = 0u64;
    let mut finding = None;
    while start.elapsed() < options.time {
        let input = match runs as usize {
            n if n < seeds.len() => seeds[n].clone(),
            _ => mutate(&seeds, &mut random),
        };
        runs += 1;
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| target(&input)));
        let problem = match outcome {
            Err(panic) => Some(format!("panicked: {}", panic_text(&*panic))),
            Ok(()) if began.elapsed() > MAX_TIME => Some(format!("took {:?}", began.elapsed())),
            Ok(()) => resident()
                .filter(|r| *r > MAX_RESIDENT)
                .map(|r| format!("holds {r} bytes")),
        };
        if let Some(problem) = problem {
            finding = Some((problem, input));
            break;
        }
    }
    std::panic::set_hook(quiet);
    let Some((problem, input)) = finding else {
        println!(
            "fuzz {name}: {runs} inputs in {:.1?}, nothing found",
            start.elapsed()
        );
        return ExitCode::SUCCESS;
    };
    let file = std::env::temp_dir().join(format!("fuzz-{name}-{}", options.seed));
    let kept = std::fs::write(&file, &input)
        .map_or_else(|e| e.to_string(), |()| file.display().to_string());
    println!(
        "fuzz {name}: an input of {} bytes {problem}; kept in {kept} (seed {})",
        input.len(),
        options.seed
    );
    ExitCode::FAILURE
}

struct Options {
    time: Duration,
    seed: u64,
    replay: Option<PathBuf>,
}

impl Options {
    fn parse() -> Result<Options, String> {
        let mut options = Options {
            time: Duration::from_secs(10),
            seed: 0x5eed,
            replay: None,
        };
        let mut args = std::env::args().skip(1);
        while let Some(flag) = args.next() {
            let value = args.next().ok_or(format!("{flag} needs a value"))?;
            let number = || {
                value
                    .parse::<u64>()
                    .map_err(|e| format!("{flag} {value}: {e}"))
            };
            match flag.as_str() {
                "--seconds" => options.time = Duration::from_secs(number()?),
                "--seed" => options.seed = number()?,
                "--replay" => options.replay = Some(value.into()),
                _ => return Err(format!("unknown flag {flag}: --seconds, --seed, --replay")),
            }
        }
        Ok(options)
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

fn resident() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    text.split_whitespace()
        .nth(1)?
        .parse::<usize>()
        .ok()
        .map(|pages| pages * 4096)
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, n: usize) -> usize {
        if n == 0 {
            0
        } else {
            (self.next() >> 11) as usize % n
        }
    }
}

/// Numbers at which decoders go wrong, as they stand in varints and fixed fields.
const EDGES: [&[u8]; 8] = [
    &[0xff; 10],
    &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01],
    &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x40],
    &[0xff, 0xff, 0xff, 0xff, 0x07],
    &[0xff, 0xff, 0xff, 0xff, 0x0f],
    &[0, 0, 0, 0, 0, 0, 0, 0x80],
    &[0x7f],
    &[0],
];

fn mutate(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = seeds
        .get(random.below(seeds.len()))
        .cloned()
        .unwrap_or_default();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        match random.below(8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = random.next() as u8,
            2 => bytes.truncate(at),
            3 => {
                let n = 1 + random.below(16);
                bytes.splice(at..at, (0..n).map(|_| random.next() as u8));
            }
            4 => {
                let end = (at + 1 + random.below(16)).min(bytes.len());
                bytes.drain(at.min(end)..end);
            }
            5 => {
                let edge = EDGES[random.below(EDGES.len())];
                let end = (at + random.below(edge.len() + 1)).min(bytes.len());
                bytes.splice(at.min(end)..end, edge.iter().copied());
            }
            6 => {
                let end = (at + random.below(64)).min(bytes.len());
                let piece = bytes[at.min(end)..end].to_vec();
                for _ in 0..1 + random.below(8) {
                    bytes.splice(at..at, piece.iter().copied());
                }
            }
            _ => {
                let other = &seeds[random.below(seeds.len())];
                let from = random.below(other.len() + 1);
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
        }
        bytes.truncate(MAX_LENGTH);
    }
    bytes
}

/// The files of a fixture folder whose names `accept` admits, as seeds.
pub fn files(folder: &str, accept: impl Fn(&str) -> bool) -> Vec<Vec<u8>> {
    let mut stack = vec![
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
            .join("..")
            .join(folder),
    ];
    let mut found = vec![Vec::new()];
    while let Some(at) = stack.pop() {
        let Ok(entries) = std::fs::read_dir(&at) else {
            continue;
        };
        for path in entries.flatten().map(|e| e.path()) {
            let name = path
                .file_name()
                .and_then(|n| n.to_str())
                .unwrap_or_default();
            if path.is_dir() {
                stack.push(path);
            } else if accept(name)
                && let Ok(bytes) = std::fs::read(&path)
                && bytes.len() <= MAX_LENGTH
            {
                found.push(bytes);
            }
        }
    }
    found.sort();
    found
}

/// The hexadecimal second column of a tab-separated fixture, as seeds.
pub fn hex_lines(file: &str) -> Vec<Vec<u8>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("..")
        .join(file);
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let byte = |pair: &[u8]| {
        std::str::from_utf8(pair)
            .ok()
            .and_then(|p| u8::from_str_radix(p, 16).ok())
            .unwrap_or(0)
    };
    text.lines()
        .filter_map(|line| line.split('\t').nth(1))
        .map(|hex| hex.as_bytes().chunks(2).map(byte).collect())
        .collect()
}
