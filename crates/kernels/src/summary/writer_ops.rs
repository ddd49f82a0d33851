//! The ops around a [`SummaryWriter`]: its handle, opening, flushing and closing it, and what is written to it.

use super::audio::audio_values;
use super::image::image_values;
use super::text;
use super::value::doubles;
use super::writer::{SummaryWriter, WRITER_TYPE};
use crate::queue::shared_handle::{ANONYMOUS, Access, check_handle_type};
use bytes::Bytes;
use downpour_formats::event::{
    encode_graph_event, encode_step_event, is_event, is_graph, is_summary,
};
use downpour_formats::histogram::Histogram;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, ResourceManager};
use downpour_tensor::{DType, Element, ResourceHandle, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("SummaryWriter", handle);
    r.add("CreateSummaryFileWriter", create);
    r.add("FlushSummaryWriter", |b| {
        let access = Access::new(b, WRITER_TYPE);
        Built::costly(move |ctx| access.of_ctx::<SummaryWriter>(ctx)?.flush())
    });
    r.add("CloseSummaryWriter", close);
    r.add("WriteSummary", |b| writing(b, tensor));
    r.add("WriteScalarSummary", |b| writing(b, scalar));
    r.add("WriteHistogramSummary", |b| writing(b, histogram));
    r.add("WriteImageSummary", write_image);
    r.add("WriteAudioSummary", write_audio);
    r.add("WriteGraphSummary", |b| writing(b, graph));
    r.add("WriteRawProtoSummary", |b| writing(b, raw_proto));
    r.add("ImportEvent", |b| writing(b, event));
}

/// A handle that names a writer, which need not exist yet.
fn handle(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    let handle = Tensor::resource(b.handle(&container, &name, WRITER_TYPE, Vec::new()));
    Built::cheap(move |ctx| {
        ctx.set_output(0, handle.clone());
        Ok(())
    })
}

/// Where the object behind a handle is or will be.
fn home<'a>(ctx: &OpContext<'a>, handle: &ResourceHandle) -> &'a ResourceManager {
    match handle.container.as_str() {
        ANONYMOUS => &ctx.env().step_resources,
        _ => &ctx.device().resources,
    }
}

fn create(b: &KernelBuilder<'_>) -> Result<Built> {
    let wanted = b.handle("", "", WRITER_TYPE, Vec::new());
    Built::costly(move |ctx| {
        let logdir = argument::<Bytes>(ctx, 1, "logdir")?;
        let max_queue = argument::<i32>(ctx, 2, "max_queue")?;
        let millis = argument::<i32>(ctx, 3, "flush_millis")?;
        let suffix = argument::<Bytes>(ctx, 4, "filename_suffix")?;
        let handle = ctx.handle(0)?;
        check_handle_type(handle, &wanted)?;
        let resources = home(ctx, handle);
        resources.find_or_create(&handle.container, &handle.name, || {
            SummaryWriter::create(ctx.device(), &logdir, max_queue, millis, &suffix)
        })?;
        Ok(())
    })
}

fn close(b: &KernelBuilder<'_>) -> Result<Built> {
    let wanted = b.handle("", "", WRITER_TYPE, Vec::new());
    Built::costly(move |ctx| {
        let handle = ctx.handle(0)?;
        check_handle_type(handle, &wanted)?;
        let resources = home(ctx, handle);
        // Found first, so that it is flushed after the manager's lock is free again.
        let found = resources.find::<SummaryWriter>(&handle.container, &handle.name);
        if resources.remove::<SummaryWriter>(&handle.container, &handle.name) {
            drop(found);
            return Ok(());
        }
        let mut status = resources.not_found(&handle.container, &handle.name, WRITER_TYPE);
        if let Some(end) = status.message.find(" (Could not find") {
            status.message.truncate(end);
        }
        Err(status)
    })
}

/// An element that a scalar argument may have.
trait Argument: Clone {
    fn all(tensor: &Tensor) -> Result<&[Self]>
    where
        Self: Sized;
}

impl Argument for Bytes {
    fn all(tensor: &Tensor) -> Result<&[Bytes]> {
        Ok(tensor.as_strings()?)
    }
}

macro_rules! numbers {
    ($($t:ty),*) => { $(impl Argument for $t {
        fn all(tensor: &Tensor) -> Result<&[$t]> {
            Ok(tensor.as_slice::<$t>()?)
        }
    })* };
}
numbers!(i32, i64, f32);

/// The scalar at input `i`.
fn argument<T: Argument>(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<T> {
    let tensor = ctx.input(i)?;
    match (tensor.rank(), T::all(tensor)?) {
        (0, [value]) => Ok(value.clone()),
        _ => Err(Status::invalid_argument(format!("{name} must be a scalar"))),
    }
}

/// A kernel that makes an encoded event, given the time, and queues it.
fn writing(
    b: &KernelBuilder<'_>,
    make: impl Fn(&OpContext<'_>, f64) -> Result<Vec<u8>> + Send + Sync + 'static,
) -> Result<Built> {
    let access = Access::new(b, WRITER_TYPE);
    Built::costly(move |ctx| {
        let writer: Arc<SummaryWriter> = access.of_ctx(ctx)?;
        writer.write(make(ctx, writer.host.now_seconds())?)
    })
}

/// An event of the step at input 1 with these entries.
fn step_event(ctx: &OpContext<'_>, now: f64, values: Vec<SummaryValue>) -> Result<Vec<u8>> {
    let step = argument::<i64>(ctx, 1, "step")?;
    Ok(encode_step_event(now, step, Some(&encode_summary(values)?)))
}

fn tensor(ctx: &OpContext<'_>, now: f64) -> Result<Vec<u8>> {
    let tag = argument::<Bytes>(ctx, 3, "tag")?;
    let metadata = argument::<Bytes>(ctx, 4, "summary_metadata")?;
    let value = SummaryValue {
        tag,
        node_name: String::new(),
        metadata: Some(metadata).filter(|m| !m.is_empty()),
        content: SummaryContent::Tensor(ctx.input(2)?.clone()),
    };
    step_event(ctx, now, vec![value])
}

/// Refuses elements that have no number.
fn check_number(tensor: &Tensor) -> Result<()> {
    match tensor.dtype() {
        dtype @ DType::BFloat16 => Err(Status::unimplemented(format!(
            "SummaryFileWriter {dtype} not supported."
        ))),
        _ => Ok(()),
    }
}

fn scalar(ctx: &OpContext<'_>, now: f64) -> Result<Vec<u8>> {
    let tag = argument::<Bytes>(ctx, 2, "tag")?;
    let value = ctx.input(3)?;
    check_number(value)?;
    let mut first = None;
    match value.dtype() {
        // Rounded once.
        DType::Int64 => first = first_of::<i64>(value)?.map(|v| v as f32),
        DType::UInt64 => first = first_of::<u64>(value)?.map(|v| v as f32),
        _ => doubles(value, |v| {
            first.get_or_insert(v as f32);
            Ok(())
        })?,
    }
    let first = first.ok_or_else(|| Status::invalid_argument("value must be a scalar"))?;
    let value = SummaryValue::new(tag, SummaryContent::Scalar(first));
    step_event(ctx, now, vec![value])
}

fn first_of<T: Element + Copy>(tensor: &Tensor) -> Result<Option<T>> {
    Ok(tensor.as_slice::<T>()?.first().copied())
}

fn histogram(ctx: &OpContext<'_>, now: f64) -> Result<Vec<u8>> {
    let tag = argument::<Bytes>(ctx, 2, "tag")?;
    let values = ctx.input(3)?;
    if values.num_elements() > 0 {
        check_number(values)?;
    }
    let mut histogram = Histogram::new();
    if let Ok(bits) = values.as_slice::<bool>() {
        bits.iter().for_each(|b| histogram.add(f64::from(*b)));
        let value = SummaryValue::new(tag, SummaryContent::Histogram(histogram));
        return step_event(ctx, now, vec![value]);
    }
    doubles(values, |v| {
        if v.is_finite() {
            histogram.add(v);
            return Ok(());
        }
        let what = if v.is_nan() { "Nan" } else { "Infinity" };
        Err(Status::invalid_argument(format!(
            "{what} in summary histogram for: {}",
            text(&tag)
        )))
    })?;
    let value = SummaryValue::new(tag, SummaryContent::Histogram(histogram));
    step_event(ctx, now, vec![value])
}

fn write_image(b: &KernelBuilder<'_>) -> Result<Built> {
    let most = b.attrs().int("max_images")?;
    if most >= 1 << 31 {
        return Err(Status::invalid_argument("max_images must be < 2^31"));
    }
    writing(b, move |ctx, now| {
        let tag = argument::<Bytes>(ctx, 2, "tag")?;
        let bad = ctx.input(4)?;
        if bad.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "bad_color must be a vector, got shape {}",
                bad.shape()
            )));
        }
        let values = image_values(ctx.input(3)?, &tag, most, bad.as_slice::<u8>()?)?;
        step_event(ctx, now, values)
    })
}

fn write_audio(b: &KernelBuilder<'_>) -> Result<Built> {
    let most = b.attrs().int("max_outputs")?;
    if most <= 0 {
        return Err(Status::invalid_argument("max_outputs must be > 0"));
    }
    writing(b, move |ctx, now| {
        let tag = argument::<Bytes>(ctx, 2, "tag")?;
        let rate = argument::<f32>(ctx, 4, "sample_rate")?;
        let values = audio_values(ctx.input(3)?, &tag, most, rate)?;
        step_event(ctx, now, values)
    })
}

fn graph(ctx: &OpContext<'_>, now: f64) -> Result<Vec<u8>> {
    let step = argument::<i64>(ctx, 1, "step")?;
    let graph = argument::<Bytes>(ctx, 2, "tensor")?;
    if !is_graph(&graph) {
        return Err(Status::data_loss(
            "Bad tf.GraphDef binary proto tensor string",
        ));
    }
    Ok(encode_graph_event(now, step, &graph))
}

/// Messages of one repeated field are merged by writing them one after the other.
fn raw_proto(ctx: &OpContext<'_>, now: f64) -> Result<Vec<u8>> {
    let step = ctx.input(1)?;
    let (0, [step]) = (step.rank(), step.as_slice::<i64>()?) else {
        return Err(Status::invalid_argument(format!(
            "step must be scalar, got shape {}",
            step.shape()
        )));
    };
    let summaries = ctx.input(2)?.as_strings()?;
    for (i, summary) in summaries.iter().enumerate() {
        if !is_summary(summary) {
            return Err(Status::data_loss(format!(
                "Bad tf.compat.v1.Summary binary proto tensor string at index {i}"
            )));
        }
    }
    let merged = summaries.concat();
    let merged = Some(&merged[..]).filter(|_| !summaries.is_empty());
    Ok(encode_step_event(now, *step, merged))
}

fn event(ctx: &OpContext<'_>, _: f64) -> Result<Vec<u8>> {
    let event = argument::<Bytes>(ctx, 1, "event")?;
    if !is_event(&event) {
        return Err(Status::data_loss("Bad tf.Event binary proto tensor string"));
    }
    Ok(event.to_vec())
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, node, run_on};
    use downpour_formats::LocalStorage;
    use downpour_formats::event::EventReader;
    use downpour_graph::{AttrValue, NodeDef};
    use downpour_runtime::{Device, Host};
    use downpour_tensor::{DType, Tensor};
    use std::sync::Arc;

    fn text(value: &str) -> Tensor {
        Tensor::string(value.as_bytes().to_vec())
    }

    /// A device with a clock that stands still.
    fn with_clock() -> Arc<Device> {
        let mut device = device().shared();
        device.extensions.insert(Host {
            name: "here".into(),
            now_ns: || 1_500_000_000_250_000_000,
        });
        Arc::new(device)
    }

    fn constant(name: &str, value: Tensor) -> NodeDef {
        let dtype: AttrValue = value.dtype().into();
        node(
            name,
            "Const",
            &[],
            &[("dtype", dtype), ("value", value.into())],
        )
    }

    fn handle() -> NodeDef {
        node("w", "SummaryWriter", &[], &[("shared_name", "w".into())])
    }

    fn run(
        device: &Arc<Device>,
        op: &str,
        args: Vec<Tensor>,
        attrs: &[(&str, AttrValue)],
    ) -> downpour_graph::Result<()> {
        let mut nodes = vec![handle()];
        let mut inputs = vec!["w".to_owned()];
        for (i, arg) in args.into_iter().enumerate() {
            nodes.push(constant(&format!("c{i}"), arg));
            inputs.push(format!("c{i}"));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        nodes.push(node("op", op, &inputs, attrs));
        run_on(device, nodes, vec![]).map(|_| ())
    }

    #[test]
    fn events_reach_the_file_when_the_queue_is_full_and_when_the_writer_closes() {
        let dir = tempfile::tempdir().unwrap();
        let logs = dir.path().join("a/b").to_str().unwrap().to_owned();
        let device = with_clock();
        let create = vec![
            text(&logs),
            Tensor::scalar(1i32),
            Tensor::scalar(9i32),
            text("end"),
        ];
        run(&device, "CreateSummaryFileWriter", create, &[]).unwrap();
        let names: Vec<_> = std::fs::read_dir(&logs)
            .unwrap()
            .map(|e| e.unwrap().path())
            .collect();
        let [path] = &names[..] else {
            panic!("{names:?}")
        };
        let path = path.to_str().unwrap();
        assert!(
            path.contains("/events.out.tfevents.1500000000.here."),
            "{path}"
        );
        assert!(path.ends_with(".end"), "{path}");
        let steps = || {
            let mut reader = EventReader::open(&LocalStorage::new(), path).unwrap();
            let mut steps = Vec::new();
            while let Some(event) = reader.read().unwrap() {
                assert_eq!(event.wall_time, 1_500_000_000.25);
                steps.push(event.step);
            }
            steps
        };
        for (step, seen) in [(1i64, 1), (2, 3), (3, 3)] {
            let args = vec![Tensor::scalar(step), text("t"), Tensor::scalar(2.0f32)];
            run(
                &device,
                "WriteScalarSummary",
                args,
                &[("T", DType::Float.into())],
            )
            .unwrap();
            assert_eq!(steps().len(), seen);
        }
        run(&device, "CloseSummaryWriter", vec![], &[]).unwrap();
        assert_eq!(steps(), [0, 1, 2, 3]);
        let e = run(&device, "FlushSummaryWriter", vec![], &[]).unwrap_err();
        assert!(
            e.message.starts_with(
                "Resource localhost/w/N10tensorflow22SummaryWriterInterfaceE does not exist."
            ),
            "{}",
            e.message
        );
    }

    #[test]
    fn bytes_that_are_no_message_are_data_loss() {
        let dir = tempfile::tempdir().unwrap();
        let device = with_clock();
        let create = vec![
            text(dir.path().to_str().unwrap()),
            Tensor::scalar(1i32),
            Tensor::scalar(9i32),
            text(""),
        ];
        run(&device, "CreateSummaryFileWriter", create, &[]).unwrap();
        let bad = || Tensor::string(vec![0xffu8, 0xff]);
        let step = || Tensor::scalar(1i64);
        for (op, args) in [
            ("ImportEvent", vec![bad()]),
            ("WriteGraphSummary", vec![step(), bad()]),
            ("WriteRawProtoSummary", vec![step(), bad()]),
        ] {
            let e = run(&device, op, args, &[]).unwrap_err();
            assert_eq!(e.code, downpour_graph::Code::DataLoss, "{op}");
        }
    }
}
