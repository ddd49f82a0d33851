//! Summaries: what TensorBoard shows of a step, computed by the step itself. Each is kept in the
//! graph's collection `summaries`; [`merge_all`] joins them into one tensor to fetch.

use crate::{Graph, Output};

/// The collection that summaries are kept in.
const COLLECTION: &str = "summaries";

impl Graph {
    #[track_caller]
    fn summary(&self, op: &str, tag: &str, value: &Output) -> Output {
        let tag = self.summary_tag(tag);
        let op = self.op(op).input(&self.constant(tag));
        let summary = op.input(value).output();
        self.add_to_collection(COLLECTION, &summary);
        summary
    }

    /// A tag within the scope.
    fn summary_tag(&self, tag: &str) -> String {
        match self.scope().as_str() {
            "" => tag.to_owned(),
            scope => format!("{scope}/{tag}"),
        }
    }
}

/// A number over time.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, summary};
/// use downpour_wire::proto::{Summary, summary::value::Value};
/// use prost::Message as _;
/// let g = Graph::new();
/// let shown = summary::scalar("loss", &g.constant(0.5f32));
/// let server = Server::start(ServerConfig::local())?;
/// let bytes = Session::new(&server, &g)?.fetch(&shown)?;
/// let shown = Summary::decode(bytes.as_strings()?[0].clone())?;
/// assert_eq!(shown.value[0].tag, "loss");
/// assert_eq!(shown.value[0].value, Some(Value::SimpleValue(0.5)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn scalar(tag: &str, value: &Output) -> Output {
    value.graph().summary("ScalarSummary", tag, value)
}

/// The distribution of a tensor's values over time.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, summary};
/// use downpour_wire::proto::{Summary, summary::value::Value};
/// use prost::Message as _;
/// let g = Graph::new();
/// let shown = summary::histogram("weights", &g.constant([1.0f32, 2.0, 3.0]));
/// let server = Server::start(ServerConfig::local())?;
/// let bytes = Session::new(&server, &g)?.fetch(&shown)?;
/// let shown = Summary::decode(bytes.as_strings()?[0].clone())?;
/// let Some(Value::Histo(weights)) = &shown.value[0].value else { panic!("{shown:?}") };
/// assert_eq!((weights.min, weights.max, weights.num, weights.sum), (1.0, 3.0, 3.0, 6.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn histogram(tag: &str, value: &Output) -> Output {
    value.graph().summary("HistogramSummary", tag, value)
}

/// Images `[batch, height, width, channels]`, the first three of a batch.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, summary};
/// use downpour_wire::proto::{Summary, summary::value::Value};
/// use prost::Message as _;
/// let g = Graph::new();
/// let digits = g.zeros(DType::Float, [5, 28, 20, 1]);
/// let shown = summary::image("digits", &digits);
/// let server = Server::start(ServerConfig::local())?;
/// let bytes = Session::new(&server, &g)?.fetch(&shown)?;
/// let shown = Summary::decode(bytes.as_strings()?[0].clone())?;
/// let tags: Vec<&str> = shown.value.iter().map(|v| v.tag.as_str()).collect();
/// assert_eq!(tags, ["digits/image/0", "digits/image/1", "digits/image/2"]);
/// let Some(Value::Image(first)) = &shown.value[0].value else { panic!("{shown:?}") };
/// assert_eq!((first.height, first.width), (28, 20));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn image(tag: &str, images: &Output) -> Output {
    images.graph().summary("ImageSummary", tag, images)
}

/// Sounds `[batch, frames, channels]` of samples between -1 and 1, the first three of a batch.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, summary};
/// use downpour_wire::proto::{Summary, summary::value::Value};
/// use prost::Message as _;
/// let g = Graph::new();
/// let silence = g.zeros(DType::Float, [1, 4000, 2]);
/// let shown = summary::audio("silence", &silence, 8000.0);
/// let server = Server::start(ServerConfig::local())?;
/// let bytes = Session::new(&server, &g)?.fetch(&shown)?;
/// let shown = Summary::decode(bytes.as_strings()?[0].clone())?;
/// assert_eq!(shown.value[0].tag, "silence/audio/0");
/// let Some(Value::Audio(sound)) = &shown.value[0].value else { panic!("{shown:?}") };
/// assert_eq!((sound.length_frames, sound.num_channels), (4000, 2)); // half a second
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn audio(tag: &str, samples: &Output, rate: f32) -> Output {
    let g = samples.graph();
    let tag = g.summary_tag(tag);
    let op = g.op("AudioSummaryV2").input(&g.constant(tag));
    let summary = op.input(samples).input(&g.constant(rate)).output();
    g.add_to_collection(COLLECTION, &summary);
    summary
}

/// Text: a string or several.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, summary};
/// use downpour_wire::proto::{Summary, summary::value::Value};
/// use prost::Message as _;
/// let g = Graph::new();
/// let shown = summary::text("note", &g.constant("slower from here"));
/// let server = Server::start(ServerConfig::local())?;
/// let bytes = Session::new(&server, &g)?.fetch(&shown)?;
/// let shown = Summary::decode(bytes.as_strings()?[0].clone())?;
/// let Some(Value::Tensor(note)) = &shown.value[0].value else { panic!("{shown:?}") };
/// assert_eq!(note.string_val, ["slower from here"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn text(tag: &str, value: &Output) -> Output {
    // A serialized SummaryMetadata whose plugin_data names the plugin `text`.
    const METADATA: &[u8] = b"\x0a\x06\x0a\x04text";
    let g = value.graph();
    let tag = g.summary_tag(tag);
    let metadata = crate::Tensor::string(METADATA);
    let op = g.op("TensorSummaryV2").input(&g.constant(tag)).input(value);
    let summary = op.input(&g.constant(metadata)).output();
    g.add_to_collection(COLLECTION, &summary);
    summary
}

/// All summaries of a graph as one, if it has any.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, summary};
/// use downpour_wire::proto::Summary;
/// use prost::Message as _;
/// let g = Graph::new();
/// assert!(summary::merge_all(&g).is_none());
/// summary::scalar("loss", &g.constant(0.5f32));
/// g.with_scope("test", || summary::scalar("accuracy", &g.constant(0.9f32)));
/// let all = summary::merge_all(&g).unwrap();
/// let server = Server::start(ServerConfig::local())?;
/// let bytes = Session::new(&server, &g)?.fetch(&all)?;
/// let shown = Summary::decode(bytes.as_strings()?[0].clone())?;
/// let tags: Vec<&str> = shown.value.iter().map(|v| v.tag.as_str()).collect();
/// assert_eq!(tags, ["loss", "test/accuracy"]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn merge_all(graph: &Graph) -> Option<Output> {
    let all = graph.collection(COLLECTION);
    match all.is_empty() {
        true => None,
        false => Some(graph.op("MergeSummary").inputs(&all).output()),
    }
}
