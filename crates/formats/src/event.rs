//! Event files, which TensorBoard watches while they grow: TFRecords of `Event` messages, the
//! first of which names the format. Wall times and names come from the caller: nothing here
//! reads a clock.

use crate::record::{Compression, RecordOptions, RecordReader, RecordWriter, is_truncation};
use crate::storage::Storage;
use downpour_graph::{Code, GraphDef, Result, Status};
use downpour_wire::codec::ServiceMessage as _;
use downpour_wire::messages::RunMetadata;
use downpour_wire::{Budget, MessageBytes as _, encode_graph_def, proto, put_bytes};

/// What the first event of every file says.
const FILE_VERSION: &str = "brain.Event:2";
/// Field 10 of the first event, as TensorFlow 2.21 writes it: `source_metadata`, whose `writer`
/// tells which code made the file. Readers show it and nothing else.
const SOURCE_METADATA: &[u8] = b"\x52\x24\x0a\x22tensorflow.core.util.events_writer";

/// TensorFlow's name for an event file begun at `seconds` since 1970.
pub fn event_file_name(prefix: &str, seconds: i64, hostname: &str, suffix: &str) -> String {
    format!("{prefix}.out.tfevents.{seconds:010}.{hostname}{suffix}")
}

/// Writes an event file.
pub struct EventWriter {
    writer: RecordWriter,
    path: String,
}

impl EventWriter {
    /// Creates the file and writes its first event.
    pub fn create(storage: &dyn Storage, path: &str, wall_time: f64) -> Result<EventWriter> {
        let file = storage.create_stream(path)?;
        let mut writer = EventWriter {
            writer: RecordWriter::new(file, Compression::None),
            path: path.to_owned(),
        };
        let first = proto::Event {
            wall_time,
            what: Some(proto::event::What::FileVersion(FILE_VERSION.to_owned())),
            ..Default::default()
        };
        let mut first = first.to_bytes();
        first.extend(SOURCE_METADATA);
        writer.write_encoded(&first)?;
        writer.flush()?;
        Ok(writer)
    }

    /// Path of the file.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Appends an event; readers see it after the next flush.
    pub fn write(&mut self, event: &proto::Event) -> Result<()> {
        self.write_encoded(&event.to_bytes())
    }

    /// Appends an event that is encoded already.
    pub fn write_encoded(&mut self, event: &[u8]) -> Result<()> {
        self.writer.write(event)
    }

    /// Appends a serialized `Summary`.
    pub fn write_summary(&mut self, wall_time: f64, step: i64, summary: &[u8]) -> Result<()> {
        let summary = proto::Summary::from_bytes(summary)
            .map_err(|e| Status::invalid_argument(format!("this is no summary: {e}")))?;
        self.write_what(wall_time, step, proto::event::What::Summary(summary))
    }

    /// Appends a graph, which TensorBoard then draws.
    pub fn write_graph(&mut self, wall_time: f64, graph: &GraphDef) -> Result<()> {
        let graph = encode_graph_def(graph)?.to_bytes().into();
        self.write_what(wall_time, 0, proto::event::What::GraphDef(graph))
    }

    /// Appends what happened to a session: it began, or a checkpoint was written to `path`.
    pub fn write_session(&mut self, wall_time: f64, step: i64, path: Option<&str>) -> Result<()> {
        use proto::session_log::SessionStatus;
        let status = match path {
            Some(_) => SessionStatus::Checkpoint,
            None => SessionStatus::Start,
        };
        let log = proto::SessionLog {
            status: status.into(),
            checkpoint_path: path.unwrap_or_default().to_owned(),
            ..Default::default()
        };
        self.write_what(wall_time, step, proto::event::What::SessionLog(log))
    }

    /// Appends what a traced step did, under a tag.
    pub fn write_run(
        &mut self,
        wall_time: f64,
        step: i64,
        tag: &str,
        metadata: RunMetadata,
    ) -> Result<()> {
        let run = proto::TaggedRunMetadata {
            tag: tag.to_owned(),
            run_metadata: metadata.encode()?.to_bytes().into(),
        };
        self.write_what(wall_time, step, proto::event::What::TaggedRunMetadata(run))
    }

    fn write_what(&mut self, wall_time: f64, step: i64, what: proto::event::What) -> Result<()> {
        self.write(&proto::Event {
            wall_time,
            step,
            what: Some(what),
            ..Default::default()
        })
    }

    /// Makes everything written visible.
    pub fn flush(&mut self) -> Result<()> {
        self.writer.flush()
    }

    /// Flushes, brings the file onto the disk and closes it.
    pub fn finish(self) -> Result<()> {
        self.writer.finish()
    }
}

/// An event of a step, encoded; `summary` is a serialised `Summary`, or several behind one another.
pub fn encode_step_event(wall_time: f64, step: i64, summary: Option<&[u8]>) -> Vec<u8> {
    let event = proto::Event {
        wall_time,
        step,
        ..Default::default()
    };
    encode_with(event, summary.map(|s| (SUMMARY, s)))
}

/// An event that shows a serialised graph, encoded.
pub fn encode_graph_event(wall_time: f64, step: i64, graph: &[u8]) -> Vec<u8> {
    let event = proto::Event {
        wall_time,
        step,
        ..Default::default()
    };
    encode_with(event, Some((GRAPH_DEF, graph)))
}

/// Numbers of `Event`'s fields that are written from bytes.
const GRAPH_DEF: u32 = 4;
const SUMMARY: u32 = 5;

fn encode_with(event: proto::Event, field: Option<(u32, &[u8])>) -> Vec<u8> {
    let mut out = event.to_bytes();
    if let Some((number, bytes)) = field {
        put_bytes(number, bytes, &mut out);
    }
    out
}

/// Whether bytes are a serialised `Event`.
pub fn is_event(bytes: &[u8]) -> bool {
    proto::Event::from_bytes(bytes).is_ok()
}

/// Whether bytes are a serialised `Summary`.
pub fn is_summary(bytes: &[u8]) -> bool {
    proto::Summary::from_bytes(bytes).is_ok()
}

/// Whether bytes are a serialised `GraphDef`.
pub fn is_graph(bytes: &[u8]) -> bool {
    proto::GraphDef::from_bytes(bytes).is_ok()
}

/// Reads an event file, also one that is still being written.
pub struct EventReader {
    reader: RecordReader,
}

impl EventReader {
    /// Opens an event file.
    pub fn open(storage: &dyn Storage, path: &str) -> Result<EventReader> {
        let reader = RecordReader::open(storage, path, RecordOptions::default())?;
        Ok(EventReader { reader })
    }

    /// The next event; `None` when the file has no whole event more, for now.
    pub fn read(&mut self) -> Result<Option<proto::Event>> {
        let at = self.reader.offset();
        let record = match self.reader.read() {
            Err(status) if is_truncation(&status) => return Ok(None),
            record => record?,
        };
        let Some(record) = record else {
            return Ok(None);
        };
        let event = proto::Event::from_wire(record, &Budget::default());
        let event = event.map_err(|e| match e.code {
            Code::ResourceExhausted => Status::new(e.code, format!("event at {at}: {}", e.message)),
            _ => Status::data_loss(format!("no event at {at}")),
        })?;
        Ok(Some(event))
    }

    /// Where the next event begins; what lies behind it when there is none is torn.
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::LocalStorage;
    use crate::testing::TempDir;

    #[test]
    fn files_are_named_as_tensorboard_expects() {
        assert_eq!(
            event_file_name("events", 1234, "host", ".v2"),
            "events.out.tfevents.0000001234.host.v2"
        );
    }

    #[test]
    fn a_torn_tail_waits_for_its_rest() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        let path = dir.file("e");
        let mut writer = EventWriter::create(&storage, &path, 1.0).unwrap();
        let event = proto::Event {
            step: 5,
            ..Default::default()
        };
        writer.write(&event).unwrap();
        writer.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let mut reader = EventReader::open(&storage, &path).unwrap();
            let mut seen = 0;
            while reader.read().unwrap().is_some() {
                seen += 1;
            }
            assert!(seen < 2);
            std::fs::write(&path, &whole).unwrap();
            while let Some(last) = reader.read().unwrap() {
                seen += 1;
                assert_eq!(last.step == 5, seen == 2);
            }
            assert_eq!(seen, 2, "{cut}");
        }
    }

    #[test]
    fn what_is_no_event_is_data_loss() {
        let dir = TempDir::new();
        let storage = LocalStorage::new();
        let path = dir.file("e");
        let mut writer = EventWriter::create(&storage, &path, 1.0).unwrap();
        writer.write_encoded(b"\xff\xff\xff").unwrap();
        writer.finish().unwrap();
        let mut reader = EventReader::open(&storage, &path).unwrap();
        reader.read().unwrap().unwrap();
        let status = reader.read().unwrap_err();
        assert_eq!(status.code, Code::DataLoss);
    }
}
