//! Archives in memory: tar with fixed times and owners, gzip, ar as Debian packages have it, and SHA-256.

use anyhow::{Context as _, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::io::Write as _;

/// One file or folder of an archive.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) path: String,
    pub(super) bytes: Vec<u8>,
    mode: u32,
    owner: u64,
    is_folder: bool,
}

impl Entry {
    pub(super) fn file(path: &str, bytes: Vec<u8>) -> Entry {
        Entry {
            path: path.to_owned(),
            bytes,
            mode: 0o644,
            owner: 0,
            is_folder: false,
        }
    }

    pub(super) fn program(path: &str, bytes: Vec<u8>) -> Entry {
        Entry {
            mode: 0o755,
            ..Entry::file(path, bytes)
        }
    }

    pub(super) fn folder(path: &str, mode: u32, owner: u64) -> Entry {
        Entry {
            mode,
            owner,
            is_folder: true,
            ..Entry::file(path, Vec::new())
        }
    }
}

/// A tar of these, with the folders that they need, sorted.
pub(super) fn tar(entries: Vec<Entry>, time: u64) -> Result<Vec<u8>> {
    let known: BTreeSet<String> = entries.iter().map(|e| e.path.clone()).collect();
    let mut folders = BTreeSet::new();
    for entry in &entries {
        let ends = entry
            .path
            .match_indices('/')
            .map(|(end, _)| &entry.path[..end]);
        folders.extend(
            ends.filter(|f| !f.is_empty() && *f != ".")
                .map(str::to_owned),
        );
    }
    let mut all: Vec<Entry> = folders
        .difference(&known)
        .map(|path| Entry::folder(path, 0o755, 0))
        .collect();
    all.extend(entries);
    all.sort_by(|a, b| a.path.cmp(&b.path));
    let mut out = tar::Builder::new(Vec::new());
    for entry in all {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(if entry.is_folder {
            tar::EntryType::Directory
        } else {
            tar::EntryType::Regular
        });
        header.set_mode(entry.mode);
        header.set_uid(entry.owner);
        header.set_gid(entry.owner);
        header.set_mtime(time);
        header.set_size(entry.bytes.len() as u64);
        let path = if entry.is_folder {
            format!("{}/", entry.path)
        } else {
            entry.path.clone()
        };
        out.append_data(&mut header, &path, entry.bytes.as_slice())
            .with_context(|| format!("cannot pack {path}"))?;
    }
    out.into_inner().context("cannot end the archive")
}

pub(super) fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut out = GzEncoder::new(Vec::new(), Compression::new(6));
    out.write_all(bytes)?;
    Ok(out.finish()?)
}

/// The outer archive of a Debian package.
pub(super) fn ar(members: &[(&str, Vec<u8>)], time: u64) -> Vec<u8> {
    let mut out = b"!<arch>\n".to_vec();
    for (name, bytes) in members {
        let size = bytes.len();
        out.extend(
            format!(
                "{name:<16}{time:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
                0, 0, 100_644
            )
            .bytes(),
        );
        out.extend(bytes);
        if size % 2 == 1 {
            out.push(b'\n');
        }
    }
    out
}

/// In hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_its_folders_and_fixed_owners() {
        let made = || {
            tar(
                vec![
                    Entry::program("a/b/c", vec![1, 2]),
                    Entry::folder("tmp", 0o1777, 0),
                ],
                7,
            )
            .unwrap()
        };
        assert_eq!(made(), made());
        let bytes = made();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let seen: Vec<_> = archive
            .entries()
            .unwrap()
            .map(|e| {
                let e = e.unwrap();
                let h = e.header();
                (
                    e.path().unwrap().display().to_string(),
                    h.mode().unwrap(),
                    h.mtime().unwrap(),
                    h.uid().unwrap(),
                )
            })
            .collect();
        let of = |path: &str, mode| (path.to_owned(), mode, 7, 0);
        assert_eq!(
            seen,
            [
                of("a/", 0o755),
                of("a/b/", 0o755),
                of("a/b/c", 0o755),
                of("tmp/", 0o1777)
            ]
        );
    }

    #[test]
    fn members_of_ar_are_padded_to_even_sizes() {
        let out = ar(
            &[("debian-binary", b"2.0\n".to_vec()), ("x", vec![b'y'])],
            5,
        );
        assert_eq!(out.len(), 8 + 60 + 4 + 60 + 2);
        assert!(out.ends_with(b"y\n") && out[8..].starts_with(b"debian-binary   5 "));
    }

    #[test]
    fn a_checksum_is_the_known_one() {
        assert_eq!(
            sha256(b"abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
    }
}
