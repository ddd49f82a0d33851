"""Control flow: graphs that Downpour's builder made (branches, loops, functions, lists), run beside formulas.

Each example of `downpour-graph-tool` is imported into TensorFlow, or sent to a server, and run on some inputs. Its values
must be those of the formula written here; the builder's gradients must be the formula's numeric ones, and those that
TensorFlow works out for the same graph.

  python graphs.py flow --tool target/debug/downpour-graph-tool [--target grpc://127.0.0.1:2222] [--example GLOB] [--show]
"""
import argparse
import fnmatch
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
from graphs import Tool

EXAMPLES = {}
TABLE = np.array([[1, 2], [3, 4], [5, 6], [7, 8]], np.float64)


def example(name, *inputs, variables=None):
    """The formula of an example: of inputs and variables by name, gives what each fetch must be."""
    def register(formula):
        EXAMPLES[name] = (inputs, variables or {}, formula)
        return formula
    return register


def each(**choices):
    """Every combination of the choices, beside fixed inputs."""
    combinations = [{}]
    for key, values in choices.items():
        combinations = [dict(c, **{key: v}) for c in combinations for v in values]
    return combinations


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


BOTH = [True, False]
X2, X3 = np.array([0.3, -0.7]), np.array([0.5, -1.0, 2.0])


@example("cond/captures", *each(p=BOTH, x=[X3], w=[1.5]))
def _(p, x, w):
    return [x * w + 1 if p else x ** 2]


@example("cond/values_from_inside", *each(p=BOTH, x=[X3]))
def _(p, x):
    a, b = (np.tanh(np.exp(x)) * 2, x) if p else (np.log(x ** 2 + 1), sigmoid(x))
    return [np.sum(a * b), a, b]


@example("cond/nested", *each(p=BOTH, q=BOTH, x=[X2]))
def _(p, q, x):
    if p:
        return [np.exp(x) * x if q else np.tanh(np.exp(x))]
    return [x ** 2 if q else sigmoid(x) * x]


@example("cond/effects", *each(p=BOTH, x=[3.0]), variables={"v": 10.0})
def _(p, x, v):
    return [(v + x) * 2 if p else x]


@example("cond/only_one_uses", *each(p=BOTH, x=[X2], w=[X2 + 1]))
def _(p, x, w):
    return [np.exp(x) if p else w * 3]


@example("cond/embedding", *each(p=BOTH, i=[np.array([1, 1]), np.array([3, 0])]), variables={"table": TABLE})
def _(p, i, table):
    return [table[i] ** 2 if p else table[i] * 3]


@example("cond/waits_for_outside", *each(p=BOTH, x=[4.0]), variables={"v": 1.0})
def _(p, x, v):
    return [x if p else x + 100]


@example("cond/second_order", *each(p=BOTH, x=[X2]))
def _(p, x):
    return [np.exp(x) * (x + 1), np.exp(x) * x] if p else [3 * x ** 2, x ** 3]


@example("case/first_true", *each(x=[-2.0, 0.5, 1.5]))
def _(x):
    return [-x if x < -1 else x ** 2 if x < 1 else np.exp(x)]


@example("switch_case/three", *each(i=[0, 1, 2, 7, -1], x=[X2], w=[X2 + 2]))
def _(i, x, w):
    return [x * w if i == 0 else np.exp(x) * w if i == 1 else np.tanh(x)]


@example("while/power", *each(n=[0, 1, 4], x=[X2], a=[np.array([1.5, -0.5])]))
def _(n, x, a):
    return [x * a ** n, n]


@example("while/counter_in_gradient", *each(n=[0, 3], x=[2.0]))
def _(n, x):
    return [x * np.prod(np.tanh(np.arange(n) + 0.5))]


@example("while/maximum_iterations", *each(n=[0, 2, 50], x=[0.5]))
def _(n, x):
    for _ in range(n):
        if x >= 100:
            break
        x = x ** 2 + 1
    return [x]


@example("while/nested", *each(n=[0, 1, 3], m=[0, 2], x=[X2]))
def _(n, m, x):
    for _ in range(n):
        y = x
        for _ in range(m):
            y = np.tanh(y) * 1.5
        x = y * x
    return [x]


@example("while/nested_captured", *each(n=[1, 2], m=[0, 3], x=[X2], w=[np.array([[0.5, -1], [1, 0.3]])]))
def _(n, m, x, w):
    x = x.reshape(1, 2)
    for _ in range(n):
        scale, y = sigmoid(x), x
        for _ in range(m):
            y = np.tanh(y @ w) * scale
        x = y
    return [x]


@example("while/updates_variable", *each(n=[0, 3], x=[0.5]), variables={"v": 1.0})
def _(n, x, v):
    total = 0.0
    for _ in range(n):
        v = v * 2 + x
        total += v
    return [total, v]


@example("while/reads_variable", *each(n=[0, 2], x=[X2]), variables={"v": np.array([0.5, 2.0])})
def _(n, x, v):
    for _ in range(n):
        x = np.tanh(x * v) + v
    return [x]


@example("while/gathers_variable", *each(n=[1, 3], i=[np.array([2, 0, 2])]), variables={"table": TABLE})
def _(n, i, table):
    y = np.zeros((3, 2))
    for _ in range(n):
        y = (y + table[i]) ** 2 * 0.1
    return [y]


@example("while/cond_inside", *each(n=[0, 1, 4], x=[0.7]))
def _(n, x):
    y = x
    for k in range(n):
        y = np.exp(y) * 0.5 if k % 2 == 0 else y * x
    return [y]


def _second(n, x):
    slope = 1.0
    for _ in range(n):
        slope *= x + 1 - np.tanh(x) ** 2
        x = x * x * 0.5 + np.tanh(x)
    return [slope, x]


example("while/second_order", *each(n=[0, 1, 3], x=[0.6]))(_second)


@example("while/grows", *each(n=[0, 1, 2], x=[X2]))
def _(n, x):
    for _ in range(n):
        x = np.concatenate([x, x ** 2])
    return [x]


@example("while/descends_inside", *each(n=[0, 3], x=[X2]))
def _(n, x):
    for _ in range(n):
        x = x - 0.1 * (2 * x + 1 - np.tanh(x) ** 2)
    return [x]


# The second fetch is the product of the numbers drawn, and so the gradient of the first.
EXAMPLES["while/random_is_not_repeated"] = (each(x=[X2]), {}, None)


@example("list/push_pop", *each(x=[X2], w=[X2 + 1]))
def _(x, w):
    return [(x ** 2 + np.exp(w)) * x * w, np.stack([x ** 2, np.exp(w), x * w])]


@example("list/set_get_gather", *each(x=[np.array([[1.0, 2], [3, 4], [5, 6]])], i=[0, 2]))
def _(x, i):
    y = x.copy()
    y[i] = x[i] * x[0]
    return [y[[2, 0, 2]] ** 2, 3]


@example("map_fn/rows", *each(x=[np.arange(6).reshape(3, 2) / 5, np.zeros((0, 2))], w=[X2]))
def _(x, w):
    return [np.sum(np.tanh(x * w), 1)]


@example("map_fn/two_of_each", *each(x=[np.arange(6).reshape(3, 2) / 5], z=[X3]))
def _(x, z):
    return [np.sum(x * z[:, None], 1) * np.exp(z), x * z[:, None], np.exp(z)]


@example("fold/horner", *each(c=[np.array([1.0, -2, 0.5, 3])], x=[0.7]))
def _(c, x):
    return [np.polyval(c, x)]


@example("scan/recurrent", *each(x=[np.linspace(-1, 1, 8).reshape(4, 1, 2)], h=[np.array([[0.1, 0.2]])],
                                 u=[np.array([[0.5, -1], [1, 0.3]])], w=[np.array([[0.2, 0.4], [-0.6, 1]])]))
def _(x, h, u, w):
    out = []
    for row in x:
        h = np.tanh(row @ u + h @ w)
        out.append(h)
    return [np.stack(out)]


@example("call/captures", *each(x=[X2], w=[X2 + 1]))
def _(x, w):
    return [np.tanh((x + 1) * w) * (x + 1)]


@example("call/nested_and_twice", *each(x=[X2]))
def _(x):
    def inner(a):
        return np.exp(a) * a

    def outer(a, b):
        return inner(inner(np.tanh(a))) + b
    return [outer(outer(x, x ** 2), x)]


@example("call/variable", *each(x=[X2]), variables={"v": np.array([2.0, 3.0])})
def _(x, v):
    return [x * v, v + x]


@example("call/embedding", *each(i=[np.array([1, 3, 1])]), variables={"table": TABLE})
def _(i, table):
    return [table[i] ** 2]


@example("call/loop_inside", *each(n=[0, 2], x=[X2]))
def _(n, x):
    y = x * 0.5
    for _ in range(n):
        y = np.exp(y) * x
    return [y]


@example("call/second_order", *each(x=[X2]))
def _(x):
    return [np.exp(x) * (x + 1)]


# TensorFlow has no gradients of imported calls but SymbolicGradient, which lacks most; and it forgets all but one of the
# times that an element was gathered; of v1 loops it differentiates only those that it made itself.
WITHOUT_REFERENCE = {n for n in EXAMPLES if n.startswith("call/")} | {"list/set_get_gather", "while/random_is_not_repeated", "v1/loop"}


@example("v1/loop", *each(n=[0, 1, 3], x=[X2], a=[np.array([1.5, -0.5])]))
def _(n, x, a):
    for _ in range(n):
        x = np.tanh(x) * a
    return [x]


def numeric(formula, inputs, name, step=1e-5):
    """The gradient of the sum of the first fetch with respect to one input."""
    x = np.array(inputs[name], np.float64)
    out = np.zeros_like(x)
    for at in np.ndindex(x.shape):
        sums = []
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * step
            sums.append(np.sum(formula(**dict(inputs, **{name: moved}))[0]))
        out[at] = (sums[0] - sums[1]) / (2 * step)
    return out


def load(tf, tool, name, with_gradients):
    answer, data = tool.ask({"ask": "example", "name": name, "gradients": with_gradients}, tf.GraphDef())
    graph, graph_def = tf.Graph(), tf.GraphDef.FromString(data)
    if not with_gradients:
        rename_functions(graph_def, name)
    with graph.as_default():
        tf.import_graph_def(graph_def, name="")
    return graph, answer


def rename_functions(graph_def, suffix):
    """TensorFlow's gradients define functions named after the given ones for the whole process."""
    suffix = "_" + suffix.replace("/", "_")
    known = {f.signature.name for f in graph_def.library.function}
    nodes = list(graph_def.node) + [n for f in graph_def.library.function for n in f.node_def]
    for function in graph_def.library.function:
        function.signature.name += suffix
    for node in nodes:
        if node.op in known:
            node.op += suffix
        for attr in node.attr.values():
            for function in [attr.func] + list(attr.list.func):
                if function.name in known:
                    function.name += suffix


def densified(tf, graph, parts):
    if parts is None:
        return None
    with graph.as_default():
        tensors = [graph.get_tensor_by_name(p) for p in parts]
        return tensors[0] if len(tensors) == 1 else tf.convert_to_tensor(tf.IndexedSlices(*tensors))


def close(got, want):
    got, want = np.asarray(got), np.asarray(want)
    return got.shape == want.shape and np.allclose(got, want, rtol=2e-4, atol=2e-5)


def check(tf, tool, name, target):
    """What is wrong with an example."""
    inputs, variables, formula = EXAMPLES[name]
    graph, answer = load(tf, tool, name, True)
    plain, _ = load(tf, tool, name, False)
    fetches = [graph.get_tensor_by_name(f) for f in answer["fetches"]]
    ours = [densified(tf, graph, g) for g in answer["gradients"]]
    with plain.as_default():
        xs = [plain.get_tensor_by_name(x) for x in answer["xs"]]
        theirs = xs and name not in WITHOUT_REFERENCE and tf.gradients(plain.get_tensor_by_name(answer["fetches"][0]), xs)
        theirs = [None if t is None else tf.convert_to_tensor(t) for t in theirs or []]
    problems = ["%s has no gradient" % x for x, g in zip(answer["xs"], ours) if g is None]
    problems += ["TensorFlow has no gradient of %s" % x for x, g in zip(answer["xs"], theirs) if g is None]
    if problems:
        return problems
    with tf.Session(target, graph=graph) as session, tf.Session(graph=plain) as other:
        for values in inputs:
            feeds = {f: np.asarray(values[f.split(":")[0]]) for f in answer["feeds"]}
            session.run("init")
            # Twice: a step must not depend on what the one before left.
            got = session.run(fetches, feeds)
            session.run("init")
            again, grads = session.run([fetches, ours], feeds)
            reference = [None] * len(xs)
            if formula is not None and name not in WITHOUT_REFERENCE:
                other.run("init")
                reference = other.run(theirs, feeds)
            where = "with %s: " % {k: np.asarray(v).tolist() for k, v in values.items()}
            if formula is None:
                want, got = again, again
                grads_wanted = [again[1]]
            else:
                want = formula(**values, **variables)
                known = dict(values, **variables)
                grads_wanted = [numeric(formula, known, x.split(":")[0]) for x in answer["xs"]]
            if len(got) != len(want):
                problems.append("%s%d fetches, %d in the formula" % (where, len(got), len(want)))
            for k, (g, a, w) in enumerate(zip(got, again, want)):
                if not close(g, w) or not close(a, w):
                    problems.append("%sfetch %d is %s, then %s, but must be %s" % (where, k, g, a, w))
            for x, g, w, r in zip(answer["xs"], grads, grads_wanted, reference):
                if not close(g, w):
                    problems.append("%sgradient of %s is %s, but must be %s" % (where, x, g, w))
                if r is not None and not close(g, r):
                    problems.append("%sgradient of %s is %s, TensorFlow's %s" % (where, x, g, r))
    return problems


def main(arguments=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tool", required=True)
    p.add_argument("--target", default="")
    p.add_argument("--example", default="*")
    p.add_argument("--show", action="store_true", help="print each example's name and time")
    options = p.parse_args(arguments)
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    tf.logging.set_verbosity(tf.logging.FATAL)
    tool, start = Tool(options.tool), time.time()
    names = tool.ask({"ask": "examples"}, tf.GraphDef())[0]["examples"]
    failed = ["'%s' is only here" % n for n in EXAMPLES if n not in names] + ["'%s' has no formula" % n for n in names if n not in EXAMPLES]
    passed = 0
    for name in fnmatch.filter([n for n in names if n in EXAMPLES], options.example):
        begun = time.time()
        try:
            problems = check(tf, tool, name, options.target)
        except (RuntimeError, tf.errors.OpError, ValueError, TypeError) as e:
            problems = ["%s: %s" % (type(e).__name__, str(e)[:1500])]
        if options.show:
            print("%-32s %.2f s" % (name, time.time() - begun))
        failed += ["%s: %s" % (name, problem) for problem in problems[:3]]
        passed += not problems
    for problem in failed:
        print("FAIL " + problem)
    print("flow: %d passed, %d failed in %.0f s" % (passed, len({f.split(":")[0] for f in failed}), time.time() - start))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
