"""Stacks and tensor arrays: what a step keeps for later in the same step, and for its gradients."""
import numpy as np

from registry import ALL, case, const, inp, raw, rnd, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def after(dependency, build):
    """Builds with constants only (a fed placeholder would lose its control inputs)."""
    with tf.control_dependencies([dependency]):
        return build()


# Stacks. TensorFlow's optimiser drops pushes that no pop can see, so every case pops.
def stack(max_size=5, dtype=F, name="st"):
    return raw.StackV2(max_size=inp(max_size), elem_type=dtype, stack_name=name)


def push(handle, value):
    return raw.StackPushV2(handle=handle, elem=const(value))


def pop(handle, dtype=F):
    return raw.StackPopV2(handle=handle, elem_type=dtype)


def pushed(handle, values, then):
    """Pushes one after the other, then builds `then`."""
    outputs = []
    for value in values:
        outputs.append(after(outputs[-1], lambda: push(handle, value)) if outputs else push(handle, value))
    return outputs + [after(outputs[-1], lambda: then(handle))]


def popped_twice(handle):
    first = pop(handle)
    return first, after(first, lambda: pop(handle))


case("StackV2/order", lambda: pushed(stack(), [1.0, 2.0, 3.0], popped_twice))
case("StackV2/shapes", lambda: pushed(stack(), [[1.0, 2.0], [[3.0]]], popped_twice))
case("StackV2/empty", lambda: pop(stack()))
case("StackV2/unnamed", lambda: pop(stack(name="")))
case("StackV2/overflow", lambda: pushed(stack(1), [1.0, 2.0], pop))
case("StackV2/overflow_none", lambda: pushed(stack(0), [1.0], pop))
case("StackV2/unbounded", lambda: pushed(stack(-1), [1.0, 2.0, 3.0], popped_twice))
case("StackV2/size_shape", lambda: pop(stack([1])))
case("StackPushV2/type", lambda: pushed(stack(), [1], pop))
case("StackPopV2/type", lambda: pushed(stack(), [1.0], lambda h: pop(h, I)))
case("StackPushV2/string", lambda: pushed(stack(dtype=S), [b"a"], lambda h: pop(h, S)))
case("StackCloseV2/pop", lambda: (lambda h: after(raw.StackCloseV2(handle=h), lambda: pop(h)))(stack()))
case("StackCloseV2/push", lambda: (lambda h: after(raw.StackCloseV2(handle=h), lambda: pushed(h, [1.0], pop)))(stack()))
case("StackCloseV2/twice", lambda: (
    lambda h: after(raw.StackCloseV2(handle=h), lambda: after(raw.StackCloseV2(handle=h), lambda: const(1))))(stack()))
case("StackPopV2/wrong_handle", lambda: pop(array()[0]))


def ref_stack():
    handle = raw.Stack(elem_type=F, stack_name="ref")
    pushes = raw.StackPush(handle=handle, elem=const([1.0, 2.0]))
    first = after(pushes, lambda: raw.StackPop(handle=handle, elem_type=F))
    closed = after(first, lambda: raw.StackClose(handle=handle))
    return first, after(closed, lambda: const(1))


case("Stack/by_reference", ref_stack)


# Tensor arrays.
def array(size=3, dtype=F, **attrs):
    return raw.TensorArrayV3(size=inp(size), dtype=dtype, **attrs)


def write(handle, index, value, flow):
    return raw.TensorArrayWriteV3(handle=handle, index=inp(index), value=inp(value), flow_in=flow)


def read(handle, index, flow, dtype=F):
    return raw.TensorArrayReadV3(handle=handle, index=inp(index), flow_in=flow, dtype=dtype)


def size(handle, flow):
    return raw.TensorArraySizeV3(handle=handle, flow_in=flow)


def written(elements, **attrs):
    handle, flow = array(**attrs)
    for index, value in elements:
        flow = write(handle, index, value, flow)
    return handle, flow


def read_back(elements, index, dtype=F, **attrs):
    handle, flow = written(elements, **attrs)
    return read(handle, index, flow, dtype)


case("TensorArrayV3/size", lambda: (lambda h, f: (size(h, f), f))(*array(4)))
case("TensorArrayV3/negative", lambda: array(-1)[1])
case("TensorArrayV3/size_shape", lambda: array([1])[1])
case("TensorArrayReadV3/value", lambda: read_back([(0, [1.0, 2.0]), (2, 3.0)], 0))
case("TensorArrayReadV3/unwritten", lambda: read_back([(0, 1.0)], 1))
case("TensorArrayReadV3/unwritten_named", lambda: read_back([(0, 1.0)], 1, tensor_array_name="named"))
case("TensorArrayReadV3/unwritten_partial", lambda: read_back([(0, [1.0])], 1, element_shape=[None]))
case("TensorArrayReadV3/unwritten_shape", lambda: read_back([(0, [1.0, 2.0])], 1, element_shape=[2]))
case("TensorArrayReadV3/unwritten_identical", lambda: read_back([(0, [1.0, 2.0])], 1, identical_element_shapes=True))
case("TensorArrayReadV3/unwritten_string", lambda: read_back([], 1, dtype=S, element_shape=[2]))
case("TensorArrayReadV3/beyond", lambda: read_back([(0, 1.0)], 3))
case("TensorArrayReadV3/beyond_dynamic", lambda: read_back([(0, 1.0)], 3, dynamic_size=True))
case("TensorArrayReadV3/negative", lambda: read_back([(0, 1.0)], -1))
case("TensorArrayReadV3/index_shape", lambda: read_back([(0, 1.0)], [0]))
case("TensorArrayReadV3/type", lambda: read_back([(0, 1.0)], 0, I))
case("TensorArrayReadV3/no_kernel", lambda: read_back([], 0, tf.qint8))
case("TensorArrayWriteV3/type", lambda: written([(0, 1)])[1])
case("TensorArrayWriteV3/twice", lambda: written([(0, 1.0), (0, 2.0)])[1])
case("TensorArrayWriteV3/beyond", lambda: written([(3, 1.0)])[1])
case("TensorArrayWriteV3/beyond_dynamic", lambda: (
    lambda h, f: (read(h, 5, f), size(h, f)))(*written([(5, 1.0)], dynamic_size=True)))
case("TensorArrayWriteV3/negative", lambda: written([(-1, 1.0)], dynamic_size=True)[1])
case("TensorArrayWriteV3/index_shape", lambda: written([([1], 1.0)])[1])
case("TensorArrayWriteV3/element_shape", lambda: written([(0, [1.0, 2.0])], element_shape=[3])[1])
case("TensorArrayWriteV3/identical_shapes", lambda: written([(0, [1.0, 2.0]), (1, [1.0])], identical_element_shapes=True)[1])
case("TensorArrayWriteV3/empty", lambda: read_back([(0, np.zeros((0, 2), np.float32))], 0))
for dtype in ALL:
    case("TensorArrayV3/types/%s" % dtype.name, lambda dtype=dtype: moved(dtype))


def moved(dtype):
    """Every way in and out for one type."""
    value = rnd((3, 2), dtype)
    handle, flow = array(3, dtype, clear_after_read=False)
    flow = raw.TensorArrayScatterV3(handle=handle, indices=inp([2, 0]), value=inp(value[:2]), flow_in=flow)
    flow = write(handle, 1, value[2], flow)
    return (raw.TensorArrayGatherV3(handle=handle, indices=inp([0, 1, 2]), flow_in=flow, dtype=dtype), read(handle, 1, flow, dtype),
            raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype=dtype))


def read_twice(**attrs):
    handle, flow = written([(0, 1.0)], **attrs)
    first = raw.TensorArrayReadV3(handle=handle, index=const(0), flow_in=flow, dtype=F)
    return first, after(first, lambda: raw.TensorArrayReadV3(handle=handle, index=const(0), flow_in=flow, dtype=F))


def read_then_write(**attrs):
    handle, flow = written([(0, 1.0)], **attrs)
    first = raw.TensorArrayReadV3(handle=handle, index=const(0), flow_in=flow, dtype=F)
    return after(first, lambda: raw.TensorArrayWriteV3(handle=handle, index=const(0), value=const(1.0), flow_in=flow))


case("TensorArrayReadV3/twice", read_twice)
case("TensorArrayReadV3/twice_kept", lambda: read_twice(clear_after_read=False))
case("TensorArrayWriteV3/after_read", read_then_write)
case("TensorArrayWriteV3/after_read_kept", lambda: read_then_write(clear_after_read=False))


def gathered(elements, indices, element_shape=None, dtype=F, **attrs):
    handle, flow = written(elements, **attrs)
    return raw.TensorArrayGatherV3(handle=handle, indices=inp(indices, I), flow_in=flow, dtype=dtype, element_shape=element_shape)


TWO = [(0, [1.0, 2.0]), (1, [3.0, 4.0])]
case("TensorArrayGatherV3/value", lambda: gathered(TWO, [1, 0]))
case("TensorArrayGatherV3/shapes_differ", lambda: gathered([(0, [1.0]), (1, [3.0, 4.0])], [1, 0]))
case("TensorArrayGatherV3/unwritten", lambda: gathered(TWO, [0, 2]))
case("TensorArrayGatherV3/unwritten_shape", lambda: gathered(TWO, [0, 2], element_shape=[2]))
case("TensorArrayGatherV3/none", lambda: gathered(TWO, []))
case("TensorArrayGatherV3/none_shape", lambda: gathered(TWO, [], element_shape=[2]))
case("TensorArrayGatherV3/wrong_shape", lambda: gathered(TWO, [0], element_shape=[3]))
case("TensorArrayGatherV3/merge_shapes", lambda: (lambda h, f: raw.TensorArrayGatherV3(
    handle=h, indices=inp([0]), flow_in=f, dtype=F, element_shape=[3]))(*written(TWO, element_shape=[2])))
case("TensorArrayGatherV3/merge_ranks", lambda: (lambda h, f: raw.TensorArrayGatherV3(
    handle=h, indices=inp([0]), flow_in=f, dtype=F, element_shape=[2, 3]))(*written(TWO, element_shape=[2])))
case("TensorArrayGatherV3/beyond", lambda: gathered(TWO, [0, 3]))
case("TensorArrayGatherV3/scalar", lambda: gathered(TWO, 0))
case("TensorArrayGatherV3/type", lambda: gathered(TWO, [0], dtype=I))
case("TensorArrayGatherV3/twice", lambda: gathered(TWO, [0, 0]))


def scattered(indices, value, then=size, **attrs):
    handle, flow = array(**attrs)
    flow = raw.TensorArrayScatterV3(handle=handle, indices=inp(indices, I), value=inp(value), flow_in=flow)
    return then(handle, flow)


case("TensorArrayScatterV3/value", lambda: scattered([2, 0], [[1.0], [2.0]], lambda h, f: (read(h, 0, f), read(h, 2, f))))
case("TensorArrayScatterV3/lengths", lambda: scattered([2, 0], [1.0, 2.0, 3.0]))
case("TensorArrayScatterV3/scalar", lambda: scattered([2, 0], 1.0))
case("TensorArrayScatterV3/beyond", lambda: scattered([2, 3], [1.0, 2.0]))
case("TensorArrayScatterV3/beyond_dynamic", lambda: scattered([2, 6], [1.0, 2.0], dynamic_size=True))
case("TensorArrayScatterV3/negative", lambda: scattered([2, -1], [1.0, 2.0]))
case("TensorArrayScatterV3/indices_shape", lambda: scattered([[2, 1]], [1.0, 2.0]))
case("TensorArrayScatterV3/twice", lambda: scattered([1, 1], [1.0, 2.0]))
case("TensorArrayScatterV3/type", lambda: scattered([1, 0], [1, 2]))
case("TensorArrayScatterV3/element_shape", lambda: scattered([1, 0], [1.0, 2.0], element_shape=[1]))
case("TensorArrayScatterV3/none", lambda: scattered([], np.zeros((0, 2), np.float32)))


def split(value, lengths, then=size, **attrs):
    handle, flow = array(**attrs)
    flow = raw.TensorArraySplitV3(handle=handle, value=inp(value), lengths=inp(lengths, L), flow_in=flow)
    return then(handle, flow)


case("TensorArraySplitV3/value", lambda: split([1.0, 2.0, 3.0], [1, 0, 2], lambda h, f: [read(h, i, f) for i in range(3)]))
case("TensorArraySplitV3/too_few", lambda: split([1.0, 2.0, 3.0], [1, 2]))
case("TensorArraySplitV3/dynamic", lambda: split([1.0, 2.0, 3.0], [1, 1, 1, 0], dynamic_size=True))
case("TensorArraySplitV3/sum", lambda: split([1.0, 2.0, 3.0], [1, 1, 2]))
case("TensorArraySplitV3/scalar", lambda: split(1.0, [1, 0, 0]))
case("TensorArraySplitV3/lengths_shape", lambda: split([1.0], [[1, 0, 0]]))
case("TensorArraySplitV3/type", lambda: split([1, 2, 3], [1, 1, 1]))
case("TensorArraySplitV3/element_shape", lambda: split([1.0, 2.0, 3.0], [1, 1, 1], element_shape=[2]))


def joined(elements, except0=None, dtype=F, **attrs):
    handle, flow = written(elements, **attrs)
    return raw.TensorArrayConcatV3(handle=handle, flow_in=flow, dtype=dtype, element_shape_except0=except0)


case("TensorArrayConcatV3/value", lambda: joined([(0, [[1.0, 2]]), (1, np.zeros((0, 2), np.float32)), (2, [[3.0, 4], [5, 6]])]))
case("TensorArrayConcatV3/scalar", lambda: joined([(0, 1.0), (1, 2.0), (2, 3.0)]))
case("TensorArrayConcatV3/shapes_differ", lambda: joined([(0, [[1.0, 2.0]]), (1, [[1.0]]), (2, [[1.0]])]))
case("TensorArrayConcatV3/wrong_shape", lambda: joined([(0, [[1.0, 2.0]])], except0=[3], size=1))
case("TensorArrayConcatV3/unwritten", lambda: joined([(0, [1.0])]))
case("TensorArrayConcatV3/unwritten_shape", lambda: joined([(0, [1.0])], element_shape=[1]))
case("TensorArrayConcatV3/none", lambda: joined([], size=0))
case("TensorArrayConcatV3/none_shape", lambda: joined([], except0=[2], size=0))
case("TensorArrayConcatV3/type", lambda: joined([(0, [1.0])], dtype=I, size=1))


def closed(build):
    handle, flow = array(tensor_array_name="closed")
    return after(raw.TensorArrayCloseV3(handle=handle), lambda: build(handle, flow))


case("TensorArrayCloseV3/read", lambda: closed(lambda h, f: raw.TensorArrayReadV3(handle=h, index=const(0), flow_in=f, dtype=F)))
case("TensorArrayCloseV3/write", lambda: closed(
    lambda h, f: raw.TensorArrayWriteV3(handle=h, index=const(0), value=const(1.0), flow_in=f)))
case("TensorArrayCloseV3/size", lambda: closed(size))
case("TensorArrayCloseV3/gradient", lambda: closed(lambda h, f: raw.TensorArrayGradV3(handle=h, flow_in=f, source="s")[1]))
case("TensorArrayCloseV3/twice", lambda: closed(lambda h, f: after(raw.TensorArrayCloseV3(handle=h), lambda: const(1))))
case("TensorArrayReadV3/wrong_handle", lambda: read(stack(), 0, const(0.0)))


# Gradients.
def with_gradient(build, source="g", elements=TWO, **attrs):
    handle, flow = written(elements, **dict(dict(size=2), **attrs))
    gradient = raw.TensorArrayGradV3(handle=handle, flow_in=flow, source=source)
    return build(handle, flow, gradient.grad_handle, gradient.flow_out)


def aggregated(handle, flow, gradient, gradient_flow):
    gradient_flow = write(gradient, 0, [1.0, 2.0], gradient_flow)
    gradient_flow = write(gradient, 0, [10.0, 20.0], gradient_flow)
    gradient_flow = write(gradient, 0, [100.0, 200.0], gradient_flow)
    return read(gradient, 0, gradient_flow), read(gradient, 1, gradient_flow)


case("TensorArrayGradV3/sum", lambda: with_gradient(aggregated))
case("TensorArrayGradV3/shape", lambda: with_gradient(lambda h, f, g, gf: write(g, 0, [1.0], gf)))
case("TensorArrayGradV3/beyond", lambda: with_gradient(lambda h, f, g, gf: write(g, 2, [1.0, 2.0], gf), dynamic_size=True))
case("TensorArrayGradV3/of_gradient", lambda: with_gradient(lambda h, f, g, gf: raw.TensorArrayGradV3(handle=g, flow_in=gf, source="x")[1]))
case("TensorArrayGradV3/same_source", lambda: with_gradient(lambda h, f, g, gf: (
    lambda again: read(again.grad_handle, 1, write(g, 1, [5.0, 6.0], again.flow_out)))(raw.TensorArrayGradV3(handle=h, flow_in=gf, source="g"))))
case("TensorArrayGradV3/fixes_size", lambda: with_gradient(lambda h, f, g, gf: write(h, 2, [1.0, 2.0], gf), dynamic_size=True))
case("TensorArrayGradV3/twice", lambda: with_gradient(lambda h, f, g, gf: (lambda first: after(first, lambda: raw.TensorArrayReadV3(
    handle=g, index=const(0), flow_in=gf, dtype=F)))(read(g, 0, gf))))
case("TensorArrayGradV3/unwritten", lambda: with_gradient(lambda h, f, g, gf: read(g, 1, gf), elements=TWO[:1]))



def concat_gradient():
    """What was written after a split has no part in the gradient of the tensor that was split."""
    handle, flow = array(2, dynamic_size=True)
    flow = raw.TensorArraySplitV3(handle=handle, value=inp([1.0, 2.0, 3.0]), lengths=inp([1, 2], L), flow_in=flow)
    flow = write(handle, 2, [4.0], flow)
    gradient = raw.TensorArrayGradV3(handle=handle, flow_in=flow, source="c")
    flow = raw.TensorArraySplitV3(handle=gradient.grad_handle, value=inp([1.0, 2.0, 3.0, 4.0]), lengths=inp([1, 2, 1], L),
                                  flow_in=gradient.flow_out)
    return raw.TensorArrayConcatV3(handle=gradient.grad_handle, flow_in=flow, dtype=F)


case("TensorArrayGradV3/concat", concat_gradient)
for dtype in ALL:
    case("TensorArrayGradV3/types/%s" % dtype.name, lambda dtype=dtype: with_gradient(lambda h, f, g, gf: read(
        g, 0, write(g, 0, rnd((2,), dtype), write(g, 0, rnd((2,), dtype), gf)), dtype), elements=[(0, rnd((2,), dtype))], dtype=dtype))
    case("TensorArrayGradV3/zeros/%s" % dtype.name, lambda dtype=dtype: with_gradient(
        lambda h, f, g, gf: read(g, 0, gf, dtype), elements=[(0, rnd((2,), dtype))], dtype=dtype))


def prepended(shape, value):
    handle, flow = written(TWO, size=2)
    gradient = raw.TensorArrayGradWithShape(handle=handle, flow_in=flow, shape_to_prepend=inp(shape, I), source="p")
    flow = write(gradient.grad_handle, 0, value, gradient.flow_out)
    return read(gradient.grad_handle, 0, flow), read(gradient.grad_handle, 1, flow)


case("TensorArrayGradWithShape/value", lambda: prepended([3], rnd((3, 2))))
case("TensorArrayGradWithShape/none", lambda: prepended([], rnd((2,))))
case("TensorArrayGradWithShape/wrong", lambda: prepended([4], rnd((3, 2))))
case("TensorArrayGradWithShape/scalar", lambda: prepended(4, rnd((3, 2))))


# Programs: loops of the first kind, their gradients, and what is built on them.
def v1_loops(build):
    """Builds with loops made of Enter, Exit and their kind."""
    from tensorflow.python.ops import control_flow_util
    was = control_flow_util.ENABLE_CONTROL_FLOW_V2
    control_flow_util.ENABLE_CONTROL_FLOW_V2 = False
    try:
        return build()
    finally:
        control_flow_util.ENABLE_CONTROL_FLOW_V2 = was


def loop_gradient():
    x = inp(rnd((2, 2)), shape=[2, 2])
    w = inp(rnd((2, 2)), shape=[2, 2])
    _, y = tf.while_loop(lambda i, v: i < 4, lambda i, v: (i + 1, tf.tanh(tf.matmul(v, w))), [const(0), x])
    return [y] + tf.gradients(y, [x, w])


def nested_gradient():
    x = inp(1.5, shape=[])
    inner = lambda v: tf.while_loop(lambda j, u: j < 3, lambda j, u: (j + 1, u * x), [const(0), v])[1]
    y = tf.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, inner(v) + v * v), [const(0), x])[1]
    return y, tf.gradients(y, x)[0]


def conditional_gradient():
    x = inp(2.0, shape=[])
    step = lambda i, v: (i + 1, tf.cond(tf.equal(i % 2, 0), lambda: v * x, lambda: v + x))
    y = tf.while_loop(lambda i, v: i < 5, step, [const(0), x])[1]
    return y, tf.gradients(y, x)[0]


def map_gradient():
    x = inp(rnd((4, 3)), shape=[4, 3])
    y = tf.map_fn(lambda row: tf.sin(row) * tf.reduce_sum(row), x)
    return y, tf.gradients(y, x)[0]


def scan_gradient():
    x = inp(rnd((4, 3)), shape=[4, 3])
    y = tf.scan(lambda a, b: a * b + tf.cos(b), x)
    return y, tf.gradients(y, x)[0]


def fold_gradient():
    x = inp(rnd((4, 3)), shape=[4, 3])
    left, right = tf.foldl(lambda a, b: a * b + a, x), tf.foldr(lambda a, b: a - tf.exp(b), x)
    return left, right, tf.gradients([left, right], x)[0]


def lstm():
    """A dynamic LSTM over sequences of different lengths, with gradients of everything."""
    units, batch, time, depth = 4, 3, 5, 2
    x = inp(rnd((batch, time, depth)), shape=[batch, time, depth])
    lengths = inp([5, 2, 0], shape=[batch])
    kernel = inp(rnd((depth + units, 4 * units)), shape=[depth + units, 4 * units])

    def step(t, c, h, outputs):
        gates = tf.matmul(tf.concat([xs.read(t), h], 1), kernel)
        i, j, f, o = tf.split(gates, 4, 1)
        new_c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
        new_h = tf.tanh(new_c) * tf.sigmoid(o)
        live = tf.tile(tf.expand_dims(t < lengths, 1), [1, units])
        return (t + 1, tf.where(live, new_c, c), tf.where(live, new_h, h), outputs.write(t, tf.where(live, new_h, tf.zeros_like(new_h))))

    xs = tf.TensorArray(F, time).unstack(tf.transpose(x, [1, 0, 2]))
    zero = tf.zeros([batch, units])
    _, c, h, outputs = tf.while_loop(lambda t, *_: t < tf.reduce_max(lengths), step, [const(0), zero, zero, tf.TensorArray(F, time)],
                                     parallel_iterations=4, swap_memory=True)
    y = tf.transpose(outputs.stack(), [1, 0, 2])
    return [y, c, h] + tf.gradients([tf.reduce_sum(y * y), c], [x, kernel])


for name, build in [("loop", loop_gradient), ("nested", nested_gradient), ("cond", conditional_gradient), ("map", map_gradient),
                    ("scan", scan_gradient), ("fold", fold_gradient), ("lstm", lstm)]:
    case("Program/v1_%s_gradient" % name, lambda build=build: v1_loops(build), rtol=1e-4, atol=1e-5)
