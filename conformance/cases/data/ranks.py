"""Options of dataset ops that should be scalars and are vectors, matrices or empty; vectors that should be vectors."""
from tensorflow.python.framework import op_def_registry

from registry import case, inp, raw, steps, tf

I, L, S = tf.int32, tf.int64, tf.string
OPS = """AssertCardinalityDataset BatchDataset BatchDatasetV2 CacheDataset DenseToSparseBatchDataset FixedLengthRecordDataset FixedLengthRecordDatasetV2 MaxIntraOpParallelismDataset
PaddedBatchDataset PaddedBatchDatasetV2 ParallelBatchDataset PrefetchDataset PrivateThreadPoolDataset RandomDataset RangeDataset RebatchDatasetV2 RepeatDataset SamplingDataset
ShardDataset ShuffleAndRepeatDataset ShuffleDataset SkipDataset SlidingWindowDataset TFRecordDataset TakeDataset TextLineDataset WindowDataset
MatchingFilesDataset CSVDataset AssertNextDataset OptimizeDataset""".split()
VALUES = dict(cardinality=5, count=3, step=1, start=0, stop=5, rate=0.5, index=0, num_shards=2, num_workers=1, compression_type="", filename="", tag="t", batch_sizes=[2, 3], row_shape=[], filenames=["missing"],
              patterns=["missing"], field_delim=",", na_value="", select_cols=[], transformations=[], optimizations=[], header_bytes=0, footer_bytes=0, stride=1, shift=1, window_shift=1, window_stride=1, seed=3, seed2=4,
              sleep_microseconds=1)
VECTORS = ("batch_sizes", "row_shape", "filenames", "patterns", "select_cols", "transformations", "optimizations", "byte_offsets")


def build(op, odd, shape):
    """The op with one option of another shape, made into an iterator."""
    definition, args = op_def_registry.get(op), {}
    for a in definition.input_arg:
        if a.name == "input_dataset":
            args[a.name] = raw.RangeDataset(start=inp(0, L), stop=inp(5, L), step=inp(1, L), output_types=[L], output_shapes=[[]])
        elif a.name == "padded_shapes":
            args[a.name] = [inp([], L)]
        elif a.name == "padding_values":
            args[a.name] = [inp(0, L)]
        elif a.name == "record_defaults":
            args[a.name] = [inp(0.0)]
        else:
            dtype = tf.as_dtype(a.type)
            value = VALUES.get(a.name, {tf.int64: 2, tf.bool: False, tf.float32: 0.5, tf.string: ""}[dtype])
            if a.name == odd:
                one = value[0] if isinstance(value, list) and value else 0 if isinstance(value, list) and dtype != S else b"" if isinstance(value, list) else value
                value = {"vector": [one], "two": [one, one], "matrix": [[one]], "empty": [], "scalar": one}[shape]
            args[a.name] = inp(value, dtype)
    types = [S] if op.startswith(("Text", "TFRec", "FixedL", "Matching")) else [tf.float32] if op == "CSVDataset" else [L, L, L] if op.startswith("DenseTo") else [L]
    if any(a.name == "output_types" for a in definition.attr) and op != "CSVDataset":
        args["output_types"] = types
    if op == "DenseToSparseBatchDataset" or "PaddedBatch" in op or op == "WindowDataset":
        args["output_types"] = [tf.variant] if op != "PaddedBatchDataset" and "Padded" not in op else None
    if args.get("output_types", 0) is None:
        del args["output_types"]
    if any(a.name == "output_shapes" for a in definition.attr):
        args["output_shapes"] = [None] * len(args.get("output_types") or types)
    dataset = getattr(raw, op)(**args)
    types = args.get("output_types") or types
    it = raw.IteratorV2(shared_name="", container="", output_types=types, output_shapes=[None] * len(types))
    return steps(raw.MakeIterator(dataset=dataset, iterator=it))


for op in OPS:
    for a in op_def_registry.get(op).input_arg:
        if a.type and tf.as_dtype(a.type) != tf.variant and a.name not in ("padded_shapes",):
            # TensorFlow itself fails to describe the old reader of fixed records.
            for shape in ("matrix",) if op == "FixedLengthRecordDataset" and a.name == "filenames" else ("scalar", "matrix") if a.name in VECTORS else ("vector", "two", "matrix", "empty"):
                case("%s/%s_%s" % (op, a.name, shape), lambda op=op, name=a.name, shape=shape: build(op, name, shape))


def rebatched(sizes, rows, drop, n=4):
    """Batches cut anew, element by element; without rows the elements are scalars, which cannot be cut."""
    source = raw.TensorSliceDataset(components=[inp(rows, L)], output_shapes=[None if isinstance(rows[0], list) else []])
    dataset = raw.RebatchDatasetV2(input_dataset=source, batch_sizes=inp(sizes, L), drop_remainder=inp(drop, tf.bool), output_types=[L], output_shapes=[None])
    it = raw.IteratorV2(shared_name="", container="", output_types=[L], output_shapes=[None])
    return steps(raw.MakeIterator(dataset=dataset, iterator=it), *[list(raw.IteratorGetNext(iterator=it, output_types=[L], output_shapes=[None]))] * n)


for what, sizes in dict(two=[2], scalar=2, mixed=[1, 3]).items():
    for drop in (False, True):
        case("RebatchDatasetV2/%s_%s" % (what, drop), lambda sizes=sizes, drop=drop: rebatched(sizes, [[1, 2, 3], [4, 5, 6]], drop))
        case("RebatchDatasetV2/%s_%s_scalars" % (what, drop), lambda sizes=sizes, drop=drop: rebatched(sizes, [1, 2, 3], drop))
