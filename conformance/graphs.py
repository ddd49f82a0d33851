"""Shapes and gradients: the conformance cases' graphs, built by TensorFlow, given to Downpour's builder.

`shapes`: wherever TensorFlow knows a shape, the builder must know the same, never otherwise; where TensorFlow knows
more, the op is listed. What TensorFlow refuses to build the builder must refuse.
`variants`: each op of those graphs alone, its inputs' shapes changed one at a time (unknown, a dimension more or less,
longer): the builder must know and refuse the same.
`gradients`: the builder's gradients of each case's floating outputs with respect to its fed inputs are run by
TensorFlow beside TensorFlow's own and must agree, also on which inputs have none.

  python graphs.py shapes|variants|gradients|flow --tool target/debug/downpour-graph-tool [--family a,b] [--case GLOB] [--failures]
"""
import argparse
import collections
import fnmatch
import json
import os
import struct
import subprocess
import sys
import time
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import harness


class Tool:
    """The builder, as a process that answers; one that dies is started again."""

    def __init__(self, path):
        self.path, self.process = path, None

    def ask(self, request, graph_def):
        if self.process is None:
            self.process = subprocess.Popen([self.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL)
        try:
            for piece in (json.dumps(request).encode(), graph_def.SerializeToString()):
                self.process.stdin.write(struct.pack("<I", len(piece)) + piece)
            self.process.stdin.flush()
            answer, graph = json.loads(self.read()), self.read()
        except (OSError, struct.error):
            code, self.process = self.process.wait(), None
            raise Died("the tool died (%s)" % code) from None
        if answer["error"]:
            raise RuntimeError(answer["error"])
        return answer, graph

    def read(self):
        (length,) = struct.unpack("<I", self.process.stdout.read(4))
        return self.process.stdout.read(length)


class Died(Exception):
    """The tool panicked."""


def build(tf, case):
    """(graph, fetches, context) of a case, its placeholders with the shapes they are fed."""
    import registry
    context = registry.begin(case.name)
    graph = tf.Graph()
    with graph.as_default():
        fetches = case.build()
    return graph, fetches, context


def tensors_of(tf, fetches):
    if isinstance(fetches, dict):
        fetches = list(fetches.values())
    if isinstance(fetches, (list, tuple)):
        return [t for f in fetches for t in tensors_of(tf, f)]
    if isinstance(fetches, tf.SparseTensor):
        return [fetches.values]
    return [fetches] if isinstance(fetches, tf.Tensor) else []


def dims(shape):
    return None if shape.rank is None else [-1 if d is None else d for d in shape.as_list()]


def judge(want, got):
    """How what the builder knows of a tensor's shape compares with what TensorFlow does."""
    if want is None or want == got:
        return "same"
    if got is None:
        return "less"
    if len(got) != len(want) or any(w != -1 and g not in (-1, w) for g, w in zip(got, want)):
        return "wrong"
    return "less" if any(g == -1 and w != -1 for g, w in zip(got, want)) else "same"


class Refused:
    """Remembers the node that TensorFlow refused to add to a graph."""

    def __init__(self):
        from tensorflow.python.framework import ops
        self.node, create = None, ops._create_c_op

        def watched(graph, node_def, inputs, control_inputs, *args, **kwargs):
            try:
                return create(graph, node_def, inputs, control_inputs, *args, **kwargs)
            except ValueError:
                self.node = type(node_def)()
                self.node.CopyFrom(node_def)
                del self.node.input[:]
                flat = [t for i in inputs for t in (i if isinstance(i, (list, tuple)) else [i])]
                self.node.input.extend(t.name for t in flat)
                self.node.input.extend("^" + op.name for op in control_inputs)
                self.graph = graph
                raise
        ops._create_c_op = watched


def shapes(tf, tool, case, refused):
    """(tensors whose shape the builder knows wrongly, those of which TensorFlow knows more)."""
    refused.node = None
    try:
        graph, _, _ = build(tf, case)
    except ValueError as e:
        if refused.node is None:
            raise
        with_node = refused.graph.as_graph_def()
        with_node.node.append(refused.node)
        try:
            tool.ask({"ask": "shapes"}, with_node)
        except RuntimeError:
            return [], []
        reason = str(e).split("\n")[0]
        return [(refused.node.op, "TensorFlow refuses %s, Downpour does not: %s" % (refused.node.name, reason))], []
    answer, _ = tool.ask({"ask": "shapes"}, graph.as_graph_def())
    wrong, less = [], []
    for op in graph.get_operations():
        for tensor in op.outputs:
            want, got = dims(tensor.shape), answer["shapes"][tensor.name]
            verdict = judge(want, got)
            text = "%s (%s): TensorFlow %s, Downpour %s" % (tensor.name, op.type, want, got)
            if verdict != "same":
                (wrong if verdict == "wrong" else less).append((op.type, text))
    return wrong, less


def changed_shapes(shape):
    """Shapes next to one: unknown, of another rank, with one dimension unknown or longer."""
    yield None
    if shape is None:
        return
    yield shape + [2]
    if shape:
        yield shape[:-1]
        for i in range(len(shape)):
            yield shape[:i] + [-1] + shape[i + 1:]
            yield shape[:i] + [shape[i] + 1] + shape[i + 1:]
    else:
        yield [3]


# Where TensorFlow's own inference is wrong, and what it says then.
EXPLAINED = {
    "EnsureShape": "rank -1",  # refuses a shape of unknown rank
    "MatrixSetDiagV2": "must be equal rank",  # takes an unknown range of diagonals for one
    "MatrixSetDiagV3": "must be equal rank",
    "Substr": "vs. ?",  # refuses a length of unknown rank
    "ExtractVolumePatches": "[",  # forgets a dimension where another is unknown
    "FixedLengthRecordDatasetV2": "input 5 as",  # looks at the compression only when the dataset is made
}


# Ops that servers run but for which the builder has no rule yet: it says nothing of their shapes and refuses nothing.
NO_RULE = [
    "AdjustContrast", "ApproxTopK", "AudioSpectrogram", "AutoShardDataset", "Batch*", "BlockLSTM*", "CSRSparse*", "Collective*",
    "CompositeTensor*", "Conv3DBackpropFilter", "Conv3DBackpropInput", "Debug*", "DecodeWav", "DenseToCSR*", "EncodeProto", "EncodeWav",
    "Experimental*", "FusedPadConv2D", "FusedResizeAndPadConv2D", "GRUBlockCell*", "IsotonicRegression", "LSTMBlockCell*", "ListDataset",
    "MatrixExponential", "Mfcc", "NearestNeighbors", "ParallelBatchDataset", "Quantize*", "RaggedCross", "RebatchDataset*", "Requant*",
    "SdcaFprint", "SelfAdjointEig", "SparseMatrix*", "SparseTensorToCSR*", "StatelessParameterized*", "ThreadPool*", "UnicodeScript", "Uniform*",
    "Write*Summary", "Xla*", "_*",
    "ChooseFastestBranchDataset", "Conv", "DatasetFingerprint", "GetElementAtIndex", "GlobalShuffleDataset", "IndexFlatMapDataset", "KMC2*", "Kmeans*",
    "LoadDataset", "RandomCrop", "RandomIndexShuffle", "SaveDataset*", "SetStatsAggregatorDataset", "Snapshot?*", "StatefulStandardNormal",
    "StatsAggregator*", "StochasticCastToInt", "WeightedFlatMapDataset", "WindowOp",
]


def explained(op, text):
    if any(fnmatch.fnmatchcase(op, g) for g in NO_RULE) and "TensorFlow refuses" in text:
        return True
    return op in EXPLAINED and EXPLAINED[op] in text


def has_variants(op):
    """Not what merely passes on, needs what is behind a handle, is called, or sits beside a ref variable."""
    passes = op.type in ("Placeholder", "PlaceholderWithDefault", "Merge", "Enter", "Exit", "NextIteration", "Switch")
    ref = any(t.dtype._is_ref_dtype for t in op.inputs)
    calls = any(a.HasField("func") or a.list.func for a in op.node_def.attr.values())
    # TensorFlow's inference for XLA's ops reads past the end of shapes whose rank it did not check, and may end the process.
    unchecked = op.type.startswith("Xla")
    return bool(op.inputs) and not (passes or ref or calls or unchecked or op.type.startswith("Resource"))


def variants(tf, op, versions):
    """Node definitions with placeholders before them: `op` with one input's shape changed, or a value hidden."""
    inputs = list(op.inputs)
    known = [dims(t.shape) for t in inputs]
    choices = [(None, None)]
    for i, tensor in enumerate(inputs):
        constant = tensor.op.type == "Const"
        if constant:
            choices.append((i, known[i]))
        choices += [(i, c) for c in changed_shapes(known[i]) if not constant or c is None or len(c) != len(known[i])]
    for at, shape in choices:
        def_ = tf.GraphDef()
        def_.versions.CopyFrom(versions)
        node = tf.NodeDef()
        node.CopyFrom(op.node_def)
        del node.input[:]
        node.attr.pop("_class", None)
        for i, tensor in enumerate(inputs):
            name = "input_%d" % i
            node.input.append(name)
            if at != i and tensor.op.type == "Const":
                source = def_.node.add()
                source.CopyFrom(tensor.op.node_def)
                source.name = name
                del source.input[:]
                source.attr.pop("_class", None)
                continue
            source = def_.node.add(name=name, op="Placeholder")
            source.attr["dtype"].type = tensor.dtype.base_dtype.as_datatype_enum
            given = shape if at == i else known[i]
            if given is None:
                source.attr["shape"].shape.unknown_rank = True
            else:
                source.attr["shape"].shape.SetInParent()
                for d in given:
                    source.attr["shape"].shape.dim.add(size=d)
        yield def_, node, "" if at is None else "input %d as %s" % (at, shape)


def varied(tf, tool, case, seen, limit):
    """Where the builder and TensorFlow differ on the variants of a case's ops."""
    graph, _, _ = build(tf, case)
    wrong, less = [], []
    for op in graph.get_operations():
        if seen[op.type] >= limit or not has_variants(op):
            continue
        key = (op.type, str([dims(t.shape) for t in op.inputs]),
               str(sorted((k, str(v)) for k, v in op.node_def.attr.items() if k not in ("T", "_class", "dtype"))))
        if key in seen:
            continue
        seen[key] = 1
        seen[op.type] += 1
        for def_, node, what in variants(tf, op, graph.as_graph_def().versions):
            def_.node.append(node)
            with tf.Graph().as_default() as alone:
                try:
                    tf.import_graph_def(def_, name="")
                    want = [dims(t.shape) for t in alone.get_operation_by_name(node.name).outputs]
                except ValueError as e:
                    want = e
            try:
                answer, _ = tool.ask({"ask": "shapes"}, def_)
                got = [answer["shapes"]["%s:%d" % (node.name, i)] for i in range(len(op.outputs))]
            except RuntimeError as e:
                got = e
            known = "%s %s" % (op.type, [dims(t.shape) for t in op.inputs])
            if isinstance(want, ValueError) or isinstance(got, RuntimeError):
                if not isinstance(want, ValueError):
                    wrong.append((op.type, "%s, %s: TensorFlow knows %s, Downpour refuses: %s" % (known, what, want, got)))
                elif not isinstance(got, RuntimeError):
                    reason = str(want).split(" for '{{node")[0].split("\n")[0]
                    wrong.append((op.type, "%s, %s: TensorFlow refuses (%s), Downpour knows %s" % (known, what, reason, got)))
                continue
            for w, g in zip(want, got):
                verdict = judge(w, g)
                text = "%s, %s: TensorFlow %s, Downpour %s" % (known, what, w, g)
                if verdict != "same":
                    (wrong if verdict == "wrong" else less).append((op.type, text))
    return wrong, less


def main():
    if sys.argv[1:2] == ["gradients"]:
        import gradients
        return gradients.main(sys.argv[2:])
    if sys.argv[1:2] == ["flow"]:
        import flow
        return flow.main(sys.argv[2:])
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("what", choices=["shapes", "variants", "gradients", "flow"])
    p.add_argument("--tool", required=True)
    p.add_argument("--family", action="append", default=[])
    p.add_argument("--case", action="append", default=[])
    p.add_argument("--failures", action="store_true")
    p.add_argument("--less", action="store_true", help="show where TensorFlow knows more")
    p.add_argument("--sample", type=int, default=1, metavar="N", help="of an op's cases, the first two and every Nth")
    p.add_argument("--lines", type=int, default=3, help="of a failure")
    p.add_argument("--each", type=int, default=3, help="variants: of so many nodes of an op")
    options = p.parse_args()
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    import registry

    def shaped(value, dtype=None, shape=None):
        array = registry.to_array(value, dtype)
        tensor = tf.placeholder(tf.as_dtype(array.dtype) if array.dtype != object else tf.string,
                                array.shape)
        registry._context.feeds[tensor] = array
        return tensor
    registry.inp = shaped
    tool, start = Tool(options.tool), time.time()
    wanted = [f for item in options.family for f in item.split(",")]
    passed, failed, less_known = 0, 0, collections.Counter()
    refused, seen, once = Refused(), collections.Counter(), collections.Counter()
    for family, path in harness.case_files():
        if wanted and family not in wanted:
            continue
        for case in harness.load(path):
            if case.build is None or not harness.selected(options.case, family, case.name):
                continue
            op = "%s/%s" % (family, case.name.split("/")[0])
            once[op] += 1
            if once[op] > 2 and zlib.crc32(case.name.encode()) % options.sample:
                continue
            case.family = family
            try:
                found, less = (shapes(tf, tool, case, refused) if options.what == "shapes" else
                               varied(tf, tool, case, seen, options.each))
                less_known.update(op for op, _ in less)
                found = [text for op, text in found if not explained(op, text)]
                if options.less and less:
                    print("\n".join("LESS %s/%s %s" % (family, case.name, text) for _, text in less[:3]))
            except (Died, RuntimeError) as e:
                # The builder takes equations that are text.
                found = [] if (family, case.name) == ("names", "Einsum/bytes") else [str(e)]
            except (ValueError, TypeError, tf.errors.OpError):
                continue  # TensorFlow itself refuses the graph: kernels' cases, not this one's
            passed, failed = (passed + 1, failed) if not found else (passed, failed + 1)
            if found and (options.failures or failed <= 20):
                print("FAIL %s/%s\n     %s" % (family, case.name, "\n     ".join(found[:options.lines])), flush=True)
    if less_known:
        print("TensorFlow knows more: " + ", ".join("%s (%d)" % m for m in less_known.most_common(40)))
    print("%s: %d passed, %d failed in %.0f s" % (options.what, passed, failed, time.time() - start))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
