//! Kernels of the reader ops, with resource handles (`…V2`) and with handles by reference.

use super::source::{Layout, Record, Spec};
use super::{Progress, READER_TYPE, Reader, Want};
use crate::queue::queue::{QUEUE_TYPE, Queue};
use crate::queue::shared_handle::{Access, Home};
use bytes::Bytes;
use downpour_formats::reader_state;
use downpour_formats::record::Compression;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    for op in ["WholeFileReader", "WholeFileReaderV2"] {
        r.add(op, |b| reader(b, "WholeFileReader", Spec::WholeFile));
    }
    for op in ["IdentityReader", "IdentityReaderV2"] {
        r.add(op, |b| reader(b, "IdentityReader", Spec::Identity));
    }
    for op in ["TextLineReader", "TextLineReaderV2"] {
        r.add(op, |b| {
            let skip = at_least_zero(b, "skip_header_lines")?;
            reader(b, "TextLineReader", Spec::TextLine { skip })
        });
    }
    for op in ["FixedLengthRecordReader", "FixedLengthRecordReaderV2"] {
        r.add(op, |b| {
            let layout = layout(b)?;
            reader(b, "FixedLengthRecordReader", Spec::FixedLength(layout))
        });
    }
    for op in ["TFRecordReader", "TFRecordReaderV2"] {
        r.add(op, |b| {
            let compression = Compression::from_option(b.attrs().str("compression_type")?);
            reader(b, "TFRecordReader", Spec::Records(compression))
        });
    }
    r.add("LMDBReader", |b| reader(b, "LMDBReader", Spec::Lmdb));
    for op in ["ReaderRead", "ReaderReadV2"] {
        r.add(op, |b| read(b, false));
    }
    for op in ["ReaderReadUpTo", "ReaderReadUpToV2"] {
        r.add(op, |b| read(b, true));
    }
    for op in ["ReaderNumRecordsProduced", "ReaderNumRecordsProducedV2"] {
        r.add(op, |b| count(b, |p| p.produced));
    }
    for op in [
        "ReaderNumWorkUnitsCompleted",
        "ReaderNumWorkUnitsCompletedV2",
    ] {
        r.add(op, |b| count(b, |p| p.finished));
    }
    for op in ["ReaderReset", "ReaderResetV2"] {
        r.add(op, |b| {
            let access = Access::new(b, READER_TYPE);
            Built::cheap(move |ctx| {
                access.of_ctx::<Reader>(ctx)?.reset();
                Ok(())
            })
        });
    }
    for op in ["ReaderSerializeState", "ReaderSerializeStateV2"] {
        r.add(op, |b| {
            let access = Access::new(b, READER_TYPE);
            Built::cheap(move |ctx| {
                let state = serialize(&*access.of_ctx::<Reader>(ctx)?)?;
                ctx.set_output(0, Tensor::string(state));
                Ok(())
            })
        });
    }
    for op in ["ReaderRestoreState", "ReaderRestoreStateV2"] {
        r.add(op, |b| {
            let access = Access::new(b, READER_TYPE);
            Built::cheap(move |ctx| restore(ctx, &access))
        });
    }
}

fn at_least_zero(b: &KernelBuilder<'_>, name: &str) -> Result<u64> {
    let value = b.attrs().int(name)?;
    u64::try_from(value)
        .map_err(|_| Status::invalid_argument(format!("{name} must be >= 0 not {value}")))
}

fn layout(b: &KernelBuilder<'_>) -> Result<Layout> {
    let [header, record, footer, hop] = [
        at_least_zero(b, "header_bytes")?,
        at_least_zero(b, "record_bytes")?,
        at_least_zero(b, "footer_bytes")?,
        at_least_zero(b, "hop_bytes")?,
    ];
    let encoding = match b.attrs().find("encoding") {
        Some(_) => b.attrs().str("encoding")?,
        None => "",
    };
    // What does not fit into memory cannot be read either; the stream refuses it.
    let size = |n: u64| usize::try_from(n.min(1 << 40)).unwrap_or(usize::MAX / 4);
    Ok(Layout {
        header,
        record: size(record),
        footer: size(footer),
        hop: if hop == 0 { record } else { hop },
        compression: Compression::from_option(encoding),
    })
}

fn reader(b: &KernelBuilder<'_>, kind: &str, spec: Spec) -> Result<Built> {
    let home = Home::<Reader>::new(b, READER_TYPE)?;
    let name = format!("{kind} '{}'", b.node.name);
    Built::cheap(move |ctx| {
        home.get(ctx, || Ok(Reader::new(name.clone(), spec.clone())))?;
        home.emit(ctx)
    })
}

fn count(b: &KernelBuilder<'_>, value: fn(&Progress) -> i64) -> Result<Built> {
    let access = Access::new(b, READER_TYPE);
    Built::cheap(move |ctx| {
        let progress = access.of_ctx::<Reader>(ctx)?.progress();
        ctx.set_output(0, Tensor::scalar(value(&progress)));
        Ok(())
    })
}

fn read(b: &KernelBuilder<'_>, many: bool) -> Result<Built> {
    let reader = Access::new(b, READER_TYPE);
    let queue = Access::at(b, 1, QUEUE_TYPE);
    Built::waiting(move |op| {
        let ready = (|| {
            let found = reader.of_op::<Reader>(&op)?;
            let queue = queue.of_op::<Queue>(&op)?;
            let up_to = if many { Some(number(&op)?) } else { None };
            let device = op.env().device.clone();
            Ok((
                found,
                Want {
                    up_to,
                    queue,
                    device,
                },
            ))
        })();
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((reader, want)) => {
                let cancellation = op.env().cancellation.clone();
                let done = Box::new(move |r: Result<Vec<Record>>| {
                    op.finish(r.and_then(|records| outputs(records, many)));
                });
                reader.read(want, &cancellation, done);
            }
        }
    })
}

fn number(op: &AsyncOp) -> Result<usize> {
    let n = op.input(2)?.as_slice::<i64>()?.first().copied();
    let n = n.ok_or_else(|| Status::invalid_argument("ReaderReadUpTo was given no number"))?;
    usize::try_from(n)
        .map_err(|_| Status::invalid_argument(format!("ReaderReadUpTo was asked for {n} records")))
}

fn outputs(records: Vec<Record>, many: bool) -> Result<Vec<Tensor>> {
    let (keys, values): (Vec<Bytes>, Vec<Bytes>) = records.into_iter().unzip();
    let tensor = |values: Vec<Bytes>| {
        let length = values.len();
        let tensor = Tensor::strings(values, [length])?;
        if many {
            Ok(tensor)
        } else {
            tensor.reshaped([])
        }
    };
    Ok(vec![tensor(keys)?, tensor(values)?])
}

/// Whether a reader's place is known by its counts alone, so that it can be written down.
fn is_saved(spec: &Spec) -> bool {
    matches!(spec, Spec::Identity | Spec::WholeFile)
}

fn serialize(reader: &Reader) -> Result<Bytes> {
    if !is_saved(&reader.spec) {
        return Err(Status::unimplemented("Reader SerializeState"));
    }
    let p = reader.progress();
    Ok(reader_state::encode(p.started, p.finished, p.produced, &p.work).into())
}

fn restore(ctx: &mut OpContext<'_>, access: &Access) -> Result<()> {
    let reader = access.of_ctx::<Reader>(ctx)?;
    let state = ctx.input(1)?;
    let bytes = match (state.rank(), state.as_strings()?) {
        (0, [bytes]) => bytes,
        _ => {
            return Err(Status::invalid_argument(format!(
                "Reader state must be scalar, but had shape: {}",
                state.shape()
            )));
        }
    };
    // A reader that cannot be put where it was starts over.
    restore_from(&reader, bytes).inspect_err(|_| reader.reset())
}

fn restore_from(reader: &Reader, bytes: &[u8]) -> Result<()> {
    if !is_saved(&reader.spec) {
        return Err(Status::unimplemented("Reader RestoreState"));
    }
    let Some((started, finished, produced, work)) = reader_state::decode(bytes) else {
        return Err(Status::invalid_argument(format!(
            "Could not parse state for {}: {}",
            reader.name,
            bytes.escape_ascii()
        )));
    };
    let refuse = |what: &str| {
        Err(Status::invalid_argument(format!(
            "{what} when restoring in {}: work_started: {started} work_finished: {finished} num_records_produced: {produced} current_work: \"{}\"",
            reader.name,
            work.escape_ascii()
        )))
    };
    if started < 0 || finished < 0 || produced < 0 {
        return refuse("Unexpected negative value");
    }
    if started > finished {
        return refuse("Inconsistent work started vs. finished");
    }
    reader.restore(Progress {
        started,
        finished,
        produced,
        work: Bytes::copy_from_slice(work),
    });
    Ok(())
}
