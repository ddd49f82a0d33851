//! Answers `graphs.py`, `flow.py`, `optimizers.py`, `layers.py` and `metas.py`, one request after the other on standard input: which shapes
//! the builder infers for a graph's tensors, the graph with gradients added, example graphs. A
//! request and an answer are each a length and JSON, a length and a serialized GraphDef
//! (little-endian u32 lengths).

mod examples;
mod layers;
mod meta;
mod training;

use anyhow::{Context as _, Result};
use downpour_build::{Gradient, Graph, Output, gradients_from};
use downpour_wire::{Budget, Meter, decode_graph, encode_graph_def, proto};
use prost::Message;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{Read, Write};

/// What is asked of the graph that comes with it.
#[derive(Deserialize)]
#[serde(rename_all = "lowercase", tag = "ask")]
enum Request {
    /// The shapes of all tensors.
    Shapes,
    /// Gradients of `ys`, from `dys`, with respect to `xs`; if `again` is not empty, the
    /// gradients of those that there are, from `again`, with respect to `xs`.
    Gradients {
        ys: Vec<String>,
        xs: Vec<String>,
        dys: Vec<String>,
        again: Vec<String>,
    },
    /// The names of the example graphs.
    Examples,
    /// An example graph.
    Example { name: String, gradients: bool },
    /// A model with its optimizer.
    Training(training::Training),
    /// The same, written to a file as a meta graph.
    Export(meta::Export),
    /// A meta graph's file, read, imported and written again.
    Import(meta::Import),
    /// A layer, or losses, metrics, initializers.
    Layer(layers::Layer),
}

/// The answer; the graph behind it holds what was added.
#[derive(Serialize, Default)]
struct Answer {
    error: Option<String>,
    /// Tensor → dimensions, -1 for unknown ones; `null` if not even the rank is known.
    shapes: BTreeMap<String, Option<Vec<i64>>>,
    /// For each of the `xs`: `null`, the name of a dense gradient, or of values, indices and shape.
    gradients: Vec<Option<Vec<String>>>,
    /// Names of examples.
    examples: Vec<String>,
    /// Of an example: what to feed, to run, and with respect to what gradients are.
    feeds: Vec<String>,
    fetches: Vec<String>,
    xs: Vec<String>,
    /// Of a model with its optimizer.
    training: Option<training::Trained>,
    /// Of a meta graph.
    meta: Option<meta::Found>,
    /// Of a layer.
    layer: Option<layers::Built>,
}

fn main() -> Result<()> {
    let (mut input, mut output) = (std::io::stdin().lock(), std::io::stdout().lock());
    while let Some(request) = read(&mut input)? {
        let graph = read(&mut input)?.context("a request without its graph")?;
        let (answer, graph) = answer(&request, &graph).unwrap_or_else(|e| {
            let error = Some(format!("{e:#}"));
            (
                Answer {
                    error,
                    ..Default::default()
                },
                Vec::new(),
            )
        });
        write(&mut output, &serde_json::to_vec(&answer)?)?;
        write(&mut output, &graph)?;
        output.flush()?;
    }
    Ok(())
}

fn answer(request: &[u8], graph: &[u8]) -> Result<(Answer, Vec<u8>)> {
    let request: Request = serde_json::from_slice(request)?;
    let proto = proto::GraphDef::decode(graph)?;
    let mut meter = Meter::from(&Budget::default());
    let def = decode_graph(proto, &mut meter)?;
    let g = Graph::new();
    g.import(&def)?;
    let mut answer = Answer::default();
    match request {
        Request::Training(asked) => {
            answer.training = Some(training::build(&g, &asked)?);
            let def = encode_graph_def(&g.to_graph_def()?)?;
            Ok((answer, def.encode_to_vec()))
        }
        Request::Export(asked) => {
            answer.training = Some(meta::export(&g, &asked)?);
            Ok((answer, Vec::new()))
        }
        Request::Import(asked) => {
            answer.meta = Some(meta::import(&g, &asked)?);
            Ok((answer, Vec::new()))
        }
        Request::Layer(asked) => {
            answer.layer = Some(layers::build(&g, &asked)?);
            let def = encode_graph_def(&g.to_graph_def()?)?;
            Ok((answer, def.encode_to_vec()))
        }
        Request::Shapes => {
            for output in g.operations().iter().flat_map(|o| o.outputs()) {
                let shape = output.shape();
                let dims = shape
                    .dims()
                    .map(|dims| dims.iter().map(|d| d.map_or(-1, |d| d as i64)).collect());
                answer.shapes.insert(output.name(), dims);
            }
            Ok((answer, Vec::new()))
        }
        Request::Gradients { ys, xs, dys, again } => {
            let find = |names: &[String]| -> Result<Vec<Output>> {
                names.iter().map(|name| Ok(g.output(name)?)).collect()
            };
            let (ys, xs, again) = (find(&ys)?, find(&xs)?, find(&again)?);
            let dys: Vec<_> = find(&dys)?.into_iter().map(|d| Some(d.into())).collect();
            let mut found = gradients_from(&ys, &dys, &xs)?;
            if !again.is_empty() {
                let pairs = found.iter().zip(again);
                let (ys, dys): (Vec<Output>, Vec<_>) = pairs
                    .filter_map(|(y, dy)| Some((y.as_ref()?.to_dense(), Some(dy.into()))))
                    .unzip();
                found = gradients_from(&ys, &dys, &xs)?;
            }
            answer.gradients = found.into_iter().map(|g| g.map(names)).collect();
            let def = encode_graph_def(&g.to_graph_def()?)?;
            Ok((answer, def.encode_to_vec()))
        }
        Request::Examples => {
            answer.examples = examples::ALL.iter().map(|e| e.0.to_owned()).collect();
            Ok((answer, Vec::new()))
        }
        Request::Example { name, gradients } => {
            let (example, found) = examples::build(&name, &g, gradients)?;
            let all = |outputs: Vec<Output>| outputs.iter().map(Output::name).collect();
            answer.gradients = found.into_iter().map(|g| g.map(names)).collect();
            answer.feeds = all(example.feeds);
            answer.fetches = all(example.fetches);
            answer.xs = all(example.xs);
            let def = encode_graph_def(&g.to_graph_def()?)?;
            Ok((answer, def.encode_to_vec()))
        }
    }
}

/// Names of the tensors that a gradient is made of.
fn names(gradient: Gradient) -> Vec<String> {
    match gradient {
        Gradient::Dense(output) => vec![output.name()],
        Gradient::Sparse(s) => vec![s.values.name(), s.indices.name(), s.shape.name()],
    }
}

/// The next piece; nothing at the end.
fn read(input: &mut impl Read) -> Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    if input.read(&mut length[..1])? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut length[1..])?;
    let mut piece = vec![0; u32::from_le_bytes(length) as usize];
    input.read_exact(&mut piece)?;
    Ok(Some(piece))
}

fn write(output: &mut impl Write, piece: &[u8]) -> Result<()> {
    output.write_all(&u32::try_from(piece.len())?.to_le_bytes())?;
    output.write_all(piece)?;
    Ok(())
}
