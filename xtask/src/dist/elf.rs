//! Whether a program needs nothing of the system but its kernel: no interpreter, no libraries.

use anyhow::{Context as _, Result, bail};
use std::path::Path;

const INTERPRETER: u32 = 3;

/// Refuses a program that asks for a dynamic linker.
pub(super) fn check_static(path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    match has_interpreter(&bytes).context("this is no ELF file of 64 bits")? {
        true => bail!(
            "{} is not static: it asks for a dynamic linker",
            path.display()
        ),
        false => Ok(()),
    }
}

/// Nothing if this is no such file.
fn has_interpreter(bytes: &[u8]) -> Option<bool> {
    // The magic, 64 bits, the lowest byte first.
    if bytes.get(..6)? != [0x7f, b'E', b'L', b'F', 2, 1] {
        return None;
    }
    let u16_at = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let first = u64::from_le_bytes(bytes.get(32..40)?.try_into().ok()?) as usize;
    let (size, count) = (usize::from(u16_at(54)?), usize::from(u16_at(56)?));
    let mut found = false;
    for i in 0..count {
        found |= u32_at(first + i * size)? == INTERPRETER;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::has_interpreter;

    #[test]
    fn this_test_is_a_dynamic_program() {
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert_eq!(has_interpreter(&own), Some(true));
        assert_eq!(has_interpreter(b"#!/bin/sh"), None);
        assert_eq!(has_interpreter(&own[..64]), None);
    }
}
