//! Gives the pages of the program's code back that only its start needed. The system maps sixteen pages around each one that
//! is touched; registering the kernels touches a few bytes in most parts of a large program, so that a task which then waits holds four
//! times the code that it ever ran. The pages stay in the system's page cache: running them again is a minor fault, not a read.
#![allow(unsafe_code, reason = "tells the system about the program's own pages")]

/// Unmaps code and constants of the program; what runs on is mapped again as it is touched. Does nothing where the linker
/// does not say where they lie.
#[cfg(all(target_os = "linux", not(miri)))]
pub fn release_code_pages() {
    unsafe extern "C" {
        // Both are the linker's: the first byte of the program in memory, and the first behind its code. What lies between is
        // mapped from its file, read only, and never relocated.
        static __executable_start: u8;
        static etext: u8;
    }
    let first = (&raw const __executable_start).addr();
    let end = (&raw const etext).addr();
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Ok(page) = usize::try_from(page) else {
        return;
    };
    // The page that holds the end may hold the beginning of data, too.
    let (first, end) = (first.next_multiple_of(page), end / page * page);
    if let Some(size) = end.checked_sub(first) {
        // SAFETY: all pages between are a private mapping of the program's file that is never written: dropped, they
        // read the same again.
        unsafe {
            libc::madvise(
                std::ptr::without_provenance_mut(first),
                size,
                libc::MADV_DONTNEED,
            );
        }
    }
}

/// Unmaps nothing: this system has no such advice.
#[cfg(not(all(target_os = "linux", not(miri))))]
pub fn release_code_pages() {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kilobytes of the program's executable mappings that are resident.
    #[expect(
        clippy::disallowed_methods,
        reason = "only the system knows what is mapped"
    )]
    fn resident() -> u64 {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let program = std::env::current_exe().unwrap();
        let mut is_code = false;
        let mut sum = 0;
        for line in maps.lines() {
            if let Some(rest) = line.strip_prefix("Rss:")
                && is_code
            {
                let number = rest.trim().trim_end_matches(" kB");
                sum += number.parse::<u64>().unwrap();
            } else if line.contains(" r-xp ") {
                is_code = line.ends_with(program.to_str().unwrap());
            } else if line.contains('-') && line.contains(" r") {
                is_code = false;
            }
        }
        sum
    }

    #[test]
    fn released_code_runs_on_and_is_mapped_again() {
        // Other tests run beside this one, and map code meanwhile.
        let is_less = || {
            let before = resident();
            release_code_pages();
            resident() < before
        };
        assert!((0..100).any(|_| is_less()));
    }
}
