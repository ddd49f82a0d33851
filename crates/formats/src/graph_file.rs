//! Graphs in files, whatever they are wrapped in: a `GraphDef`, a `MetaGraphDef` (what savers write
//! beside checkpoints), a `SavedModel`, each binary or in text form. Who opens one need not know
//! which it is. Decoding is paid from a budget; a file is read only up to a limit.

use crate::storage::{Storage, read_bounded};
use crate::text_proto::to_binary;
use bytes::Bytes;
use downpour_graph::{Code, GraphDef, Result, Status};
use downpour_tensor::DType;
use downpour_wire::codec::ServiceMessage;
use downpour_wire::{Budget, Meter, decode_graph, proto};

/// What protobuf itself allows a message.
const MAX_BYTES: u64 = 2 << 30;

/// What the constants of a graph may take once they are written out: a few bytes can stand for a
/// tensor of any size, and whoever looks at a file does not vouch for it.
const BUDGET: Budget = Budget {
    tensor_bytes: 256 << 20,
    elements: 1 << 22,
    nodes: 1 << 20,
    functions: 1 << 16,
    attr_depth: 24,
    entries: 1 << 24,
};

/// What a file turned out to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphKind {
    /// A bare graph.
    GraphDef,
    /// A graph with its collections and signatures.
    MetaGraph,
    /// One or more graphs for serving.
    SavedModel,
}

impl GraphKind {
    /// TensorFlow's name.
    pub fn name(self) -> &'static str {
        match self {
            GraphKind::GraphDef => "GraphDef",
            GraphKind::MetaGraph => "MetaGraphDef",
            GraphKind::SavedModel => "SavedModel",
        }
    }
}

/// An input or output of a signature.
#[derive(Debug, Clone, PartialEq)]
pub struct SignatureTensor {
    /// Its name in the signature.
    pub key: String,
    /// The tensor's name in the graph.
    pub tensor: String,
    /// Element type by TensorFlow's name.
    pub dtype: String,
    /// Shape, as in `[?,784]`; `?` alone if nothing is known.
    pub shape: String,
}

/// What a model offers to be called with.
#[derive(Debug, Clone, PartialEq)]
pub struct Signature {
    /// Its key, as in `serving_default`.
    pub name: String,
    /// What kind of call, as in `tensorflow/serving/predict`.
    pub method: String,
    /// What it takes.
    pub inputs: Vec<SignatureTensor>,
    /// What it gives.
    pub outputs: Vec<SignatureTensor>,
}

/// One graph of a file with what stands around it.
#[derive(Debug, Clone, Default)]
pub struct FileGraph {
    /// The graph.
    pub graph: GraphDef,
    /// Tags of a saved model's graph, as in `serve`.
    pub tags: Vec<String>,
    /// The version of TensorFlow that wrote it, if it says so.
    pub written_by: String,
    /// Signatures by name.
    pub signatures: Vec<Signature>,
}

/// The graphs of a file.
#[derive(Debug, Clone)]
pub struct GraphFile {
    /// What the file is.
    pub kind: GraphKind,
    /// Whether it is in text form.
    pub text: bool,
    /// One graph, or those of a saved model.
    pub graphs: Vec<FileGraph>,
}

/// Reads a file with a graph in it.
pub fn read(storage: &dyn Storage, path: &str) -> Result<GraphFile> {
    let data = Bytes::from(read_bounded(storage, path, MAX_BYTES)?);
    parse(data)
}

/// The graphs in the bytes of a file.
pub fn parse(data: Bytes) -> Result<GraphFile> {
    if data.is_empty() {
        return Err(Status::data_loss("the file is empty"));
    }
    if let Some(text) = as_text(&data) {
        return parse_text(text);
    }
    parse_binary(data, false)
}

/// The file as text, if that is what it looks like: binary graphs begin with a tag below a space.
fn as_text(data: &Bytes) -> Option<&str> {
    let text = std::str::from_utf8(data).ok()?;
    let first = text.trim_start().chars().next()?;
    let plain = |b: &u8| *b >= b' ' || b"\t\n\r\x0b\x0c".contains(b);
    let head = data.get(..data.len().min(4096)).unwrap_or_default();
    (head.iter().all(plain) && (first.is_ascii_alphabetic() || first == '#')).then_some(text)
}

fn parse_text(text: &str) -> Result<GraphFile> {
    // The first field says which message it is.
    let fields = [
        "saved_model_schema_version",
        "meta_graphs",
        "meta_info_def",
        "graph_def",
    ];
    let lines = text.lines().map(str::trim_start);
    let mut words = lines.filter(|l| !l.is_empty() && !l.starts_with('#'));
    let first = words.next().unwrap_or_default();
    let found = fields.iter().position(|field| first.starts_with(field));
    let message = match found {
        Some(0 | 1) => "SavedModel",
        Some(_) => "MetaGraphDef",
        None => "GraphDef",
    };
    let wrong = |e: Status| Status::new(e.code, format!("as a {message} in text: {}", e.message));
    let data = Bytes::from(to_binary(text, message).map_err(wrong)?);
    if data.is_empty() {
        return Err(Status::data_loss("a text that is no graph"));
    }
    parse_binary(data, true)
}

/// Tries the kinds from the most to the least particular: their first fields differ in form.
fn parse_binary(data: Bytes, text: bool) -> Result<GraphFile> {
    let file = |kind, graphs| GraphFile { kind, text, graphs };
    if let Some(model) = decoded::<proto::SavedModel>(&data)?
        && model.saved_model_schema_version > 0
        && !model.meta_graphs.is_empty()
    {
        let graphs = model.meta_graphs.into_iter().map(meta_graph);
        return Ok(file(GraphKind::SavedModel, graphs.collect::<Result<_>>()?));
    }
    let named = |nodes: &[proto::NodeDef]| {
        !nodes.is_empty() && nodes.iter().all(|n| !n.name.is_empty() && !n.op.is_empty())
    };
    if let Some(meta) = decoded::<proto::MetaGraphDef>(&data)?
        && meta.graph_def.as_ref().is_some_and(|g| {
            let library = g.library.as_ref().is_some_and(|l| !l.function.is_empty());
            named(&g.node) || g.node.is_empty() && library
        })
    {
        return Ok(file(GraphKind::MetaGraph, vec![meta_graph(meta)?]));
    }
    let graph = decoded::<proto::GraphDef>(&data)?;
    let has_functions =
        |g: &proto::GraphDef| g.library.as_ref().is_some_and(|l| !l.function.is_empty());
    match graph {
        Some(graph) if named(&graph.node) || graph.node.is_empty() && has_functions(&graph) => {
            let graph = decode_graph(graph, &mut Meter::from(&BUDGET))?;
            let one = FileGraph {
                graph,
                ..FileGraph::default()
            };
            Ok(file(GraphKind::GraphDef, vec![one]))
        }
        Some(graph) if graph.node.is_empty() && graph.versions.is_some() => {
            Err(Status::data_loss("a graph without nodes"))
        }
        _ => Err(Status::data_loss(
            "neither a GraphDef, a MetaGraphDef nor a SavedModel",
        )),
    }
}

/// The message, `None` where the bytes are none; an error where they are too much.
fn decoded<M: ServiceMessage>(data: &Bytes) -> Result<Option<M>> {
    match M::from_wire(data.clone(), &BUDGET) {
        Ok(message) => Ok(Some(message)),
        Err(e) if e.code == Code::ResourceExhausted => Err(e),
        Err(_) => Ok(None),
    }
}

fn meta_graph(meta: proto::MetaGraphDef) -> Result<FileGraph> {
    let graph = meta.graph_def.unwrap_or_default();
    let info = meta.meta_info_def.unwrap_or_default();
    let signatures = meta.signature_def.into_iter().map(|(name, s)| Signature {
        name,
        method: s.method_name,
        inputs: s.inputs.into_iter().map(signature_tensor).collect(),
        outputs: s.outputs.into_iter().map(signature_tensor).collect(),
    });
    Ok(FileGraph {
        graph: decode_graph(graph, &mut Meter::from(&BUDGET))?,
        tags: info.tags,
        written_by: info.tensorflow_version,
        signatures: signatures.collect(),
    })
}

fn signature_tensor((key, info): (String, proto::TensorInfo)) -> SignatureTensor {
    use proto::tensor_info::Encoding;
    let shape = info.tensor_shape.filter(|s| !s.unknown_rank);
    let dim = |d: &proto::tensor_shape_proto::Dim| match d.size {
        -1 => "?".to_owned(),
        size => size.to_string(),
    };
    SignatureTensor {
        key,
        tensor: match info.encoding {
            Some(Encoding::Name(name)) => name,
            Some(Encoding::CooSparse(sparse)) => sparse.values_tensor_name,
            Some(Encoding::CompositeTensor(_)) => "(several)".to_owned(),
            None => String::new(),
        },
        dtype: match DType::from_number(info.dtype) {
            Ok(dtype) => dtype.name().to_owned(),
            Err(_) => info.dtype.to_string(),
        },
        shape: match shape {
            Some(shape) => {
                let dims: Vec<String> = shape.dim.iter().map(dim).collect();
                format!("[{}]", dims.join(","))
            }
            None => "?".to_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::MessageBytes as _;

    fn graph() -> proto::GraphDef {
        let node = |name: &str, op: &str, input: &[&str]| proto::NodeDef {
            name: name.into(),
            op: op.into(),
            input: input.iter().map(|s| (*s).to_owned()).collect(),
            ..Default::default()
        };
        proto::GraphDef {
            node: vec![node("a", "NoOp", &[]), node("b", "NoOp", &["^a"])],
            ..Default::default()
        }
    }

    fn meta() -> proto::MetaGraphDef {
        proto::MetaGraphDef {
            meta_info_def: Some(proto::meta_graph_def::MetaInfoDef {
                tags: vec!["serve".into()],
                tensorflow_version: "2.21.0".into(),
                ..Default::default()
            }),
            graph_def: Some(graph()),
            ..Default::default()
        }
    }

    #[track_caller]
    fn check(data: Vec<u8>, kind: GraphKind) -> GraphFile {
        let file = parse(Bytes::from(data)).unwrap();
        assert_eq!(file.kind, kind);
        assert_eq!(file.graphs[0].graph.nodes[1].inputs, ["^a"]);
        file
    }

    #[test]
    fn every_wrapping_is_recognised() {
        check(graph().to_bytes(), GraphKind::GraphDef);
        let file = check(meta().to_bytes(), GraphKind::MetaGraph);
        assert_eq!(file.graphs[0].written_by, "2.21.0");
        let model = proto::SavedModel {
            saved_model_schema_version: 1,
            meta_graphs: vec![meta()],
        };
        let file = check(model.to_bytes(), GraphKind::SavedModel);
        assert_eq!(file.graphs[0].tags, ["serve"]);
        let text =
            "node { name: \"a\" op: \"NoOp\" } node { name: \"b\" op: \"NoOp\" input: \"^a\" }";
        assert!(check(text.into(), GraphKind::GraphDef).text);
        check(
            format!("meta_info_def {{ }} graph_def {{ {text} }}").into(),
            GraphKind::MetaGraph,
        );
        check(
            format!("saved_model_schema_version: 1 meta_graphs {{ graph_def {{ {text} }} }}")
                .into(),
            GraphKind::SavedModel,
        );
    }

    #[test]
    fn other_files_are_no_graphs() {
        for data in [
            &b""[..],
            b"hello",
            b"\x0a\x05hello",
            b"\xff\xfe\x00",
            &[0; 64],
            b"a: 1",
        ] {
            let status = parse(Bytes::from_static(data)).unwrap_err();
            assert_ne!(status.code, Code::ResourceExhausted, "{data:?}");
        }
    }

    #[test]
    fn a_constant_of_a_few_bytes_does_not_fill_memory() {
        let text = r#"node { name: "c" op: "Const" attr { key: "value" value { tensor { dtype: DT_FLOAT
            tensor_shape { dim { size: 1000000000 } } float_val: 1 } } } }"#;
        let status = parse(Bytes::from_static(text.as_bytes())).unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted);
    }

    #[test]
    fn a_million_empty_parts_are_refused_before_they_are_decoded() {
        // A list of ops, each empty: two bytes in the file, hundreds in memory.
        let ops = [0x0a, 0].repeat(17 << 20);
        let (mut list, mut meta) = (Vec::new(), Vec::new());
        downpour_wire::put_bytes(2, &ops, &mut list);
        downpour_wire::put_bytes(1, &list, &mut meta);
        let status = parse(Bytes::from(meta)).unwrap_err();
        assert_eq!(status.code, Code::ResourceExhausted);
    }
}
