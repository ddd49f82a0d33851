//! Checkpoint index: the table itself, and its entries behind correct checksums.
#![expect(clippy::print_stderr, reason = "a fuzzer tells its user what is wrong")]

use bytes::Bytes;
use downpour_formats::LocalStorage;
use downpour_formats::bundle::{BundleReader, index_path};
use downpour_formats::table::{Table, TableWriter};
use std::process::ExitCode;

/// Longest entry that is tried as a value behind a correct checksum.
const MAX_ENTRY: usize = 4096;

fn main() -> ExitCode {
    let mut seeds = downpour_fuzz::files("crates/formats/tests/fixtures/bundle", |n| {
        n.ends_with(".index")
    });
    // The entries of real indexes, so that mutations reach past the table's checksums.
    for index in seeds.clone() {
        if let Ok(table) = Table::open(Box::new(Bytes::from(index))) {
            let _ = table.scan(|_, value| {
                seeds.push(value.to_vec());
                Ok(())
            });
        }
    }
    let folder = std::env::temp_dir().join(format!("fuzz-index-{}", std::process::id()));
    if let Err(e) = std::fs::create_dir_all(&folder) {
        eprintln!("cannot make {}: {e}", folder.display());
        return ExitCode::from(2);
    }
    let storage = LocalStorage::new();
    let prefix = folder.join("x").to_string_lossy().into_owned();
    let _ = std::fs::write(format!("{prefix}.data-00000-of-00001"), vec![1u8; 4096]);
    let outcome = downpour_fuzz::fuzz("checkpoint_index", seeds, |input| {
        if let Ok(table) = Table::open(Box::new(Bytes::copy_from_slice(input))) {
            let _ = table.scan(|_, _| Ok(()));
            let _ = table.get(b"x");
        }
        if input.len() > MAX_ENTRY {
            return;
        }
        let mut writer = TableWriter::new(Vec::new());
        // One shard, version 1; then the input as the entry of a tensor called "t".
        let entry = writer
            .add(b"", &[0x08, 0x01, 0x1a, 0x02, 0x08, 0x01])
            .and_then(|()| writer.add(b"t", input));
        let Ok(table) = entry.and_then(|()| writer.finish()) else {
            return;
        };
        if std::fs::write(index_path(&prefix), table).is_err() {
            return;
        }
        if let Ok(reader) = BundleReader::open(&storage, &prefix) {
            let _ = reader.list();
            let _ = reader.verify();
            let _ = reader.read("t");
            let _ = reader.verify_data();
        }
    });
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}
