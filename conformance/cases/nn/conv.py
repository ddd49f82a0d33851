"""Conv2D and DepthwiseConv2dNative with both backprops."""
from registry import FLOATS, allowed, case, inp, raw, rnd, short, tf

TOL = dict(rtol=1e-4, atol=1e-4)
# name, input NHWC, filter HWIO, strides, padding, dilations, explicit paddings
CONV = [
    ("1x1", (2, 4, 5, 3), (1, 1, 3, 4), (1, 1), "VALID", (1, 1), None),
    ("3x3_same", (2, 5, 6, 3), (3, 3, 3, 4), (1, 1), "SAME", (1, 1), None),
    ("3x3_valid", (2, 5, 6, 3), (3, 3, 3, 4), (1, 1), "VALID", (1, 1), None),
    ("5x5_same_s2", (1, 9, 8, 2), (5, 5, 2, 3), (2, 2), "SAME", (1, 1), None),
    ("3x3_valid_s2", (1, 9, 8, 2), (3, 3, 2, 3), (2, 2), "VALID", (1, 1), None),
    ("2x3_s12", (1, 6, 7, 2), (2, 3, 2, 3), (1, 2), "SAME", (1, 1), None),
    ("2x2_s3", (2, 7, 7, 1), (2, 2, 1, 2), (3, 3), "VALID", (1, 1), None),
    ("1x1_s2", (2, 5, 5, 2), (1, 1, 2, 3), (2, 2), "SAME", (1, 1), None),
    ("dilated", (1, 9, 9, 2), (3, 3, 2, 2), (1, 1), "VALID", (2, 2), None),
    ("dilated_same", (1, 9, 9, 2), (3, 3, 2, 2), (1, 1), "SAME", (2, 3), None),
    ("explicit", (1, 5, 5, 2), (3, 3, 2, 2), (1, 1), "EXPLICIT", (1, 1), [0, 0, 1, 2, 0, 1, 0, 0]),
    ("explicit_s2", (1, 6, 7, 2), (3, 3, 2, 2), (2, 2), "EXPLICIT", (1, 1), [0, 0, 1, 1, 2, 0, 0, 0]),
    ("whole", (3, 4, 4, 2), (4, 4, 2, 5), (1, 1), "VALID", (1, 1), None),
    ("filter_bigger_same", (1, 2, 2, 1), (5, 5, 1, 1), (1, 1), "SAME", (1, 1), None),
    ("grouped", (1, 5, 5, 4), (3, 3, 2, 6), (1, 1), "SAME", (1, 1), None),
    ("one_channel", (1, 28, 28, 1), (5, 5, 1, 8), (1, 1), "SAME", (1, 1), None),
    ("deep", (2, 7, 7, 32), (3, 3, 32, 16), (1, 1), "SAME", (1, 1), None),
    ("row", (2, 1, 9, 3), (1, 3, 3, 2), (1, 1), "SAME", (1, 1), None),
    ("empty_batch", (0, 5, 5, 2), (3, 3, 2, 2), (1, 1), "SAME", (1, 1), None),
]


def out_shape(n, padding, size, f, stride, dil, pads):
    """Spatial size of the output, by TensorFlow's rule."""
    eff = (f - 1) * dil + 1
    if padding == "SAME":
        return -(-size // stride)
    if padding == "EXPLICIT":
        size += sum(pads)
    return (size - eff) // stride + 1


def geometry(shape, flt, strides, padding, dil, exp, channels):
    pads = [(exp[2], exp[3]), (exp[4], exp[5])] if exp else [(0, 0), (0, 0)]
    hw = [out_shape(0, padding, shape[1 + i], flt[i], strides[i], dil[i], pads[i]) for i in (0, 1)]
    kw = dict(strides=[1, strides[0], strides[1], 1], padding=padding, dilations=[1, dil[0], dil[1], 1])
    if exp:
        kw["explicit_paddings"] = exp
    return (shape[0], hw[0], hw[1], channels), kw


for name, shape, flt, strides, padding, dil, exp in CONV:
    out, kw = geometry(shape, flt, strides, padding, dil, exp, flt[3])
    for t in FLOATS if name in ("3x3_same", "5x5_same_s2", "dilated") else [tf.float32]:
        s = "%s_%s" % (name, short(t))
        case("Conv2D/" + s, lambda shape=shape, flt=flt, kw=kw, t=t: raw.Conv2D(
            input=inp(rnd(shape, t), t), filter=inp(rnd(flt, t), t), **kw), **TOL)
        # Of dilated convolutions only oneDNN has gradients, in float.
        side = dict(TOL, oracle="local" if dil == (1, 1) else "onednn")
        if dil != (1, 1) and t != tf.float32:
            continue
        case("Conv2DBackpropInput/" + s, lambda shape=shape, flt=flt, kw=kw, t=t, out=out: raw.Conv2DBackpropInput(
            input_sizes=inp(shape), filter=inp(rnd(flt, t), t), out_backprop=inp(rnd(out, t), t), **kw), **side)
        case("Conv2DBackpropFilter/" + s, lambda shape=shape, flt=flt, kw=kw, t=t, out=out: raw.Conv2DBackpropFilter(
            input=inp(rnd(shape, t), t), filter_sizes=inp(flt), out_backprop=inp(rnd(out, t), t), **kw), **side)
for t in allowed("Conv2D"):
    case("Conv2D/type_" + short(t), lambda t=t: raw.Conv2D(
        input=inp(rnd((1, 4, 4, 2), t), t), filter=inp(rnd((2, 2, 2, 2), t), t), strides=[1, 1, 1, 1], padding="SAME"),
        rtol=3e-2 if t.size == 2 else 1e-4, atol=3e-2 if t.size == 2 else 1e-4)
for op, kw in [("Conv2D", dict(input=(2, 3, 5, 5), filter=(3, 3, 3, 2))), ("DepthwiseConv2dNative", dict(input=(2, 3, 5, 5), filter=(3, 3, 3, 2)))]:
    case("%s/NCHW" % op, lambda op=op, kw=kw: getattr(raw, op)(
        **{k: inp(rnd(v)) for k, v in kw.items()}, strides=[1, 1, 1, 1], padding="SAME", data_format="NCHW"))
for name, shape, flt, kw in [
        ("channels", (1, 5, 5, 3), (3, 3, 2, 2), {}), ("rank3", (5, 5, 3), (3, 3, 3, 2), {}), ("filter_rank", (1, 5, 5, 3), (3, 3, 3), {}),
        ("too_big_valid", (1, 2, 2, 1), (3, 3, 1, 1), dict(padding="VALID")),
        ("out_channels_groups", (1, 5, 5, 4), (3, 3, 2, 3), {}), ("empty_filter", (1, 5, 5, 3), (0, 3, 3, 2), {}),
        ("no_out_channels", (1, 5, 5, 3), (3, 3, 3, 0), {}), ("no_in_channels", (1, 5, 5, 0), (3, 3, 0, 2), {})]:
    case("Conv2D/wrong_" + name, lambda shape=shape, flt=flt, kw=kw: raw.Conv2D(
        input=inp(rnd(shape)), filter=inp(rnd(flt)), strides=[1, 1, 1, 1], **dict(dict(padding="SAME"), **kw)))
case("Conv2D/batch_stride", lambda: raw.Conv2D(
    input=inp(rnd((2, 4, 4, 1))), filter=inp(rnd((2, 2, 1, 1))), strides=[2, 1, 1, 1], padding="SAME"))
case("Conv2DBackpropInput/wrong_size", lambda: raw.Conv2DBackpropInput(
    input_sizes=inp([1, 5, 5, 1]), filter=inp(rnd((3, 3, 1, 1))), out_backprop=inp(rnd((1, 4, 4, 1))), strides=[1] * 4, padding="SAME"))
case("Conv2DBackpropFilter/wrong_size", lambda: raw.Conv2DBackpropFilter(
    input=inp(rnd((1, 5, 5, 1))), filter_sizes=inp([3, 3, 1, 1]), out_backprop=inp(rnd((1, 4, 4, 1))), strides=[1] * 4, padding="SAME"))
case("Conv2DBackpropInput/sizes_rank", lambda: raw.Conv2DBackpropInput(
    input_sizes=inp([[1, 5, 5, 1]]), filter=inp(rnd((3, 3, 1, 1))), out_backprop=inp(rnd((1, 5, 5, 1))), strides=[1] * 4, padding="SAME"))

DEPTHWISE = [
    ("3x3_same", (2, 5, 6, 3), (3, 3, 3, 1), (1, 1), "SAME", (1, 1), None),
    ("3x3_valid_m2", (2, 5, 6, 3), (3, 3, 3, 2), (1, 1), "VALID", (1, 1), None),
    ("s2_same", (1, 8, 7, 2), (3, 3, 2, 3), (2, 2), "SAME", (1, 1), None),
    ("s2_valid", (1, 8, 7, 2), (2, 2, 2, 1), (2, 2), "VALID", (1, 1), None),
    ("one_in", (2, 5, 5, 1), (3, 3, 1, 4), (1, 1), "SAME", (1, 1), None),
    ("wide", (1, 6, 6, 17), (3, 3, 17, 1), (1, 1), "SAME", (1, 1), None),
    ("explicit", (1, 5, 5, 2), (3, 3, 2, 2), (1, 1), "EXPLICIT", (1, 1), [0, 0, 1, 0, 2, 1, 0, 0]),
    ("1x1", (2, 3, 3, 4), (1, 1, 4, 2), (1, 1), "VALID", (1, 1), None),
    ("empty_batch", (0, 5, 5, 2), (3, 3, 2, 2), (1, 1), "SAME", (1, 1), None),
]
for name, shape, flt, strides, padding, dil, exp in DEPTHWISE:
    out, kw = geometry(shape, flt, strides, padding, dil, exp, flt[2] * flt[3])
    for t in FLOATS if name in ("3x3_same", "s2_same") else [tf.float32]:
        s = "%s_%s" % (name, short(t))
        case("DepthwiseConv2dNative/" + s, lambda shape=shape, flt=flt, kw=kw, t=t: raw.DepthwiseConv2dNative(
            input=inp(rnd(shape, t), t), filter=inp(rnd(flt, t), t), **kw), **TOL)
        case("DepthwiseConv2dNativeBackpropInput/" + s, lambda shape=shape, flt=flt, kw=kw, t=t, out=out:
             raw.DepthwiseConv2dNativeBackpropInput(input_sizes=inp(shape), filter=inp(rnd(flt, t), t),
                                                    out_backprop=inp(rnd(out, t), t), **kw), **TOL)
        if name == "empty_batch":
            continue  # TensorFlow leaves the gradient uninitialised
        case("DepthwiseConv2dNativeBackpropFilter/" + s, lambda shape=shape, flt=flt, kw=kw, t=t, out=out:
             raw.DepthwiseConv2dNativeBackpropFilter(input=inp(rnd(shape, t), t), filter_sizes=inp(flt),
                                                     out_backprop=inp(rnd(out, t), t), **kw), **TOL)
case("DepthwiseConv2dNative/wrong_channels", lambda: raw.DepthwiseConv2dNative(
    input=inp(rnd((1, 5, 5, 3))), filter=inp(rnd((3, 3, 2, 1))), strides=[1] * 4, padding="SAME"))
case("DepthwiseConv2dNative/wrong_strides", lambda: raw.DepthwiseConv2dNative(
    input=inp(rnd((1, 5, 5, 2))), filter=inp(rnd((3, 3, 2, 1))), strides=[1, 1, 2, 1], padding="SAME"))
case("depthwise/tf_dilated", lambda: tf.nn.depthwise_conv2d(
    inp(rnd((1, 9, 9, 2)), shape=[1, 9, 9, 2]), inp(rnd((3, 3, 2, 2)), shape=[3, 3, 2, 2]), [1, 1, 1, 1], "SAME", rate=[2, 2]), **TOL)
case("conv2d/transpose", lambda: tf.nn.conv2d_transpose(
    inp(rnd((1, 3, 3, 2)), shape=[1, 3, 3, 2]), inp(rnd((3, 3, 4, 2)), shape=[3, 3, 4, 2]), [1, 6, 6, 4], [1, 2, 2, 1], "SAME"), **TOL)
case("conv2d/separable", lambda: tf.nn.separable_conv2d(
    inp(rnd((1, 5, 5, 2)), shape=[1, 5, 5, 2]), inp(rnd((3, 3, 2, 2)), shape=[3, 3, 2, 2]), inp(rnd((1, 1, 4, 3)), shape=[1, 1, 4, 3]),
    [1, 1, 1, 1], "SAME"), **TOL)
case("conv1d", lambda: tf.nn.conv1d(inp(rnd((2, 9, 3)), shape=[2, 9, 3]), inp(rnd((3, 3, 4)), shape=[3, 3, 4]), 2, "SAME"), **TOL)
