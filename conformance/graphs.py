"""Shapes and gradients: the conformance cases' graphs, built by TensorFlow, given to Downpour's builder.

`shapes`: wherever TensorFlow knows a shape, the builder must know the same, or say less, never otherwise.
`gradients`: the builder's gradients of each case's floating outputs with respect to its fed inputs are run by
TensorFlow beside TensorFlow's own and must agree, also on which inputs have none.

  python graphs.py shapes|gradients --tool target/debug/downpour-graph-tool [--family a,b] [--case GLOB] [--failures]
"""
import argparse
import collections
import json
import os
import struct
import subprocess
import sys
import time

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


def shapes(tf, tool, case):
    """Names of tensors whose shape the builder knows wrongly, or not although TensorFlow does."""
    graph, _, _ = build(tf, case)
    answer, _ = tool.ask({"ask": "shapes"}, graph.as_graph_def())
    wrong, less = [], []
    for op in graph.get_operations():
        for tensor in op.outputs:
            got = answer["shapes"][tensor.name]
            want = None if tensor.shape.rank is None else [-1 if d is None else d for d in tensor.shape.as_list()]
            if got == want or want is None:
                continue
            text = "%s (%s): TensorFlow %s, Downpour %s" % (tensor.name, op.type, want, got)
            less_known = got is None or (len(got) == len(want) and all(g in (-1, w) for g, w in zip(got, want)))
            (less if less_known else wrong).append((op.type, text))
    return wrong, less


def main():
    if sys.argv[1:2] == ["gradients"]:
        import gradients
        return gradients.main(sys.argv[2:])
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("what", choices=["shapes", "gradients"])
    p.add_argument("--tool", required=True)
    p.add_argument("--family", action="append", default=[])
    p.add_argument("--case", action="append", default=[])
    p.add_argument("--failures", action="store_true")
    options = p.parse_args()
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    import registry

    def shaped(value, dtype=None, shape=None):
        array = registry.to_array(value, dtype)
        tensor = tf.placeholder(tf.as_dtype(array.dtype) if array.dtype != object else tf.string,
                                array.shape if options.what == "shapes" else shape)
        registry._context.feeds[tensor] = array
        return tensor
    registry.inp = shaped
    tool, start = Tool(options.tool), time.time()
    wanted = [f for item in options.family for f in item.split(",")]
    passed, failed, less_known = 0, 0, collections.Counter()
    for family, path in harness.case_files():
        if wanted and family not in wanted:
            continue
        for case in harness.load(path):
            if case.build is None or not harness.selected(options.case, family, case.name):
                continue
            case.family = family
            try:
                if options.what == "shapes":
                    found, less = shapes(tf, tool, case)
                    less_known.update(op for op, _ in less)
                    found = [text for _, text in found]
                else:
                    found = None
            except (ValueError, TypeError, tf.errors.OpError):
                continue  # TensorFlow itself refuses the graph: kernels' cases, not this one's
            if found is None:
                continue
            passed, failed = (passed + 1, failed) if not found else (passed, failed + 1)
            if found and (options.failures or failed <= 20):
                print("FAIL %s/%s\n     %s" % (family, case.name, "\n     ".join(found[:3])), flush=True)
    if less_known:
        print("TensorFlow knows more: " + ", ".join("%s (%d)" % m for m in less_known.most_common(40)))
    print("%s: %d passed, %d failed in %.0f s" % (options.what, passed, failed, time.time() - start))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
