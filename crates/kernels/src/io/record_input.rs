//! `RecordInput`: the records of files that match a pattern, shuffled, epoch after epoch. Which
//! order TensorFlow gives depends on its threads; an epoch holds each record once in both.

use super::storage;
use crate::random::philox::{Philox, Words};
use bytes::Bytes;
use downpour_formats::record::{Compression, RecordOptions, RecordReader};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::Mutex;

pub(super) fn register(r: &mut Registry) {
    r.add("RecordInput", record_input);
}

struct Spec {
    pattern: String,
    /// Which share of the shuffled files an epoch starts behind.
    shift_ratio: f32,
    buffer: usize,
    compression: Compression,
}

struct State {
    words: Words,
    /// The files of this epoch that are not opened yet, the next one last.
    files: Vec<String>,
    open: Option<RecordReader>,
    buffer: Vec<Bytes>,
    bytes: usize,
    /// Whether this epoch has given a record.
    any: bool,
    failed: Option<Status>,
}

fn record_input(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let spec = Spec {
        pattern: attrs.str("file_pattern")?.to_owned(),
        shift_ratio: attrs.float("file_shuffle_shift_ratio")?,
        buffer: usize::try_from(attrs.int("file_buffer_size")?).unwrap_or(0),
        compression: Compression::from_option(attrs.str("compression_type")?),
    };
    let batch = attrs.int("batch_size")?;
    let batch = usize::try_from(batch)
        .map_err(|_| Status::invalid_argument(format!("batch_size must be >= 0, got {batch}")))?;
    let seed = attrs.int("file_random_seed")? as u64;
    let state = Mutex::new(State {
        words: Words::new(Philox::from_seeds(seed, 0)),
        files: Vec::new(),
        open: None,
        buffer: Vec::new(),
        bytes: 0,
        any: true,
        failed: None,
    });
    Built::costly(move |ctx| {
        ctx.check_alloc(DType::String, &Shape::from([batch]))?;
        let mut state = state.lock();
        let records = (0..batch)
            .map(|_| state.next(&spec, ctx.device()))
            .collect::<Result<Vec<Bytes>>>()?;
        ctx.set_output(0, Tensor::strings(records, [batch])?);
        Ok(())
    })
}

impl State {
    fn next(&mut self, spec: &Spec, device: &Device) -> Result<Bytes> {
        if let Some(status) = &self.failed {
            return Err(status.clone());
        }
        let next = self.fill(spec, device).map(|()| self.buffer.pop());
        match next {
            Ok(Some(record)) => {
                self.bytes -= record.len();
                Ok(record)
            }
            Ok(None) => Err(Status::internal("an epoch without records")),
            Err(e) => {
                self.failed = Some(e.clone());
                Err(e)
            }
        }
    }

    /// Fills the buffer up. The next epoch begins when it is empty.
    fn fill(&mut self, spec: &Spec, device: &Device) -> Result<()> {
        if self.buffer.is_empty() && self.open.is_none() && self.files.is_empty() {
            self.start_epoch(spec, device)?;
        }
        let most = device.room();
        while self.buffer.is_empty() || (self.buffer.len() < spec.buffer && self.bytes < most) {
            let Some(reader) = &mut self.open else {
                match self.files.pop() {
                    Some(file) => self.open = Some(open(&file, spec, device)?),
                    None if self.buffer.is_empty() => self.start_epoch(spec, device)?,
                    None => return Ok(()),
                }
                continue;
            };
            match reader.read()? {
                None => self.open = None,
                Some(record) => {
                    self.any = true;
                    self.bytes += record.len();
                    let at = self.words.u32() as usize % (self.buffer.len() + 1);
                    self.buffer.push(record);
                    let last = self.buffer.len() - 1;
                    self.buffer.swap(at, last);
                }
            }
        }
        Ok(())
    }

    fn start_epoch(&mut self, spec: &Spec, device: &Device) -> Result<()> {
        let storage = storage(device);
        let mut files = Vec::new();
        for pattern in spec.pattern.split(',') {
            files.extend(storage.glob(pattern)?);
        }
        if files.is_empty() {
            return Err(Status::not_found(format!(
                "Found no files at {}",
                spec.pattern
            )));
        }
        // Files without records would go round for ever.
        if !std::mem::replace(&mut self.any, false) {
            return Err(Status::not_found(format!(
                "Found no records at {}",
                spec.pattern
            )));
        }
        for i in (1..files.len()).rev() {
            files.swap(i, self.words.u32() as usize % (i + 1));
        }
        if (0.0..1.0).contains(&spec.shift_ratio) {
            let shift = (spec.shift_ratio * files.len() as f32) as usize;
            let shift = shift.min(files.len());
            files.rotate_left(shift);
        }
        files.reverse();
        self.files = files;
        Ok(())
    }
}

fn open(file: &str, spec: &Spec, device: &Device) -> Result<RecordReader> {
    let options = RecordOptions {
        compression: spec.compression,
        max_record: device.memory.max_tensor_bytes,
        ..Default::default()
    };
    RecordReader::open(storage(device), file, options)
        .map_err(|_| Status::invalid_argument(format!("Can't open {file}")))
}
