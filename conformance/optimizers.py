"""Optimizers: models built and trained by Downpour's Rust API, beside the same ones built by TensorFlow.

Each model with each optimizer runs 50 steps on the same feeds: TensorFlow's graph on TensorFlow, ours on TensorFlow,
and ours on a Downpour server. Losses must agree at every step, and all variables at the end, slots included, by name;
how checkpoints keep each (whole or slice) and where a device setter puts it must be the same too, and from a checkpoint
of either side the other must go on to the same losses.

  python optimizers.py --tool target/debug/downpour-graph-tool [--server target/debug/downpour | --target grpc://...]
                       [--only MODEL/OPTIMIZER] [--show]
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

STEPS = 50
# Same kernels, and other ones: rounding only, but 50 steps of it.
ON_TENSORFLOW, ON_DOWNPOUR = 2e-5, 5e-4


def first(shape, seed, scale, dtype=np.float32):
    """What training.rs computes in `first`."""
    i = np.arange(int(np.prod(shape)), dtype=np.uint64)
    values = ((i * 7919 + seed * 104729) % 1000).astype(np.float64) / 1000.0 - 0.5
    return (values * scale).astype(dtype).reshape(shape)


def variable(tf, name, shape, seed, scale=1.0, dtype=np.float32, partitioner=None):
    return tf.get_variable(name, initializer=tf.constant(first(shape, seed, scale, dtype)), partitioner=partitioner)


def mlp(tf, dtype=np.float32):
    x = tf.placeholder(tf.as_dtype(dtype), [None, 4], name="x")
    labels = tf.placeholder(tf.int64, [None], name="labels")

    def layer(name, x, shape, seed):
        with tf.variable_scope(name):
            w = variable(tf, "w", shape, seed, 1.0, dtype)
            b = variable(tf, "b", shape[1:], seed + 1, 0.1, dtype)
            return tf.matmul(x, w) + b
    hidden = tf.tanh(layer("hidden", x, (4, 5), 1))
    logits = layer("out", hidden, (5, 3), 3)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))


def embedding(tf):
    ids = tf.placeholder(tf.int64, [None, 2], name="ids")
    target = tf.placeholder(tf.float32, [None, 2], name="target")
    table = variable(tf, "table", (20, 3), 1)
    w = variable(tf, "w", (3, 2), 2)
    rows = tf.reduce_sum(tf.nn.embedding_lookup(table, ids), 1)
    return tf.reduce_mean(tf.square(tf.matmul(rows, w) - target))


def parts(tf):
    ids = tf.placeholder(tf.int64, [None, 2], name="ids")
    target = tf.placeholder(tf.float32, [None, 2], name="target")
    bags = tf.SparseTensor(tf.placeholder(tf.int64, [None, 2], name="bags_indices"),
                           tf.placeholder(tf.int64, [None], name="bags_values"),
                           tf.placeholder(tf.int64, [2], name="bags_shape"))
    weights = tf.SparseTensor(bags.indices, tf.placeholder(tf.float32, [None], name="bags_weights"), bags.dense_shape)
    table = variable(tf, "table", (11, 3), 1, partitioner=tf.fixed_size_partitioner(3))
    words = variable(tf, "words", (10, 3), 2, partitioner=tf.variable_axis_size_partitioner(48))
    w = variable(tf, "w", (3, 2), 3, partitioner=tf.min_max_variable_partitioner(2, min_slice_size=8))
    rows = tf.reduce_sum(tf.nn.embedding_lookup(table, ids, partition_strategy="mod"), 1)
    plain = tf.nn.embedding_lookup_sparse(words, bags, None, partition_strategy="div", combiner="sqrtn")
    mean = tf.nn.embedding_lookup_sparse(words, bags, weights, partition_strategy="div", combiner="mean")
    gathered = tf.reduce_sum(tf.nn.embedding_lookup(words, ids, partition_strategy="div"), 1)
    return tf.reduce_mean(tf.square(tf.matmul(rows + plain + mean + gathered, w) - target))


MODELS = {"mlp": mlp, "mlp64": lambda tf: mlp(tf, np.float64), "embedding": embedding, "parts": parts}


def feeds(model, step):
    """What a step is fed, by placeholder."""
    random = np.random.RandomState(step)
    if model.startswith("mlp"):
        dtype = np.float64 if model == "mlp64" else np.float32
        x = random.uniform(-1, 1, (8, 4)).astype(dtype)
        return {"x": x, "labels": np.argmax(x[:, :3], 1).astype(np.int64)}
    fed = {"ids": random.randint(0, 20 if model == "embedding" else 10, (6, 2)).astype(np.int64),
           "target": random.uniform(-1, 1, (6, 2)).astype(np.float32)}
    if model == "parts":
        lengths = random.randint(1, 4, 6)
        rows = np.repeat(np.arange(6), lengths)
        columns = np.concatenate([np.arange(n) for n in lengths])
        fed.update(bags_indices=np.stack([rows, columns], 1).astype(np.int64),
                   bags_values=random.randint(0, 10, len(rows)).astype(np.int64),
                   bags_shape=np.array([6, 3], np.int64),
                   bags_weights=random.uniform(0.5, 2, len(rows)).astype(np.float32))
    return fed


def twice(tf, loss, step):
    momentum = tf.train.MomentumOptimizer(0.01, 0.9)
    with tf.control_dependencies([momentum.minimize(loss, step)]):
        squares = tf.add_n([tf.nn.l2_loss(v.read_value()) for v in tf.trainable_variables()])
        return momentum.minimize(squares, step)


def averaged(tf, loss, step):
    train = tf.train.AdamOptimizer(0.01).minimize(loss, step)
    averages = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
    with tf.control_dependencies([train]):
        return averages.apply(tf.trainable_variables())


def clipped(tf, loss, step):
    momentum = tf.train.MomentumOptimizer(0.1, 0.9)
    grads, variables = zip(*momentum.compute_gradients(loss))
    return momentum.apply_gradients(zip(tf.clip_by_global_norm(grads, 0.05)[0], variables), step)


def optimizers(tf):
    t = tf.train

    def by(optimizer, counts=True):
        return lambda loss, step: optimizer(step).minimize(loss, step if counts else None)
    return {
        "sgd": by(lambda s: t.GradientDescentOptimizer(0.1)),
        "momentum": by(lambda s: t.MomentumOptimizer(0.05, 0.9)),
        "nesterov": by(lambda s: t.MomentumOptimizer(0.05, 0.9, use_nesterov=True)),
        "adagrad": by(lambda s: t.AdagradOptimizer(0.1, use_locking=True)),
        "adadelta": by(lambda s: t.AdadeltaOptimizer(1.0, 0.9, 1e-6)),
        "adam": by(lambda s: t.AdamOptimizer(0.01), counts=False),
        "named_adam": by(lambda s: t.AdamOptimizer(0.01, 0.8, 0.99, 1e-4, name="Other")),
        "rmsprop": by(lambda s: t.RMSPropOptimizer(0.01, momentum=0.5)),
        "centered": by(lambda s: t.RMSPropOptimizer(0.01, 0.8, 0.3, 1e-4, centered=True)),
        "ftrl": by(lambda s: t.FtrlOptimizer(0.1, l1_regularization_strength=0.001, l2_regularization_strength=0.002)),
        "ftrl_v2": by(lambda s: t.FtrlOptimizer(0.1, -0.6, l1_regularization_strength=0.001,
                                                l2_shrinkage_regularization_strength=0.01)),
        "ftrl_beta": by(lambda s: t.FtrlOptimizer(0.1, l2_regularization_strength=0.001, beta=0.1)),
        "proximal_adagrad": by(lambda s: t.ProximalAdagradOptimizer(0.1, 0.1, 0.001, 0.002)),
        "proximal_sgd": by(lambda s: t.ProximalGradientDescentOptimizer(0.1, 0.001, 0.002)),
        "adagrad_da": by(lambda s: t.AdagradDAOptimizer(0.1, s, l1_regularization_strength=0.001,
                                                        l2_regularization_strength=0.002)),
        "decayed": by(lambda s: t.GradientDescentOptimizer(t.exponential_decay(0.5, s, 10, 0.7))),
        "clipped": lambda loss, step: clipped(tf, loss, step),
        "averaged": lambda loss, step: averaged(tf, loss, step),
        "twice": lambda loss, step: twice(tf, loss, step),
    }


def cases(tf):
    """(model, optimizer, strategy of the device setter or None)."""
    for name in optimizers(tf):
        yield "mlp", name, None
        if name not in ("decayed", "twice", "averaged", "named_adam", "ftrl_beta"):
            yield "embedding", name, None
    for name in optimizers(tf):
        yield "parts", name, None
    yield "mlp64", "adam", None
    yield "mlp", "averaged", "round_robin"
    yield "parts", "adam", "round_robin"
    yield "parts", "momentum", "by_bytes"


class Bytes:
    """TensorFlow 1's GreedyLoadBalancingStrategy by bytes, which counts what a handle stands for."""

    def __init__(self, tf, tasks):
        self.tf, self.loads = tf, [0] * tasks

    def __call__(self, op):
        shape = [d.size for d in op.get_attr("shape").dim] if hasattr(op.get_attr("shape"), "dim") else op.get_attr("shape")
        task = int(np.argmin(self.loads))
        self.loads[task] += int(np.prod(shape)) * self.tf.as_dtype(op.get_attr("dtype")).size
        return task


TASKS = 3


class Program:
    """A graph, and the names of what a training runs of it."""

    def __init__(self, graph, **names):
        self.graph, self.names = graph, names

    def __getattr__(self, name):
        return self.graph.as_graph_element(self.names[name])


def theirs(tf, model, optimizer, place):
    """TensorFlow's program, and its variables."""
    graph = tf.Graph()
    with graph.as_default():
        setter = None
        if place:
            strategy = Bytes(tf, TASKS) if place == "by_bytes" else None
            setter = tf.train.replica_device_setter(TASKS, worker_device="/job:worker/task:1", ps_strategy=strategy)
        with tf.device(setter):
            loss = MODELS[model](tf)
            step = tf.train.get_or_create_global_step()
            train = optimizers(tf)[optimizer](loss, step)
            init = tf.global_variables_initializer()
        variables = tf.global_variables()
        saver = tf.train.Saver().saver_def
        return Program(graph, loss=loss.name, train=train.name, init=init.name, filename=saver.filename_tensor_name,
                       save=saver.save_tensor_name, restore=saver.restore_op_name,
                       reads=[tf.identity(v.read_value()).name for v in variables]), variables


def ours(tf, answer, graph_def):
    """The program that the tool built; its variables are in the answer."""
    graph = tf.Graph()
    with graph.as_default():
        tf.import_graph_def(tf.GraphDef.FromString(graph_def), name="")
    trained = answer["training"]
    return Program(graph, loss=trained["loss"], train=trained["train"], init=trained["init"], filename="save/filename:0",
                   save="save/MergeV2Checkpoints", restore="save/restore_all",
                   reads=[v["read"] for v in trained["variables"]])


def run(tf, target, program, model, steps, restore=None, save=None):
    """Losses of some steps, and the variables' values after them."""
    # Apart from other models' variables of the same name, which a server keeps.
    # Steps are few: optimizing the graph and waking threads would take longer than they do.
    config = tf.ConfigProto(isolate_session_state=True, inter_op_parallelism_threads=1, intra_op_parallelism_threads=1)
    config.graph_options.optimizer_options.opt_level = -1
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    with tf.Session(target, graph=program.graph, config=config) as session:
        if restore:
            session.run(program.restore, {program.filename: restore})
        else:
            session.run(program.init)
        names = sorted(feeds(model, 0))
        step = session.make_callable([program.loss, program.train],
                                     feed_list=[program.graph.get_tensor_by_name(n + ":0") for n in names])
        losses = []
        for i in steps:
            fed = feeds(model, i)
            losses.append(step(*[fed[n] for n in names])[0])
        if save:
            session.run(program.save, {program.filename: save})
        reads = [program.graph.get_tensor_by_name(r) for r in program.names["reads"]]
        return np.array(losses), session.run(reads)


def far(want, got, tolerance):
    """How far apart, in units of what is tolerated; nothing if near enough."""
    want, got = np.asarray(want, np.float64), np.asarray(got, np.float64)
    if want.shape != got.shape:
        return "shape %s, not %s" % (got.shape, want.shape)
    with np.errstate(invalid="ignore"):
        worst = np.max(np.abs(want - got) / (np.abs(want) + 0.05), initial=0.0)
    return None if worst <= tolerance else "off by %.2g of %.2g" % (worst, tolerance)


def compare(tf, tool, targets, model, optimizer, place):
    """Differences between TensorFlow's training and ours."""
    answer, graph_def = tool.ask({"ask": "training", "model": model, "optimizer": optimizer, "place": place,
                                  "tasks": TASKS}, tf.GraphDef())
    named = {v["name"]: v for v in answer["training"]["variables"]}
    them, variables = theirs(tf, model, optimizer, place)
    problems, expected = [], {}
    if answer["training"]["train"] != them.names["train"]:
        problems.append("the training operation is called %s, not %s" % (answer["training"]["train"],
                                                                         them.names["train"]))
    for v in variables:
        info = v._get_save_slice_info()
        expected[v.op.name] = {"device": v.op.device, "save_name": info.full_name if info else v.op.name,
                               "slice": info.spec if info else ""}
    if list(named) != list(expected):
        return problems + ["variables: TensorFlow has %s, Downpour %s" % (list(expected), list(named))]
    for name, want in expected.items():
        got = {k: named[name][k] for k in want}
        if got != want:
            problems.append("%s: TensorFlow says %s, Downpour %s" % (name, want, got))
    if place:
        return problems
    us = ours(tf, answer, graph_def)
    losses, values = run(tf, "", them, model, range(STEPS))
    for target, tolerance, where in targets:
        got_losses, got = run(tf, target, us, model, range(STEPS))
        off = far(losses, got_losses, tolerance)
        if off:
            problems.append("losses on %s %s: %s... and %s..." % (where, off, losses[:4], got_losses[:4]))
        for name, w, g in zip(expected, values, got):
            off = far(w, g, tolerance)
            if off:
                problems.append("%s on %s %s" % (name, where, off))
    if model == "parts" or (model, optimizer) in CONTINUED:
        problems += continued(tf, targets[-1], them, us, model, losses)
    if optimizer != "twice" and not np.mean(losses[-10:]) < np.mean(losses[:10]):
        problems.append("nothing was learned: %s... to %s" % (losses[:3], losses[-3:]))
    return problems


# Whose checkpoints the other side goes on from, beside those of variables in parts with every optimizer.
CONTINUED = {("mlp", "centered"), ("mlp", "named_adam"), ("mlp64", "adam"), ("embedding", "ftrl")}


def continued(tf, last, them, us, model, losses):
    """Trains half on one side, saves there, restores and goes on on the other: the losses must be as if nothing was."""
    target, tolerance, where = last
    half, problems = STEPS // 2, []
    with tempfile.TemporaryDirectory() as work:
        for name, first_target, first_program, then_target, then_program in (
                ("begun by TensorFlow", "", them, target, us), ("begun by Downpour", target, us, "", them)):
            path = os.path.join(work, name.split()[-1], "model.ckpt")
            os.mkdir(os.path.dirname(path))
            run(tf, first_target, first_program, model, range(half), save=path)
            got, _ = run(tf, then_target, then_program, model, range(half, STEPS), restore=path)
            off = far(losses[half:], got, tolerance)
            if off:
                problems.append("%s, ended by the other (%s): losses %s: %s... and %s..." % (
                    name, where, off, losses[half:half + 4], got[:4]))
    return problems


def schedules(tf, tool, targets):
    """Differences between TensorFlow's schedules and ours."""
    answer, graph_def = tool.ask({"ask": "training", "model": "schedules", "optimizer": ""}, tf.GraphDef())
    rates = dict(answer["training"]["rates"])
    graph = tf.Graph()
    t = tf.train
    with graph.as_default():
        s = tf.placeholder(tf.int64, [], name="step")
        want = {
            "exponential": t.exponential_decay(0.1, s, 7, 0.9),
            "staircase": t.exponential_decay(0.1, s, 7, 0.9, staircase=True),
            "natural_exp": t.natural_exp_decay(0.1, s, 7, 0.3),
            "natural_exp_stairs": t.natural_exp_decay(0.1, s, 7, 0.3, staircase=True),
            "inverse_time": t.inverse_time_decay(0.1, s, 7, 0.5),
            "inverse_time_stairs": t.inverse_time_decay(0.1, s, 7, 0.5, staircase=True),
            "polynomial": t.polynomial_decay(0.1, s, 20, 0.01, 2.0),
            "polynomial_cycle": t.polynomial_decay(0.1, s, 20, 0.01, 0.5, cycle=True),
            "cosine": t.cosine_decay(0.1, s, 30, 0.1),
            "restarts": t.cosine_decay_restarts(0.1, s, 7, 2.0, 0.9, 0.1),
            "restarts_even": t.cosine_decay_restarts(0.1, s, 7, 1.0, 0.9, 0.0),
            "piecewise": t.piecewise_constant(s, [5, 20], [0.1, 0.05, 0.01]),
        }
    if set(want) != set(rates):
        return ["TensorFlow has %s, Downpour %s" % (sorted(want), sorted(rates))]
    problems, names = [], sorted(want)

    def values(target, graph, fetches):
        with tf.Session(target, graph=graph) as session:
            return np.array([session.run(fetches, {"step:0": i}) for i in range(50)])
    expected = values("", graph, [want[n] for n in names])
    for target, _, where in targets:
        mine = tf.Graph()
        with mine.as_default():
            tf.import_graph_def(tf.GraphDef.FromString(graph_def), name="")
        got = values(target, mine, [rates[n] for n in names])
        for i, name in enumerate(names):
            off = np.flatnonzero(np.abs(expected[:, i] - got[:, i]) > 1e-6 * np.abs(expected[:, i]) + 1e-7)
            if len(off):
                problems.append("%s on %s at step %d: TensorFlow %r, Downpour %r" % (
                    name, where, off[0], expected[off[0], i], got[off[0], i]))
    return problems


def beginnings(tf, tool, targets):
    """Differences between the first values of variables that begin at random with seeds, whole and in parts."""
    answer, graph_def = tool.ask({"ask": "training", "model": "beginnings", "optimizer": ""}, tf.GraphDef())
    found = answer["training"]["variables"]
    graph = tf.Graph()
    with graph.as_default():
        three = tf.fixed_size_partitioner
        for name, initializer, partitioner in (
                ("glorot", tf.glorot_uniform_initializer(5), None),
                ("normal", tf.random_normal_initializer(0.5, 2.0, 5), None),
                ("glorot_parts", tf.glorot_uniform_initializer(5), three(3)),
                ("he_parts", tf.initializers.he_normal(5), three(3, axis=1)),
                ("uniform_parts", tf.random_uniform_initializer(-1, 3, 5), three(3))):
            tf.get_variable(name, [10, 4], initializer=initializer, partitioner=partitioner)
        variables, init = tf.global_variables(), tf.global_variables_initializer()
        reads = [v.read_value() for v in variables]
    if [v["name"] for v in found] != [v.op.name for v in variables]:
        return ["TensorFlow has %s, Downpour %s" % ([v.op.name for v in variables], [v["name"] for v in found])]

    def values(target, graph, init, reads):
        with tf.Session(target, graph=graph, config=tf.ConfigProto(isolate_session_state=True)) as session:
            session.run(init)
            return session.run(reads)
    problems, expected = [], values("", graph, init, reads)
    for target, tolerance, where in targets:
        mine = tf.Graph()
        with mine.as_default():
            tf.import_graph_def(tf.GraphDef.FromString(graph_def), name="")
        got = values(target, mine, answer["training"]["init"], [v["read"] for v in found])
        for v, w, g in zip(variables, expected, got):
            off = far(w, g, tolerance)
            if off:
                problems.append("%s on %s %s: %s and %s" % (v.op.name, where, off, w.flat[:3], g.flat[:3]))
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
    tf.enable_resource_variables()
    tf.logging.set_verbosity(tf.logging.FATAL)
    start, passed, failed = time.time(), 0, 0
    server, targets = None, [("", ON_TENSORFLOW, "TensorFlow")]
    with tempfile.TemporaryDirectory() as work:
        if options.server:
            command = "%s serve --port {port}" % shlex.quote(options.server)
            server = servers.Server(command, os.path.join(work, "server.log"))
        try:
            if options.target or server:
                targets.append((options.target or server.target, ON_DOWNPOUR, "Downpour"))
            tool = graphs.Tool(options.tool)
            jobs = [("schedules", lambda: schedules(tf, tool, targets)),
                    ("beginnings", lambda: beginnings(tf, tool, targets))]
            for model, optimizer, place in cases(tf):
                name = "/".join(filter(None, (model, optimizer, place)))
                jobs.append((name, lambda m=model, o=optimizer, p=place: compare(tf, tool, targets, m, o, p)))
            for name, job in jobs:
                if not fnmatch.fnmatch(name, options.only):
                    continue
                try:
                    problems = job()
                except (tf.errors.OpError, RuntimeError, ValueError) as e:
                    problems = ["%s: %s" % (type(e).__name__, str(e)[:2000])]
                passed, failed = (passed, failed + 1) if problems else (passed + 1, failed)
                if problems:
                    print("FAIL %s\n     %s" % (name, "\n     ".join(problems[:6])), flush=True)
                elif options.show:
                    print("ok   %s" % name, flush=True)
        finally:
            if server:
                server.stop()
    print("optimizers: %d passed, %d failed in %.0f s" % (passed, failed, time.time() - start))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
