"""XLA's ops in a plain session. TensorFlow compiles them, and says what is wrong in XLA's words: only classes of errors are compared."""
import numpy as np
from tensorflow.compiler.xla import xla_data_pb2

from registry import any_op, case, const, inp, rnd, short, tf

TYPES = [tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.bool, tf.complex64]
REALS = [tf.float32, tf.float64, tf.int32, tf.int64, tf.uint8, tf.int8, tf.uint32]

for t in TYPES:
    for low, high, inner in [((1, 2), (0, 1), (0, 0)), ((1, 1), (1, 0), (2, 1)), ((-1, 0), (0, -1), (0, 0)), ((-1, 2), (3, -2), (1, 2)), ((0, 0), (0, 0), (0, 0))]:
        case("XlaPad/%s_%s_%s_%s" % (short(t), low, high, inner), lambda t=t, low=low, high=high, inner=inner: any_op(
            "XlaPad", input=inp(rnd((3, 4), t), t), padding_value=inp(rnd((), t), t), padding_low=const(low), padding_high=const(high), padding_interior=const(inner)))
    for start in [(0, 0), (1, 2), (5, 1), (-3, 9)]:
        case("XlaDynamicSlice/%s_%s" % (short(t), start), lambda t=t, s=start: any_op(
            "XlaDynamicSlice", input=inp(rnd((4, 5), t), t), start_indices=inp(s), size_indices=const([2, 3])))
        case("XlaDynamicUpdateSlice/%s_%s" % (short(t), start), lambda t=t, s=start: any_op(
            "XlaDynamicUpdateSlice", input=inp(rnd((4, 5), t), t), update=inp(rnd((2, 3), t), t), indices=inp(s)))
for t in REALS:
    for shape in [(7,), (3, 5), (2, 3, 4), (0,), (2, 0)]:
        case("XlaSort/%s_%s" % (short(t), shape), lambda t=t, s=shape: any_op("XlaSort", input=inp(rnd(s, t, -99, 99), t)))
    case("XlaKeyValueSort/" + short(t), lambda t=t: list(any_op("XlaKeyValueSort", keys=inp(np.random.RandomState(1).permutation(12).reshape(3, 4), t), values=inp(rnd((3, 4))))))
case("XlaSort/odd", lambda: any_op("XlaSort", input=inp([1.0, np.nan, -np.inf, np.inf, 0.0, -1.0])))

for a, b, dims in [((2, 3), (3,), [1]), ((2, 3), (2,), [0]), ((3,), (2, 3), [1]), ((2, 3, 4), (2, 4), [0, 2]), ((2, 3), (), []), ((2, 3), (2, 3), [])]:
    case("XlaBroadcastHelper/%s_%s_%s" % (a, b, dims), lambda a=a, b=b, d=dims: list(any_op("XlaBroadcastHelper", lhs=inp(rnd(a), shape=a), rhs=inp(rnd(b), shape=b), broadcast_dims=const(d, tf.int32))))

ROUNDED = [1.0, 1.1, -1.3, 3.14159, 70000.0, 1e-6, 6e-8, 1e30, -1e-30, 0.0, np.inf, np.nan, 65519.0, 65520.0, 2.0 ** -14, 2.0 ** -15, 2.0 ** -16 * 1.5]
for t in (tf.float32, tf.float64, tf.float16, tf.bfloat16):
    for e, m in [(5, 10), (8, 7), (5, 2), (8, 0), (4, 3), (11, 52), (2, 23)]:
        case("XlaReducePrecision/%s_%d_%d" % (short(t), e, m), lambda t=t, e=e, m=m: any_op("XlaReducePrecision", operand=inp(ROUNDED, t), exponent_bits=e, mantissa_bits=m))


def dot_numbers(contracted, batch=((), ())):
    numbers = xla_data_pb2.DotDimensionNumbers()
    numbers.lhs_contracting_dimensions.extend(contracted[0])
    numbers.rhs_contracting_dimensions.extend(contracted[1])
    numbers.lhs_batch_dimensions.extend(batch[0])
    numbers.rhs_batch_dimensions.extend(batch[1])
    return numbers.SerializeToString()


for t in (tf.float32, tf.float64, tf.int32, tf.complex64):
    for a, b, contracted, batch in [((2, 3), (3, 4), ((1,), (0,)), ((), ())), ((3, 2), (4, 3), ((0,), (1,)), ((), ())), ((5, 2, 3), (5, 3, 4), ((2,), (1,)), ((0,), (0,))),
                                    ((2, 3, 4), (4, 3, 5), ((1, 2), (1, 0)), ((), ())), ((3,), (3,), ((0,), (0,)), ((), ())), ((2,), (3,), ((), ()), ((), ()))]:
        name = "%s_%s_%s" % (short(t), a, b)
        case("XlaDot/" + name, lambda t=t, a=a, b=b, c=contracted, batch=batch: any_op(
            "XlaDot", lhs=inp(rnd(a, t), t, a), rhs=inp(rnd(b, t), t, b), dimension_numbers=dot_numbers(c, batch), precision_config=""), rtol=1e-4, atol=1e-5)
        case("XlaDotV2/" + name, lambda t=t, a=a, b=b, c=contracted, batch=batch: any_op(
            "XlaDotV2", lhs=inp(rnd(a, t), t, a), rhs=inp(rnd(b, t), t, b), dimension_numbers=dot_numbers(c, batch), precision_config="", preferred_element_type=t), rtol=1e-4, atol=1e-5)
for equation, a, b in [("ab,bc->ac", (2, 3), (3, 4)), ("abc,abd->acd", (2, 3, 4), (2, 3, 5)), ("ab,ab->", (2, 3), (2, 3)), ("a,b->ab", (2,), (3,))]:
    for t in (tf.float32, tf.complex64):
        case("XlaEinsum/%s_%s" % (short(t), equation), lambda t=t, e=equation, a=a, b=b: any_op("XlaEinsum", a=inp(rnd(a, t), t), b=inp(rnd(b, t), t), equation=e), rtol=1e-4, atol=1e-5)


def gather_numbers(offset, collapsed, start, vector):
    numbers = xla_data_pb2.GatherDimensionNumbers(index_vector_dim=vector)
    numbers.offset_dims.extend(offset)
    numbers.collapsed_slice_dims.extend(collapsed)
    numbers.start_index_map.extend(start)
    return numbers.SerializeToString()


for t in (tf.float32, tf.int32, tf.bool):
    for name, indices, size, numbers in [
            ("rows", [0, 2, 1, 9, -4], (1, 4), ((1,), (0,), (0,), 1)), ("columns", [3, 0], (3, 1), ((0,), (1,), (1,), 1)),
            ("windows", [[0, 1], [2, 3], [1, 9]], (2, 2), ((1, 2), (), (0, 1), 1)), ("points", [[[0, 1], [2, 3]]], (1, 1), ((), (0, 1), (0, 1), 2)),
            ("turned", [[0, 2], [1, 3]], (1, 2), ((0,), (0,), (0, 1), 0))]:
        case("XlaGather/%s_%s" % (name, short(t)), lambda t=t, i=indices, s=size, n=numbers: any_op(
            "XlaGather", operand=inp(rnd((3, 4), t), t), start_indices=inp(i), slice_sizes=const(s), dimension_numbers=gather_numbers(*n), indices_are_sorted=False))


def function(body, *types):
    from tensorflow.python.framework import function as functions
    return functions.Defun(*types)(body)


for t in (tf.float32, tf.int32):
    for dims in ([0], [1], [0, 2], [0, 1, 2], []):
        case("XlaReduce/%s_%s" % (short(t), dims), lambda t=t, d=dims: any_op(
            "XlaReduce", input=inp(rnd((2, 3, 4), t), t, (2, 3, 4)), init_value=inp(0, t, ()), dimensions_to_reduce=d, reducer=function(lambda a, b: a + b, t, t)), rtol=1e-4, atol=1e-5)
        case("XlaVariadicReduceV2/%s_%s" % (short(t), dims), lambda t=t, d=dims: list(any_op(
            "XlaVariadicReduceV2", inputs=[inp(rnd((2, 3, 4), t), t, (2, 3, 4)), inp(rnd((2, 3, 4)), tf.float32, (2, 3, 4))], init_values=[inp(0, t, ()), inp(1.0, tf.float32, ())],
            dimensions_to_reduce=d, reducer=function(lambda a, b, c, d: (a + c, b * d), t, tf.float32, t, tf.float32))), rtol=1e-3, atol=1e-3)
    case("XlaVariadicReduce/" + short(t), lambda t=t: list(any_op(
        "XlaVariadicReduce", input=[inp(rnd((2, 3), t), t, (2, 3)), inp(rnd((2, 3), t), t, (2, 3))], init_value=[inp(0, t, ()), inp(-99, t, ())], dimensions_to_reduce=[1],
        reducer=function(lambda a, b, c, d: (a + c, tf.maximum(b, d)), t, t, t, t))), rtol=1e-4, atol=1e-5)
    for size, stride, base, dilation, padding in [((2, 2), (1, 1), (1, 1), (1, 1), ((0, 0), (0, 0))), ((2, 3), (2, 1), (1, 1), (1, 1), ((1, 1), (0, 2))),
                                                  ((2, 2), (1, 2), (2, 1), (1, 2), ((1, 0), (0, 1)))]:
        case("XlaReduceWindow/%s_%s_%s_%s_%s" % (short(t), size, stride, base, dilation), lambda t=t, a=(size, stride, base, dilation, padding): any_op(
            "XlaReduceWindow", input=inp(rnd((4, 5), t), t, (4, 5)), init_value=inp(0, t, ()), window_dimensions=const(a[0]), window_strides=const(a[1]), base_dilations=const(a[2]),
            window_dilations=const(a[3]), padding=const(a[4]), computation=function(lambda x, y: x + y, t, t)), rtol=1e-4, atol=1e-5)
case("XlaWhile/count", lambda: list(any_op("XlaWhile", input=[inp(0, tf.int32, ()), inp(1.0, tf.float32, ())], cond=function(lambda i, x: i < 5, tf.int32, tf.float32),
                                           body=function(lambda i, x: (i + 1, x * 2.0), tf.int32, tf.float32))))
for t in (tf.float32, tf.float64):
    few = dict(rtol=2e-3, atol=2e-4) if t == tf.float32 else dict(rtol=1e-6, atol=1e-7)
    for shape in [(3, 3), (2, 4, 4)]:
        for lower in (True, False):
            case("XlaSelfAdjointEig/%s_%s_%s" % (short(t), shape, lower), lambda t=t, s=shape, lower=lower: list(any_op(
                "XlaSelfAdjointEig", a=inp(rnd(s, t), t, s), lower=lower, max_iter=100, epsilon=1e-8)), post=lambda v: [np.abs(x) for x in v], **few)
    for shape in [(2, 3), (4, 3), (3, 3)]:
        case("XlaSvd/%s_%s" % (short(t), shape), lambda t=t, s=shape: list(any_op(
            "XlaSvd", a=inp(rnd(s, t), t, s), max_iter=100, epsilon=1e-8, precision_config="")), post=lambda v: [np.abs(x) for x in v], **few)


def launched(op, **more):
    x = inp(rnd((2, 3)), tf.float32, (2, 3))
    return list(any_op(op, args=[x, inp(2.0, tf.float32, ())], Tresults=[tf.float32, tf.float32], function=function(lambda a, b: (a * b, a + b), tf.float32, tf.float32), **more))


case("XlaLaunch/two", lambda: launched("XlaLaunch", constants=[], resources=[]))
case("XlaLaunchV2/two", lambda: launched("XlaLaunchV2", constants=[], resources=[]))
