"""Gradients: the conformance cases' graphs, built by TensorFlow, differentiated by Downpour's builder.

The builder's gradients of each case's floating outputs, from the same random gradients to begin with, with respect to
its fed inputs and its variables, are run by TensorFlow beside TensorFlow's own in one step and must agree, also on
which inputs have none and which are sparse. For two cases of each op the gradients' gradients too.

  python graphs.py gradients --tool target/debug/downpour-graph-tool [--family a,b] [--case GLOB] [--failures] [--sample N]
"""
import argparse
import collections
import fnmatch
import sys
import time
import zlib

import numpy as np

import graphs
import harness
from graphs import Died, Tool, tensors_of

# Cases whose gradients differ from TensorFlow's on purpose, and why.
KNOWN = {
    "array/SparseSegment*/empty*": "for no indices TensorFlow's kernel leaves its result as the memory was",
    "array/SparseSegment*/(3, 2)_[[]]_[[]]": "as above",
    "array/MatrixDiagPartV2/*": "TensorFlow's gradient aligns the diagonals otherwise than the op",
    "array/MatrixDiagV2/*": "as MatrixDiagPartV2",
    "array/MatrixSetDiagV2/*": "as MatrixDiagPartV2",
    "nn/DepthwiseConv2dNative*/empty_batch_*": "TensorFlow's kernel leaves the filter's gradient as the memory was",
    "nn/MaxPoolGrad*/3x3_s1_same": "TensorFlow's MaxPoolGradGrad zeroes its input when it takes over its memory",
    "control/*partitioned_call/two": "TensorFlow's gradient of a call is a SymbolicGradient, which has no gradient",
    "control/*partitioned_call/arity": "the builder looks into a function to differentiate it: what cannot run is refused",
    "control/*partitioned_call/more_results": "as above",
    "control/call/tf_function": "TensorFlow's second gradient of a linear function is zeros, not none",
    "control/gradient/of_python": "the gradient is python code, which a GraphDef does not hold",
    "coordination/TensorListGather/value": "TensorFlow counts only one of the times that an element is gathered",
    "control/XlaSharding/*": "the builder has no rule for its gradient yet",
    "control/XlaSpmd*": "as above",
    "control/DebugIdentity*": "as above",
    "math/ApproxTopK/*": "as above",
    "math/BatchNormWithGlobalNormalization/*": "as above",
    "math/QuantizeAndDequantize/*": "as above",
    "math/XlaEinsum/*": "as above",
    "names/Einsum/bytes": "the builder takes equations that are text",
    "nn/BlockLSTM*": "the builder has no rule for its gradient yet",
    "nn/LSTMBlockCell*": "as above",
    "nn/GRUBlockCell*": "as above",
    "sparse/*CSRSparseMatrix*": "as above",
    "sparse/SparseMatrix*": "as above",
    "nn/MaxPool/window_too_big": "TensorFlow's kernel leaves part of its result as the memory was",
}

# Cases whose gradients end TensorFlow's process.
DEADLY = ["sparse/SparseFillEmptyRows/negative_shape", "math/*RFFT*/*_(0*", "math/*RFFT*/*, 0*"]

# Whether placeholders say the shapes they are fed with.
SHAPED = [False]


def differentiable(tensor):
    return tensor.dtype.is_floating or tensor.dtype.is_complex


def variables_of(tf, graph):
    """Variables' handles and references."""
    for op in graph.get_operations():
        if op.type in ("VarHandleOp", "VariableV2", "Variable") and tf.as_dtype(op.get_attr("dtype")).is_floating:
            yield op.outputs[0]


def functions_of(node):
    """Names of the functions that a node runs."""
    return [f.name for _, a in sorted(node.attr.items()) for f in [a.func] + list(a.list.func)]


class Question:
    """One case's gradients: what is asked of both sides, and the session that compares them."""

    def __init__(self, tf, case):
        import registry
        self.tf, self.case = tf, case
        self.graph, fetches, context = graphs.build(tf, case)
        self.inits, self.feeds, self.before = context.inits, dict(context.feeds), []
        if isinstance(fetches, registry.Steps):
            fetches = self.last_step(fetches)
        self.ys = [t for t in dict.fromkeys(tensors_of(tf, fetches)) if differentiable(t)]
        self.xs = [t for t in self.feeds if differentiable(t)] + list(variables_of(tf, self.graph))

    def last_step(self, steps):
        """The last step with something to differentiate; those before it are run for what they leave."""
        parts = [s if isinstance(s, tuple) and len(s) == 2 and isinstance(s[1], dict) else (s, {}) for s in steps]
        for i in reversed(range(len(parts))):
            if any(differentiable(t) for t in tensors_of(self.tf, parts[i][0])):
                self.before = [(f, dict(self.feeds, **d)) if d else (f, self.feeds) for f, d in parts[:i]]
                self.feeds.update(parts[i][1])
                return parts[i][0]
        return []

    def begin_with(self, tensors):
        """Random gradients of the tensors, the same for both sides and in every run."""
        tf, out = self.tf, []
        with self.graph.as_default():
            for i, t in enumerate(tensors):
                handle = t.dtype == tf.resource
                dtype = tf.as_dtype(t.op.get_attr("dtype")) if handle else t.dtype.base_dtype
                shape = tf.raw_ops.VariableShape(input=t) if handle else tf.shape(t)

                def draw(part):
                    seed = [zlib.crc32(self.case.name.encode()) & 0x7FFFFFFF, 2 * i + part]
                    return tf.random.stateless_uniform(shape, seed, -1, 1, dtype.real_dtype)
                out.append(tf.complex(draw(0), draw(1)) if dtype.is_complex else draw(0))
        return out

    def session(self):
        """A session in which everything has run that the case runs first."""
        # A step runs once: optimizing and threads cost more than they bring.
        config = self.tf.ConfigProto(inter_op_parallelism_threads=1, intra_op_parallelism_threads=1,
                                     use_per_session_threads=False)
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        config.graph_options.optimizer_options.opt_level = -1
        session = self.tf.Session(graph=self.graph, config=config)
        for op in self.inits:
            session.run(op, self.feeds)
        for fetches, feeds in self.before:
            session.run(fetches, feeds)
        return session

    def ask(self, tool, def_before, request):
        """The builder's gradients, imported beside TensorFlow's; a list of None, tensors and IndexedSlices."""
        tf = self.tf
        answer, added = tool.ask(request, def_before)
        ours = tf.GraphDef.FromString(added)
        # Operations that run functions grow in place where their gradients need more of them: copies stand beside them.
        grown = [n for n, old in zip(ours.node, def_before.node) if functions_of(n) != functions_of(old)]
        known = {n.name for n in def_before.node} - {n.name for n in grown}
        del ours.node[:len(def_before.node)]
        ours.node.extend(grown)
        names = [n for g in answer["gradients"] if g for n in g]
        inputs = {}
        with self.graph.as_default():
            for name in [i for node in ours.node for i in node.input] + names:
                base = name.lstrip("^").split(":")[0]
                if base in known:
                    inputs[name] = (self.graph.get_operation_by_name(base) if name.startswith("^") else
                                    self.graph.get_tensor_by_name(name if ":" in name else name + ":0"))
            new = [n for n in names if n not in inputs]
            imported = tf.import_graph_def(ours, input_map=inputs, return_elements=new, name="ours")
            made = dict(inputs, **dict(zip(new, imported or [])))

            def whole(parts):
                parts = [made[n] for n in parts]
                return parts[0] if len(parts) == 1 else tf.IndexedSlices(*parts)
            return [None if g is None else whole(g) for g in answer["gradients"]]

    def dense(self, gradient):
        with self.graph.as_default():
            return None if gradient is None else self.tf.convert_to_tensor(gradient)


def gradients(tf, tool, case, second=False):
    """Differences between the builder's gradients and TensorFlow's; nothing if there is nothing to compare."""
    q = Question(tf, case)
    if not q.ys or not q.xs:
        return None
    dys, ddxs = q.begin_with(q.ys), q.begin_with(q.xs) if second else []
    before = q.graph.as_graph_def()
    with q.graph.as_default():
        try:
            want = tf.gradients(q.ys, q.xs, dys)
            if second:
                first = [(tf.convert_to_tensor(w), d) for w, d in zip(want, ddxs) if w is not None]
                if not first:
                    return None
                want = tf.gradients([w for w, _ in first], q.xs, [d for _, d in first])
        except Exception as e:
            want = e
    try:
        got = q.ask(tool, before, {"ask": "gradients", "ys": [y.name for y in q.ys], "xs": [x.name for x in q.xs],
                                   "dys": [d.name for d in dys], "again": [d.name for d in ddxs]})
    except (RuntimeError, Died) as e:
        return [] if isinstance(want, Exception) else [str(e)]
    if isinstance(want, LookupError):
        return ["TensorFlow refuses (%s), Downpour gives %s" % (want, got)]
    refused = isinstance(want, Exception)
    if refused and not SHAPED[0]:
        # Some of TensorFlow's gradients need known shapes.
        SHAPED[0] = True
        try:
            return gradients(tf, tool, case, second)
        except (ValueError, TypeError, tf.errors.OpError):
            return None
        finally:
            SHAPED[0] = False
    problems, both = [], []
    for x, w, g in zip(q.xs, got if refused else want, got):
        if (w is None) != (g is None):
            problems.append("%s: TensorFlow's gradient is %s, Downpour's %s" % (x.name, w, g))
        elif not second and isinstance(w, tf.IndexedSlices) != isinstance(g, tf.IndexedSlices):
            problems.append("%s: TensorFlow's gradient is %s, Downpour's %s" % (x.name, type(w), type(g)))
        elif w is not None:
            both.append((x, q.dense(w), q.dense(g)))
    if problems or not both:
        return problems
    try:
        session = q.session()
    except tf.errors.OpError:
        return None
    with session:
        theirs, ours = [w for _, w, _ in both], [g for _, _, g in both]
        try:
            if refused:
                return by_steps(q, session, both, dys)
            expected, found = session.run([theirs, ours], q.feeds)
        except tf.errors.OpError:
            # One after the other: both want the same TensorArray of gradients for themselves.
            try:
                expected = session.run([q.ys, dys] if refused else theirs, q.feeds)
            except tf.errors.OpError:
                return None
            try:
                found = session.run(ours, q.feeds)
            except tf.errors.OpError as e:
                return ["Downpour's gradient fails: %s" % str(e).split("\n")[0]]
            if refused:
                return ["fails by steps only"]
    import compare
    for (x, _, _), w, g in zip(both, expected, found):
        problems += ["%s: %s" % (x.name, d) for d in compare.differences(Wide(case, second, q.xs), w, g)]
    return problems


class Wide:
    """The case's tolerance; twice differentiated, errors have grown."""

    def __init__(self, case, second, xs):
        self.text = case.text
        self.rtol, self.atol = case.rtol, case.atol
        if second:
            small = any(x.dtype.size <= 2 for x in xs)
            rtol, atol = (5e-2, 5e-2) if small else (1e-3, 1e-4)
            self.rtol, self.atol = max(case.rtol or 0, rtol), max(case.atol or 0, atol)


def by_steps(q, session, both, dys):
    """Where TensorFlow's python refuses: the builder's gradients beside what small steps measure."""
    problems, plain = [], (q.tf.float32, q.tf.float64)
    rng = np.random.RandomState(zlib.crc32(q.case.name.encode()) & 0x7FFFFFFF)
    for x, _, g in both:
        slope, begin = session.run([g, dys], q.feeds)
        if x not in q.feeds or any(t.dtype.base_dtype not in plain for t in [x] + dys):
            continue
        value = q.feeds[x]
        step = 1e-3 if value.dtype == np.float32 else 1e-6
        along = rng.uniform(-1, 1, value.shape)
        slope = float(np.sum(slope.astype(np.float64) * along))
        sides = []
        for sign in (1, -1):
            moved = dict(q.feeds)
            moved[x] = (value + sign * step * along).astype(value.dtype)
            sides.append(sum(float(np.sum(v.astype(np.float64) * d)) for v, d in zip(session.run(q.ys, moved), begin)))
        seen = (sides[0] - sides[1]) / (2 * step)
        if abs(seen - slope) > 2e-2 * max(1, abs(seen)):
            problems.append("%s: the slope is %g, Downpour says %g" % (x.name, seen, slope))
    return problems


def main(arguments):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tool", required=True)
    p.add_argument("--family", action="append", default=[])
    p.add_argument("--case", action="append", default=[])
    p.add_argument("--failures", action="store_true")
    p.add_argument("--sample", type=int, default=1, metavar="N", help="of an op's cases, the first two and every Nth")
    p.add_argument("--trace", action="store_true", help="print each case's name before it runs")
    options = p.parse_args(arguments)
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    import registry

    def inp(value, dtype=None, shape=None):
        array = registry.to_array(value, dtype)
        tensor = tf.placeholder(tf.as_dtype(array.dtype) if array.dtype != object else tf.string,
                                array.shape if SHAPED[0] else shape)
        registry._context.feeds[tensor] = array
        return tensor
    registry.inp = inp
    tool, start = Tool(options.tool), time.time()
    wanted = [f for item in options.family for f in item.split(",")]
    counts, once, twice = collections.Counter(), collections.Counter(), collections.Counter()

    def report(case, found, what=""):
        if found is None:
            return
        known = any(fnmatch.fnmatchcase(case.family + "/" + case.name, g) for g in KNOWN)
        kind = "passed" if not found else "known" if known else "failed"
        counts[kind] += 1
        if kind == "failed" and (options.failures or counts[kind] <= 20):
            print("FAIL %s/%s%s\n     %s" % (case.family, case.name, what, "\n     ".join(found[:3])), flush=True)

    for family, path in harness.case_files():
        if wanted and family not in wanted:
            continue
        for case in harness.load(path):
            if case.build is None or not harness.selected(options.case, family, case.name):
                continue
            if harness.selected(DEADLY, family, case.name):
                continue
            case.family, op = family, (family, case.name.split("/")[0])
            if once[op] >= 2 and zlib.crc32(case.name.encode()) % options.sample:
                continue
            if options.trace:
                print(family + "/" + case.name, flush=True)
            try:
                found = gradients(tf, tool, case)
                once[op] += found is not None
                report(case, found)
                if found == [] and twice[op] < 2:
                    again = gradients(tf, tool, case, second=True)
                    twice[op] += again is not None
                    report(case, again, ", second order")
            except (ValueError, TypeError, tf.errors.OpError):
                continue  # TensorFlow itself refuses the graph: kernels' cases, not this one's
    print("gradients: %d passed, %d failed, %d known in %.0f s" % (
        counts["passed"], counts["failed"], counts["known"], time.time() - start))
    sys.exit(1 if counts["failed"] else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
