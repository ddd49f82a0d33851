//! `downpour inspect record`: what is in a TFRecord file. Records that are `tf.Example`s are shown by
//! their features. Damage in a record's data does not hide those behind it.

use super::output::{Align, Output, Table, bytes, count, preview, thousands};
use super::unreadable;
use crate::refusal::Found;
use anyhow::{Result, anyhow};
use bytes::Bytes;
use clap::{Args, ValueEnum};
use downpour_formats::example::{FeatureValues, Features, parse_example, parse_sequence_example};
use downpour_formats::record::{Compression, RecordOptions, RecordReader};
use downpour_formats::{Files, Storage};
use downpour_graph::{Code, Status};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

/// Shown below the flags.
pub(super) const EXAMPLES: &str = "\
Examples:
  downpour inspect record train.tfrecord                   the first records, and what all of them are
  downpour inspect record train.tfrecord.gz --limit 100    compression is recognised
  downpour inspect record train.tfrecord --json --limit -1 every record, for another program

Every record is read and its checksums compared; exit code 1 names the damage and its offset.";

/// How a file is compressed; the file itself does not say.
#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Packing {
    /// Look at the first bytes.
    Auto,
    None,
    Zlib,
    Gzip,
}

/// Flags of `downpour inspect record`.
#[derive(Args)]
pub(crate) struct Record {
    /// The file
    #[arg(value_name = "FILE")]
    path: PathBuf,

    /// How many records to show; -1 for all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        allow_negative_numbers = true
    )]
    limit: i64,

    /// How the file is compressed
    #[arg(long, value_enum, default_value_t = Packing::Auto)]
    compression: Packing,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Damage that is named; more is only counted.
const MAX_DAMAGE: usize = 100;
/// Values of a feature that are shown.
const MAX_VALUES: usize = 6;
/// Names of features that are kept: a file may give every record others.
const MAX_FEATURES: usize = 1000;

/// What all records together are.
#[derive(Default)]
struct Totals {
    records: u64,
    bytes: u64,
    shortest: Option<u64>,
    longest: u64,
    examples: u64,
    sequences: u64,
    features: BTreeMap<String, Seen>,
    damage: Vec<(u64, String)>,
    damaged: u64,
}

/// What a feature was in the records seen.
#[derive(Default)]
struct Seen {
    kind: &'static str,
    mixed: bool,
    records: u64,
    fewest: Option<usize>,
    most: usize,
}

impl Record {
    pub(super) fn run(self) -> Result<ExitCode> {
        let storage = Files::new();
        let path = self.path.to_str();
        let path = path.ok_or_else(|| anyhow!("'{}' is not UTF-8", self.path.display()))?;
        if storage.is_dir(path) {
            return Err(anyhow!("{path} is a directory; give a file"));
        }
        let file = storage.open(path).map_err(|e| unreadable(path, &e))?;
        let compression = self.packing(&*file, path)?;
        let options = RecordOptions {
            compression,
            ..RecordOptions::default()
        };
        let mut walk = Walk {
            reader: RecordReader::new(
                storage.open(path).map_err(|e| unreadable(path, &e))?,
                options,
            ),
            file: (compression == Compression::None).then_some(file),
        };
        let mut totals = Totals::default();
        let mut out = Output::new();
        let limit = u64::try_from(self.limit).unwrap_or(u64::MAX);
        let mut shown = Vec::new();
        while let Some((offset, record)) = walk.next(&mut totals)? {
            let index = totals.records;
            let content = totals.add(&record);
            if index < limit {
                match self.json {
                    true => shown.push(content.json(index, offset, &record)),
                    false => content.print(index, offset, &record, &mut out)?,
                }
            }
        }
        if totals.records == 0 && totals.damaged == 0 {
            totals.note_empty(path, &storage);
        }
        match self.json {
            true => out.json(&totals.json(path, compression, shown))?,
            false => totals.print(path, compression, &mut out)?,
        }
        out.finish()?;
        match totals.damaged {
            0 => Ok(ExitCode::SUCCESS),
            n => Err(Found(format!("{path}: {} found", count(n as usize, "problem"))).into()),
        }
    }

    fn packing(&self, file: &dyn downpour_formats::ReadAt, path: &str) -> Result<Compression> {
        Ok(match self.compression {
            Packing::None => Compression::None,
            Packing::Zlib => Compression::Zlib,
            Packing::Gzip => Compression::Gzip,
            Packing::Auto => {
                let mut head = [0; 12];
                let n = file
                    .read_at(0, &mut head)
                    .map_err(|e| unreadable(path, &e))?;
                guess(&head[..n])
            }
        })
    }
}

/// How a file that begins like this is compressed. The length of a plain record has its own
/// checksum, which settles it.
fn guess(head: &[u8]) -> Compression {
    if let Some((length, crc)) = head.split_at_checked(8)
        && crc.get(..4) == Some(&downpour_formats::crc32c::masked(length).to_le_bytes())
    {
        return Compression::None;
    }
    match head {
        [0x1f, 0x8b, ..] => Compression::Gzip,
        [a, b, ..] if a & 0x0f == 8 && (u32::from(*a) << 8 | u32::from(*b)) % 31 == 0 => {
            Compression::Zlib
        }
        _ => Compression::None,
    }
}

/// Goes from record to record, past those whose data is damaged.
struct Walk {
    reader: RecordReader,
    /// Where lengths can be read again; compressed files cannot be entered in the middle.
    file: Option<Box<dyn downpour_formats::ReadAt>>,
}

impl Walk {
    fn next(&mut self, totals: &mut Totals) -> Result<Option<(u64, Bytes)>> {
        loop {
            let at = self.reader.offset();
            match self.reader.read() {
                Ok(Some(record)) => return Ok(Some((at, record))),
                Ok(None) => {
                    if let Some(rest) = self.rest(at).filter(|rest| *rest > 0) {
                        totals.note(at, format!(
                            "{} behind the last record are the torn beginning of another: the writer was stopped, or the copy was",
                            count(rest as usize, "byte")
                        ));
                    }
                    return Ok(None);
                }
                Err(status) => {
                    let (text, next) = self.explain(at, &status);
                    totals.note(at, text);
                    match next {
                        Some(next) => self.reader.seek(next).map_err(|e| anyhow!(e.message))?,
                        None => return Ok(None),
                    }
                }
            }
        }
    }

    /// Bytes behind an offset.
    fn rest(&self, at: u64) -> Option<u64> {
        self.file.as_ref()?.len().ok()?.checked_sub(at)
    }

    /// What went wrong at an offset, and where to go on, if that can be known.
    fn explain(&self, at: u64, status: &Status) -> (String, Option<u64>) {
        let message = &status.message;
        if message.contains("Is this even a TFRecord file?") {
            let text = match at {
                0 => "this is no TFRecord file, or its first bytes are damaged; other kinds: inspect checkpoint, events, graph".to_owned(),
                _ => "a record's length is damaged (its checksum does not match), so where the next begins is unknown: what lies behind is lost".to_owned(),
            };
            return (text, None);
        }
        if message.starts_with("corrupted record") {
            let next = self.file.as_ref().and_then(|file| {
                let mut length = [0; 8];
                file.read_exact_at(at, &mut length).ok()?;
                at.checked_add(u64::from_le_bytes(length))?.checked_add(16)
            });
            return ("the record's data is damaged (its checksum does not match): write it again, or skip it".to_owned(), next);
        }
        if message.starts_with("truncated record") {
            return ("the file ends inside a record: the writer was stopped, or the copy was cut; records before it are whole".to_owned(), None);
        }
        match status.code {
            Code::ResourceExhausted => (message.clone(), None),
            _ => (format!("cannot be read: {message}"), None),
        }
    }
}

/// What a record holds.
enum Content<'a> {
    Example(Features<'a>),
    Sequence(Features<'a>, Vec<(String, usize)>),
    Bytes,
}

/// Bytes that an example with at least one feature could be.
fn content(record: &Bytes) -> Content<'_> {
    let named = |f: &Features<'_>| {
        f.iter().any(|(_, f)| f.kind().is_some())
            && f.iter().all(|(name, _)| std::str::from_utf8(name).is_ok())
    };
    if let Some((context, lists)) = parse_sequence_example(record)
        && !lists.is_empty()
    {
        let lists = lists.iter();
        let lists =
            lists.map(|(name, list)| (String::from_utf8_lossy(name).into_owned(), list.len()));
        return Content::Sequence(context, lists.collect());
    }
    match parse_example(record) {
        Some(features) if named(&features) => Content::Example(features),
        _ => Content::Bytes,
    }
}

fn values_text(values: Option<FeatureValues>) -> (&'static str, usize, String) {
    fn some<T>(values: &[T], show: impl Fn(&T) -> String) -> String {
        let shown: Vec<String> = values.iter().take(MAX_VALUES).map(show).collect();
        let more = if values.len() > MAX_VALUES {
            ", …"
        } else {
            ""
        };
        format!("{}{more}", shown.join(", "))
    }
    match values {
        Some(FeatureValues::Bytes(v)) => ("bytes", v.len(), some(&v, |b| preview(b, 40))),
        Some(FeatureValues::Floats(v)) => ("float", v.len(), some(&v, f32::to_string)),
        Some(FeatureValues::Int64s(v)) => ("int64", v.len(), some(&v, i64::to_string)),
        Some(FeatureValues::None) => ("none", 0, String::new()),
        None => ("damaged", 0, String::new()),
    }
}

impl Content<'_> {
    fn print(&self, index: u64, offset: u64, record: &Bytes, out: &mut Output) -> Result<()> {
        let size = bytes(record.len() as u64);
        let head = format!("record {index} at {offset}, {size}");
        let features = match self {
            Content::Example(features) => {
                out.line(&format!("{head}: Example"))?;
                features
            }
            Content::Sequence(context, lists) => {
                out.line(&format!("{head}: SequenceExample"))?;
                for (name, steps) in lists {
                    out.line(&format!("  {name}: {}", count(*steps, "step")))?;
                }
                context
            }
            Content::Bytes => return out.line(&format!("{head}: {}", preview(record, 60))),
        };
        for (name, feature) in features.iter() {
            let (kind, n, text) = values_text(feature.values(record));
            let name = String::from_utf8_lossy(name);
            out.line(&format!("  {name}: {kind}[{n}] {text}"))?;
        }
        Ok(())
    }

    fn json(&self, index: u64, offset: u64, record: &Bytes) -> Value {
        let mut out = Map::new();
        out.insert("index".into(), json!(index));
        out.insert("offset".into(), json!(offset));
        out.insert("bytes".into(), json!(record.len()));
        let features = |features: &Features<'_>| -> Value {
            let each = features.iter().map(|(name, feature)| {
                let name = String::from_utf8_lossy(name).into_owned();
                (name, feature_json(feature.values(record)))
            });
            Value::Object(each.collect())
        };
        match self {
            Content::Example(f) => drop(out.insert("features".into(), features(f))),
            Content::Sequence(context, lists) => {
                out.insert("context".into(), features(context));
                let lists = lists
                    .iter()
                    .map(|(name, steps)| (name.clone(), json!(steps)));
                out.insert("steps".into(), Value::Object(lists.collect()));
            }
            Content::Bytes => drop(out.insert("data".into(), json!(preview(record, 60)))),
        }
        Value::Object(out)
    }
}

fn feature_json(values: Option<FeatureValues>) -> Value {
    match values {
        Some(FeatureValues::Bytes(v)) => {
            let each = v.iter().map(|b| match std::str::from_utf8(b) {
                Ok(text) => json!(text),
                Err(_) => json!({"hex": b.iter().map(|b| format!("{b:02x}")).collect::<String>()}),
            });
            json!({"kind": "bytes", "values": each.collect::<Vec<_>>()})
        }
        Some(FeatureValues::Floats(v)) => {
            let each = v.iter().map(|x| super::output::json_number(f64::from(*x)));
            json!({"kind": "float", "values": each.collect::<Vec<_>>()})
        }
        Some(FeatureValues::Int64s(v)) => json!({"kind": "int64", "values": v}),
        Some(FeatureValues::None) => json!({"kind": "none", "values": []}),
        None => json!({"kind": "damaged"}),
    }
}

impl Totals {
    fn add<'a>(&mut self, record: &'a Bytes) -> Content<'a> {
        self.records += 1;
        let len = record.len() as u64;
        self.bytes += len;
        self.shortest = Some(self.shortest.unwrap_or(len).min(len));
        self.longest = self.longest.max(len);
        let content = content(record);
        match &content {
            Content::Example(features) => {
                self.examples += 1;
                for (name, feature) in features.iter() {
                    let name = String::from_utf8_lossy(name);
                    if !self.features.contains_key(&*name) && self.features.len() >= MAX_FEATURES {
                        continue;
                    }
                    let (kind, n, _) = values_text(feature.values(record));
                    self.features
                        .entry(name.into_owned())
                        .or_default()
                        .add(kind, n);
                }
            }
            Content::Sequence(..) => self.sequences += 1,
            Content::Bytes => {}
        }
        content
    }

    fn note(&mut self, at: u64, text: String) {
        self.damaged += 1;
        if self.damage.len() < MAX_DAMAGE {
            self.damage.push((at, text));
        }
    }

    /// A file without a record is suspicious unless it is empty.
    fn note_empty(&mut self, path: &str, storage: &Files) {
        if storage.size(path).is_ok_and(|n| n > 0) {
            self.note(0, "no record in it, though it is not empty".to_owned());
        }
    }

    fn kind(&self) -> String {
        match (self.examples, self.sequences) {
            (n, _) if n == self.records && n > 0 => "all Examples".to_owned(),
            (_, n) if n == self.records && n > 0 => "all SequenceExamples".to_owned(),
            (0, 0) => "no Examples".to_owned(),
            (a, b) => format!("{a} Examples, {b} SequenceExamples"),
        }
    }

    fn print(&self, path: &str, compression: Compression, out: &mut Output) -> Result<()> {
        if !self.features.is_empty() {
            let mut table = Table::new(&[
                ("FEATURE", Align::Left),
                ("KIND", Align::Left),
                ("VALUES", Align::Right),
                ("RECORDS", Align::Right),
            ]);
            for (name, seen) in &self.features {
                let few = seen.fewest.unwrap_or(0);
                let values = match few == seen.most {
                    true => few.to_string(),
                    false => format!("{few}-{}", seen.most),
                };
                table.row(vec![
                    name.clone(),
                    seen.kind().to_owned(),
                    values,
                    thousands(seen.records),
                ]);
            }
            out.table(&table)?;
        }
        for (at, text) in &self.damage {
            out.line(&format!("DAMAGED {path} at offset {at}: {text}"))?;
        }
        let packed = match compression {
            Compression::None => String::new(),
            other => format!(", {}", packing_name(other)),
        };
        let range = match self.shortest {
            Some(short) => format!(" ({} to {} each)", bytes(short), bytes(self.longest)),
            None => String::new(),
        };
        out.line(&format!(
            "{path}: {}{range}, {}, {}{packed}",
            count(self.records as usize, "record"),
            bytes(self.bytes),
            self.kind(),
        ))
    }

    fn json(&self, path: &str, compression: Compression, shown: Vec<Value>) -> Value {
        let features = self.features.iter().map(|(name, seen)| {
            json!({"name": name, "kind": seen.kind(), "records": seen.records,
                   "fewest": seen.fewest, "most": seen.most})
        });
        let damage = self.damage.iter();
        let damage = damage.map(|(at, text)| json!({"offset": at, "what": text}));
        json!({
            "path": path, "compression": packing_name(compression),
            "records": self.records, "bytes": self.bytes, "shortest": self.shortest, "longest": self.longest,
            "examples": self.examples, "sequence_examples": self.sequences,
            "features": features.collect::<Vec<_>>(), "damage": damage.collect::<Vec<_>>(), "shown": shown,
        })
    }
}

fn packing_name(compression: Compression) -> &'static str {
    match compression {
        Compression::None => "none",
        Compression::Zlib => "zlib",
        Compression::Gzip => "gzip",
        Compression::Snappy => "snappy",
    }
}

impl Seen {
    fn add(&mut self, kind: &'static str, n: usize) {
        self.mixed |= self.records > 0 && self.kind != kind;
        self.kind = kind;
        self.records += 1;
        self.fewest = Some(self.fewest.unwrap_or(n).min(n));
        self.most = self.most.max(n);
    }

    fn kind(&self) -> &'static str {
        match self.mixed {
            true => "mixed",
            false => self.kind,
        }
    }
}
