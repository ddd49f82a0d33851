//! `Print` and `PrintV2`: texts on the process's streams, in its log, or at the end of a file.

use super::storage;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Console, Device, KernelBuilder, Registry, Stream};
use std::sync::atomic::{AtomicI64, Ordering};

pub(super) fn register(r: &mut Registry) {
    r.add("Print", print);
    r.add("PrintV2", print_v2);
}

/// Writes to a stream of the process; without one lent to the device the text goes to the log.
fn write(device: &Device, stream: Stream, text: &str) {
    match device.extensions.get::<Console>() {
        Some(console) => (console.0)(stream, text),
        None => tracing::info!(target: "print", "{}", text.trim_end_matches('\n')),
    }
}

fn print(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let message = String::from_utf8_lossy(attrs.bytes("message")?).into_owned();
    let (first_n, summarize) = (attrs.int("first_n")?, attrs.int("summarize")?);
    let calls = AtomicI64::new(0);
    Built::cheap(move |ctx| {
        if first_n < 0 || calls.fetch_add(1, Ordering::Relaxed) < first_n {
            let mut text = message.clone();
            for data in ctx.inputs(1..ctx.num_inputs())? {
                text += &format!("[{}]", data.summarize(summarize));
            }
            text.push('\n');
            write(ctx.device(), Stream::Stderr, &text);
        }
        ctx.forward(0, 0);
        Ok(())
    })
}

/// Where `PrintV2` writes.
enum Target {
    Stream(Stream),
    Log(tracing::Level),
    File(String),
}

fn target(name: &str) -> Result<Target> {
    Ok(match name {
        "stdout" => Target::Stream(Stream::Stdout),
        "stderr" => Target::Stream(Stream::Stderr),
        "log(info)" => Target::Log(tracing::Level::INFO),
        "log(warning)" => Target::Log(tracing::Level::WARN),
        "log(error)" => Target::Log(tracing::Level::ERROR),
        _ => match name.strip_prefix("file://") {
            Some(path) => Target::File(path.to_owned()),
            None => {
                return Err(Status::invalid_argument(format!(
                    "Unknown output stream: {name}, Valid streams are: stdout stderr log(info) log(warning) log(error)"
                )));
            }
        },
    })
}

fn print_v2(b: &KernelBuilder<'_>) -> Result<Built> {
    let target = target(b.attrs().str("output_stream")?)?;
    let end = b.attrs().bytes("end")?.clone();
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let (0, [line]) = (input.rank(), input.as_strings()?) else {
            return Err(Status::invalid_argument(format!(
                "Input is expected to be scalar, but got {}",
                input.shape()
            )));
        };
        let bytes: Bytes = [line.as_ref(), end.as_ref()].concat().into();
        let text = String::from_utf8_lossy(&bytes);
        match &target {
            Target::Stream(stream) => write(ctx.device(), *stream, &text),
            Target::Log(level) => {
                let text = text.trim_end_matches('\n');
                match *level {
                    tracing::Level::ERROR => tracing::error!(target: "print", "{text}"),
                    tracing::Level::WARN => tracing::warn!(target: "print", "{text}"),
                    _ => tracing::info!(target: "print", "{text}"),
                }
            }
            Target::File(path) => {
                let mut file = storage(ctx.device()).append_stream(path)?;
                file.write(&bytes)?;
                file.flush()?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{node, run_on};
    use bytes::Bytes;
    use downpour_graph::{AttrList, AttrValue, NodeDef};
    use downpour_runtime::{Console, Device, Extensions, MemoryBudget, Stream};
    use downpour_tensor::{DType, Tensor};
    use parking_lot::Mutex;
    use std::sync::Arc;

    type Lines = Arc<Mutex<Vec<(Stream, String)>>>;

    fn device() -> (Arc<Device>, Lines) {
        let lines = Lines::default();
        let sink = lines.clone();
        let mut extensions = Extensions::default();
        extensions.insert(Console(Arc::new(move |stream, text: &str| {
            sink.lock().push((stream, text.to_owned()));
        })));
        let memory = MemoryBudget::per_tensor(1 << 20);
        let device = Device::cpu("/device:CPU:0".into(), "j", 1, 1, memory, extensions);
        (Arc::new(device), lines)
    }

    fn arg(name: &str, index: i64, dtype: DType) -> NodeDef {
        node(
            name,
            "_Arg",
            &[],
            &[("T", dtype.into()), ("index", index.into())],
        )
    }

    #[test]
    fn prints_show_tensors_in_brackets() {
        let (device, lines) = device();
        let text = |s: &'static str| AttrValue::Str(Bytes::from_static(s.as_bytes()));
        let types = AttrValue::List(AttrList::Type(vec![DType::Int64]));
        let attrs = [
            ("T", DType::Float.into()),
            ("U", types),
            ("message", text("MSG")),
        ];
        let nodes = vec![
            arg("x", 0, DType::Float),
            arg("y", 1, DType::Int64),
            arg("s", 2, DType::String),
            node("p", "Print", &["x", "y"], &attrs),
            node(
                "v",
                "PrintV2",
                &["s"],
                &[("output_stream", text("stdout")), ("end", text("|"))],
            ),
        ];
        let args = vec![
            Tensor::scalar(1f32),
            Tensor::vector(vec![1i64, 2, 3, 4]),
            Tensor::string("hello"),
        ];
        run_on(&device, nodes, args).unwrap();
        let mut lines = lines.lock().clone();
        lines.sort_by(|a, b| a.1.cmp(&b.1));
        let expect = [
            (Stream::Stderr, "MSG[1 2 3...]\n".to_owned()),
            (Stream::Stdout, "hello|".to_owned()),
        ];
        assert_eq!(lines, expect);
    }
}
