//! Shapes of what waits for somebody: queues, barriers, stages, stacks, accumulators, tensor arrays
//! and lookup tables. Old forms are addressed by a pair of strings (`[2]`), new ones by a handle.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, merge, merge_prefix, rest, shape, size};
use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    queues(op)
        .or_else(|| tensor_arrays(op))
        .or_else(|| tables(op))
}

fn queues(op: &str) -> Option<Rule> {
    Some(match op {
        "FIFOQueue"
        | "PaddingFIFOQueue"
        | "PriorityQueue"
        | "RandomShuffleQueue"
        | "FakeQueue"
        | "Barrier"
        | "Stack"
        | "ConditionalAccumulator"
        | "SparseConditionalAccumulator"
        | "ResourceConditionalAccumulator" => Pattern("-> [2]"),
        "FIFOQueueV2" | "PaddingFIFOQueueV2" | "PriorityQueueV2" | "RandomShuffleQueueV2" => {
            Pattern("-> []")
        }
        "StackV2" => Pattern("-> [2]"),
        "QueueClose" | "BarrierClose" | "StackClose" | "StackCloseV2" => Pattern("[2] ->"),
        "QueueCloseV2" | "QueueEnqueue" | "QueueEnqueueV2" | "QueueEnqueueMany"
        | "QueueEnqueueManyV2" => Pattern("->"),
        "QueueSize" | "BarrierReadySize" | "BarrierIncompleteSize" => Pattern("[2] -> []"),
        "QueueSizeV2" => Pattern("S -> S"),
        "QueueIsClosed" | "QueueIsClosedV2" => Pattern("* -> []"),
        "QueueDequeue" | "QueueDequeueV2" => Compute(|c| Ok(elements(c))),
        "QueueDequeueMany" | "QueueDequeueManyV2" => Compute(|c| {
            let n = match c.known_int(1) {
                Some(n) if n < 0 && c.dtype(0) == Some(downpour_tensor::DType::Resource) => {
                    return invalid(format!("Input 'n' must be >= 0, but is {n}"));
                }
                n => n.and_then(|n| usize::try_from(n).ok()),
            };
            let of = shape([n]);
            Ok(elements(c).iter().map(|s| concatenate(&of, s)).collect())
        }),
        "QueueDequeueUpTo" | "QueueDequeueUpToV2" => Compute(|c| {
            let of = shape([None]);
            Ok(elements(c).iter().map(|s| concatenate(&of, s)).collect())
        }),
        "BarrierInsertMany" => Pattern("[2] [n] [n,..] ->"),
        "BarrierTakeMany" => Pattern("->"),
        "StackPush" | "StackPushV2" => Pattern("* S -> S"),
        "StackPop" | "StackPopV2" => Pattern("->"),
        "Stage" | "StageClear" | "MapStage" | "MapClear" | "OrderedMapStage"
        | "OrderedMapClear" => Pattern("->"),
        "StageSize"
        | "MapSize"
        | "MapIncompleteSize"
        | "OrderedMapSize"
        | "OrderedMapIncompleteSize" => Pattern("-> []"),
        "StagePeek"
        | "Unstage"
        | "MapPeek"
        | "MapUnstage"
        | "MapUnstageNoKey"
        | "OrderedMapPeek"
        | "OrderedMapUnstage"
        | "OrderedMapUnstageNoKey"
        | "RecordInput" => Pattern("->"),
        "AccumulatorNumAccumulated" | "ResourceAccumulatorNumAccumulated" => Pattern("* -> []"),
        "AccumulatorSetGlobalStep"
        | "AccumulatorApplyGradient"
        | "SparseAccumulatorApplyGradient"
        | "ResourceAccumulatorSetGlobalStep"
        | "ResourceAccumulatorApplyGradient" => Pattern("* [] ->"),
        "AccumulatorTakeGradient" | "ResourceAccumulatorTakeGradient" => Compute(|c| {
            c.rank(1, 0)?;
            let held = c
                .producer(0)
                .and_then(|n| n.attrs.shape("shape").ok().cloned());
            one(held.unwrap_or_default())
        }),
        "SparseAccumulatorTakeGradient" => Pattern("* [] -> ? ? ?"),
        "GetSessionHandle" | "GetSessionHandleV2" => Pattern("* -> []"),
        "GetSessionTensor" => Pattern("[] -> ?"),
        "DeleteSessionTensor" => Pattern("[] ->"),
        "Batch" => Compute(|c| {
            let inputs = c.range("in_tensors")?;
            let mut out = Shapes::new();
            for i in inputs {
                out.push(concatenate(&shape([None]), &rest(&c.input(i), 1)));
            }
            out.extend([shape([None, Some(3)]), shape([])]);
            Ok(out)
        }),
        "Unbatch" => Pattern("[_,R..] -> [_,R..]"),
        "UnbatchGrad" => Compute(|c| {
            one(match c.input(2).rank() {
                Some(rank) => super::dims::of_rank(rank),
                None => PartialShape::unknown(),
            })
        }),
        _ => return None,
    })
}

/// What a queue's elements are like, if the queue is in the graph and was told.
fn elements(c: &Context<'_>) -> Shapes {
    let unknown = Shapes::from_elem(PartialShape::unknown(), c.num_outputs());
    let Some(queue) = c.producer(0) else {
        return unknown;
    };
    let mut shapes: Shapes = match queue.attrs.shapes("shapes") {
        Ok(shapes) => shapes.iter().cloned().collect(),
        Err(_) => return unknown,
    };
    if queue.op_name().starts_with("PriorityQueue") {
        shapes.insert(0, shape([]));
    }
    match shapes.len() == c.num_outputs() {
        true => shapes,
        false => unknown,
    }
}

fn tensor_arrays(op: &str) -> Option<Rule> {
    Some(match op {
        "TensorArray" => Pattern("-> ?"),
        "TensorArrayV2" => Pattern("[] -> [2]"),
        "TensorArrayV3" => Compute(|c| {
            c.rank(0, 0)?;
            let (dtype, held) = (
                c.attrs().dtype("dtype")?,
                c.attrs().shape("element_shape")?.clone(),
            );
            if held.to_shape().is_some() || c.attrs().bool("identical_element_shapes")? {
                c.set_behind(0, dtype, held);
            }
            Ok(smallvec![shape([Some(2)]), shape([])])
        }),
        "TensorArrayGrad" | "TensorArrayRead" | "TensorArrayWrite" | "TensorArrayPack"
        | "TensorArrayUnpack" | "TensorArrayGather" | "TensorArrayScatter"
        | "TensorArrayConcat" | "TensorArraySplit" | "TensorArraySize" | "TensorArrayClose" => {
            Pattern("->")
        }
        "TensorArrayGradV2" => Pattern("[2] -> [2]"),
        "TensorArrayGradV3" => Compute(|c| {
            c.pass_handle(0, 0);
            super::pattern::apply("[2] -> [2] []", c)
        }),
        "TensorArrayGradWithShape" => Compute(|c| {
            if let Some((dtype, held)) = c.behind(0) {
                let lead = match c.rank(2, 1)?[0] {
                    Some(n) => super::dims::of_rank(n),
                    None => PartialShape::unknown(),
                };
                c.set_behind(0, dtype, concatenate(&lead, &held));
            }
            super::pattern::apply("[2] -> [2] []", c)
        }),
        "TensorArrayReadV2" => Pattern("[2] [] [] -> ?"),
        "TensorArrayReadV3" => Compute(|c| {
            super::pattern::apply("[2] [] [] -> ?", c)?;
            one(c.behind(0).map(|b| b.1).unwrap_or_default())
        }),
        "TensorArrayWriteV2" => Pattern("[2] [] * [] -> []"),
        "TensorArrayWriteV3" => Compute(|c| {
            if let Some((_, held)) = c.behind(0) {
                merge(&held, &c.input(2))?;
            }
            super::pattern::apply("[2] [] * [] -> []", c)
        }),
        "TensorArrayGatherV2" => Pattern("[2] [_] [] -> ?"),
        "TensorArrayGatherV3" => Compute(|c| {
            super::pattern::apply("[2] [_] [] -> ?", c)?;
            let held = match c.behind(0) {
                Some((_, held)) => held,
                None => c.attrs().shape("element_shape")?.clone(),
            };
            one(concatenate(&c.with_rank(1, 1)?, &held))
        }),
        "TensorArrayScatterV2" => Pattern("[2] [_] * [] -> []"),
        "TensorArrayScatterV3" => Compute(|c| {
            let out = super::pattern::apply("[2] [_] * [] -> []", c)?;
            let value = merge_prefix(&c.input(2), &c.with_rank(1, 1)?)?;
            if let Some((_, held)) = c.behind(0) {
                merge(&held, &rest(&value, 1))?;
            }
            Ok(out)
        }),
        "TensorArrayConcatV2" | "TensorArrayConcatV3" => Pattern("[2] [] -> ? [_]"),
        "TensorArraySplitV2" | "TensorArraySplitV3" => Pattern("[2] * [_] [] -> []"),
        "TensorArraySizeV2" | "TensorArraySizeV3" => Pattern("[2] -> []"),
        "TensorArrayCloseV2" | "TensorArrayCloseV3" => Pattern("[2] ->"),
        _ => return None,
    })
}

fn tables(op: &str) -> Option<Rule> {
    Some(match op {
        "HashTable"
        | "MutableHashTable"
        | "MutableHashTableOfTensors"
        | "MutableDenseHashTable" => Pattern("-> [2]"),
        "HashTableV2" | "AnonymousHashTable" => Pattern("-> []"),
        "MutableHashTableV2" | "AnonymousMutableHashTable" => Compute(|c| table(c, shape([]))),
        "MutableHashTableOfTensorsV2"
        | "AnonymousMutableHashTableOfTensors"
        | "MutableDenseHashTableV2"
        | "AnonymousMutableDenseHashTable" => Compute(|c| {
            c.at_most(0, 1)?;
            let value = c.attrs().shape("value_shape")?.clone();
            table(c, value)
        }),
        "InitializeTable" => Pattern("[2] [n] [n] ->"),
        "LookupTableImport" | "LookupTableInsert" => Pattern("[2] ->"),
        "InitializeTableFromTextFile" => Pattern("[2] [] ->"),
        "InitializeTableV2" => Pattern("[] [n] [n] ->"),
        "LookupTableImportV2" => Pattern("[] [n] [n,..] ->"),
        "InitializeTableFromTextFileV2" => Pattern("[] [] ->"),
        "LookupTableInsertV2" => Pattern("[] ->"),
        "LookupTableRemoveV2" => Pattern("[] >=1 ->"),
        "LookupTableSize" => Pattern("[2] -> []"),
        "LookupTableSizeV2" => Pattern("[] -> []"),
        "LookupTableFind" => Pattern("[2] * <=1 -> ?"),
        "LookupTableFindV2" => Compute(|c| {
            c.rank(0, 0)?;
            let Some(table) = c.producer(0) else {
                return one(PartialShape::unknown());
            };
            let keys = c.input(1);
            // A dense table's key may have dimensions of its own: those of the empty key.
            let (lead, value) = match table.op_name() {
                "HashTableV2" | "AnonymousHashTable" => (keys, shape([])),
                "MutableDenseHashTableV2" | "AnonymousMutableDenseHashTable" => {
                    let empty = table.inputs.first().and_then(|e| {
                        let shapes = c.inner.shapes.get(e.node.index())?;
                        shapes.get(e.output as usize)?.rank()
                    });
                    let lead = match (keys.dims(), empty) {
                        (Some(dims), Some(n)) if n <= dims.len() => {
                            shape(dims[..dims.len() - n].iter().copied())
                        }
                        _ => PartialShape::unknown(),
                    };
                    (lead, c.behind(0).map(|b| b.1).unwrap_or_default())
                }
                _ => match c.behind(0) {
                    Some((_, value)) => (keys, value),
                    None => return one(PartialShape::unknown()),
                },
            };
            one(concatenate(&lead, &value))
        }),
        "LookupTableExport" => Pattern("[2] -> [_] ?"),
        "LookupTableExportV2" => Compute(|c| {
            c.rank(0, 0)?;
            let value = c.behind(0).map(|b| b.1).unwrap_or_default();
            Ok(smallvec![
                shape([None]),
                concatenate(&shape([None]), &value)
            ])
        }),
        "GenerateVocabRemapping" => Compute(|c| {
            c.scalars([0, 1])?;
            Ok(smallvec![
                shape([size(c.attrs().int("num_new_vocab")?)?]),
                shape([])
            ])
        }),
        "LoadAndRemapMatrix" => Compute(|c| {
            c.rank(1, 0)?;
            let side = |name: &str| size(c.attrs().int(name)?);
            one(shape([side("num_rows")?, side("num_cols")?]))
        }),
        _ => return None,
    })
}

fn table(c: &mut Context<'_>, value: PartialShape) -> Result<Shapes> {
    let dtype = c.attrs().dtype("value_dtype")?;
    c.set_behind(0, dtype, value);
    one(shape([]))
}
