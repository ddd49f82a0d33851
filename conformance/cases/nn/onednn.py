"""What TensorFlow runs with oneDNN only, which is its default on x86: layers of eight-bit integers in one op, dilated
depthwise and volume convolutions. (oneDNN takes filters of such layers from constants.)"""
import numpy as np

from registry import case, const, inp, raw, rnd, tf
from tensorflow.python.framework import op_def_library

TOL = dict(rtol=1e-4, atol=1e-4)
PLAIN = {tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint32: tf.int32}


def codes(shape, t):
    """Integers of a quantized type; a constant if they are a filter's."""
    low, high = {tf.quint8: (0, 255), tf.qint8: (-127, 127), tf.qint32: (-9000, 9000)}[t]
    values = np.asarray(rnd(shape, tf.int32, low, high)).astype(PLAIN[t].as_numpy_dtype)
    return tf.bitcast(inp(values, PLAIN[t], shape), t)


def filters(shape):
    values = np.asarray(rnd(shape, tf.int32, -127, 127)).astype(np.int8)
    return tf.bitcast(const(values), tf.qint8)


def plain(outputs):
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    return [tf.bitcast(o, PLAIN[o.dtype]) if o.dtype in PLAIN else o for o in outputs]


def layer(op, x=tf.quint8, shape=(2, 6, 7, 8), flt=(3, 3, 8, 5), padding="SAME", strides=1, dilations=1, per_channel=False, bias=None,
          low=0.0, high=4.0, wanted=None, **kw):
    channels = flt[2] * flt[3] if "Depthwise" in op else flt[3]
    if per_channel:
        ends = inp(-np.linspace(0.2, 1.0, channels).astype(np.float32)), inp(np.linspace(0.9, 0.1, channels).astype(np.float32))
    else:
        ends = inp(-1.0, tf.float32, ()), inp(0.8, tf.float32, ())
    if bias is not None:
        kw["bias"] = codes((channels,), tf.qint32) if bias == tf.qint32 else inp(rnd((channels,), tf.float32, -3, 3), tf.float32, (channels,))
    if wanted:
        kw.update(min_freezed_output=inp(wanted[0], tf.float32, ()), max_freezed_output=inp(wanted[1], tf.float32, ()))
    return plain(getattr(raw, op)(input=codes(shape, x), filter=filters(flt), min_input=inp(low, tf.float32, ()), max_input=inp(high, tf.float32, ()),
                                  min_filter=ends[0], max_filter=ends[1], strides=[1, strides, strides, 1], padding=padding,
                                  dilations=[1, dilations, dilations, 1], **kw))


FORMS = [("plain", {}), ("valid_s2", dict(padding="VALID", strides=2)), ("dilated", dict(dilations=2)), ("range", dict(low=-1.0, high=3.0))]
for form, kw in FORMS:
    def add(op, **more):
        name = "%s/%s" % (op, "_".join([form] + [getattr(v, "name", str(v)) for v in more.values() if not isinstance(v, tuple)]))
        case(name, lambda op=op, kw=dict(kw, **more): layer(op, **kw), oracle="onednn")
    for op in ("QuantizedConv2D", "QuantizedConv2DAndRelu"):
        add(op)
    add("QuantizedConv2DPerChannel", per_channel=True)
    for op in ("QuantizedConv2DWithBias", "QuantizedConv2DWithBiasAndRelu"):
        for x in (tf.quint8, tf.qint8):
            add(op, x=x, bias=tf.float32)
    add("QuantizedConv2DAndRequantize", wanted=(-20.0, 15.0))
    add("QuantizedConv2DAndReluAndRequantize", wanted=(0.0, 20.0), per_channel=True)
    for x in (tf.quint8, tf.qint8):
        for bias in (tf.float32, tf.qint32):
            add("QuantizedConv2DWithBiasAndRequantize", x=x, bias=bias, per_channel=True, wanted=(-20.0, 15.0))
            add("QuantizedConv2DWithBiasAndReluAndRequantize", x=x, bias=bias, per_channel=True, wanted=(-5.0, 20.0))
    depthwise = dict(flt=(3, 3, 8, 1))
    add("QuantizedDepthwiseConv2D", **depthwise)
    add("QuantizedDepthwiseConv2DWithBias", bias=tf.float32, **depthwise)
    add("QuantizedDepthwiseConv2DWithBiasAndRelu", bias=tf.float32, **depthwise)
    add("QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize", bias=tf.float32, wanted=(0.0, 20.0), **depthwise)
case("QuantizedConv2DWithBias/padding_list", lambda: layer(
    "QuantizedConv2DWithBias", padding="VALID", bias=tf.float32, padding_list=[0, 0, 1, 2, 0, 1, 0, 0]), oracle="onednn")


def product(op, bias, mode, out, wanted=False):
    kw = dict(min_freezed_output=inp(-2.0, tf.float32, ()), max_freezed_output=inp(20.0, tf.float32, ())) if wanted else {}
    bias = codes((5,), tf.qint32) if bias == tf.qint32 else inp(rnd((5,), tf.float32, -3, 3), tf.float32, (5,))
    return plain(getattr(raw, op)(a=codes((6, 9), tf.quint8), b=filters((9, 5)), bias=bias, min_a=inp(0.0, tf.float32, ()),
                                  max_a=inp(4.0, tf.float32, ()), min_b=inp(-1.0, tf.float32, ()), max_b=inp(0.8, tf.float32, ()),
                                  input_quant_mode=mode, Toutput=out, **kw))


# With a lowest float other than 0 TensorFlow 2.21 adds a sum of integers to a bias of floats.
for mode in ("MIN_FIRST", "SCALED"):
    for bias in (tf.float32, tf.qint32):
        for op, out, wanted in [("QuantizedMatMulWithBias", tf.qint32, False), ("QuantizedMatMulWithBiasAndRequantize", tf.quint8, True),
                                ("QuantizedMatMulWithBiasAndReluAndRequantize", tf.quint8, True),
                                ("QuantizedMatMulWithBiasAndDequantize", tf.float32, True)]:
            case("%s/%s_%s" % (op, mode, bias.name), lambda a=(op, bias, mode, out, wanted): product(*a), oracle="onednn", **TOL)
    case("QuantizedMatMulWithBiasAndRelu/" + mode, lambda mode=mode: product("QuantizedMatMulWithBiasAndRelu", tf.float32, mode, tf.qint32),
         oracle="onednn")
case("QuantizedConcatV2/two", lambda: plain(op_def_library.apply_op(
    "QuantizedConcatV2", values=[codes((2, 3), tf.quint8), codes((2, 4), tf.quint8)], axis=const(1), input_mins=[const(0.0), const(0.0)],
    input_maxes=[const(4.0), const(4.0)])), oracle="onednn")

for name, kw in [("valid", dict(padding="VALID")), ("same", dict(padding="SAME"))]:
    case("DepthwiseConv2dNative/dilated_" + name, lambda kw=kw: raw.DepthwiseConv2dNative(
        input=inp(rnd((2, 9, 8, 3)), tf.float32, (2, 9, 8, 3)), filter=inp(rnd((3, 3, 3, 2)), tf.float32, (3, 3, 3, 2)),
        strides=[1] * 4, dilations=[1, 2, 2, 1], **kw), oracle="onednn", **TOL)
    # TensorFlow's shape function takes the dilations of rows and columns one for the other: they are the same here.
    case("Conv3D/dilated_" + name, lambda kw=kw: raw.Conv3D(
        input=inp(rnd((1, 7, 7, 8, 2)), tf.float32, (1, 7, 7, 8, 2)), filter=inp(rnd((2, 3, 2, 2, 3)), tf.float32, (2, 3, 2, 2, 3)),
        strides=[1] * 5, dilations=[1, 2, 3, 3, 1], **kw), oracle="onednn", **TOL)
out = (1, 5, 5, 5, 3)
case("Conv3DBackpropInputV2/dilated", lambda: raw.Conv3DBackpropInputV2(
    input_sizes=const([1, 7, 7, 7, 2]), filter=inp(rnd((2, 2, 2, 2, 3)), tf.float32, (2, 2, 2, 2, 3)), out_backprop=inp(rnd(out), tf.float32, out),
    strides=[1] * 5, padding="VALID", dilations=[1, 2, 2, 2, 1]), oracle="onednn", **TOL)
case("Conv3DBackpropFilterV2/dilated", lambda: raw.Conv3DBackpropFilterV2(
    input=inp(rnd((1, 7, 7, 7, 2)), tf.float32, (1, 7, 7, 7, 2)), filter_sizes=const([2, 2, 2, 2, 3]), out_backprop=inp(rnd(out), tf.float32, out),
    strides=[1] * 5, padding="VALID", dilations=[1, 2, 2, 2, 1]), oracle="onednn", **TOL)
