//! The sorted string table under checkpoints: LevelDB's format with large blocks. [`TableWriter`]
//! writes what TensorFlow's bundle writer writes, bit for bit; [`Table`] reads any such table,
//! compressed blocks included. No length in a file is believed before it is compared with what
//! is there, and a key is never built from more bytes than its block holds.

mod block;
mod writer;

pub use block::{Block, BlockIter};
pub use writer::{TableSink, TableWriter};

use crate::Fault;
use crate::coding::Cursor;
use crate::crc32c;
use crate::storage::ReadAt;
use downpour_graph::{Result, Status};
use std::sync::{Arc, Mutex, PoisonError};

const FOOTER: usize = 48;
const MAGIC: u64 = 0xdb47_7524_8b80_fb57;
/// Type byte and checksum behind every block.
const TRAILER: usize = 5;
/// No snappy stream expands further: its longest copy makes 64 bytes out of 3.
const SNAPPY_EXPANSION: usize = 22;

/// Where a block lies in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Handle {
    offset: u64,
    size: u64,
}

impl Handle {
    fn decode(cursor: &mut Cursor<'_>) -> Option<Handle> {
        let offset = cursor.varint64()?;
        let size = cursor.varint64()?;
        Some(Handle { offset, size })
    }
}

/// An open table.
#[derive(Debug)]
pub struct Table {
    file: Box<dyn ReadAt>,
    index: Arc<Block>,
    /// The block read last: lookups mostly come in key order.
    recent: Mutex<Option<(u64, Arc<Block>)>>,
}

impl Table {
    /// Reads footer and index.
    pub fn open(file: Box<dyn ReadAt>) -> Result<Table> {
        let len = file.len()?;
        let Some(at) = len.checked_sub(FOOTER as u64) else {
            return Err(Status::data_loss("file is too short to be an sstable"));
        };
        let mut footer = [0; FOOTER];
        file.read_exact_at(at, &mut footer)?;
        let (handles, magic) = footer.split_at(FOOTER - 8);
        if magic != MAGIC.to_le_bytes() {
            return Err(Status::data_loss("not an sstable (bad magic number)"));
        }
        let mut cursor = Cursor(handles);
        let index = Handle::decode(&mut cursor)
            .and_then(|_metaindex| Handle::decode(&mut cursor))
            .ok_or_else(|| Status::data_loss("bad block handle"))?;
        let index = read_block(&*file, len, index)?;
        Ok(Table {
            file,
            index: Arc::new(index),
            recent: Mutex::new(None),
        })
    }

    /// The value of `key`.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut index = self.index.iter();
        index.seek(key)?;
        if !index.advance_if_unread()? {
            return Ok(None);
        }
        let block = self.block(index.value())?;
        let mut entries = block.iter();
        entries.seek(key)?;
        if entries.advance_if_unread()? && entries.key() == key {
            Ok(Some(entries.value().to_vec()))
        } else {
            Ok(None)
        }
    }

    /// Calls `visit` with every key and value in order; stops at its first error. Keys that are
    /// not in strictly rising order are `DATA_LOSS`.
    pub fn scan(&self, mut visit: impl FnMut(&[u8], &[u8]) -> Result<()>) -> Result<()> {
        let mut last: Option<Vec<u8>> = None;
        let mut index = self.index.iter();
        while index.advance()? {
            let block = self.block(index.value())?;
            let mut entries = block.iter();
            while entries.advance()? {
                if last.as_deref().is_some_and(|last| last >= entries.key()) {
                    return Err(Status::data_loss("keys of the table are out of order"));
                }
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(entries.key());
                visit(entries.key(), entries.value())?;
            }
        }
        Ok(())
    }

    /// As [`Table::scan`], but goes on where it can: what cannot be read is handed to `damaged`
    /// with the place of its block in the file.
    pub fn survey(&self, mut visit: impl FnMut(&[u8], &[u8]), mut damaged: impl FnMut(u64, Fault)) {
        let mut last: Option<Vec<u8>> = None;
        let mut index = self.index.iter();
        loop {
            match index.advance() {
                Ok(true) => {}
                Ok(false) => return,
                Err(status) => return damaged(0, status.into()),
            }
            let at = Handle::decode(&mut Cursor(index.value())).map_or(0, |h| h.offset);
            let block = match self.block(index.value()) {
                Ok(block) => block,
                Err(fault) => {
                    damaged(at, fault);
                    continue;
                }
            };
            let mut entries = block.iter();
            loop {
                match entries.advance() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(status) => {
                        damaged(at, status.into());
                        break;
                    }
                }
                if last.as_deref().is_some_and(|last| last >= entries.key()) {
                    damaged(
                        at,
                        Status::data_loss("keys of the table are out of order").into(),
                    );
                    break;
                }
                let last = last.get_or_insert_default();
                last.clear();
                last.extend_from_slice(entries.key());
                visit(entries.key(), entries.value());
            }
        }
    }

    fn block(&self, handle: &[u8]) -> Result<Arc<Block>, Fault> {
        let handle = Handle::decode(&mut Cursor(handle))
            .ok_or_else(|| Status::data_loss("bad block handle"))?;
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((offset, block)) = &*recent
            && *offset == handle.offset
        {
            return Ok(block.clone());
        }
        let block = Arc::new(read_block(&*self.file, self.file.len()?, handle)?);
        *recent = Some((handle.offset, block.clone()));
        Ok(block)
    }
}

/// Reads, checks and decompresses one block of a file of `len` bytes.
fn read_block(file: &dyn ReadAt, len: u64, handle: Handle) -> Result<Block, Fault> {
    let size = usize::try_from(handle.size)
        .ok()
        .and_then(|size| size.checked_add(TRAILER))
        .ok_or_else(|| Status::data_loss("handle.size() too big"))?;
    if handle
        .offset
        .checked_add(size as u64)
        .is_none_or(|end| end > len)
    {
        return Err(Status::out_of_range("Read less bytes than requested").into());
    }
    let mut data = vec![0; size];
    file.read_exact_at(handle.offset, &mut data)?;
    let (checked, crc) = data.split_at(size - 4);
    if crc != crc32c::masked(checked).to_le_bytes() {
        return Err(Fault::changed(None, "block checksum mismatch"));
    }
    match checked.split_last() {
        Some((0, _)) => {
            data.truncate(size - TRAILER);
            Ok(Block::parse(data)?)
        }
        Some((1, packed)) => Ok(Block::parse(unpack(packed)?)?),
        _ => Err(Status::data_loss("bad block type").into()),
    }
}

fn unpack(packed: &[u8]) -> Result<Vec<u8>> {
    let corrupt = || Status::data_loss("corrupted compressed block contents");
    let len = snap::raw::decompress_len(packed).map_err(|_| corrupt())?;
    if len > packed.len().saturating_mul(SNAPPY_EXPANSION) {
        return Err(corrupt());
    }
    snap::raw::Decoder::new()
        .decompress_vec(packed)
        .map_err(|_| corrupt())
}

#[cfg(test)]
#[path = "table/tests.rs"]
mod tests;
