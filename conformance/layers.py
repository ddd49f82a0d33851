"""Layers, losses, metrics and initializers of Downpour's Rust API, beside the same said with TensorFlow's operations.

Each case's graph, built by the Rust API, runs on TensorFlow and on a Downpour server, with random values in its variables.
Outputs, gradients of the sum of their squares with respect to variables and inputs, and what updates leave in the
variables must be what TensorFlow's formulation gives, over several steps.

  python layers.py --tool target/debug/downpour-graph-tool [--server target/debug/downpour | --target grpc://...]
                   [--only CASE] [--show]
"""
import argparse
import fnmatch
import os
import shlex
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import numpy as np
import graphs
import servers

STEPS = 3
# Same kernels, and other ones.
ON_TENSORFLOW, ON_DOWNPOUR = 2e-5, 1e-4


class Words:
    """A case in TensorFlow's words: `fed` makes placeholders, `kept` variables; what is returned are outputs."""

    def __init__(self, tf, values):
        self.tf, self.values, self.inputs, self.variables, self.updates, self.resets = tf, values, {}, {}, [], []

    def fed(self, name, shape, dtype="float32"):
        self.inputs[name] = self.tf.placeholder(dtype, shape, name=name)
        return self.inputs[name]

    def kept(self, name, trainable=True):
        self.variables[name] = self.tf.Variable(self.values[name], name=name, trainable=trainable, use_resource=True)
        return self.variables[name]


def dense(w, how):
    tf = w.tf
    x = w.fed("x", [2, 3, 4] if how == "rows" else [3, 4])
    y = tf.tensordot(x, w.kept("dense/kernel"), 1)
    return [tf.tanh(y if how == "bare" else y + w.kept("dense/bias"))]


def conv2d(w, how):
    tf = w.tf
    x = w.fed("x", [2, 7, 6, 3])
    stride, padding = (2, "VALID") if how == "valid" else (1, "SAME")
    return [tf.nn.bias_add(tf.nn.conv2d(x, w.kept("conv2d/kernel"), stride, padding), w.kept("conv2d/bias"))]


def pool(w, how):
    tf = w.tf
    x = w.fed("x", [2, 7, 6, 3])
    return [tf.nn.max_pool2d(x, 2, 2, "SAME"), tf.nn.max_pool2d(x, 3, 1, "VALID"),
            tf.nn.avg_pool2d(x, 2, 2, "SAME"), tf.nn.avg_pool2d(x, 3, 2, "VALID")]


def batch_norm(w, how):
    tf = w.tf
    x = w.fed("x", [2, 5, 4, 3] if how == "images" else [6, 3])
    gamma, beta = w.kept("batch_norm/gamma"), w.kept("batch_norm/beta")
    moving = [w.kept("batch_norm/moving_mean", False), w.kept("batch_norm/moving_variance", False)]
    if how == "infer":
        return [tf.nn.batch_normalization(x, moving[0], moving[1], beta, gamma, 1e-3)]
    now = tf.nn.moments(x, list(range(len(x.shape) - 1)))
    w.updates = [m.assign(0.99 * m + 0.01 * n) for m, n in zip(moving, now)]
    if how == "images":
        # The fused kernel: another way to the same outputs and gradients.
        return [tf.nn.fused_batch_norm(x, gamma, beta, epsilon=1e-3)[0]]
    return [tf.nn.batch_normalization(x, now[0], now[1], beta, gamma, 1e-3)]


def layer_norm(w, how):
    tf = w.tf
    x = w.fed("x", [2, 3, 4])
    mean, variance = tf.nn.moments(x, [-1], keepdims=True)
    return [tf.nn.batch_normalization(x, mean, variance, w.kept("layer_norm/beta"), w.kept("layer_norm/gamma"), 1e-3)]


def dropout(w, how):
    x = w.fed("x", [8, 9])
    return [w.tf.nn.dropout(x, rate=0.3, seed=5), w.tf.nn.dropout(x, rate=0.75, seed=6)]


def embedding(w, how):
    return [w.tf.nn.embedding_lookup(w.kept("embedding/embeddings"), w.fed("ids", [2, 5], "int64"))]


def lstm(w, how):
    tf = w.tf
    x, c, h = w.fed("x", [3, 2, 4]), w.fed("c", [2, 5]), w.fed("h", [2, 5])
    kernel, bias, none = w.kept("lstm/kernel"), w.kept("lstm/bias"), tf.zeros([5])

    def block(x, c, h, steps):
        return tf.raw_ops.BlockLSTM(seq_len_max=tf.constant(steps, tf.int64), x=x, cs_prev=c, h_prev=h, w=kernel, wci=none,
                                    wcf=none, wco=none, b=bias, forget_bias=1.0, cell_clip=-1.0, use_peephole=False)
    seen = block(x, c, h, 3)
    fresh = block(x[:1], tf.zeros([2, 5]), tf.zeros([2, 5]), 1)
    return [s[t] for t in range(3) for s in (seen.cs, seen.h)] + [fresh.h[0]]


def attention(w, how):
    tf = w.tf
    x, y, mask = w.fed("x", [2, 4, 6]), w.fed("y", [2, 5, 6]), w.fed("mask", [2, 1, 4, 4], "bool")
    part = {n: (w.kept("attention/%s/kernel" % n), w.kept("attention/%s/bias" % n)) for n in ("query", "key", "value", "output")}

    def project(name, t):
        kernel, bias = part[name]
        return tf.einsum("bpw,whd->bphd", t, tf.reshape(kernel, [6, 3, 2])) + tf.reshape(bias, [3, 2])

    def look(a, b, mask):
        scores = tf.einsum("bqhd,bkhd->bhqk", project("query", a), project("key", b)) / np.sqrt(2.0).astype(np.float32)
        if mask is not None:
            scores += tf.where(tf.broadcast_to(mask, tf.shape(scores)), tf.zeros_like(scores), -1e9 * tf.ones_like(scores))
        seen = tf.einsum("bhqk,bkhd->bqhd", tf.nn.softmax(scores), project("value", b))
        kernel, bias = part["output"]
        return tf.einsum("bqhd,hdw->bqw", seen, tf.reshape(kernel, [3, 2, 6])) + bias
    return [look(x, x, mask), look(x, y, None)]


def losses(w, how):
    tf, l = w.tf, w.tf.losses
    logits, values, labels = w.fed("logits", [6, 4]), w.fed("values", [6, 4]), w.fed("labels", [6, 4])
    rows, classes, weights = w.fed("rows", [6, 4]), w.fed("classes", [6], "int64"), w.fed("weights", [6, 1])
    return [l.mean_squared_error(values, logits), l.absolute_difference(values, logits), l.softmax_cross_entropy(rows, logits),
            l.sparse_softmax_cross_entropy(classes, logits), l.sigmoid_cross_entropy(labels, logits),
            tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits * 100.0), l.hinge_loss(labels, logits),
            l.huber_loss(values, logits, delta=0.7), l.log_loss(labels, tf.sigmoid(logits)),
            l.compute_weighted_loss(tf.square(logits), weights),
            0.3 * (tf.nn.l2_loss(w.kept("w")) + tf.nn.l2_loss(w.kept("v")))]


def metrics(w, how):
    tf, m = w.tf, w.tf.metrics
    values, labels, guesses = w.fed("values", [7]), w.fed("labels", [7], "int64"), w.fed("guesses", [7], "int64")
    all_ = [m.mean(values), m.accuracy(labels, guesses), m.auc(labels, values, num_thresholds=50),
            m.auc(labels, values, num_thresholds=200)]
    w.updates = [update for _, update in all_]
    w.resets = [v.initializer for v in tf.local_variables()]
    return [value for value, _ in all_]


def initializers(w, how):
    tf = w.tf
    ways = [lambda s: tf.random_uniform_initializer(-0.5, 1.5, s), lambda s: tf.random_normal_initializer(0.5, 2.0, s),
            lambda s: tf.truncated_normal_initializer(-1.0, 0.5, s), tf.glorot_uniform_initializer,
            tf.glorot_normal_initializer, tf.initializers.he_normal]
    for mode in ("fan_in", "fan_out", "fan_avg"):
        for shape in ("truncated_normal", "untruncated_normal", "uniform"):
            ways.append(lambda s, m=mode, d=shape: tf.variance_scaling_initializer(1.7, m, d, s))
    shapes = ("matrix", [30, 20]), ("filter", [3, 3, 8, 16])
    out = [tf.get_variable("%d_%s" % (i, n), shape, initializer=way(11 + i)) for i, way in enumerate(ways) for n, shape in shapes]
    return out + [tf.zeros([4, 3]), tf.ones([4, 3]), tf.fill([4, 3], 7.0)]


CASES = {"dense/plain": dense, "dense/rows": dense, "dense/bare": dense, "conv2d/same": conv2d, "conv2d/valid": conv2d,
         "pool": pool, "batch_norm/rows": batch_norm, "batch_norm/images": batch_norm, "batch_norm/infer": batch_norm,
         "layer_norm": layer_norm, "dropout": dropout, "embedding": embedding, "lstm": lstm, "attention": attention,
         "losses": losses, "metrics": metrics, "initializers": initializers}


def feed_of(name, shape, dtype, step):
    """What a step feeds, by the placeholder's name."""
    random = np.random.RandomState((sum(name.encode()) * 31 + step) % 2 ** 31)
    if dtype == np.bool_:
        return random.rand(*shape) < 0.7
    if dtype == np.int64:
        return random.randint(0, {"ids": 7, "labels": 2, "guesses": 2, "classes": 4}[name], shape).astype(np.int64)
    if name == "labels":
        return random.randint(0, 2, shape).astype(np.float32)
    if name == "weights":
        return (random.rand(*shape) * (random.rand(*shape) < 0.7)).astype(np.float32)
    if name == "rows":
        rows = random.rand(*shape)
        return (rows / rows.sum(-1, keepdims=True)).astype(np.float32)
    if name == "values" and len(shape) == 1:
        return random.rand(*shape).astype(np.float32)
    return random.uniform(-2, 2, shape).astype(np.float32)


def value_of(name, shape):
    random = np.random.RandomState(sum(name.encode()) * 17)
    low = 0.2 if name.endswith("variance") else -1.0
    return random.uniform(low, 1.0, shape).astype(np.float32)


def steps(tf, target, graph, setup, run, resets):
    """Values of what `run` asks for, step by step; with resets, once more from the beginning."""
    config = tf.ConfigProto(isolate_session_state=True)
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    out = []
    with tf.Session(target, graph=graph, config=config) as session:
        for ops, feeds in setup:
            session.run(ops, feeds)
        for _ in range(2 if resets else 1):
            if resets:
                session.run(resets)
            for step in range(STEPS):
                out.append(run(session, step))
    return out


def theirs(tf, name, values):
    """What TensorFlow's formulation gives: [(outputs, {name: gradient}, {variable: value}) of each step]."""
    with tf.Graph().as_default() as graph:
        words = Words(tf, values)
        outputs = CASES[name](words, name.partition("/")[2])
        trained = {n: v for n, v in words.variables.items() if v.trainable}
        wanted = ("logits",) if name == "losses" else words.inputs
        xs = dict(trained, **{n: words.inputs[n] for n in wanted if words.inputs[n].dtype == tf.float32})
        slopes = {}
        if xs and name not in ("metrics", "initializers"):
            total = [tf.reduce_sum(tf.square(y)) for y in outputs]
            slopes = dict(zip(xs, tf.gradients(total, list(xs.values()))))
            slopes = {n: tf.convert_to_tensor(s) for n, s in slopes.items() if s is not None}
        init = [tf.global_variables_initializer(), tf.local_variables_initializer()]

        def run(session, step):
            feeds = {t: feed_of(n, t.shape.as_list(), t.dtype.as_numpy_dtype, step) for n, t in words.inputs.items()}
            if name == "metrics":
                session.run(words.updates, feeds)
                return session.run(outputs), {}, {}
            got = session.run([outputs, slopes, words.updates], feeds)[:2]
            return got + [session.run(words.variables)]
        return steps(tf, "", graph, [(init, None)], run, words.resets)


def ours(tf, target, name, layer, graph_def):
    """The same of the graph that the Rust API built."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.GraphDef.FromString(graph_def), name="")
        tensor, reads = graph.get_tensor_by_name, {v[0]: v[1] for v in layer["variables"]}
        setup = [(layer["init"], None)]
        if name not in ("metrics", "initializers"):
            setup += [(assign, {tensor(fed): value_of(n, tensor(fed).shape.as_list())})
                      for n, _, fed, assign in layer["variables"]]
        fed = [op.outputs[0] for op in graph.get_operations()
               if op.type == "Placeholder" and not op.name.endswith("_value")]
        slopes = dict(layer["gradients"])

        def run(session, step):
            feeds = {t: feed_of(t.op.name, t.shape.as_list(), t.dtype.as_numpy_dtype, step) for t in fed}
            if name == "metrics":
                session.run(layer["updates"], feeds)
                return session.run(layer["outputs"]), {}, {}
            got = session.run([layer["outputs"], slopes, layer["updates"]], feeds)[:2]
            return got + [session.run(reads)]
        return steps(tf, target, graph, setup, run, layer["resets"])


def far(want, got, tolerance, scale=0.0):
    """How far apart; `scale` is how large the numbers are that cancel in it."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if want.shape != got.shape:
        return "shape %s, not %s" % (got.shape, want.shape)
    worst = np.max(np.abs(want - got) / (np.abs(want) + 0.1 + 0.1 * scale), initial=0.0)
    return None if worst <= tolerance else "off by %.2g of %.2g: %s... instead of %s..." % (
        worst, tolerance, got.flat[:3], want.flat[:3])


def compare(tf, tool, targets, name):
    answer, graph_def = tool.ask({"ask": "layer", "name": name}, tf.GraphDef())
    layer = answer["layer"]
    shapes = {}
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(tf.GraphDef.FromString(graph_def), name="")
        for n, _, fed, _ in layer["variables"]:
            shapes[n] = graph.get_tensor_by_name(fed).shape.as_list()
    expected = theirs(tf, name, {n: value_of(n, s) for n, s in shapes.items()})
    problems = []
    for target, tolerance, where in targets:
        found = ours(tf, target, name, layer, graph_def)
        for step, (want, got) in enumerate(zip(expected, found)):
            if len(want[0]) != len(got[0]):
                return ["%d outputs instead of %d" % (len(got[0]), len(want[0]))]
            pairs = [("output %d" % i, a, b) for i, (a, b) in enumerate(zip(want[0], got[0]))]
            if name not in ("metrics", "initializers"):
                for what, a, b in (("gradient of", want[1], got[1]), ("variable", want[2], got[2])):
                    if set(a) != set(b):
                        return ["%s: TensorFlow has %s, Downpour %s" % (what, sorted(a), sorted(b))]
                    pairs += [("%s %s" % (what, n), a[n], b[n]) for n in a]
            for what, a, b in pairs:
                largest = max([np.max(np.abs(s), initial=0.0) for s in want[1].values()] + [0.0]) if "gradient" in what else 0.0
                off = far(a, b, tolerance, largest)
                if off:
                    problems.append("%s on %s in step %d %s" % (what, where, step, off))
    return problems


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tool", required=True)
    p.add_argument("--server", help="the program whose `serve` is started")
    p.add_argument("--target", help="a server that runs")
    p.add_argument("--only", default="*")
    p.add_argument("--show", action="store_true", help="also what passes")
    options = p.parse_args()
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    start, passed, failed = time.time(), 0, 0
    server, targets = None, [("", ON_TENSORFLOW, "TensorFlow")]
    with tempfile.TemporaryDirectory() as work:
        if options.server:
            server = servers.Server("%s serve --port {port}" % shlex.quote(options.server), os.path.join(work, "server.log"))
        try:
            if options.target or server:
                targets.append((options.target or server.target, ON_DOWNPOUR, "Downpour"))
            tool = graphs.Tool(options.tool)
            for name in CASES:
                if not fnmatch.fnmatch(name, options.only):
                    continue
                try:
                    problems = compare(tf, tool, targets, name)
                except (tf.errors.OpError, RuntimeError, ValueError, KeyError) as e:
                    problems = ["%s: %s" % (type(e).__name__, str(e)[:2000])]
                passed, failed = (passed, failed + 1) if problems else (passed + 1, failed)
                if problems:
                    print("FAIL %s\n     %s" % (name, "\n     ".join(problems[:6])), flush=True)
                elif options.show:
                    print("ok   %s" % name, flush=True)
        finally:
            if server:
                server.stop()
    print("layers: %d passed, %d failed in %.0f s" % (passed, failed, time.time() - start))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
