"""Integers with scales and zero points."""
import numpy as np

from registry import any_op, case, inp, quantized, rnd, tf

LIMITS = {tf.qint8: (-128, 127), tf.quint8: (0, 255), tf.qint32: (-2**31, 2**31 - 1)}


def limits(dtype, prefix=""):
    low, high = LIMITS[dtype]
    return {prefix + "quantization_min_val": low, prefix + "quantization_max_val": high}


def scheme(prefix, count=None):
    shape = () if count is None else (count,)
    name = prefix + "_" if prefix else ""
    return {name + "scales": inp(rnd(shape, lo=0.1, hi=2.0)), name + "zero_points": inp(rnd(shape, tf.int32, -9, 9))}


def plain(t):
    return tf.bitcast(t, {tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint32: tf.int32}[t.dtype])


def codes(shape, dtype, lo=None, hi=None):
    low, high = LIMITS[dtype]
    return quantized(rnd(shape, tf.int32, low if lo is None else lo, high if hi is None else hi), dtype)


for t in LIMITS:
    for axis in (-1, 0, 1, 2):
        count = None if axis < 0 else (2, 3, 4)[axis]
        s = "%s_%d" % (t.name, axis)
        case("UniformQuantize/" + s, lambda t=t, a=axis, n=count: plain(any_op(
            "UniformQuantize", input=inp(rnd((2, 3, 4), lo=-99, hi=99)), **scheme("", n), Tout=t, quantization_axis=a, **limits(t))))
        case("UniformDequantize/" + s, lambda t=t, a=axis, n=count: any_op(
            "UniformDequantize", input=codes((2, 3, 4), t), **scheme("", n), Tout=tf.float32, quantization_axis=a, **limits(t)))
for t in (tf.qint32, tf.qint8):
    for a, b in [(-1, -1), (0, 0), (1, 1), (0, -1), (-1, 1), (0, 1)]:
        case("UniformRequantize/%s_%d_%d" % (t.name, a, b), lambda t=t, a=a, b=b: plain(any_op(
            "UniformRequantize", input=codes((2, 3), t, -99, 99), **scheme("input", None if a < 0 else (2, 3)[a]), **scheme("output", None if b < 0 else (2, 3)[b]), Tout=tf.qint8,
            input_quantization_axis=a, output_quantization_axis=b, **limits(t, "input_"), **limits(tf.qint8, "output_"))))


def three(t, out):
    return dict(**limits(t, "lhs_"), **limits(t, "rhs_"), **limits(out, "output_"))


for x, y, axes in [((2, 3), (2, 3), (-1, -1, -1)), ((2, 3), (3,), (-1, -1, -1)), ((2, 3), (), (-1, -1, -1)), ((2, 3), (2, 3), (1, 1, 1)), ((2, 3), (3,), (1, 0, 1)),
                   ((3,), (2, 3), (0, 1, 1)), ((2, 3), (2, 1), (-1, -1, -1))]:
    def counts(axes=axes, x=x, y=y):
        out = np.broadcast_shapes(x, y)
        return [None if a < 0 else s[a] for a, s in zip(axes, (x, y, out))]
    case("UniformQuantizedAdd/%s_%s_%s" % (x, y, axes), lambda x=x, y=y, axes=axes, counts=counts: plain(any_op(
        "UniformQuantizedAdd", lhs=codes(x, tf.qint32, -9999, 9999), rhs=codes(y, tf.qint32, -9999, 9999), **scheme("lhs", counts()[0]), **scheme("rhs", counts()[1]),
        **scheme("output", counts()[2]), lhs_quantization_axis=axes[0], rhs_quantization_axis=axes[1], output_quantization_axis=axes[2], **three(tf.qint32, tf.qint32))))
for axis in (-1, 0, 1):
    count = () if axis < 0 else ((4, 5)[axis],)
    case("UniformQuantizedClipByValue/%d" % axis, lambda a=axis, n=count: plain(any_op(
        "UniformQuantizedClipByValue", operand=codes((4, 5), tf.qint32, -99, 99), min=codes(n, tf.qint32, -50, -10), max=codes(n, tf.qint32, 10, 50), **scheme("", *n),
        quantization_axis=a, **limits(tf.qint32))))
case("UniformQuantizedClipByValue/min", lambda: plain(any_op(
    "UniformQuantizedClipByValue", operand=codes((4, 5), tf.qint32), min=codes((2,), tf.qint32), max=codes((), tf.qint32), **scheme(""), **limits(tf.qint32))))
for right, out in [(-1, -1), (1, 1), (1, -1), (-1, 1)]:
    case("UniformQuantizedDot/%d_%d" % (right, out), lambda r=right, o=out: plain(any_op(
        "UniformQuantizedDot", lhs=codes((3, 4), tf.qint8), rhs=codes((4, 5), tf.qint8), **scheme("lhs"), **scheme("rhs", None if r < 0 else 5), **scheme("output", None if o < 0 else 5),
        Tout=tf.qint32, rhs_quantization_axis=r, output_quantization_axis=o, **three(tf.qint8, tf.qint32))))
    if out == -1:
        case("UniformQuantizedDotHybrid/%d" % right, lambda r=right: any_op(
            "UniformQuantizedDotHybrid", lhs=inp(rnd((3, 4))), rhs=codes((4, 5), tf.qint8), **scheme("rhs", None if r < 0 else 5), Tout=tf.float32, rhs_quantization_axis=r,
            **limits(tf.qint8, "rhs_")))
        case("UniformQuantizedDotHybrid/positive_%d" % right, lambda r=right: any_op(
            "UniformQuantizedDotHybrid", lhs=inp(rnd((3, 4), lo=1, hi=5)), rhs=codes((4, 5), tf.qint8), **scheme("rhs", None if r < 0 else 5), Tout=tf.float32, rhs_quantization_axis=r,
            **limits(tf.qint8, "rhs_")))
for name, scales, zeros, axis in [("vector", [0.5], [1], -1), ("mixed", 0.5, [1], -1), ("long", [0.5, 0.5, 0.5], [1, 1, 1], 0), ("scalar", 0.5, 1, 0), ("axis", [0.5, 0.5], [1, 1], 2), ("zero", 0.0, 1, -1)]:
    case("UniformQuantize/wrong_" + name, lambda s=scales, z=zeros, a=axis: plain(any_op(
        "UniformQuantize", input=inp(rnd((2, 3))), scales=inp(s), zero_points=inp(z), Tout=tf.qint8, quantization_axis=a, **limits(tf.qint8))))


def numbers(*values):
    """A UniformQuantizedConvolutionDimensionNumbersAttr: batch, features and spatial dimensions of input, kernel, output."""
    out = b""
    for field, v in enumerate(values, 1):
        out += bytes([field * 8 + 2, len(v)]) + bytes(v) if isinstance(v, list) else bytes([field * 8, v])
    return out


NHWC = numbers(0, 3, [1, 2], 2, 3, [0, 1], 0, 3, [1, 2])
CONVOLUTIONS = [
    ("plain", (2, 3, 5, 6), (4, 3, 2, 3), dict(padding="VALID")),
    ("same", (2, 3, 5, 6), (4, 3, 2, 3), dict(padding="SAME", window_strides=[2, 1])),
    ("explicit", (1, 2, 4), (3, 2, 3), dict(padding="EXPLICIT", explicit_padding=[2, 1])),
    ("dilated", (1, 2, 5, 5), (2, 2, 2, 2), dict(padding="VALID", rhs_dilation=[2, 1], lhs_dilation=[1, 3])),
    ("same_dilated", (1, 2, 5, 5), (2, 2, 2, 2), dict(padding="SAME", rhs_dilation=[2, 2], lhs_dilation=[2, 1], window_strides=[3, 2])),
    ("features", (2, 4, 5), (6, 2, 2), dict(padding="VALID", feature_group_count=2)),
    ("batches", (4, 2, 5), (6, 2, 2), dict(padding="VALID", batch_group_count=2)),
    ("nhwc", (2, 5, 6, 3), (2, 3, 3, 4), dict(padding="SAME", dimension_numbers=NHWC)),
    ("volume", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), dict(padding="VALID")),
    ("wrong_rank", (1, 2, 3), (1, 2, 3, 3), dict(padding="VALID")),
    ("wrong_vector", (1, 2), (1, 2), dict(padding="VALID")),
    ("wrong_strides", (1, 2, 3), (1, 2, 2), dict(padding="VALID", window_strides=[1, 1])),
    ("wrong_stride", (1, 2, 3), (1, 2, 2), dict(padding="VALID", window_strides=[0])),
    ("wrong_features", (1, 3, 3), (1, 2, 2), dict(padding="VALID")),
    ("wrong_groups", (1, 3, 3), (1, 3, 2), dict(padding="VALID", feature_group_count=2)),
    ("wrong_batches", (3, 2, 3), (2, 2, 2), dict(padding="VALID", batch_group_count=2)),
    ("wrong_padding", (1, 2, 3), (1, 2, 2), dict(padding="FULL")),
    ("wrong_explicit", (1, 2, 3), (1, 2, 2), dict(padding="EXPLICIT", explicit_padding=[1])),
    ("wrong_numbers", (1, 2, 3), (1, 2, 2), dict(padding="VALID", dimension_numbers=numbers(0, 1, [2, 3], 1, 0, [2], 0, 1, [2]))),
]
for name, left, right, attrs in CONVOLUTIONS:
    outputs = right[3] if name == "nhwc" else right[0]
    axes = (3, 3) if name == "nhwc" else (0, 1)
    for channels, out in [(False, False), (True, False), (True, True)]:
        if name.startswith("wrong") and channels:
            continue
        s = "%s%s%s" % (name, "_channels" * channels, "_output" * out)
        case("UniformQuantizedConvolution/" + s, lambda l=left, r=right, a=attrs, c=channels, o=out, n=outputs, x=axes: plain(any_op(
            "UniformQuantizedConvolution", lhs=codes(l, tf.qint8), rhs=codes(r, tf.qint8), **scheme("lhs"), **scheme("rhs", n if c else None), **scheme("output", n if o else None),
            Tout=tf.qint32, rhs_quantization_axis=x[0] if c else -1, output_quantization_axis=x[1] if o else -1, **three(tf.qint8, tf.qint32), **a)))
        if not out:
            case("UniformQuantizedConvolutionHybrid/" + s, lambda l=left, r=right, a=attrs, c=channels, n=outputs, x=axes: any_op(
                "UniformQuantizedConvolutionHybrid", lhs=inp(rnd(l)), rhs=codes(r, tf.qint8), **scheme("rhs", n if c else None), Tout=tf.float32,
                rhs_quantization_axis=x[0] if c else -1, **limits(tf.qint8, "rhs_"), **a))
