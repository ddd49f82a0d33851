//! Reads LMDB databases, as `LMDBReader` and `LMDBDataset` want them: all records of the main database in the order of
//! their keys, of the newest finished transaction. Nothing is locked and nothing written; a writer beside it may reuse
//! pages that are still to be read, as with TensorFlow's reader of a dataset. Pages are a stranger's: every number in
//! them is checked before it is followed, and no page is entered twice.

use bytes::Bytes;
use downpour_formats::Storage;
use downpour_formats::storage::{ReadAt, join};
use downpour_graph::{Code, Result, Status};

/// Bytes before a page's offsets.
const HEADER: usize = 16;
/// Bytes before a node's key.
const NODE: usize = 8;
/// Bytes of a database's record.
const DB: usize = 48;
/// A tree is no deeper.
const MAX_DEPTH: usize = 32;
const NO_PAGE: u64 = u64::MAX;

const BRANCH: u16 = 0x01;
const LEAF: u16 = 0x02;
const META: u16 = 0x08;
/// Keys of equal size without nodes: values of one key.
const LEAF2: u16 = 0x20;

const BIG_DATA: u16 = 0x01;
const SUB_DATA: u16 = 0x02;
const DUP_DATA: u16 = 0x04;

fn fail<T>(text: &str) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn corrupted<T>() -> Result<T> {
    fail("MDB_CORRUPTED: Located page was wrong type")
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N]> {
    let found = bytes.get(at..).and_then(|b| b.first_chunk::<N>());
    found.copied().ok_or(()).or_else(|()| corrupted())
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16> {
    Ok(u16::from_le_bytes(word(bytes, at)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32> {
    Ok(u32::from_le_bytes(word(bytes, at)?))
}

fn u64_at(bytes: &[u8], at: usize) -> Result<u64> {
    Ok(u64::from_le_bytes(word(bytes, at)?))
}

/// A page, or the part of one that holds the values of one key.
struct Page {
    bytes: Bytes,
    flags: u16,
    /// Nodes it has, and the next of them.
    count: usize,
    next: usize,
}

impl Page {
    fn new(bytes: Bytes) -> Result<Page> {
        let flags = u16_at(&bytes, 10)?;
        let lower = usize::from(u16_at(&bytes, 12)?);
        Ok(Page {
            flags,
            count: lower.saturating_sub(HEADER) / 2,
            next: 0,
            bytes,
        })
    }
}

/// A node of a page: its flags, its number, its key and what lies behind the key.
struct Node<'a> {
    low: u32,
    flags: u16,
    key: &'a [u8],
    rest: &'a [u8],
}

impl<'a> Node<'a> {
    fn at(page: &'a Page, i: usize) -> Result<Node<'a>> {
        let at = usize::from(u16_at(&page.bytes, HEADER + 2 * i)?);
        let size = usize::from(u16_at(&page.bytes, at + 6)?);
        let (Some(key), Some(rest)) = (
            page.bytes.get(at + NODE..at + NODE + size),
            page.bytes.get(at + NODE + size..),
        ) else {
            return corrupted();
        };
        Ok(Node {
            low: u32_at(&page.bytes, at)?,
            flags: u16_at(&page.bytes, at + 4)?,
            key,
            rest,
        })
    }

    fn child(&self) -> u64 {
        u64::from(self.low) | u64::from(self.flags) << 32
    }
}

/// A walk over all records.
pub(crate) struct Records {
    file: Box<dyn ReadAt>,
    page_size: usize,
    /// Bytes of the file when it was opened, and pages that may still be entered.
    len: u64,
    budget: u64,
    /// From the root to a leaf.
    path: Vec<Page>,
    /// The values of one key, which have a tree or a page of their own.
    values: Option<(Bytes, Vec<Page>)>,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("file", &self.file).finish()
    }
}

impl Records {
    /// Opens a database: a file, or the directory that holds its `data.mdb`.
    pub(crate) fn open(storage: &dyn Storage, path: &str) -> Result<Records> {
        let opened = match storage.open(path) {
            Err(e) if e.code == Code::FailedPrecondition => storage.open(&join(path, "data.mdb")),
            other => other,
        };
        let file = opened.map_err(|e| match e.code {
            Code::NotFound => Status::invalid_argument("No such file or directory"),
            Code::PermissionDenied => Status::invalid_argument("Permission denied"),
            _ => e,
        })?;
        Records::read(file)
    }

    fn read(file: Box<dyn ReadAt>) -> Result<Records> {
        let len = file.len()?;
        let mut newest: Option<(u64, u64, usize)> = None;
        let mut at = 0;
        for _ in 0..2 {
            let mut meta = [0; HEADER + 136];
            if file.read_at(at, &mut meta)? < meta.len() || u16_at(&meta, 10)? & META == 0 {
                return fail("MDB_INVALID: File is not an LMDB file");
            }
            let meta = &meta[HEADER..];
            if u32_at(meta, 0)? != 0xBEEF_C0DE {
                return fail("MDB_INVALID: File is not an LMDB file");
            }
            if u32_at(meta, 4)? != 1 {
                return fail("MDB_VERSION_MISMATCH: Database environment version mismatch");
            }
            // The first of its two databases is that of free pages, which has the page size.
            let page_size = u32_at(meta, 24)? as usize;
            if !(256..=1 << 16).contains(&page_size) {
                return fail("MDB_INVALID: File is not an LMDB file");
            }
            let root = u64_at(meta, 24 + DB + 40)?;
            let transaction = u64_at(meta, 128)?;
            if newest.is_none_or(|(last, ..)| transaction > last) {
                newest = Some((transaction, root, page_size));
            }
            at += page_size as u64;
        }
        let Some((_, root, page_size)) = newest else {
            return corrupted();
        };
        let mut records = Records {
            file,
            page_size,
            len,
            budget: len / page_size as u64,
            path: Vec::new(),
            values: None,
        };
        if root != NO_PAGE {
            let page = records.page(root)?;
            records.path.push(page);
        }
        Ok(records)
    }

    fn page(&mut self, number: u64) -> Result<Page> {
        let at = number.checked_mul(self.page_size as u64);
        let Some(at) = at.filter(|at| at.saturating_add(self.page_size as u64) <= self.len) else {
            return fail("MDB_PAGE_NOTFOUND: Requested page not found");
        };
        if self.budget == 0 {
            return corrupted();
        }
        self.budget -= 1;
        let mut bytes = vec![0; self.page_size];
        self.file.read_exact_at(at, &mut bytes)?;
        Page::new(bytes.into())
    }

    /// The next node of the tree under `path`: the leaf it is on and which of it.
    fn leaf<'a>(&mut self, path: &'a mut Vec<Page>) -> Result<Option<(&'a Page, usize)>> {
        loop {
            let Some(page) = path.last_mut() else {
                return Ok(None);
            };
            if page.next == page.count {
                path.pop();
                continue;
            }
            let i = page.next;
            page.next += 1;
            if page.flags & LEAF != 0 {
                break;
            }
            if page.flags & BRANCH == 0 || path.len() >= MAX_DEPTH {
                return corrupted();
            }
            let child = match path.last() {
                Some(page) => Node::at(page, i)?.child(),
                None => return corrupted(),
            };
            path.push(self.page(child)?);
        }
        Ok(path.last().map(|page| (page, page.next - 1)))
    }

    /// The next key and value.
    pub(crate) fn next(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        loop {
            if let Some((key, mut path)) = self.values.take()
                && let Some((page, i)) = self.leaf(&mut path)?
            {
                let value = if page.flags & LEAF2 != 0 {
                    let size = usize::from(u16_at(&page.bytes, 8)?);
                    let at = HEADER + i * size;
                    page.bytes.get(at..at + size)
                } else {
                    Some(Node::at(page, i)?.key)
                };
                let Some(value) = value.map(Bytes::copy_from_slice) else {
                    return corrupted();
                };
                self.values = Some((key.clone(), path));
                return Ok(Some((key, value)));
            }
            let mut path = std::mem::take(&mut self.path);
            let found = self.record(&mut path);
            self.path = path;
            match found? {
                Some((key, Found::Value(value))) => return Ok(Some((key, value))),
                Some((key, Found::Values(path))) => self.values = Some((key, path)),
                None => return Ok(None),
            }
        }
    }

    fn record(&mut self, path: &mut Vec<Page>) -> Result<Option<(Bytes, Found)>> {
        let Some((page, i)) = self.leaf(path)? else {
            return Ok(None);
        };
        let node = Node::at(page, i)?;
        let (key, size) = (Bytes::copy_from_slice(node.key), node.low as usize);
        if node.flags & BIG_DATA != 0 {
            let number = u64_at(node.rest, 0)?;
            let at = number
                .checked_mul(self.page_size as u64)
                .and_then(|at| at.checked_add(HEADER as u64))
                .filter(|at| at.saturating_add(size as u64) <= self.len);
            let Some(at) = at else {
                return fail("MDB_PAGE_NOTFOUND: Requested page not found");
            };
            let mut value = vec![0; size];
            self.file.read_exact_at(at, &mut value)?;
            return Ok(Some((key, Found::Value(value.into()))));
        }
        let Some(data) = node.rest.get(..size).map(Bytes::copy_from_slice) else {
            return corrupted();
        };
        if node.flags & DUP_DATA == 0 {
            return Ok(Some((key, Found::Value(data))));
        }
        let page = if node.flags & SUB_DATA == 0 {
            Page::new(data)?
        } else {
            self.page(u64_at(&data, 40)?)?
        };
        Ok(Some((key, Found::Values(vec![page]))))
    }
}

/// What a key has.
enum Found {
    Value(Bytes),
    /// Several values, in a tree.
    Values(Vec<Page>),
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_formats::LocalStorage;
    use std::path::PathBuf;

    // Written by LMDB's own library.
    fn fixture(name: &str) -> PathBuf {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        here.join("tests/fixtures/lmdb").join(name)
    }

    fn open(path: &std::path::Path) -> Result<Records> {
        Records::open(&LocalStorage::new(), path.to_str().unwrap())
    }

    fn all(mut records: Records) -> Result<Vec<(Bytes, Bytes)>> {
        let mut found = Vec::new();
        while let Some(record) = records.next()? {
            found.push(record);
        }
        Ok(found)
    }

    #[test]
    fn a_tree_of_several_pages_and_a_value_of_its_own_pages_are_read_in_order() {
        let found = all(open(&fixture("plain.mdb")).unwrap()).unwrap();
        assert_eq!(found.len(), 121);
        for (i, (key, value)) in found[..120].iter().enumerate() {
            assert_eq!(key, format!("key{i:03}").as_bytes());
            assert_eq!(value, format!("{i}.").repeat(i % 20 + 1).as_bytes());
        }
        let big: Vec<u8> = (0..5120).map(|i| i as u8).collect();
        assert_eq!(found[120], ("zbig".into(), big.into()));
    }

    #[test]
    fn values_of_one_key_come_one_by_one() {
        let found = all(open(&fixture("dups.mdb")).unwrap()).unwrap();
        let few: Vec<(Bytes, Bytes)> = ["a", "bb", "ccc"].map(|v| ("few".into(), v.into())).into();
        assert_eq!(found[..3], few);
        assert_eq!(found.len(), 404);
        assert_eq!(found[402], ("many".into(), "value0399".into()));
        assert_eq!(found[403], ("one".into(), "x".into()));
    }

    #[test]
    fn a_directory_is_its_data_file_and_what_is_no_database_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixture("plain.mdb"), dir.path().join("data.mdb")).unwrap();
        assert_eq!(all(open(dir.path()).unwrap()).unwrap().len(), 121);
        let refused = |path: &std::path::Path| open(path).unwrap_err().message;
        let missing = refused(&dir.path().join("missing"));
        assert_eq!(missing, "No such file or directory");
        let junk = dir.path().join("junk");
        std::fs::write(&junk, vec![7; 9000]).unwrap();
        assert_eq!(refused(&junk), "MDB_INVALID: File is not an LMDB file");
    }

    #[test]
    fn broken_pages_end_in_an_error_or_in_records_and_never_in_a_loop() {
        let (dir, whole) = (
            tempfile::tempdir().unwrap(),
            std::fs::read(fixture("dups.mdb")).unwrap(),
        );
        let path = dir.path().join("broken.mdb");
        let mut state = 1u64;
        for round in 0..400 {
            let mut bytes = whole.clone();
            for _ in 0..4 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let at = (state >> 33) as usize % bytes.len();
                // Headers and offsets are at the beginnings of pages.
                let at = if round % 2 == 0 {
                    at / 4096 * 4096 + at % 64
                } else {
                    at
                };
                bytes[at] = (state >> 20) as u8;
            }
            std::fs::write(&path, &bytes).unwrap();
            if let Ok(records) = open(&path) {
                let _ = all(records);
            }
        }
    }
}
