//! `downpour inspect graph`: what a graph is made of, and a drawing of it. The graph may stand in any file that
//! holds one; `formats` says which it is.

mod dot;
mod layout;
mod scopes;
mod summary;
mod svg;

use super::output::Output;
use super::unreadable;
use crate::refusal::Found;
use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use downpour_formats::event::EventReader;
use downpour_formats::graph_file::{self, FileGraph, GraphFile};
use downpour_formats::{Files, Storage};
use downpour_graph::{Code, NodeDef};
use downpour_wire::proto::event::What;
use scopes::View;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Shown below the flags.
pub(super) const EXAMPLES: &str = "\
PATH holds a GraphDef, a MetaGraphDef (model.ckpt-100.meta), a SavedModel (or its directory), binary or text, or is an event file.

  downpour inspect graph logs/graph.pbtxt                  ops, devices, variables and their bytes
  downpour inspect graph logs/graph.pbtxt --svg graph.svg  a drawing by name scopes, as deep as it stays readable
  downpour inspect graph model.meta --dot - | dot -Tpdf    the same for Graphviz
  downpour inspect graph model --function train_step       what a function of TensorFlow 2 does";

/// Flags of `downpour inspect graph`.
#[derive(Args)]
pub(crate) struct Graph {
    /// A file, the directory of a SavedModel or of a training, or several event files: the newest that holds a graph
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// Write a drawing to this file; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    svg: Option<PathBuf>,

    /// Write it in Graphviz's language to this file; - for standard output
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "svg"])]
    dot: Option<PathBuf>,

    /// How many levels of name scopes a drawing opens [default: as many as stay readable]
    #[arg(long, value_name = "N")]
    depth: Option<usize>,

    /// Only what is in this name scope
    #[arg(long, value_name = "NAME")]
    scope: Option<String>,

    /// The body of this function instead of the graph itself
    #[arg(long, value_name = "NAME")]
    function: Option<String>,

    /// How many ops, devices and variables to list; 0 for all
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: usize,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Graph {
    pub(super) fn run(self) -> Result<ExitCode> {
        let path = match &self.paths[..] {
            [path] => find(path)?,
            several => newest(several)?,
        };
        let (kind, file) = load(&path)?;
        if self.svg.is_some() || self.dot.is_some() {
            self.draw(&file)?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut out = Output::new();
        let mut all = Vec::new();
        for (i, graph) in file.graphs.iter().enumerate() {
            let nodes = self.nodes(graph)?;
            let summary = summary::Summary::of(graph, &nodes);
            match self.json {
                true => all.push(summary.json(graph)),
                false => {
                    if i > 0 {
                        out.line("")?;
                    }
                    summary.print(&path, &kind, graph, self.limit, &mut out)?;
                }
            }
        }
        if self.json {
            out.json(&json!({"path": path, "kind": kind, "text": file.text, "graphs": all}))?;
        }
        out.finish()?;
        Ok(ExitCode::SUCCESS)
    }

    /// The nodes that are asked for.
    fn nodes<'a>(&self, graph: &'a FileGraph) -> Result<Vec<&'a NodeDef>> {
        let all = match &self.function {
            None => &graph.graph.nodes,
            Some(name) => {
                let functions = &graph.graph.functions;
                // TensorFlow 2 puts a number behind the name that the user gave.
                let exact = functions.iter().find(|f| f.signature.name == *name);
                let found = exact.or_else(|| {
                    functions
                        .iter()
                        .find(|f| f.signature.name.contains(name.as_str()))
                });
                match found {
                    Some(function) => &function.nodes,
                    None => {
                        let names = functions.iter().take(5).map(|f| f.signature.name.as_str());
                        let names: Vec<&str> = names.collect();
                        bail!(
                            "there is no function '{name}'; of {} there are {}",
                            functions.len(),
                            names.join(", ")
                        );
                    }
                }
            }
        };
        let inside = |node: &&NodeDef| match &self.scope {
            None => true,
            Some(scope) => {
                let scope = scope.trim_end_matches('/');
                let rest = node.name.strip_prefix(scope);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        };
        let nodes: Vec<&NodeDef> = all.iter().filter(inside).collect();
        if let (Some(scope), true) = (&self.scope, nodes.is_empty()) {
            bail!("no node is in the name scope '{scope}'; leave --scope out to see what there is");
        }
        Ok(nodes)
    }

    fn draw(&self, file: &GraphFile) -> Result<()> {
        let graph = file
            .graphs
            .first()
            .ok_or_else(|| anyhow!("the file holds no graph"))?;
        let nodes = self.nodes(graph)?;
        let view = View::new(&nodes, self.depth)?;
        let (target, text) = match (&self.svg, &self.dot) {
            (Some(target), _) => (target, svg::render(&view)),
            (_, Some(target)) => (target, dot::render(&view)),
            _ => return Ok(()),
        };
        if target.as_os_str() == "-" {
            let mut out = Output::new();
            out.raw(&text)?;
            return out.finish();
        }
        std::fs::write(target, text)
            .with_context(|| format!("cannot write '{}'", target.display()))?;
        let mut out = Output::new();
        out.line(&format!(
            "{}: {} boxes for {} nodes",
            target.display(),
            view.boxes(),
            nodes.len()
        ))?;
        out.finish()
    }
}

/// The file that a path means.
fn find(path: &Path) -> Result<String> {
    let text = |p: &Path| {
        let text = p.to_str().map(str::to_owned);
        text.ok_or_else(|| anyhow!("'{}' is not UTF-8", p.display()))
    };
    if !Files::new().is_dir(&text(path)?) {
        return text(path);
    }
    for name in [
        "saved_model.pb",
        "saved_model.pbtxt",
        "graph.pbtxt",
        "graph.pb",
    ] {
        let file = path.join(name);
        if Files::new().is_file(&text(&file)?) {
            return text(&file);
        }
    }
    let folder = text(path)?;
    let names = Files::new()
        .list(&folder)
        .map_err(|e| unreadable(&folder, &e))?;
    let is_events = |p: &PathBuf| {
        let name = p.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.contains(".tfevents."))
    };
    let events = names.iter().map(|name| path.join(name));
    let events: Vec<PathBuf> = events.filter(is_events).collect();
    match events.is_empty() {
        true => bail!(
            "{} holds neither saved_model.pb nor graph.pbtxt nor event files; give the file itself",
            path.display()
        ),
        false => newest(&events),
    }
}

/// The newest of several event files that holds a graph.
fn newest(paths: &[PathBuf]) -> Result<String> {
    let storage = Files::new();
    let mut paths: Vec<&PathBuf> = paths.iter().collect();
    // Their names begin with the time at which they were made.
    paths.sort_by(|a, b| a.file_name().cmp(&b.file_name()));
    let mut why = None;
    for path in paths.iter().rev() {
        let path = path.to_str();
        let path = path.ok_or_else(|| anyhow!("a path is not UTF-8"))?;
        match from_events(&storage, path) {
            Ok(_) => return Ok(path.to_owned()),
            Err(e) => why = why.or(Some(e)),
        }
    }
    Err(why.unwrap_or_else(|| anyhow!("no file was given")))
}

/// Reads the graph of a file, whatever kind it is.
fn load(path: &str) -> Result<(String, GraphFile)> {
    let storage = Files::new();
    let file = storage.open(path).map_err(|e| unreadable(path, &e))?;
    let mut head = [0; 12];
    let n = file
        .read_at(0, &mut head)
        .map_err(|e| unreadable(path, &e))?;
    drop(file);
    if n == head.len() && is_framed(&head) {
        let file = from_events(&storage, path)?;
        return Ok(("event file".to_owned(), file));
    }
    let file = graph_file::read(&storage, path).map_err(|e| match e.code {
        Code::DataLoss | Code::InvalidArgument => {
            let kind = match &head {
                [0x1f, 0x8b, ..] => " (it is compressed: unpack it first)",
                _ => "",
            };
            anyhow!("{path} holds no graph: {}{kind}; what does? GraphDef, MetaGraphDef (.meta), SavedModel and event files", e.message)
        }
        _ => unreadable(path, &e),
    })?;
    Ok((file.kind.name().to_owned(), file))
}

/// Whether a file begins with the length of a record and its checksum.
fn is_framed(head: &[u8; 12]) -> bool {
    let (length, crc) = head.split_at(8);
    crc == downpour_formats::crc32c::masked(length).to_le_bytes()
}

/// The last graph in an event file.
fn from_events(storage: &Files, path: &str) -> Result<GraphFile> {
    let mut reader = EventReader::open(storage, path).map_err(|e| unreadable(path, &e))?;
    let (mut graph, mut meta) = (None, None);
    loop {
        let event = match reader.read() {
            Ok(Some(event)) => event,
            Ok(None) => break,
            // What came before the damage may hold the graph.
            Err(_) if graph.is_some() => break,
            Err(e) => return Err(Found(format!("{path}: {}", e.message)).into()),
        };
        match event.what {
            Some(What::GraphDef(bytes)) => graph = Some(bytes),
            Some(What::MetaGraphDef(bytes)) => meta = Some(bytes),
            _ => {}
        }
    }
    let Some(bytes) = graph.or(meta) else {
        bail!(
            "{path} is a file of events or records without a graph; see `downpour inspect events`"
        );
    };
    graph_file::parse(bytes)
        .map_err(|e| Found(format!("the graph in {path}: {}", e.message)).into())
}
