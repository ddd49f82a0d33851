//! Writes a table as TensorFlow's bundle writer does: uncompressed, blocks cut at 256 KiB, a full
//! key every 16 entries, index keys shortened. The bytes are compared with TensorFlow's in tests.

use super::MAGIC;
use crate::coding::put_varint;
use crate::crc32c::{self, Crc32c};
use crate::storage::PendingFile;
use downpour_graph::{Result, Status};

const BLOCK_SIZE: usize = 262_144;
const RESTART_INTERVAL: usize = 16;
/// Two handles padded, without the magic number.
const FOOTER_HANDLES: usize = 40;

/// Where a table's bytes go.
pub trait TableSink {
    /// Appends bytes.
    fn append(&mut self, data: &[u8]) -> Result<()>;
}

impl TableSink for Vec<u8> {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.extend_from_slice(data);
        Ok(())
    }
}

impl TableSink for Box<dyn PendingFile> {
    fn append(&mut self, data: &[u8]) -> Result<()> {
        self.write(data)
    }
}

/// Writes keys in rising order and finishes with index and footer.
pub struct TableWriter<S> {
    sink: S,
    offset: u64,
    data: BlockBuilder,
    index: BlockBuilder,
    last_key: Vec<u8>,
    empty: bool,
    /// A block that was written, whose index key waits for the next block's first key.
    pending: Option<Vec<u8>>,
}

impl<S: TableSink> TableWriter<S> {
    /// Starts a table.
    pub fn new(sink: S) -> TableWriter<S> {
        TableWriter {
            sink,
            offset: 0,
            data: BlockBuilder::new(RESTART_INTERVAL),
            index: BlockBuilder::new(1),
            last_key: Vec::new(),
            empty: true,
            pending: None,
        }
    }

    /// Appends an entry; its key must be above all before it.
    pub fn add(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if !self.empty && key <= self.last_key.as_slice() {
            return Err(Status::internal("table keys must be added in rising order"));
        }
        if let Some(handle) = self.pending.take() {
            self.index.add(&separator(&self.last_key, key), &handle);
        }
        self.empty = false;
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.data.add(key, value);
        if self.data.size() >= BLOCK_SIZE {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        if self.data.is_empty() {
            return Ok(());
        }
        let block = self.data.finish();
        self.pending = Some(self.write_block(&block)?);
        Ok(())
    }

    /// Writes everything still missing and returns the sink.
    pub fn finish(mut self) -> Result<S> {
        self.flush()?;
        let meta = BlockBuilder::new(RESTART_INTERVAL).finish();
        let mut footer = self.write_block(&meta)?;
        if let Some(handle) = self.pending.take() {
            self.index.add(&successor(&self.last_key), &handle);
        }
        let index = self.index.finish();
        footer.extend(self.write_block(&index)?);
        footer.resize(FOOTER_HANDLES, 0);
        footer.extend(MAGIC.to_le_bytes());
        self.sink.append(&footer)?;
        Ok(self.sink)
    }

    /// Writes a block and its trailer; returns its encoded handle.
    fn write_block(&mut self, block: &[u8]) -> Result<Vec<u8>> {
        let mut handle = Vec::new();
        put_varint(&mut handle, self.offset);
        put_varint(&mut handle, block.len() as u64);
        let mut crc = Crc32c::new();
        crc.update(block);
        crc.update(&[0]);
        self.sink.append(block)?;
        self.sink.append(&[0])?;
        let crc = crc32c::mask(crc.value());
        self.sink.append(&crc.to_le_bytes())?;
        self.offset += block.len() as u64 + 5;
        Ok(handle)
    }
}

/// Entries of the block being filled.
struct BlockBuilder {
    interval: usize,
    data: Vec<u8>,
    restarts: Vec<u32>,
    since_restart: usize,
    last_key: Vec<u8>,
}

impl BlockBuilder {
    fn new(interval: usize) -> BlockBuilder {
        BlockBuilder {
            interval,
            data: Vec::new(),
            restarts: vec![0],
            since_restart: 0,
            last_key: Vec::new(),
        }
    }

    fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Size of the finished block.
    fn size(&self) -> usize {
        self.data.len() + 4 * self.restarts.len() + 4
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        let shared = if self.since_restart < self.interval {
            common_prefix(&self.last_key, key)
        } else {
            self.restarts.push(self.data.len() as u32);
            self.since_restart = 0;
            0
        };
        let fresh = key.get(shared..).unwrap_or_default();
        put_varint(&mut self.data, shared as u64);
        put_varint(&mut self.data, fresh.len() as u64);
        put_varint(&mut self.data, value.len() as u64);
        self.data.extend_from_slice(fresh);
        self.data.extend_from_slice(value);
        self.last_key.truncate(shared);
        self.last_key.extend_from_slice(fresh);
        self.since_restart += 1;
    }

    /// Takes the block out and starts an empty one.
    fn finish(&mut self) -> Vec<u8> {
        let full = std::mem::replace(self, BlockBuilder::new(self.interval));
        let mut block = full.data;
        for restart in &full.restarts {
            block.extend(restart.to_le_bytes());
        }
        block.extend((full.restarts.len() as u32).to_le_bytes());
        block
    }
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// A short key in `start..limit`, as LevelDB chooses it.
fn separator(start: &[u8], limit: &[u8]) -> Vec<u8> {
    let shared = common_prefix(start, limit);
    let mut key = start.to_vec();
    if let (Some(&from), Some(&to)) = (start.get(shared), limit.get(shared))
        && let Some(next) = from.checked_add(1)
        && next < to
    {
        key.truncate(shared);
        key.push(next);
    }
    key
}

/// A short key not below `key`, as LevelDB chooses it.
fn successor(key: &[u8]) -> Vec<u8> {
    let shared = key.iter().take_while(|&&b| b == 0xff).count();
    let mut next = key.get(..shared).unwrap_or_default().to_vec();
    next.extend(key.get(shared).map(|b| b + 1));
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_keys_are_as_short_as_leveldbs() {
        assert_eq!(separator(b"abcdef", b"abzz"), b"abd");
        assert_eq!(separator(b"abc", b"abcd"), b"abc");
        assert_eq!(separator(b"abc", b"abd"), b"abc");
        assert_eq!(successor(b"s"), b"t");
        assert_eq!(successor(b"\xff\xffab"), b"\xff\xffb");
        assert_eq!(successor(b"\xff"), b"\xff");
        assert_eq!(successor(b""), b"");
    }

    #[test]
    fn unsorted_keys_are_refused() {
        let mut table = TableWriter::new(Vec::new());
        table.add(b"b", b"").unwrap();
        assert!(table.add(b"a", b"").is_err());
        assert!(table.add(b"b", b"").is_err());
    }
}
