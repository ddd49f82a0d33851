//! One block of a table: entries that share key prefixes, then the offsets at which a full key
//! stands. An iterator holds one key at a time, so reading costs memory for the longest key only.

use crate::coding::{Cursor, u32_at};
use downpour_graph::{Result, Status};
use std::cmp::Ordering;

/// The bytes of a block, with its table of restarts checked.
#[derive(Debug)]
pub struct Block {
    data: Vec<u8>,
    /// Where the entries end and the restart offsets begin.
    entries: usize,
    restarts: usize,
}

impl Block {
    /// Checks the frame of an uncompressed block.
    pub fn parse(data: Vec<u8>) -> Result<Block> {
        let bad = || Status::data_loss("bad block contents");
        let tail = data.len().checked_sub(4).ok_or_else(bad)?;
        let restarts = u32_at(&data, tail).ok_or_else(bad)? as usize;
        let entries = restarts
            .checked_mul(4)
            .and_then(|table| tail.checked_sub(table))
            .ok_or_else(bad)?;
        Ok(Block {
            data,
            entries,
            restarts,
        })
    }

    /// An iterator before the first entry.
    pub fn iter(&self) -> BlockIter<'_> {
        BlockIter {
            block: self,
            next: 0,
            key: Vec::new(),
            value: &[],
            unread: false,
        }
    }

    fn restart(&self, i: usize) -> Option<usize> {
        if i >= self.restarts {
            return None;
        }
        let offset = u32_at(&self.data, self.entries.checked_add(i.checked_mul(4)?)?)? as usize;
        (offset <= self.entries).then_some(offset)
    }
}

/// Walks the entries of a block in order.
#[derive(Debug)]
pub struct BlockIter<'a> {
    block: &'a Block,
    next: usize,
    key: Vec<u8>,
    value: &'a [u8],
    /// A seek already stands on an entry that the caller has not seen.
    unread: bool,
}

impl<'a> BlockIter<'a> {
    /// Moves to the next entry; false at the end.
    pub fn advance(&mut self) -> Result<bool> {
        self.unread = false;
        let bad = || Status::data_loss("bad entry in block");
        let entries = self.block.data.get(..self.block.entries).ok_or_else(bad)?;
        let rest = entries.get(self.next..).ok_or_else(bad)?;
        if rest.is_empty() {
            return Ok(false);
        }
        let mut cursor = Cursor(rest);
        let mut entry = || {
            let shared = cursor.varint32()? as usize;
            let fresh = cursor.varint32()? as usize;
            let value = cursor.varint32()? as usize;
            Some((shared, cursor.take(fresh)?, cursor.take(value)?))
        };
        let (shared, fresh, value) = entry().ok_or_else(bad)?;
        if shared > self.key.len() {
            return Err(bad());
        }
        self.key.truncate(shared);
        self.key.extend_from_slice(fresh);
        self.value = value;
        self.next = self.block.entries - cursor.0.len();
        Ok(true)
    }

    /// Moves to the first entry whose key is at least `target`; [`BlockIter::advance_if_unread`]
    /// then says whether there is one.
    pub fn seek(&mut self, target: &[u8]) -> Result<()> {
        let bad = || Status::data_loss("bad entry in block");
        // Finds the last restart whose key is below the target.
        let (mut low, mut high) = (0, self.block.restarts);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            let offset = self.block.restart(middle).ok_or_else(bad)?;
            self.restart_at(offset);
            if self.advance()? && self.key.as_slice().cmp(target) == Ordering::Less {
                low = middle;
            } else {
                high = middle;
            }
        }
        let offset = self.block.restart(low).unwrap_or(0);
        self.restart_at(offset);
        while self.advance()? {
            if self.key.as_slice() >= target {
                self.unread = true;
                return Ok(());
            }
        }
        Ok(())
    }

    /// Whether the seek before this found an entry.
    pub fn advance_if_unread(&mut self) -> Result<bool> {
        Ok(std::mem::take(&mut self.unread))
    }

    fn restart_at(&mut self, offset: usize) {
        self.next = offset;
        self.key.clear();
    }

    /// The key of the current entry.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The value of the current entry.
    pub fn value(&self) -> &'a [u8] {
        self.value
    }
}
