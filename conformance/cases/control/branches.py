"""Conditionals, both kinds: `cond` of v1 (Switch and Merge) and of v2 (If), `case`, and raw ops."""
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function
from tensorflow.python.ops import control_flow_util

from registry import ALL, NUMBERS, case, const, init, inp, raw, rnd, short, steps

F = tf.float32


def both(name, build, **options):
    """A case with each kind of control flow."""
    for v2 in (False, True):
        def run(v2=v2):
            before = control_flow_util.ENABLE_CONTROL_FLOW_V2
            control_flow_util.ENABLE_CONTROL_FLOW_V2 = v2
            try:
                return build()
            finally:
                control_flow_util.ENABLE_CONTROL_FLOW_V2 = before
        case("%s/v%d" % (name, 2 if v2 else 1), run, **options)


for p in (True, False):
    both("cond/%s" % p, lambda p=p: tf.cond(inp(p), lambda: const(1.0) + 1.0, lambda: const(2.0) * 5.0))
    both("cond/lists_%s" % p, lambda p=p: tf.cond(inp(p), lambda: [const(1), const(2.0)], lambda: [const(3), const(4.0)]))
    both("cond/captured_%s" % p, lambda p=p: _captured(p))
    both("cond/nested_%s" % p, lambda p=p: _nested(p))
    both("cond/assign_%s" % p, lambda p=p: _assign(p))
    both("cond/gradient_%s" % p, lambda p=p: _gradient(p))
    both("cond/error_in_branch_%s" % p, lambda p=p: tf.cond(
        inp(p), lambda: tf.check_numerics(inp(float("nan")), "taken"), lambda: const(1.0)))
    both("cond/no_results_%s" % p, lambda p=p: _no_results(p))
    both("cond/shapes_differ_%s" % p, lambda p=p: tf.cond(inp(p), lambda: tf.zeros([2, 3]), lambda: tf.ones([4])))
    both("cond/fetch_inside_%s" % p, lambda p=p: _inside(p))


def _captured(p):
    x, y = inp([1.0, 2.0]), inp(3.0)
    return tf.cond(inp(p), lambda: x + y, lambda: x * y)


def _nested(p):
    x, q = inp(5), inp(not p)
    return tf.cond(inp(p), lambda: tf.cond(q, lambda: x + 1, lambda: x + 2), lambda: tf.cond(q, lambda: x + 3, lambda: x + 4))


def _assign(p):
    v = tf.get_variable("v", initializer=1.0, use_resource=True)
    init(v.initializer)
    op = tf.cond(inp(p), lambda: v.assign_add(10.0, read_value=False) and v.assign_add(1.0), lambda: v.read_value())
    return steps(op, v.read_value())


def _gradient(p):
    x, y = inp([1.0, 2.0]), inp([3.0, 4.0])
    z = tf.cond(inp(p), lambda: x * y, lambda: tf.exp(x))
    return [z] + [g if g is not None else const(0.0) for g in tf.gradients(z, [x, y])]


def _no_results(p):
    v = tf.get_variable("v", initializer=1.0, use_resource=True)
    init(v.initializer)

    def yes():
        with tf.control_dependencies([v.assign(5.0)]):
            return tf.no_op()
    op = tf.cond(inp(p), yes, tf.no_op)
    with tf.control_dependencies([op if isinstance(op, tf.Operation) else op.op]):
        return steps(op, v.read_value())


def _inside(p):
    # A node after the branch depends on both its results.
    a, b = tf.cond(inp(p), lambda: (const(1), const(2)), lambda: (const(3), const(4)))
    return [a, a + b]


for i in (-1, 0, 1, 2, 7):
    both("switch_case/%d" % i, lambda i=i: tf.switch_case(
        inp(i), [lambda: const(10), lambda: const(20), lambda: const(30)]))
    both("switch_case/gradient_%d" % i, lambda i=i: _case_gradient(i))
both("case/first_true", lambda: tf.case([(inp(False), lambda: const(1)), (inp(True), lambda: const(2))], default=lambda: const(3)))
both("case/default", lambda: tf.case([(inp(False), lambda: const(1))], default=lambda: const(3)))
both("case/exclusive", lambda: tf.case([(inp(True), lambda: const(1)), (inp(True), lambda: const(2))], exclusive=True,
                                       default=lambda: const(3)))


def _case_gradient(i):
    x = inp([1.0, 2.0])
    y = tf.switch_case(inp(i), [lambda: x * 2.0, lambda: x * x, lambda: tf.sin(x)])
    return [y] + tf.gradients(y, x)


@function.Defun(F)
def Then(x):
    return x + 1.0


@function.Defun(F)
def Else(x):
    return x - 1.0


@function.Defun(F)
def Two(x):
    return x, x


def raw_if(op, cond, then=Then, other=Else, x=2.0):
    for f in (then, other):
        f.add_to_graph(tf.get_default_graph())
    return op(cond=cond, input=[inp(x)], Tout=[F], then_branch=then, else_branch=other)


CONVERTIBLE = [F, tf.float64, tf.int32, tf.uint8, tf.int16, tf.int8, tf.int64, tf.bool]
for op in (raw.If, raw.StatelessIf):
    for dtype in CONVERTIBLE:
        for value in (0, 1):
            case("%s/%s/%d" % (op.__name__, short(dtype), value), lambda op=op, dtype=dtype, value=value: raw_if(op, inp(value, dtype)))
    for text in (b"", b"x"):
        case("%s/string/%d" % (op.__name__, len(text)), lambda op=op, text=text: raw_if(op, inp(text)))
    for shape in ([0], [1], [2, 0], [2, 3]):
        case("%s/shape_%s" % (op.__name__, "x".join(map(str, shape))), lambda op=op, shape=shape: raw_if(op, inp(rnd(shape))))
    case("%s/argument_type" % op.__name__, lambda op=op: raw_if(op, inp(True), x=1))
    case("%s/more_results" % op.__name__, lambda op=op: raw_if(op, inp(True), then=Two))


def raw_case(op, index):
    for f in (Then, Else):
        f.add_to_graph(tf.get_default_graph())
    return op(branch_index=index, input=[inp(2.0)], Tout=[F], branches=[Then, Else])


for op in (raw.Case, raw.StatelessCase):
    for i in (-5, 0, 1, 2):
        case("%s/%d" % (op.__name__, i), lambda op=op, i=i: raw_case(op, inp(i)))
    case("%s/vector" % op.__name__, lambda op=op: raw_case(op, inp([0])))

for dtype in (F, tf.int32, tf.string, tf.bool, tf.complex64):
    for p in (True, False):
        def _switch(dtype=dtype, p=p):
            f, t = tf.raw_ops.Switch(data=inp(rnd((2,), dtype), dtype), pred=inp(p))
            value, index = tf.raw_ops.Merge(inputs=[tf.identity(f), tf.identity(t)])
            return [value, index]
        case("Switch/%s/%s" % (dtype.name, p), _switch)
case("Switch/vector_predicate", lambda: tf.raw_ops.Merge(inputs=list(tf.raw_ops.Switch(data=inp(1.0), pred=inp([True])))))
case("Switch/dead_fetch", lambda: tf.raw_ops.Switch(data=inp(1.0), pred=inp(True))[0], oracle="server", text="names the step")
case("Switch/dead_sum", lambda: tf.raw_ops.Switch(data=inp(1.0), pred=inp(True))[0] + 1.0, oracle="server", text="names the step")
