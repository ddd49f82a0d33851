//! What the operating system says of this machine: randomness, time, memory, cores. The rest of
//! the product gets these as values.

use std::hash::{BuildHasher, Hasher};
use std::time::{SystemTime, UNIX_EPOCH};

/// A random number from the operating system's source (through the hash map's seed).
pub(crate) fn random() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Nanoseconds since 1970; 0 on a clock before that.
pub(crate) fn now_ns() -> i64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .ok()
        .and_then(|d| i64::try_from(d.as_nanos()).ok())
        .unwrap_or(0)
}

/// The machine's name.
pub(crate) fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "localhost".to_owned(),
        name => name.to_owned(),
    }
}

/// Bytes of physical memory that this process may use, or a guess.
pub(crate) fn memory_bytes() -> usize {
    const GUESS: usize = 4 << 30;
    let total = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| {
            let line = text.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
            line.split_whitespace()
                .next()?
                .parse::<usize>()
                .ok()
                .map(|kib| kib << 10)
        });
    // Those of control groups, of both versions; without a limit the first says `max`, the second something huge.
    let group = [
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    .into_iter()
    .find_map(|path| {
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().parse::<usize>().ok()
    });
    match (total, group) {
        (Some(a), Some(b)) => a.min(b),
        (Some(a), None) | (None, Some(a)) => a,
        (None, None) => GUESS,
    }
}

/// Bytes of memory that this process has; 0 where the system does not say.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) << 10
}

/// Time of processors that this process has used, in milliseconds; 0 where the system does not say.
pub(crate) fn cpu_millis() -> u64 {
    /// What Linux counts processes' time in, whatever its own clock: `USER_HZ`.
    const TICKS_PER_SECOND: u64 = 100;
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is a name, which may hold spaces and brackets.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = |n: usize| fields.split_whitespace().nth(n)?.parse::<u64>().ok();
    let (user, system) = (ticks(11).unwrap_or(0), ticks(12).unwrap_or(0));
    (user + system) * (1000 / TICKS_PER_SECOND)
}

/// Cores this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
