//! `AutoShardDataset`: the part of a dataset that one of several workers reads. Where files are read, each worker gets
//! files of its own; else each gets every so manieth element.
//!
//! As in TensorFlow the pipeline is rewritten when the op runs: `ShardDataset` is put in front of what reads files,
//! behind any shuffling of their names, or at the end.

use super::dataset::{Dataset, Origin};
use super::graph::{Edit, Writer, finish_with_graph};
use super::select::SHARD_HINT;
use downpour_formats::data_options;
use downpour_graph::{AttrList, AttrValue, Attrs, Code, Functions, Graph, Result, Status};
use downpour_runtime::{AsyncOp, Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;
use std::collections::HashSet;

pub(super) fn register(r: &mut Registry) {
    for op in ["AutoShardDataset", "ExperimentalAutoShardDataset"] {
        r.add(op, auto_shard);
    }
}

/// TensorFlow's numbers of the policies.
const AUTO: i64 = 0;
const FILE: i64 = 1;
const DATA: i64 = 2;
const HINT: i64 = 3;
const OFF: i64 = -1;

fn auto_shard(b: &KernelBuilder<'_>) -> Result<Built> {
    let policy = b.attrs().int("auto_shard_policy")?;
    Built::waiting(move |op| {
        let graph = rewritten(&op, policy);
        match graph {
            Ok(Some(graph)) => finish_with_graph(op, Ok(graph)),
            Ok(None) => {
                let input = op.input(0).cloned();
                op.finish(input.map(|input| vec![input]));
            }
            Err(e) => op.finish(Err(e)),
        }
    })
}

/// The pipeline with its shards; `None` if it stays as it is.
fn rewritten(op: &AsyncOp, policy: i64) -> Result<Option<Graph>> {
    let input = Dataset::from_tensor(op.input(0)?)?;
    let scalar = |i: usize, name: &str| {
        let tensor = op.input(i)?;
        match tensor.shape().is_scalar() {
            true => crate::args::int(tensor),
            false => Err(Status::invalid_argument(format!("{name} must be a scalar"))),
        }
    };
    let workers = scalar(1, "num_workers")?;
    if workers <= 0 {
        return Err(Status::invalid_argument(
            "num_workers must be greater than zero.",
        ));
    }
    let index = scalar(2, "index")?;
    if !(0..workers).contains(&index) {
        return Err(Status::invalid_argument(format!(
            "index must be between 0 and {}",
            workers - 1
        )));
    }
    let policy = match policy_of_options(input) {
        None | Some(AUTO) => policy,
        Some(policy) => policy,
    };
    let mut edit = Shards {
        workers,
        index,
        files: HashSet::new(),
        hints: policy == HINT,
    };
    let mut at_end = policy == DATA;
    match policy {
        OFF => return Ok(None),
        HINT | DATA => {}
        FILE => find_readers(input, &mut edit.files)?,
        AUTO => {
            // What was found before the search failed keeps its shard, as in TensorFlow.
            match find_readers(input, &mut edit.files) {
                Err(e) if e.code == Code::NotFound => at_end = true,
                found => found?,
            }
        }
        _ => {
            return Err(Status::invalid_argument("auto_shard_policy is invalid."));
        }
    }
    let mut writer = Writer::editing(&op.env().device, &edit);
    let mut root = writer.dataset(input)?;
    if at_end {
        root = edit.shard(&mut writer, input, root, false)?;
    }
    Graph::new(writer.finish(root)).map(Some)
}

/// The policy that the pipeline's last options set.
fn policy_of_options(dataset: &Dataset) -> Option<i64> {
    let mut at = dataset.clone();
    loop {
        let node = &at.origin()?.node;
        if node.op_name() == "OptionsDataset" {
            let options = node.attrs.bytes("serialized_options").ok()?;
            if let Some(policy) = data_options::auto_shard_policy(options) {
                return Some(policy);
            }
        }
        at = at.inputs().first()?.clone();
    }
}

/// What is put into the pipeline.
struct Shards {
    workers: i64,
    index: i64,
    /// Datasets that read the files which their first input names, by identity.
    files: HashSet<usize>,
    /// Whether shards that say so are to get their numbers.
    hints: bool,
}

impl Edit for Shards {
    fn inputs(
        &self,
        writer: &mut Writer<'_>,
        dataset: &Dataset,
        mut names: Vec<String>,
    ) -> Result<Vec<String>> {
        let Some(origin) = dataset.origin() else {
            return Ok(names);
        };
        if self.files.contains(&dataset.identity())
            && let (Some(first), Some(name)) = (dataset.inputs().first(), names.first_mut())
        {
            *name = self.before_shuffles(writer, first)?;
        }
        let is_hint = |t: &Tensor| t.as_slice::<i64>().is_ok_and(|v| v == [SHARD_HINT]);
        if self.hints
            && origin.node.op_name() == "ShardDataset"
            && origin.inputs.get(1).is_some_and(is_hint)
        {
            for (name, value) in names.iter_mut().skip(1).zip([self.workers, self.index]) {
                *name = writer.input(&Tensor::scalar(value))?;
            }
        }
        Ok(names)
    }
}

impl Shards {
    /// A node that gives this worker's part of what node `name`, which makes `dataset`, gives.
    fn shard(
        &self,
        writer: &mut Writer<'_>,
        dataset: &Dataset,
        name: String,
        non_empty: bool,
    ) -> Result<String> {
        let mut attrs = Attrs::default();
        let spec = dataset.spec();
        let types = AttrList::Type(spec.types.clone());
        let shapes = AttrList::Shape(spec.shapes.clone());
        attrs.set("output_types", AttrValue::List(types));
        attrs.set("output_shapes", AttrValue::List(shapes));
        attrs.set("require_non_empty", non_empty);
        let workers = writer.input(&Tensor::scalar(self.workers))?;
        let index = writer.input(&Tensor::scalar(self.index))?;
        Ok(writer.node("ShardDataset", vec![name, workers, index], attrs))
    }

    /// This worker's files; names are shuffled after they are dealt out, not before.
    fn before_shuffles(&self, writer: &mut Writer<'_>, dataset: &Dataset) -> Result<String> {
        match (dataset.origin(), dataset.inputs().first()) {
            (Some(origin), Some(below)) if is(origin, &["ShuffleDataset"]) => {
                let mut names = vec![self.before_shuffles(writer, below)?];
                for tensor in origin.inputs.iter().skip(1) {
                    names.push(writer.input(tensor)?);
                }
                let attrs = origin.node.attrs.clone();
                Ok(writer.node(origin.node.op_name(), names, attrs))
            }
            _ => {
                let name = writer.dataset(dataset)?;
                self.shard(writer, dataset, name, true)
            }
        }
    }
}

const READERS: &[&str] = &[
    "ArrayRecordDataset",
    "FixedLengthRecordDataset",
    "RecordIODataset",
    "SSTableDataset",
    "TextLineDataset",
    "TFRecordDataset",
];
const WITH_FUNCTION: &[&str] = &[
    "ExperimentalParallelInterleaveDataset",
    "FlatMapDataset",
    "InterleaveDataset",
    "LegacyParallelInterleaveDataset",
    "ParallelInterleaveDataset",
];
const UNSHARDABLE: &[&str] = &[
    "GeneratorDataset",
    "RangeDataset",
    "SparseTensorsSliceDataset",
    "TensorDataset",
    "TensorSliceDataset",
];

/// Whether a dataset was made by one of these ops, of any version.
fn is(origin: &Origin, ops: &[&str]) -> bool {
    is_op(origin.node.op_name(), ops)
}

fn is_op(op: &str, ops: &[&str]) -> bool {
    let plain = match op.rsplit_once('V') {
        Some((name, version)) if version.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => op,
    };
    ops.contains(&plain)
}

/// Collects the datasets that read files named by a dataset; NOT_FOUND if elements come from elsewhere.
fn find_readers(dataset: &Dataset, found: &mut HashSet<usize>) -> Result<()> {
    let unshardable = || {
        Status::not_found(format!(
            "Found an unshardable source dataset: {}Dataset",
            dataset.kind()
        ))
    };
    let origin = dataset.origin().ok_or_else(unshardable)?;
    if is(origin, UNSHARDABLE) {
        return Err(unshardable());
    }
    if is(origin, &["ConcatenateDataset", "ZipDataset"]) {
        for input in dataset.inputs() {
            find_readers(input, found)?;
        }
        return Ok(());
    }
    let reads_files = is(origin, WITH_FUNCTION) && has_reader(origin)?;
    if reads_files || is(origin, READERS) {
        if dataset.inputs().is_empty() {
            return Err(Status::not_found(
                "Unable to shard this input. You may need to wrap the inputs to your reader dataset in a TensorSliceDataset. Input node is a tensor",
            ));
        }
        found.insert(dataset.identity());
        return Ok(());
    }
    match dataset.inputs().first() {
        Some(input) => find_readers(input, found),
        None => Err(unshardable()),
    }
}

/// Whether the function of a dataset reads files.
fn has_reader(origin: &Origin) -> Result<bool> {
    let Some(library) = &origin.functions else {
        return Ok(false);
    };
    let definitions = library.definitions();
    let name = &origin.node.attrs.func("f")?.name;
    Ok(function_has_reader(&definitions, name, &mut HashSet::new()))
}

fn function_has_reader(all: &Functions, name: &str, seen: &mut HashSet<String>) -> bool {
    let Some(function) = all.find(name).filter(|_| seen.insert(name.to_owned())) else {
        return false;
    };
    function.nodes.iter().any(|node| {
        let below = || node.attrs.func("f").ok().map(|f| f.name.clone());
        is_op(&node.op, READERS)
            || is_op(&node.op, WITH_FUNCTION)
                && below().is_some_and(|f| function_has_reader(all, &f, seen))
    })
}

#[cfg(test)]
mod tests {
    use super::is_op;

    #[test]
    fn versions_of_an_op_count_as_one() {
        assert!(is_op("TFRecordDatasetV2", &["TFRecordDataset"]));
        assert!(is_op("TFRecordDataset", &["TFRecordDataset"]));
        assert!(!is_op("TFRecordDatasetVx", &["TFRecordDataset"]));
        assert!(!is_op("RangeDataset", &["TFRecordDataset"]));
    }
}
