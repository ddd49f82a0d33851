"""Loops, both kinds: `while_loop` of v1 (frames) and of v2 (While), raw ops, endless ones."""
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function
from tensorflow.python.ops import control_flow_util

from registry import case, const, init, inp, raw, script, steps

F = tf.float32


def both(name, build, **options):
    for v2 in (False, True):
        def run(v2=v2):
            before = control_flow_util.ENABLE_CONTROL_FLOW_V2
            control_flow_util.ENABLE_CONTROL_FLOW_V2 = v2
            try:
                return build()
            finally:
                control_flow_util.ENABLE_CONTROL_FLOW_V2 = before
        case("%s/v%d" % (name, 2 if v2 else 1), run, **options)


def count(n, parallel=10, **kw):
    return tf.while_loop(lambda i, a: i < n, lambda i, a: [i + 1, a + tf.cast(i, F)], [const(0), inp(0.5)],
                         parallel_iterations=parallel, **kw)


for n in (0, 1, 7, 300):
    both("while/%d" % n, lambda n=n: count(inp(n)))
for parallel in (1, 2, 32):
    both("while/parallel_%d" % parallel, lambda parallel=parallel: count(inp(20), parallel))
both("while/maximum_iterations", lambda: count(inp(20), maximum_iterations=5))
both("while/long", lambda: count(inp(5000))[0])


def _nested():
    def outer(i, a):
        inner = tf.while_loop(lambda j, b: j < i, lambda j, b: [j + 1, b + j * 10], [const(0), a])
        return [i + 1, inner[1] + i]
    return tf.while_loop(lambda i, a: i < 5, outer, [const(0), inp(0)])


def _cond_inside():
    return tf.while_loop(lambda i, a: i < 10, lambda i, a: [i + 1, tf.cond(tf.equal(i % 2, 0), lambda: a + i, lambda: a - 1)],
                         [const(0), inp(0)])


def _loop_in_cond(p):
    return tf.cond(inp(p), lambda: count(inp(4))[1], lambda: const(-1.0))


def _captured():
    x = inp([1.0, 2.0])
    return tf.while_loop(lambda i, a: i < 3, lambda i, a: [i + 1, a * x], [const(0), tf.ones_like(x)])


def _growing():
    return tf.while_loop(lambda i, a: i < 4, lambda i, a: [i + 1, tf.concat([a, [i]], 0)], [const(0), inp([9], shape=[1])],
                         shape_invariants=[tf.TensorShape([]), tf.TensorShape([None])])


def _variable():
    v = tf.get_variable("v", initializer=1.0, use_resource=True)
    init(v.initializer)

    def body(i):
        with tf.control_dependencies([v.assign_add(2.0)]):
            return [i + 1]
    loop = tf.while_loop(lambda i: i < 5, body, [const(0)], parallel_iterations=1)
    return steps(loop, v.read_value())


def _array():
    def body(i, ta):
        return [i + 1, ta.write(i, i * i)]
    ta = tf.while_loop(lambda i, ta: i < 6, body, [const(0), tf.TensorArray(tf.int32, 6)])[1]
    return ta.stack()


def _dynamic_array():
    def body(i, ta):
        return [i + 1, ta.write(i, tf.fill([2], i))]
    ta = tf.while_loop(lambda i, ta: i < inp(3), body, [const(0), tf.TensorArray(tf.int32, 0, dynamic_size=True)])[1]
    return [ta.stack(), ta.concat(), ta.size()]


def _gradient(parallel=10):
    x = inp([1.0, 2.0])
    y = tf.while_loop(lambda i, a: i < inp(3), lambda i, a: [i + 1, a * x + 1.0], [const(0), x], parallel_iterations=parallel)[1]
    return [y] + tf.gradients(y, x)


def _second_gradient():
    x = inp(1.5)
    y = tf.while_loop(lambda i, a: i < 3, lambda i, a: [i + 1, a * x], [const(0), x])[1]
    g = tf.gradients(y, x)[0]
    return [y, g] + tf.gradients(g, x)


def _nested_gradient():
    x = inp(1.25)

    def outer(i, a):
        return [i + 1, tf.while_loop(lambda j, b: j < 2, lambda j, b: [j + 1, b * x], [const(0), a])[1]]
    y = tf.while_loop(lambda i, a: i < 3, outer, [const(0), x])[1]
    return [y] + tf.gradients(y, x)


def _cond_gradient():
    x = inp(1.25)
    y = tf.while_loop(lambda i, a: i < 4, lambda i, a: [i + 1, tf.cond(tf.equal(i % 2, 0), lambda: a * x, lambda: a + x)],
                      [const(0), x])[1]
    return [y] + tf.gradients(y, x)


def _error():
    return tf.while_loop(lambda a: a < 100.0, lambda a: [tf.check_numerics(tf.log(1.0 - a), "in the body")], [inp(2.0)])


def _dead():
    return tf.cond(inp(False), lambda: count(inp(3)), lambda: [const(7), const(8.0)])


both("while/nested", _nested)
both("while/cond_inside", _cond_inside)
for p in (True, False):
    both("while/in_cond_%s" % p, lambda p=p: _loop_in_cond(p))
both("while/captured", _captured)
both("while/growing", _growing)
both("while/variable", _variable)
both("while/tensor_array", _array)
both("while/dynamic_tensor_array", _dynamic_array)
both("while/gradient", _gradient)
both("while/gradient_one_at_a_time", lambda: _gradient(1))
both("while/nested_gradient", _nested_gradient)
both("while/cond_gradient", _cond_gradient)
case("while/second_gradient/v2", lambda: _v2(_second_gradient))
both("while/error_in_body", _error)
both("while/in_dead_branch", _dead)
both("while/no_results_used", lambda: tf.shape(count(inp(3))[1]))
both("scan", lambda: tf.scan(lambda a, x: a + x, inp([1.0, 2.0, 3.0])))
both("foldl", lambda: tf.foldl(lambda a, x: a * 2 + x, inp([1, 2, 3])))
both("map_fn", lambda: tf.map_fn(lambda x: x * x, inp([1.0, 2.0, 3.0])))


def _v2(build):
    before = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = True
    try:
        return build()
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = before


@function.Defun(tf.int32)
def Less(n):
    return n < 10


@function.Defun(tf.int32)
def More(n):
    return n + 1


@function.Defun(tf.int32)
def Text(n):
    return tf.substr("xxxxx", 0, 5 - n)


@function.Defun(tf.int32)
def Twice(n):
    return n, n


@function.Defun(tf.int32)
def Float(n):
    return tf.cast(n, F)


def raw_while(op, cond, body):
    for f in (cond, body):
        f.add_to_graph(tf.get_default_graph())
    return op(input=[inp(1)], cond=cond, body=body)


for op in (raw.While, raw.StatelessWhile):
    name = op.__name__
    case("%s/count" % name, lambda op=op: raw_while(op, Less, More))
    case("%s/condition_is_text" % name, lambda op=op: raw_while(op, Text, More))
    case("%s/condition_is_a_number" % name, lambda op=op: raw_while(op, Float, lambda_minus()))
    case("%s/two_conditions" % name, lambda op=op: raw_while(op, Twice, More))
    case("%s/two_results" % name, lambda op=op: raw_while(op, Less, Twice))
    case("%s/wrong_result" % name, lambda op=op: raw_while(op, Less, Float))


def lambda_minus():
    @function.Defun(tf.int32)
    def minus(n):
        return n - 1
    return minus


@function.Defun(tf.int32, F)
def Add(i, a):
    return a + tf.cast(i, F)


def raw_for(start, limit, delta):
    Add.add_to_graph(tf.get_default_graph())
    return raw.For(start=start, limit=limit, delta=delta, input=[inp(0.5)], body=Add)


for start, limit, delta in ((0, 5, 1), (5, 0, -2), (3, 3, 1), (3, 3, 0), (0, 5, -1), (5, 0, 1), (0, 5, 0), (1, 7, 3)):
    case("For/%d_%d_%d" % (start, limit, delta), lambda s=start, l=limit, d=delta: raw_for(inp(s), inp(l), inp(d)))
case("For/vector_start", lambda: raw_for(inp([1]), inp(3), inp(1)))


def _endless(env, build):
    """A loop that never ends is ended by the step's deadline, and the session goes on."""
    g = tf.Graph()
    with g.as_default(), env.session(g) as s:
        loop = build()
        other = tf.constant(3.0) * 2.0
        error = env.error(lambda: s.run(loop, options=tf.RunOptions(timeout_in_ms=300)))
        return [error.kind, s.run(other)]


def _spin_v1():
    return tf.while_loop(lambda i: i > -1, lambda i: [tf.identity(i)], [const(1)])


# An endless functional loop overflows TensorFlow's own stack, so only those it lowers are compared.
for name, build in (("v1", _spin_v1), ("v2", lambda: _v2(_spin_v1))):
    script("endless/%s" % name, text="who notices first")(lambda env, build=build: _endless(env, build))

