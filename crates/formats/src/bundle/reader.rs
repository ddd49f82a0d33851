//! Reads bundles of any number of shards: whole tensors, and any part put together from any
//! stored parts. Every byte handed out has been compared with its checksum, and memory is asked
//! for only after the data files were found to hold that much.

use super::cover::{Piece, cover};
use super::entry::{self, Entry, key_text};
use super::ordered_code::slice_key;
use super::slice::{Region, TensorSlice};
use super::{data_path, encode, index_path};
use crate::crc32c;
use crate::damage::Fault;
use crate::storage::{ReadAt, Storage, StorageRef};
use crate::table::Table;
use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use downpour_tensor::{Buffer, DType, Shape, Tensor};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

/// A checkpoint open for reading.
#[derive(Debug)]
pub struct BundleReader<'a> {
    storage: StorageRef<'a>,
    pub(super) prefix: String,
    pub(super) table: Table,
    pub(super) shards: i32,
    files: Mutex<HashMap<i32, Shard>>,
}

#[derive(Debug, Clone)]
struct Shard {
    file: Arc<dyn ReadAt>,
    len: u64,
}

/// What the index says about a tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryInfo {
    /// Name in the checkpoint.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole tensor.
    pub shape: Shape,
    /// The stored parts; empty for a tensor that is stored whole.
    pub slices: Vec<TensorSlice>,
}

impl<'a> BundleReader<'a> {
    /// Opens the bundle at `prefix`.
    pub fn open(storage: &'a dyn Storage, prefix: &str) -> Result<BundleReader<'a>> {
        BundleReader::start(StorageRef::Borrowed(storage), prefix)
    }

    /// As [`BundleReader::open`], for a reader that outlives the call.
    pub fn open_shared(storage: Arc<dyn Storage>, prefix: &str) -> Result<BundleReader<'static>> {
        BundleReader::start(StorageRef::Shared(storage), prefix)
    }

    fn start(storage: StorageRef<'a>, prefix: &str) -> Result<BundleReader<'a>> {
        let path = index_path(prefix);
        let table = Table::open(storage.open(&path)?)?;
        let seek = "failed to seek to header entry";
        let header = table
            .get(b"")
            .and_then(|header| header.ok_or_else(|| Status::data_loss("it has no header entry")))
            .map_err(|cause| entry::corrupt(&path, seek, &cause))?;
        let header = entry::decode_header(&path, &header)?;
        Ok(BundleReader {
            storage,
            prefix: prefix.to_owned(),
            table,
            shards: header.num_shards,
            files: Mutex::default(),
        })
    }

    /// Type number and shape of tensor `name`; the number may be one that we do not know.
    pub(super) fn lookup(&self, name: &str) -> Result<(i32, Shape)> {
        let entry = self.entry(name.as_bytes())?;
        Ok((entry.dtype, entry.shape))
    }

    /// What the index says about tensor `name`; `NOT_FOUND` if nothing.
    pub fn info(&self, name: &str) -> Result<EntryInfo> {
        let entry = self.entry(name.as_bytes())?;
        Ok(EntryInfo {
            name: name.to_owned(),
            dtype: entry.known_dtype()?,
            shape: entry.shape,
            slices: entry.slices,
        })
    }

    /// Every tensor in the checkpoint, by name.
    pub fn list(&self) -> Result<Vec<EntryInfo>> {
        let mut all = Vec::new();
        self.scan(|key, entry| {
            if key.first() != Some(&0) {
                all.push(EntryInfo {
                    name: key_text(key),
                    dtype: entry.known_dtype()?,
                    shape: entry.shape,
                    slices: entry.slices,
                });
            }
            Ok(())
        })?;
        Ok(all)
    }

    /// Reads a whole tensor.
    pub fn read(&self, name: &str) -> Result<Tensor> {
        let entry = self.entry(name.as_bytes())?;
        self.read_part(name, &entry, &TensorSlice::full(entry.shape.rank()))
    }

    /// Reads the part `slice` of tensor `name`, whatever parts it was saved in.
    pub fn read_slice(&self, name: &str, slice: &TensorSlice) -> Result<Tensor> {
        let entry = self.entry(name.as_bytes())?;
        self.read_part(name, &entry, slice)
    }

    /// Checks everything that can be checked without reading tensor data: order and form of the
    /// index, presence and length of the data files, sizes against types and shapes.
    pub fn verify(&self) -> Result<()> {
        self.scan(|key, entry| {
            if entry.slices.is_empty() {
                self.locate(key, &entry).map(|_| ())
            } else {
                entry.known_dtype().map(|_| ())
            }
        })
    }

    /// Reads every byte and compares every checksum.
    pub fn verify_data(&self) -> Result<()> {
        self.scan(|key, entry| {
            if entry.slices.is_empty() {
                self.read_stored(key, &entry).map(|_| ())
            } else {
                entry.known_dtype().map(|_| ())
            }
        })
    }

    fn scan(&self, mut visit: impl FnMut(&[u8], Entry) -> Result<()>) -> Result<()> {
        self.table.scan(|key, value| {
            if key.is_empty() {
                return Ok(());
            }
            visit(key, Entry::decode(key, value)?)
        })
    }

    fn entry(&self, key: &[u8]) -> Result<Entry> {
        let value = if key.is_empty() {
            None
        } else {
            self.table.get(key)?
        };
        let Some(value) = value else {
            return Err(Status::not_found(format!(
                "Key {} not found in checkpoint",
                key_text(key)
            )));
        };
        Entry::decode(key, &value)
    }

    /// Length of the data file of a shard.
    pub(super) fn shard_len(&self, id: i32) -> Result<u64> {
        Ok(self.shard(id)?.len)
    }

    /// The data file of a shard and its length.
    fn shard(&self, id: i32) -> Result<Shard> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(shard) = files.get(&id) {
            return Ok(shard.clone());
        }
        let file = self
            .storage
            .open(&data_path(&self.prefix, id, self.shards))?;
        let len = file.len()?;
        let shard = Shard {
            file: Arc::from(file),
            len,
        };
        files.insert(id, shard.clone());
        Ok(shard)
    }

    /// The place of a stored tensor, after comparing what its entry claims with the data file.
    fn locate(&self, key: &[u8], entry: &Entry) -> Result<(DType, Shard, u64, usize)> {
        let dtype = entry.known_dtype()?;
        let size = usize::try_from(entry.size).ok();
        let expected = match dtype.size() {
            Some(bytes) => entry.shape.num_elements().checked_mul(bytes),
            None if matches!(dtype, DType::String | DType::Variant) => size,
            None => {
                return Err(Status::unimplemented(format!(
                    "Restoring a tensor of type {dtype} is not supported"
                )));
            }
        };
        let (Some(size), true) = (size, size == expected) else {
            return Err(Status::data_loss(format!(
                "Invalid size in bundle entry: key {}; stored size {}; expected size {}",
                key_text(key),
                entry.size,
                expected.map_or("unknown".to_owned(), |n| n.to_string())
            )));
        };
        let Ok(offset) = u64::try_from(entry.offset) else {
            return Err(Status::invalid_argument(format!(
                "Seeking to a negative position: {}",
                entry.offset
            )));
        };
        let shard = self.shard(entry.shard)?;
        if offset
            .checked_add(size as u64)
            .is_none_or(|end| end > shard.len)
        {
            return Err(Status::out_of_range("Read less bytes than requested"));
        }
        Ok((dtype, shard, offset, size))
    }

    /// Reads what an entry stands for, a piece at a time where its type allows it, and compares its
    /// checksum.
    pub(super) fn check_stored(&self, key: &[u8], entry: &Entry) -> Result<(), Fault> {
        /// Large enough to be quick, small enough to be nothing.
        const PIECE: usize = 1 << 20;
        let (dtype, shard, offset, size) = self.locate(key, entry)?;
        if dtype.size().is_none() {
            return self.read_at((dtype, shard, offset, size), entry).map(drop);
        }
        let mut crc = crc32c::Crc32c::new();
        let mut buffer = vec![0; size.min(PIECE)];
        let mut done = 0;
        while done < size {
            let piece = buffer.get_mut(..(size - done).min(PIECE));
            let piece = piece.unwrap_or_default();
            let at = offset + done as u64;
            shard.file.read_exact_at(at, piece)?;
            crc.update(piece);
            done += piece.len();
        }
        self.compare(entry, size, crc.value())
    }

    /// Whether a checksum is the stored one.
    fn compare(&self, entry: &Entry, size: usize, crc: u32) -> Result<(), Fault> {
        let stored = crc32c::unmask(entry.crc);
        if stored == crc {
            return Ok(());
        }
        let text = format!(
            "TensorBundle at {} shard {} ({size} bytes): Checksum does not match: stored \
             {stored:08} vs. calculated on the restored bytes {crc:08}",
            self.prefix, entry.shard
        );
        Err(Fault::changed(Some((stored, crc)), text))
    }

    /// Reads a tensor that is stored in one piece and compares its checksum; an error of its bytes names it.
    fn read_stored(&self, key: &[u8], entry: &Entry) -> Result<Tensor> {
        let named = |status| self.name(status, key, entry);
        let place = self.locate(key, entry).map_err(|e| match e.code {
            Code::OutOfRange => named(e),
            _ => e,
        })?;
        Ok(self
            .read_at(place, entry)
            .map_err(|fault| fault.map(named))?)
    }

    fn read_at(
        &self,
        (dtype, shard, offset, size): (DType, Shard, u64, usize),
        entry: &Entry,
    ) -> Result<Tensor, Fault> {
        let (tensor, crc) = if dtype == DType::String {
            let mut data = vec![0; size];
            shard.file.read_exact_at(offset, &mut data)?;
            encode::read_strings(&Bytes::from(data), &entry.shape)?
        } else if dtype == DType::Variant {
            let mut data = vec![0; size];
            shard.file.read_exact_at(offset, &mut data)?;
            encode::read_variants(&Bytes::from(data), &entry.shape)?
        } else {
            let mut buffer = Buffer::zeroed(size);
            let data = buffer.make_mut();
            shard.file.read_exact_at(offset, data)?;
            let crc = crc32c::crc32c(data);
            (
                Tensor::from_buffer(dtype, entry.shape.clone(), buffer).map_err(Status::from)?,
                crc,
            )
        };
        self.compare(entry, size, crc)?;
        Ok(tensor)
    }

    /// Adds to TensorFlow's text which tensor it is about and where that lies.
    fn name(&self, mut status: Status, key: &[u8], entry: &Entry) -> Status {
        status.message.push_str(&format!(
            "; tensor {} at offset {} of {}",
            key_text(key).replace('\0', "\\0"),
            entry.offset,
            data_path(&self.prefix, entry.shard, self.shards)
        ));
        status
    }

    /// Reads a part of the tensor with this entry.
    fn read_part(&self, name: &str, entry: &Entry, slice: &TensorSlice) -> Result<Tensor> {
        let key = name.as_bytes();
        if entry.slices.is_empty() && slice.covers(&entry.shape) {
            return self.read_stored(key, entry);
        }
        let wanted = slice.region(&entry.shape)?;
        let sources = self.sources(name, entry, slice, &wanted)?;
        let dtype = entry.known_dtype()?;
        if let [only] = sources.as_slice()
            && only.region == wanted
        {
            let tensor = self.read_stored(&only.key, &only.entry)?;
            return Ok(tensor);
        }
        let Some(bytes) = dtype.size() else {
            return Err(Status::invalid_argument(format!(
                "Dtype {dtype} not supported."
            )));
        };
        // The places are checked before the result is allocated, so that its size is backed by
        // data that exists: honest slices lie side by side and cannot sum to more than the files.
        let mut stored = 0u64;
        let mut shards = BTreeSet::new();
        for source in &sources {
            let (_, _, _, size) = self.locate(&source.key, &source.entry)?;
            stored = stored.saturating_add(size as u64);
            shards.insert(source.entry.shard);
        }
        let mut available = 0u64;
        for shard in shards {
            available = available.saturating_add(self.shard(shard)?.len);
        }
        if stored > available {
            return Err(Status::data_loss(format!(
                "The slices of tensor {name} claim {stored} bytes but the data files have \
                 {available}"
            )));
        }
        let mut result = Buffer::zeroed(wanted.volume().saturating_mul(bytes));
        let target = result.make_mut();
        for source in sources {
            let part = self.read_stored(&source.key, &source.entry)?;
            let data = part.buffer().map_or(&[] as &[u8], |b| b.as_bytes());
            source
                .region
                .for_each_run(&wanted, &source.common, |from, to, n| {
                    let from = data.get(from * bytes..(from + n) * bytes);
                    let to = target.get_mut(to * bytes..(to + n) * bytes);
                    if let (Some(from), Some(to)) = (from, to) {
                        to.copy_from_slice(from);
                    }
                });
        }
        Ok(Tensor::from_buffer(dtype, wanted.shape(), result)?)
    }

    /// The stored parts that together are `wanted`.
    fn sources(
        &self,
        name: &str,
        entry: &Entry,
        slice: &TensorSlice,
        wanted: &Region,
    ) -> Result<Vec<Source>> {
        let key = name.as_bytes();
        if entry.slices.is_empty() {
            let region = TensorSlice::full(entry.shape.rank()).region(&entry.shape)?;
            let source = Source {
                key: key.to_vec(),
                entry: entry.clone(),
                region,
                common: wanted.clone(),
            };
            return Ok(vec![source]);
        }
        let Some(chosen) = cover(&entry.slices, &entry.shape, wanted)? else {
            return Err(Status::invalid_argument(format!(
                "Does not have sufficient slices for partitioned tensor {name} to restore in \
                 slice_spec: {slice}"
            )));
        };
        let mut sources = Vec::with_capacity(chosen.len());
        for Piece {
            slice: part,
            region,
            common,
            ..
        } in chosen
        {
            let key = slice_key(key, part);
            let stored = self.entry(&key)?;
            let shape = region.shape();
            if stored.dtype != entry.dtype || stored.shape != shape || !stored.slices.is_empty() {
                return Err(Status::data_loss(format!(
                    "Slice {part} of tensor {name} is stored as {} {} but should be {} {shape}",
                    entry::dtype_text(stored.dtype),
                    stored.shape,
                    entry::dtype_text(entry.dtype),
                )));
            }
            sources.push(Source {
                key,
                entry: stored,
                region,
                common,
            });
        }
        Ok(sources)
    }
}

/// A stored part of a tensor and what of it is wanted.
struct Source {
    key: Vec<u8>,
    entry: Entry,
    region: Region,
    common: Region,
}
