//! Shapes of datasets and iterators: a dataset is a scalar, an element has the shapes that
//! `output_shapes` lists.

use super::Rule::{self, Compute, Pattern};
use super::dims::shape;
use super::{Context, Shapes, invalid};
use downpour_graph::Result;
use downpour_tensor::PartialShape;

pub(super) fn rule(op: &str) -> Option<Rule> {
    let new = op.strip_prefix("Experimental").unwrap_or(op);
    elements(new)
        .or_else(|| sources(new))
        .or_else(|| transformations(new))
}

fn elements(op: &str) -> Option<Rule> {
    Some(match op {
        "IteratorGetNext"
        | "IteratorGetNextSync"
        | "DatasetToSingleElement"
        | "ReduceDataset"
        | "OptionalGetValue"
        | "MultiDeviceIteratorGetNextFromShard" => Compute(listed),
        "MapDefun" => Compute(map_defun),
        "Iterator"
        | "IteratorV2"
        | "OneShotIterator"
        | "IteratorFromStringHandle"
        | "IteratorFromStringHandleV2"
        | "IteratorToStringHandle"
        | "IteratorGetNextAsOptional"
        | "IteratorGetDevice"
        | "AnonymousIterator"
        | "AnonymousIteratorV3"
        | "MultiDeviceIterator"
        | "MultiDeviceIteratorInit"
        | "MultiDeviceIteratorToStringHandle"
        | "MultiDeviceIteratorFromStringHandle"
        | "AnonymousMultiDeviceIteratorV3"
        | "OptionalFromValue"
        | "OptionalNone"
        | "OptionalHasValue"
        | "DatasetCardinality"
        | "DatasetToGraph"
        | "DatasetToGraphV2"
        | "DatasetFromGraph"
        | "WrapDatasetVariant"
        | "UnwrapDatasetVariant"
        | "AnonymousSeedGenerator"
        | "DummySeedGenerator"
        | "DummyMemoryCache" => Pattern("-> []"),
        "SerializeIterator" => Pattern("-> [_]"),
        "AnonymousIteratorV2"
        | "AnonymousMemoryCache"
        | "AnonymousRandomSeedGenerator"
        | "AnonymousMultiDeviceIterator" => Pattern("-> [] []"),
        "MakeIterator"
        | "DeleteIterator"
        | "DeserializeIterator"
        | "DeleteMemoryCache"
        | "DeleteRandomSeedGenerator"
        | "DeleteSeedGenerator"
        | "DeleteMultiDeviceIterator"
        | "DatasetToTFRecord" => Pattern("->"),
        _ => return None,
    })
}

fn sources(op: &str) -> Option<Rule> {
    Some(match op {
        "TensorDataset"
        | "TensorSliceDataset"
        | "SparseTensorSliceDataset"
        | "GeneratorDataset" => Pattern("-> []"),
        "RangeDataset" => Pattern("[] [] [] -> []"),
        "RandomDataset" => Pattern("[] [] -> []"),
        "RandomDatasetV2" => Pattern("[] [] -> []"),
        "TextLineDataset" | "TFRecordDataset" | "TFRecordDatasetV2" => Pattern("<=1 [] [] -> []"),
        "FixedLengthRecordDataset" => Pattern("<=1 [] [] [] [] -> []"),
        "FixedLengthRecordDatasetV2" => Pattern("<=1 [] [] [] [] [] -> []"),
        "MatchingFilesDataset" => Pattern("<=1 -> []"),
        "CSVDataset" | "CSVDatasetV2" => Compute(csv),
        _ => return None,
    })
}

fn transformations(op: &str) -> Option<Rule> {
    Some(match op {
        "ZipDataset"
        | "ConcatenateDataset"
        | "MapDataset"
        | "ParallelMapDataset"
        | "ParallelMapDatasetV2"
        | "FlatMapDataset"
        | "InterleaveDataset"
        | "ParallelInterleaveDataset"
        | "ParallelInterleaveDatasetV2"
        | "ParallelInterleaveDatasetV3"
        | "ParallelInterleaveDatasetV4"
        | "LegacyParallelInterleaveDatasetV2"
        | "FilterDataset"
        | "ParallelFilterDataset"
        | "FilterByLastComponentDataset"
        | "ScanDataset"
        | "TakeWhileDataset"
        | "UniqueDataset"
        | "UnbatchDataset"
        | "GroupByReducerDataset"
        | "GroupByWindowDataset"
        | "DirectedInterleaveDataset"
        | "IgnoreErrorsDataset"
        | "MaxIntraOpParallelismDataset"
        | "PrivateThreadPoolDataset"
        | "NonSerializableDataset"
        | "ParseExampleDataset"
        | "ParseExampleDatasetV2"
        | "ModelDataset"
        | "OptimizeDataset"
        | "OptimizeDatasetV2"
        | "OptionsDataset"
        | "FinalizeDataset"
        | "ParallelBatchDataset"
        | "RewriteDataset"
        | "RebatchDatasetV2" => Pattern("-> []"),
        "RepeatDataset"
        | "SkipDataset"
        | "TakeDataset"
        | "BatchDataset"
        | "PaddedBatchDataset"
        | "PrefetchDataset"
        | "CacheDataset"
        | "AssertCardinalityDataset" => Pattern("* [] -> []"),
        "ShardDataset" | "BatchDatasetV2" | "ShuffleDatasetV2" | "CacheDatasetV2" => {
            Pattern("* [] [] -> []")
        }
        "ShuffleDataset" | "SamplingDataset" | "SlidingWindowDataset" => {
            Pattern("* [] [] [] -> []")
        }
        "ShuffleDatasetV3" => Pattern("* [] [] [] [] -> []"),
        "ShuffleAndRepeatDataset" => Pattern("* [] [] [] [] -> []"),
        "ShuffleAndRepeatDatasetV2" => Pattern("* [] [] [] [] [] -> []"),
        "WindowDataset" => Pattern("* [] [] [] [] -> []"),
        "PaddedBatchDatasetV2" => Compute(|c| {
            let last = c.num_inputs().saturating_sub(1);
            c.scalars([1, last])?;
            Ok(std::iter::once(shape([])).collect())
        }),
        "MapAndBatchDataset" => Compute(|c| {
            let n = c.num_inputs();
            c.scalars(n.saturating_sub(3)..n)?;
            Ok(std::iter::once(shape([])).collect())
        }),
        "DenseToSparseBatchDataset" => Pattern("* [] [_] -> []"),
        "AssertNextDataset" => Pattern("* [_] -> []"),
        _ => return None,
    })
}

/// The attribute `output_shapes`: one shape for each output.
fn listed(c: &mut Context<'_>) -> Result<Shapes> {
    if c.attrs().find("Targuments").is_none() {
        c.rank(0, 0)?;
    }
    let given = c.attrs().shapes("output_shapes")?;
    if given.len() != c.num_outputs() {
        return invalid(format!(
            "`output_shapes` must be the same length as `output_types` ({} vs. {})",
            given.len(),
            c.num_outputs()
        ));
    }
    Ok(given.iter().cloned().collect())
}

fn map_defun(c: &mut Context<'_>) -> Result<Shapes> {
    let mut rows = None;
    for i in c.range("arguments")? {
        let Some(first) = c.input(i).dims().map(|d| d.first().copied()) else {
            continue;
        };
        let Some(first) = first else {
            return invalid(format!(
                "Arguments must have rank at least 1. Input {i} has rank of 0."
            ));
        };
        rows = super::dims::merge_dims(rows, first)?;
    }
    let each = listed(c)?;
    let lead: PartialShape = shape([rows]);
    Ok(each
        .iter()
        .map(|s| super::dims::concatenate(&lead, s))
        .collect())
}

fn csv(c: &mut Context<'_>) -> Result<Shapes> {
    c.at_most(0, 1)?;
    c.scalars(1..7)?;
    c.rank(7, 1)?;
    let defaults = c.range("record_defaults")?;
    for i in defaults {
        c.at_most(i, 1)?;
        if matches!(c.input(i).dims(), Some([Some(n)]) if *n > 1) {
            return invalid(
                "Shape of a default must be a length-0 or length-1 vector, or a scalar.",
            );
        }
    }
    Ok(std::iter::once(shape([])).collect())
}
