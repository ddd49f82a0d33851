"""Max and average pooling with their gradients."""
import numpy as np

from registry import allowed, case, inp, raw, rnd, short, tf

POOLS = [("2x2", (2, 4, 6, 3), (2, 2), (2, 2), "VALID"), ("2x2_same_odd", (1, 5, 7, 2), (2, 2), (2, 2), "SAME"),
         ("3x3_s1_same", (1, 5, 5, 2), (3, 3), (1, 1), "SAME"), ("3x3_s2_valid", (1, 7, 7, 2), (3, 3), (2, 2), "VALID"),
         ("3x2_s21", (2, 6, 5, 1), (3, 2), (2, 1), "SAME"), ("1x1_s2", (1, 5, 5, 2), (1, 1), (2, 2), "SAME"),
         ("whole", (2, 4, 4, 3), (4, 4), (1, 1), "VALID"), ("empty_batch", (0, 4, 4, 2), (2, 2), (2, 2), "VALID"),
         ("wide", (1, 8, 8, 33), (2, 2), (2, 2), "SAME"), ("gap", (1, 9, 9, 1), (2, 2), (4, 4), "VALID")]


def output(shape, k, s, padding):
    dims = [-(-shape[1 + i] // s[i]) if padding == "SAME" else (shape[1 + i] - k[i]) // s[i] + 1 for i in (0, 1)]
    return (shape[0], dims[0], dims[1], shape[3])


for name, shape, k, s, padding in POOLS:
    kw = dict(ksize=[1, k[0], k[1], 1], strides=[1, s[0], s[1], 1], padding=padding)
    out = output(shape, k, s, padding)
    case("MaxPool/" + name, lambda shape=shape, kw=kw: raw.MaxPool(input=inp(rnd(shape)), **kw))
    case("AvgPool/" + name, lambda shape=shape, kw=kw: raw.AvgPool(value=inp(rnd(shape)), **kw))
    case("MaxPoolV2/" + name, lambda shape=shape, kw=kw: raw.MaxPoolV2(
        input=inp(rnd(shape)), ksize=inp(kw["ksize"]), strides=inp(kw["strides"]), padding=kw["padding"]))
    case("AvgPoolGrad/" + name, lambda shape=shape, kw=kw, out=out: raw.AvgPoolGrad(
        orig_input_shape=inp(shape), grad=inp(rnd(out)), **kw))

    def grad(shape=shape, kw=kw, out=out, op="MaxPoolGrad"):
        x = inp(rnd(shape))
        y = raw.MaxPool(input=x, **kw)
        if op == "MaxPoolGradGrad":
            return raw.MaxPoolGradGrad(orig_input=x, orig_output=y, grad=inp(rnd(shape)), **kw)
        if op == "MaxPoolGradV2":
            return raw.MaxPoolGradV2(orig_input=x, orig_output=y, grad=inp(rnd(out)), ksize=inp(kw["ksize"]),
                                     strides=inp(kw["strides"]), padding=kw["padding"])
        return raw.MaxPoolGrad(orig_input=x, orig_output=y, grad=inp(rnd(out)), **kw)

    for op in ("MaxPoolGrad", "MaxPoolGradV2", "MaxPoolGradGrad"):
        case("%s/%s" % (op, name), lambda grad=grad, op=op: grad(op=op))
    case("MaxPoolWithArgmax/" + name, lambda shape=shape, kw=kw: list(raw.MaxPoolWithArgmax(input=inp(rnd(shape)), **kw)))
    case("MaxPoolWithArgmax/batch_" + name, lambda shape=shape, kw=kw: list(raw.MaxPoolWithArgmax(
        input=inp(rnd(shape)), include_batch_in_index=True, **kw)))
BASE = dict(ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID")
for t in allowed("MaxPool"):
    case("MaxPool/type_" + short(t), lambda t=t: raw.MaxPool(input=inp(rnd((1, 4, 4, 2), t), t), **BASE))
for t in allowed("AvgPool"):
    case("AvgPool/type_" + short(t), lambda t=t: [raw.AvgPool(value=inp(rnd((1, 4, 4, 2), t), t), **BASE), raw.AvgPoolGrad(
        orig_input_shape=inp([1, 4, 4, 2]), grad=inp(rnd((1, 2, 2, 2), t), t), **BASE)])
case("MaxPool/ties_grad", lambda: raw.MaxPoolGrad(
    orig_input=inp(np.ones((1, 4, 4, 1), np.float32)), orig_output=inp(np.ones((1, 2, 2, 1), np.float32)),
    grad=inp(rnd((1, 2, 2, 1))), **BASE))
case("MaxPool/nan", lambda: raw.MaxPool(input=inp(np.array([1, np.nan, 3, 4, -np.inf, np.inf, 0, 2], np.float32).reshape(1, 2, 4, 1)), **BASE))
case("MaxPool/depth", lambda: raw.MaxPool(input=inp(rnd((1, 2, 2, 4))), ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID"))
case("MaxPool/batch", lambda: raw.MaxPool(input=inp(rnd((2, 2, 2, 4))), ksize=[2, 1, 1, 1], strides=[2, 1, 1, 1], padding="VALID"))
case("MaxPool/NCHW", lambda: raw.MaxPool(input=inp(rnd((1, 2, 4, 4))), ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2], padding="VALID",
                                        data_format="NCHW"))
case("AvgPool/NCHW", lambda: raw.AvgPool(value=inp(rnd((1, 2, 4, 4))), ksize=[1, 1, 2, 2], strides=[1, 1, 2, 2], padding="VALID",
                                        data_format="NCHW"))
for op, arg in (("MaxPool", "input"), ("AvgPool", "value")):
    case("%s/rank3" % op, lambda op=op, arg=arg: getattr(raw, op)(**{arg: inp(rnd((4, 4, 1)))}, **BASE))
    case("%s/window_too_big" % op, lambda op=op, arg=arg: getattr(raw, op)(
        **{arg: inp(rnd((1, 2, 2, 1)))}, ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding="VALID"))
case("MaxPool/explicit", lambda: raw.MaxPool(input=inp(rnd((1, 4, 4, 1))), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="EXPLICIT",
                                            explicit_paddings=[0, 0, 1, 1, 0, 0, 0, 0]))
case("MaxPoolGrad/wrong_grad", lambda: raw.MaxPoolGrad(
    orig_input=inp(rnd((1, 4, 4, 1))), orig_output=inp(rnd((1, 2, 2, 1))), grad=inp(rnd((1, 3, 2, 1))), **BASE))
case("AvgPoolGrad/wrong_shape", lambda: raw.AvgPoolGrad(orig_input_shape=inp([1, 4, 4]), grad=inp(rnd((1, 2, 2, 1))), **BASE))
