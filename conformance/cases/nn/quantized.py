"""Layers over quantized numbers."""
import numpy as np

from registry import any_op, case, inp, quantized, rnd, tf

RANGES = [(0.0, 1.0), (-1.0, 1.0), (-0.3, 6.1), (0.5, 3.0), (-4.0, -0.5)]


def bytes_of(shape, dtype=tf.quint8):
    lo, hi = (0, 255) if dtype == tf.quint8 else (-128, 127)
    return quantized(rnd(shape, tf.int32, lo, hi), dtype)


def words(shape, size=2**30):
    return quantized(rnd(shape, tf.int32, -size, size), tf.qint32)


def ends(pair, *names):
    return {name: inp(value, tf.float32) for name, value in zip(names, pair)}


def plain(outputs):
    """Quantized numbers as plain ones, which clients can compare."""
    def one(t):
        return tf.bitcast(t, {tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint32: tf.int32}[t.dtype]) if t.dtype.is_quantized else t
    return [one(t) for t in outputs]


for i, a in enumerate(RANGES):
    for j, b in enumerate(RANGES):
        s = "%d_%d" % (i, j)
        for op in ("QuantizedAdd", "QuantizedMul"):
            for x, y in [((3, 4), (3, 4)), ((3, 4), ()), ((), (3, 4)), ((2, 3, 4), (4,)), ((4,), (3, 4))][:5 if j == 0 else 1]:
                case("%s/%s_%s_%s" % (op, s, x, y), lambda op=op, a=a, b=b, x=x, y=y: plain(any_op(
                    op, x=bytes_of(x), y=bytes_of(y), **ends(a, "min_x", "max_x"), **ends(b, "min_y", "max_y"), Toutput=tf.qint32)))
        for t in (tf.quint8, tf.qint8):
            case("QuantizedBiasAdd/%s_%s" % (s, t.name), lambda a=a, b=b, t=t: plain(any_op("QuantizedBiasAdd", input=bytes_of((3, 2, 4), t), bias=bytes_of((4,), t), **ends(
                a, "min_input", "max_input"), **ends(b, "min_bias", "max_bias"), out_type=tf.qint32)))
        for ta, tb in [(False, False), (True, False), (False, True)][:3 if i == j else 1]:
            case("QuantizedMatMul/%s_%s_%s" % (s, ta, tb), lambda a=a, b=b, ta=ta, tb=tb: plain(any_op(
                "QuantizedMatMul", a=bytes_of((5, 3) if ta else (3, 5)), b=bytes_of((4, 5) if tb else (5, 4)), **ends(a, "min_a", "max_a"),
                **ends(b, "min_b", "max_b"), transpose_a=ta, transpose_b=tb, Toutput=tf.qint32)))
        for padding in ("SAME", "VALID"):
            for stride in (1, 2)[:2 if i == j else 1]:
                case("QuantizedConv2D/%s_%s_%d" % (s, padding, stride), lambda a=a, b=b, p=padding, k=stride: plain(any_op(
                    "QuantizedConv2D", input=bytes_of((2, 5, 6, 3)), filter=bytes_of((3, 2, 3, 4)), **ends(a, "min_input", "max_input"),
                    **ends(b, "min_filter", "max_filter"), strides=[1, k, k, 1], padding=p, out_type=tf.qint32)))
    for op in ("QuantizedAvgPool", "QuantizedMaxPool"):
        for t in (tf.quint8, tf.qint8):
            for padding in ("SAME", "VALID"):
                case("%s/%d_%s_%s" % (op, i, t.name, padding), lambda op=op, a=a, t=t, p=padding: plain(any_op(
                    op, input=bytes_of((2, 5, 6, 3), t), **ends(a, "min_input", "max_input"), ksize=[1, 3, 2, 1], strides=[1, 2, 1, 1], padding=p)))
    for op in ("QuantizedRelu", "QuantizedRelu6"):
        case("%s/%d_u8" % (op, i), lambda op=op, a=a: plain(any_op(op, features=bytes_of((4, 5)), **ends(a, "min_features", "max_features"), out_type=tf.quint8)))
        case("%s/%d_i32" % (op, i), lambda op=op, a=a: plain(any_op(op, features=words((4, 5)), **ends(a, "min_features", "max_features"), out_type=tf.qint32)))
    case("QuantizedReshape/%d" % i, lambda a=a: plain(any_op("QuantizedReshape", tensor=bytes_of((4, 6)), shape=inp([3, -1]), **ends(a, "input_min", "input_max"))))
    for size in ([3, 3], [7, 8]):
        for how in ({}, dict(align_corners=True), dict(half_pixel_centers=True)):
            case("QuantizedResizeBilinear/%d_%s_%s" % (i, size, "".join(how)), lambda a=a, size=size, how=how: plain(any_op(
                "QuantizedResizeBilinear", images=bytes_of((2, 4, 5, 3)), size=inp(size), **ends(a, "min", "max"), **how)))
    case("QuantizedResizeBilinear/%d_i32" % i, lambda a=a: plain(any_op("QuantizedResizeBilinear", images=words((2, 4, 5, 3)), size=inp([6, 4]), **ends(a, "min", "max"))))
    case("QuantizedResizeBilinear/%d_float" % i, lambda a=a: plain(any_op("QuantizedResizeBilinear", images=inp(rnd((2, 4, 5, 3))), size=inp([6, 4]), **ends(a, "min", "max"))))
    case("QuantizedInstanceNorm/%d" % i, lambda a=a: plain(any_op("QuantizedInstanceNorm", x=bytes_of((2, 4, 5, 3)), **ends(a, "x_min", "x_max"))))
    case("QuantizedInstanceNorm/%d_given" % i, lambda a=a: plain(any_op(
        "QuantizedInstanceNorm", x=bytes_of((2, 4, 5, 3)), **ends(a, "x_min", "x_max"), output_range_given=True, given_y_min=-1.0, given_y_max=2.0)))
    for after in (True, False):
        case("QuantizedBatchNormWithGlobalNormalization/%d_%s" % (i, after), lambda a=a, after=after: plain(any_op(
            "QuantizedBatchNormWithGlobalNormalization", t=bytes_of((1, 3, 2, 4)), **ends(a, "t_min", "t_max"),
            **{n: bytes_of((4,)) for n in ("m", "v", "beta", "gamma")},
            **{k: v for n in ("m", "v", "beta", "gamma") for k, v in ends((0.0, 2.0), n + "_min", n + "_max").items()},
            out_type=tf.qint32, variance_epsilon=0.01, scale_after_normalization=after)))
    case("QuantizeDownAndShrinkRange/%d" % i, lambda a=a: plain(any_op("QuantizeDownAndShrinkRange", input=words((5, 6)), **ends(a, "input_min", "input_max"), out_type=tf.quint8)))
    case("QuantizeDownAndShrinkRange/%d_small" % i, lambda a=a: plain(any_op("QuantizeDownAndShrinkRange", input=words((5, 6), 9999), **ends(a, "input_min", "input_max"), out_type=tf.quint8)))
    case("RequantizationRange/%d" % i, lambda a=a: plain(any_op("RequantizationRange", input=words((5, 6)), **ends(a, "input_min", "input_max"))))
    for t in (tf.quint8, tf.qint8):
        case("Requantize/%d_%s" % (i, t.name), lambda a=a, t=t: plain(any_op("Requantize", input=words((5, 6)), **ends(a, "input_min", "input_max"), **ends(
            (-0.2, 0.7), "requested_output_min", "requested_output_max"), out_type=t)))
        case("RequantizePerChannel/%d_%s" % (i, t.name), lambda a=a, t=t: plain(any_op(
            "RequantizePerChannel", input=words((2, 3, 2, 2)), input_min=inp([a[0], -1.0]), input_max=inp([a[1], 2.0]), **ends(
                (0.0 if t == tf.quint8 else -2.0, 2.0), "requested_output_min", "requested_output_max"), out_type=t)))
    case("RequantizationRangePerChannel/%d" % i, lambda a=a: plain(any_op(
        "RequantizationRangePerChannel", input=words((2, 3, 2, 2)), input_min=inp([a[0], -1.0]), input_max=inp([a[1], 2.0]), clip_value_max=1.5)))
    for axis in (0, 1, -1):
        for t in (tf.quint8, tf.qint32):
            case("QuantizedConcat/%d_%d_%s" % (i, axis, t.name), lambda a=a, axis=axis, t=t: plain(any_op(
                "QuantizedConcat", concat_dim=inp(axis), values=[bytes_of((2, 3)) if t == tf.quint8 else words((2, 3)) for _ in range(2)],
                input_mins=[inp(a[0], tf.float32), inp(-1.0)], input_maxes=[inp(a[1], tf.float32), inp(2.0)])))
case("QuantizedConcat/same", lambda: plain(any_op("QuantizedConcat", concat_dim=inp(0), values=[bytes_of((2, 3)), bytes_of((1, 3))],
                                                  input_mins=[inp(-1.0), inp(-1.0)], input_maxes=[inp(2.0), inp(2.0)])))


def with_wrong(op, inputs, attrs, name, value):
    given = {k: v() for k, v in inputs.items()}
    given[name] = value()
    return plain(any_op(op, **given, **attrs))


def scalar(v):
    return lambda: inp(v, tf.float32)


LAYERS = {
    "QuantizedMatMul": (dict(a=lambda: bytes_of((2, 3)), b=lambda: bytes_of((3, 2)), min_a=scalar(0), max_a=scalar(1), min_b=scalar(0), max_b=scalar(1)), {}),
    "QuantizedAdd": (dict(x=lambda: bytes_of((2, 2)), y=lambda: bytes_of((2,)), min_x=scalar(0), max_x=scalar(1), min_y=scalar(0), max_y=scalar(1)), {}),
    "QuantizedMul": (dict(x=lambda: bytes_of((2, 2)), y=lambda: bytes_of((2,)), min_x=scalar(0), max_x=scalar(1), min_y=scalar(0), max_y=scalar(1)), {}),
    "QuantizedBiasAdd": (dict(input=lambda: bytes_of((2, 2)), bias=lambda: bytes_of((2,)), min_input=scalar(0), max_input=scalar(1), min_bias=scalar(0), max_bias=scalar(1)),
                         dict(out_type=tf.qint32)),
    "QuantizedConv2D": (dict(input=lambda: bytes_of((1, 4, 4, 2)), filter=lambda: bytes_of((2, 2, 2, 3)), min_input=scalar(0), max_input=scalar(1), min_filter=scalar(0),
                             max_filter=scalar(1)), dict(strides=[1, 1, 1, 1], padding="VALID")),
    "QuantizedAvgPool": (dict(input=lambda: bytes_of((1, 4, 4, 2)), min_input=scalar(0), max_input=scalar(1)), dict(ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="VALID")),
    "QuantizedMaxPool": (dict(input=lambda: bytes_of((1, 4, 4, 2)), min_input=scalar(0), max_input=scalar(1)), dict(ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding="VALID")),
    "QuantizedRelu": (dict(features=lambda: bytes_of((3,)), min_features=scalar(0), max_features=scalar(1)), {}),
    "QuantizedRelu6": (dict(features=lambda: bytes_of((3,)), min_features=scalar(0), max_features=scalar(1)), {}),
    "QuantizedReshape": (dict(tensor=lambda: bytes_of((2, 3)), shape=lambda: inp([3, 2]), input_min=scalar(0), input_max=scalar(1)), {}),
    "QuantizedResizeBilinear": (dict(images=lambda: bytes_of((1, 4, 4, 2)), size=lambda: inp([2, 2]), min=scalar(0), max=scalar(1)), {}),
    "QuantizedInstanceNorm": (dict(x=lambda: bytes_of((1, 4, 4, 2)), x_min=scalar(0), x_max=scalar(1)), {}),
    "QuantizeDownAndShrinkRange": (dict(input=lambda: words((3,)), input_min=scalar(0), input_max=scalar(1)), dict(out_type=tf.quint8)),
    "Requantize": (dict(input=lambda: words((3,)), input_min=scalar(0), input_max=scalar(1), requested_output_min=scalar(0), requested_output_max=scalar(1)), dict(out_type=tf.quint8)),
    "RequantizationRangePerChannel": (dict(input=lambda: words((1, 2, 2, 2)), input_min=lambda: inp([0.0, 0.0]), input_max=lambda: inp([1.0, 1.0])), dict(clip_value_max=6.0)),
}
for op, (inputs, attrs) in LAYERS.items():
    for name in inputs:
        wrong = {"vector": lambda: inp([0.0, 1.0, 2.0])}
        if "min" in name and "Channel" not in op:
            wrong["above"] = scalar(2)
        if name in ("shape", "size"):
            wrong = {"matrix": lambda: inp([[3, 2]]), "other": lambda: inp([4, 5])}
        elif op == "QuantizedInstanceNorm" and name == "x":
            continue  # TensorFlow's process ends at other ranks
        elif name in ("a", "b", "x", "y", "input", "bias", "filter", "tensor", "images", "features"):
            make = words if inputs[name] and op[:8] in ("Requanti", "Quantize") and op[:9] != "Quantized" else bytes_of
            wrong = {"%s" % (shape,): lambda make=make, shape=shape: make(shape) for shape in [(3, 1), (2, 5), (1, 1, 2, 2, 2), ()]}
        for label, value in wrong.items():
            if op in ("QuantizedAdd", "QuantizedMul") and label == "(3, 1)":
                continue  # TensorFlow leaves part of the result unwritten
            case("%s/wrong_%s_%s" % (op, name, label), lambda op=op, inputs=inputs, attrs=attrs, name=name, value=value: with_wrong(op, inputs, attrs, name, value))
