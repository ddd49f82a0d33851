"""Functions: calls by attribute and by name, attributes, state inside, recursion, gradients, errors."""
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import function
from tensorflow.python.ops import functional_ops

from registry import case, const, init, inp, raw, script, steps

F = tf.float32


def defun(*types, **kw):
    return function.Defun(*types, **kw)


def call(op, f, args, types):
    f.add_to_graph(tf.get_default_graph())
    return op(args=args, Tout=types, f=f)


@defun(F, F)
def Two(x, y):
    return x + y, x * y


@defun(F)
def Check(x):
    return tf.check_numerics(x, "checked")


@tf.function
def twice(x):
    return x * 2.0


@tf.function
def nested(x):
    return twice(x) + twice(x + 1.0)


@tf.function
def checked(x):
    return tf.debugging.check_numerics(x, "inner")


@tf.function
def outer(x):
    return checked(x) + 1.0


for op in (raw.PartitionedCall, raw.StatefulPartitionedCall):
    name = op.__name__
    case("%s/two" % name, lambda op=op: call(op, Two, [inp([1.0, 2.0]), inp(3.0)], [F, F]))
    case("%s/error" % name, lambda op=op: call(op, Check, [inp(float("nan"))], [F]))
    case("%s/types" % name, lambda op=op: call(op, Check, [inp(1)], [F]))
    case("%s/arity" % name, lambda op=op: call(op, Check, [inp(1.0), inp(2.0)], [F]))
    case("%s/results" % name, lambda op=op: call(op, Check, [inp(1.0)], [tf.int32]))
    case("%s/more_results" % name, lambda op=op: call(op, Check, [inp(1.0)], [F, F]))

case("call/by_name", lambda: Two(inp([1.0, 2.0]), inp(3.0)))
case("call/by_name_error", lambda: Check(inp(float("inf"))))
case("call/tf_function", lambda: nested(inp([1.0, 2.0])))
case("call/tf_function_error", lambda: outer(inp(float("nan"))))
case("call/only_one_result", lambda: Two(inp(1.0), inp(2.0))[1])
case("call/constant_arguments", lambda: nested(const([1.0, 2.0])))


@defun(F)
def Unused(x):
    # The division fails if it runs; nothing needs it.
    tf.check_numerics(x / 0.0, "must not run")
    return x + 1.0


case("call/stateless_nodes_nobody_needs_do_not_run", lambda: Unused(inp(1.0)))




def counting(body):
    def build():
        v = tf.get_variable("v", initializer=1.0, use_resource=True)
        init(v.initializer)
        return steps(*body(v))
    return build


def _assign_in_function(v):
    @tf.function
    def bump(x):
        v.assign_add(x)
        return v.read_value()
    return [bump(inp(2.0)), bump(const(3.0)), v.read_value()]


def _assign_without_result(v):
    @tf.function
    def bump():
        v.assign_add(5.0)
    op = bump()
    return [op, v.read_value()]


def _order(v):
    @tf.function
    def mixed():
        v.assign(2.0)
        a = v.read_value()
        v.assign(a * 10.0)
        b = v.read_value()
        v.assign_sub(1.0)
        return a, b, v.read_value()
    return [mixed(), v.read_value()]


case("state/assign_in_function", counting(_assign_in_function))
case("state/function_without_results", counting(_assign_without_result))
case("state/program_order", counting(_order))


def _captured():
    x = inp([1.0, 2.0])

    @defun()
    def f():
        return x * 3.0
    return f()


case("call/captured", _captured)


@defun(F, shape_func=lambda op: [op.inputs[0].get_shape()])
def Polynomial(x):
    return x * x * x + tf.tanh(x) / (1.0 + tf.exp(-x))


def _grad(f, *values):
    xs = [inp(v) for v in values]
    ys = f(*xs)
    ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
    return ys + tf.gradients(ys, xs)


case("gradient/polynomial", lambda: _grad(Polynomial, [0.5, -1.0, 2.0]), rtol=1e-4)
case("gradient/two_results", lambda: _grad(Two, [0.5, -1.0, 2.0], [1.0, 2.0, 3.0]))
case("gradient/broadcast", lambda: _grad(Two, [[0.5, -1.0, 2.0]], [[1.0], [2.0]]))
case("gradient/tf_function", lambda: _grad(nested, [0.5, -1.0]))

UNARY = ["Abs", "Neg", "Reciprocal", "Square", "Sqrt", "Rsqrt", "Exp", "Expm1", "Log", "Log1p", "Sinh",
         "Cosh", "Tanh", "Asinh", "Acosh", "Atanh", "Sigmoid", "Sign", "Sin", "Cos", "Acos", "Asin",
         "Atan", "Tan", "Relu", "Relu6", "Softmax", "LogSoftmax", "Identity", "Squeeze"]
BINARY = ["Add", "AddV2", "Sub", "Mul", "Div", "RealDiv", "DivNoNan", "Pow", "Maximum", "Minimum",
          "SquaredDifference", "Xlogy", "Xdivy"]


def _unary(op):
    @defun(F)
    def f(x):
        kernel = getattr(raw, op)
        args = {"input": x} if op in ("Identity", "Squeeze") else (
            {"features": x} if op.startswith("Relu") else ({"logits": x} if "oftmax" in op else {"x": x}))
        return kernel(**args)
    x = [[0.25, 0.5, 0.75]] if op != "Acosh" else [[1.25, 1.5, 2.75]]
    return _grad(f, x)


def _binary(op):
    @defun(F, F)
    def f(x, y):
        return getattr(raw, op)(x=x, y=y)
    return _grad(f, [[0.5, 1.5, 2.0]], [[1.25], [3.0]])


for op in UNARY:
    case("gradient/%s" % op, lambda op=op: _unary(op), rtol=1e-4)
for op in BINARY:
    case("gradient/%s" % op, lambda op=op: _binary(op), rtol=1e-4)

X23 = [[1.0, 2.0, 4.0], [8.0, 16.0, 32.0]]
SHAPED = {
    "Sum": lambda x: tf.reduce_sum(x, 1),
    "Sum_keep": lambda x: tf.reduce_sum(x, 0, keepdims=True),
    "Mean": lambda x: tf.reduce_mean(x, 0),
    "Mean_all": lambda x: tf.reduce_mean(x),
    "Max": lambda x: tf.reduce_max(x, 1),
    "Min": lambda x: tf.reduce_min(x, 0),
    "Reshape": lambda x: tf.reshape(x, [3, 2]),
    "ExpandDims": lambda x: tf.expand_dims(x, 1),
    "Transpose": lambda x: tf.transpose(x, [1, 0]),
    "Pack": lambda x: tf.stack([x, x * 2.0], 1),
    "Unpack": lambda x: tf.unstack(x, 2, 0)[1],
    "ConcatV2": lambda x: tf.concat([x, x * x, x], 1),
    "Split": lambda x: tf.split(x, 3, 1)[2],
    "SplitV": lambda x: tf.split(x, [1, 2], 1)[1],
    "Slice": lambda x: tf.slice(x, [0, 1], [2, 2]),
    "StridedSlice": lambda x: x[:, ::2],
    "ReverseV2": lambda x: tf.reverse(x, [1]),
    "BroadcastTo": lambda x: tf.broadcast_to(x, [2, 2, 3]),
    "GatherNd": lambda x: tf.gather_nd(x, [[0, 1], [1, 2]]),
    "Fill": lambda x: tf.fill([2, 2], x[0, 0]),
    "MatMul": lambda x: tf.matmul(x, x, transpose_b=True),
    "MatMul_ta": lambda x: tf.matmul(x, x, transpose_a=True),
    "MatMul_tt": lambda x: tf.matmul(x, tf.transpose(x, [1, 0]) + 0.0, transpose_a=True, transpose_b=True),
    "BatchMatMul": lambda x: tf.matmul(tf.reshape(x, [1, 2, 3]), tf.reshape(x, [1, 3, 2])),
    "BiasAdd": lambda x: tf.nn.bias_add(x, x[0]),
    "Select": lambda x: tf.where_v2(x > 3.0, x, x * x) if False else tf.where(x > 3.0, x, x * x),
    "Cast": lambda x: tf.cast(tf.cast(x, tf.float64), F),
    "Conv2D": lambda x: tf.nn.conv2d(tf.reshape(x, [1, 2, 3, 1]), tf.reshape(x[0, :2], [1, 2, 1, 1]),
                                     strides=[1, 1, 1, 1], padding="SAME"),
    "MaxPool": lambda x: tf.nn.max_pool(tf.reshape(x, [1, 2, 3, 1]), [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
    "AvgPool": lambda x: tf.nn.avg_pool(tf.reshape(x, [1, 2, 3, 1]), [1, 2, 2, 1], [1, 1, 1, 1], "VALID"),
    "StopGradient": lambda x: tf.stop_gradient(x) * x,
    "unused": lambda x: tf.constant(3.0),
}


def _shaped(body):
    @defun(F)
    def f(x):
        return body(x)
    return _grad(f, X23)


for name, body in SHAPED.items():
    case("gradient/shaped_%s" % name, lambda body=body: _shaped(body), rtol=1e-4)


@defun(F)
def NoRule(x):
    return tf.math.lgamma(x)


case("gradient/no_rule", lambda: _grad(NoRule, [1.5]), text="TensorFlow's process logs it and dies or wraps it")


def _library_gradient():
    @defun(F, F, func_name="OwnGrad")
    def own_grad(x, dy):
        return dy * 100.0

    @defun(F, func_name="WithOwnGrad", grad_func=own_grad)
    def f(x):
        return x * x
    x = inp([2.0, 3.0])
    y = f(x)
    return [y] + tf.gradients(y, x)


case("gradient/of_the_library", _library_gradient)


def _python_gradient():
    @defun(F, python_grad_func=lambda op, dy: dy * 7.0)
    def f(x):
        return x * x
    x = inp([2.0, 3.0])
    y = f(x)
    return [y] + tf.gradients(y, x)


case("gradient/of_python", _python_gradient)


def _extended(env):
    """A function that the session hears of after its first step."""
    g = tf.Graph()
    with g.as_default(), env.session(g) as s:
        a = tf.constant(1.0)
        first = s.run(a)

        @tf.function
        def late(x):
            return x + 41.0
        b = late(a)
        return [first, s.run(b), s.run([a, b])]


script("call/extended")(_extended)


def _map_fn():
    return tf.map_fn(lambda x: x * x + 1.0, inp([1.0, 2.0, 3.0]), dtype=F)


case("map_fn", _map_fn)


@defun(F, F)
def Rows(x, y):
    return x * 2.0, tf.reduce_sum(x) + y


def map_defun(f, args, types, shapes, captured=()):
    f.add_to_graph(tf.get_default_graph())
    return raw.MapDefun(arguments=args, captured_inputs=list(captured), output_types=types, output_shapes=shapes, f=f)


case("MapDefun/rows", lambda: map_defun(Rows, [inp(X23), inp([1.0, 2.0])], [F, F], [None, []]))
case("MapDefun/captured", lambda: map_defun(Rows, [inp(X23)], [F, F], [[3], []], [inp(5.0)]))
case("MapDefun/scalar", lambda: map_defun(Rows, [inp(1.0), inp([1.0, 2.0])], [F, F], [None, None]))
case("MapDefun/rows_differ", lambda: map_defun(Rows, [inp(X23), inp([1.0])], [F, F], [None, None]))
case("MapDefun/shape", lambda: map_defun(Rows, [inp(X23), inp([1.0, 2.0])], [F, F], [[2], []]))
case("MapDefun/no_rows", lambda: map_defun(Rows, [inp([[1.0]][:0] or [[0.0]]), inp([1.0])], [F, F], [[1], []]))

case("DeviceIndex", lambda: [raw.DeviceIndex(device_names=["GPU", "CPU"]), raw.DeviceIndex(device_names=["TPU"])])
for shape in ([2, 3], [None, 3], None, []):
    for dtype in (F, tf.int32, tf.string, tf.bool):
        case("FakeParam/%s/%s" % (shape, dtype.name),
             lambda shape=shape, dtype=dtype: tf.shape(raw.FakeParam(dtype=dtype, shape=shape)))


def _remote(target):
    Two.add_to_graph(tf.get_default_graph())
    return raw.RemoteCall(target=inp(target), args=[inp(1.0), inp(2.0)], Tout=[F, F], f=Two)


case("RemoteCall/short", lambda: _remote(b"/cpu:0"))
case("RemoteCall/nonsense", lambda: _remote(b"nonsense"))
case("RemoteCall/here", lambda: _remote(b"/job:localhost/replica:0/task:0/device:CPU:0"))
