//! A summary writer: the resource behind `SummaryWriter`'s handle, which collects events and appends them to an
//! event file of its own when there are many, when some time has passed, or when it is told to.
//!
//! What was queued is written when the last reference goes, so closing the writer loses nothing.

use crate::io::file::create_dirs;
use crate::io::{path, shared_storage};
use downpour_formats::Storage;
use downpour_formats::event::{EventWriter, event_file_name};
use downpour_formats::storage::{dirname, join};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Device, Host, Resource};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// TensorFlow's name of the type in handles and errors.
pub(crate) const WRITER_TYPE: &str = "N10tensorflow22SummaryWriterInterfaceE";

/// Numbers the files of this process.
static FILES: AtomicU64 = AtomicU64::new(0);

/// An event file under construction.
pub(crate) struct SummaryWriter {
    /// Clock of the events.
    pub(super) host: Host,
    /// More events than these are not kept waiting; TensorFlow counts a negative number as endless.
    max_queue: u64,
    /// Microseconds after which events are not kept waiting.
    flush_micros: u64,
    inner: Mutex<Inner>,
}

struct Inner {
    file: EventWriter,
    queue: Vec<Vec<u8>>,
    last_flush: u64,
}

impl SummaryWriter {
    /// Creates an event file in `logdir`, which is made if it is missing.
    pub(super) fn create(
        device: &Device,
        logdir: &[u8],
        max_queue: i32,
        flush_millis: i32,
        suffix: &[u8],
    ) -> Result<SummaryWriter> {
        let host = device
            .extensions
            .get::<Host>()
            .ok_or_else(|| Status::internal("the device has no clock"))?
            .clone();
        let storage = shared_storage(device);
        let logdir = path(logdir)?;
        make_folder(&*storage, logdir)?;
        let suffix = String::from_utf8_lossy(suffix);
        let dot = if suffix.starts_with('.') { "" } else { "." };
        let unique = format!(
            ".{}.{}{dot}{suffix}",
            std::process::id(),
            FILES.fetch_add(1, Ordering::Relaxed)
        );
        let now = host.now_micros();
        let seconds = i64::try_from(now / 1_000_000).unwrap_or(0);
        let prefix = join(logdir, "events");
        let name = event_file_name(&prefix, seconds, &host.name, &unique);
        let file = EventWriter::create(&*storage, &name, host.now_seconds()).map_err(|e| {
            let text = format!("{}\n\tCould not initialize events writer.", e.message);
            Status::new(e.code, text)
        })?;
        Ok(SummaryWriter {
            max_queue: i64::from(max_queue) as u64,
            flush_micros: i64::from(flush_millis.wrapping_mul(1000)) as u64,
            inner: Mutex::new(Inner {
                file,
                queue: Vec::new(),
                last_flush: now,
            }),
            host,
        })
    }

    /// Seconds since 1970 by the clock of the events.
    pub(crate) fn now_seconds(&self) -> f64 {
        self.host.now_seconds()
    }

    /// Queues an encoded event.
    pub(crate) fn write(&self, event: Vec<u8>) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.queue.push(event);
        let now = self.host.now_micros();
        if inner.queue.len() as u64 > self.max_queue
            || now.wrapping_sub(inner.last_flush) > self.flush_micros
        {
            return inner.flush(now);
        }
        Ok(())
    }

    /// Makes all queued events visible in the file.
    pub(super) fn flush(&self) -> Result<()> {
        self.inner.lock().flush(self.host.now_micros())
    }
}

impl Inner {
    fn flush(&mut self, now: u64) -> Result<()> {
        for event in self.queue.drain(..) {
            self.file.write_encoded(&event)?;
        }
        self.file.flush().map_err(|e| {
            let text = format!("{}\n\tCould not flush events file.", e.message);
            Status::new(e.code, text)
        })?;
        self.last_flush = now;
        Ok(())
    }
}

impl Drop for SummaryWriter {
    fn drop(&mut self) {
        let now = self.host.now_micros();
        // Nobody is left to be told.
        let _ = self.inner.get_mut().flush(now);
    }
}

impl Resource for SummaryWriter {
    fn type_name(&self) -> &'static str {
        WRITER_TYPE
    }
}

/// Makes `dir` and those above it, or says what is in the way.
fn make_folder(storage: &dyn Storage, dir: &str) -> Result<()> {
    let is_folder =
        |path: &str| !matches!(storage.list(path), Err(e) if e.code == Code::FailedPrecondition);
    let exists = |path: &str| match storage.exists(path) {
        Err(e) if e.code == Code::FailedPrecondition => Ok(false),
        other => other,
    };
    if exists(dir)? {
        return match is_folder(dir) {
            true => Ok(()),
            false => Err(Status::failed_precondition("Not a directory")),
        };
    }
    let mut above = dirname(dir);
    while !above.is_empty() && !exists(above)? {
        above = dirname(above);
    }
    if !above.is_empty() && !is_folder(above) {
        return Err(Status::failed_precondition(format!(
            "{above} is not a directory"
        )));
    }
    create_dirs(storage, dir)
}
