"""Softmax, cross entropy, TopK, InTopK, and the resizes."""
import numpy as np

from registry import FLOATS, INTS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf


def tol(t):
    return dict(rtol=3e-2, atol=1e-2) if t in SMALL_FLOATS else dict(rtol=1e-5, atol=1e-6) if t == tf.float32 else {}


for op in ("Softmax", "LogSoftmax"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: [getattr(raw, op)(logits=inp(rnd(s, t), t)) for s in
                                                          [(3, 4), (2, 3, 5), (7,), (0, 3), (2, 1)]], **tol(t))
    case("%s/extremes" % op, lambda op=op: getattr(raw, op)(logits=inp(
        [[1000.0, 0.0, -1000.0], [-np.inf, 0.0, 1.0], [np.inf, 0.0, 1.0], [np.nan, 0.0, 1.0], [-np.inf] * 3])))
    case("%s/no_classes" % op, lambda op=op: getattr(raw, op)(logits=inp(rnd((3, 0)))))
    case("%s/scalar" % op, lambda op=op: getattr(raw, op)(logits=inp(1.0)))
    case("%s/wide" % op, lambda op=op: getattr(raw, op)(logits=inp(rnd((5, 1003), lo=-10, hi=10))), rtol=1e-4)

for t in allowed("SoftmaxCrossEntropyWithLogits"):
    case("SoftmaxCrossEntropyWithLogits/" + short(t), lambda t=t: list(raw.SoftmaxCrossEntropyWithLogits(
        features=inp(rnd((4, 5), t), t), labels=inp(rnd((4, 5), t, 0, 1), t))), **tol(t))
for a, b in [((3, 4), (3, 4)), ((3, 4), (1, 4)), ((1, 4), (3, 4)), ((3, 4), (3, 1)), ((0, 4), (0, 4)), ((3, 4), (4, 3)), ((4,), (4,)),
             ((2, 3, 4), (2, 3, 4)), ((3, 0), (3, 0))]:
    case("SoftmaxCrossEntropyWithLogits/%s_%s" % (a, b), lambda a=a, b=b: list(raw.SoftmaxCrossEntropyWithLogits(
        features=inp(rnd(a)), labels=inp(rnd(b, lo=0, hi=1)))))
case("SoftmaxCrossEntropyWithLogits/inf", lambda: list(raw.SoftmaxCrossEntropyWithLogits(
    features=inp([[1000.0, 0.0], [-np.inf, 0.0]]), labels=inp([[1.0, 0.0], [0.0, 1.0]]))))
for t in allowed("SparseSoftmaxCrossEntropyWithLogits"):
    for it in INTS:
        case("SparseSoftmaxCrossEntropyWithLogits/%s_%s" % (short(t), short(it)), lambda t=t, it=it: list(
            raw.SparseSoftmaxCrossEntropyWithLogits(features=inp(rnd((4, 5), t), t), labels=inp([0, 4, 2, 2], it))), **tol(t))
for a, lab in [((3, 4), [0, 1, 4]), ((3, 4), [0, 1, -1]), ((3, 4), [0, 1]), ((3, 4), [[0], [1], [2]]), ((4,), [0]), ((0, 4), []),
               ((2, 0), [0, 0]), ((2, 1), [0, 0])]:
    case("SparseSoftmaxCrossEntropyWithLogits/%s_%s" % (a, lab), lambda a=a, lab=lab: list(
        raw.SparseSoftmaxCrossEntropyWithLogits(features=inp(rnd(a)), labels=inp(lab, tf.int64))))
case("sigmoid_cross_entropy/python", lambda: tf.nn.sigmoid_cross_entropy_with_logits(
    labels=inp(rnd((3, 4), lo=0, hi=1)), logits=inp(rnd((3, 4), lo=-20, hi=20))))
case("log_poisson_loss/python", lambda: tf.nn.log_poisson_loss(inp(rnd((3,), lo=0, hi=4)), inp(rnd((3,)))))
case("weighted_cross_entropy/python", lambda: tf.nn.weighted_cross_entropy_with_logits(
    labels=inp(rnd((3, 4), lo=0, hi=1)), logits=inp(rnd((3, 4))), pos_weight=inp(2.0)))
for name, loss in [("absolute_difference", tf.losses.absolute_difference), ("mean_squared_error", tf.losses.mean_squared_error),
                   ("huber", tf.losses.huber_loss), ("hinge", tf.losses.hinge_loss), ("log", tf.losses.log_loss)]:
    case("losses/%s" % name, lambda loss=loss: loss(
        inp(rnd((3, 4), lo=0, hi=1), shape=[3, 4]), inp(rnd((3, 4), lo=0.1, hi=0.9), shape=[3, 4]), weights=inp(rnd((3, 1), lo=0, hi=1), shape=[3, 1])))

for t in allowed("TopKV2"):
    case("TopKV2/" + short(t), lambda t=t: list(raw.TopKV2(input=inp(rnd((3, 7), t, -20, 20), t), k=inp(3))))
for shape, k in [((5,), 5), ((5,), 0), ((5,), 1), ((2, 3, 4), 2), ((5,), 6), ((5,), -1), ((), 1), ((0, 3), 2), ((3, 0), 0), ((5,), [2]), ((4, 100), 17)]:
    case("TopKV2/%s_%s" % (shape, k), lambda shape=shape, k=k: list(raw.TopKV2(input=inp(rnd(shape)), k=inp(k))))
case("TopKV2/ties", lambda: list(raw.TopKV2(input=inp([3, 1, 3, 2, 3, 1]), k=inp(4))))
case("TopKV2/unsorted_all", lambda: list(raw.TopKV2(input=inp([3, 1, 4, 2]), k=inp(4), sorted=False)), post=lambda v: [sorted(v[0].tolist())])
for it in INTS:
    for op in ("InTopK", "InTopKV2"):
        for k in (1, 2, 3, 0):
            case("%s/%s_%d" % (op, short(it), k), lambda op=op, it=it, k=k: getattr(raw, op)(
                predictions=inp([[0.1, 0.3, 0.2, 0.4], [0.5, 0.5, 0.5, 0.1], [np.nan, 0.2, 0.1, 0.0], [0.1, np.inf, 0.3, 0.2]]),
                targets=inp([1, 2, 1, 3], it), k=inp(k, it) if op == "InTopKV2" else k))
    case("InTopKV2/%s_range" % short(it), lambda it=it: raw.InTopKV2(
        predictions=inp(rnd((3, 4))), targets=inp([-1, 4, 1], it), k=inp(2, it)))
    case("InTopKV2/%s_wrong" % short(it), lambda it=it: raw.InTopKV2(
        predictions=inp(rnd((3, 4))), targets=inp([1, 1], it), k=inp(2, it)))

FLAGS = [dict(), dict(align_corners=True), dict(half_pixel_centers=True)]
SIZES = [((1, 3, 4, 2), [6, 8]), ((2, 5, 5, 1), [3, 2]), ((1, 2, 2, 3), [2, 2]), ((1, 1, 1, 2), [4, 3]), ((1, 4, 4, 1), [1, 1]), ((2, 3, 7, 1), [5, 5])]
for op in ("ResizeBilinear", "ResizeNearestNeighbor"):
    for shape, size in SIZES:
        for kw in FLAGS:
            case("%s/%s_%s_%s" % (op, shape, size, list(kw)), lambda op=op, shape=shape, size=size, kw=kw: getattr(raw, op)(
                images=inp(rnd(shape)), size=inp(size), **kw))
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(images=inp(rnd((1, 3, 4, 2), t), t), size=inp([5, 6])))
    for name, shape, size in [("rank", (3, 4, 2), [2, 2]), ("size_rank", (1, 3, 4, 2), [[2, 2]]), ("size_count", (1, 3, 4, 2), [2, 2, 2]),
                              ("zero", (1, 3, 4, 2), [0, 2]), ("negative", (1, 3, 4, 2), [-1, 2]), ("empty", (1, 0, 4, 2), [2, 2]),
                              ("empty_batch", (0, 3, 4, 2), [2, 2])]:
        case("%s/wrong_%s" % (op, name), lambda op=op, shape=shape, size=size: getattr(raw, op)(images=inp(rnd(shape)), size=inp(size)))
    case("%s/both_flags" % op, lambda op=op: getattr(raw, op)(
        images=inp(rnd((1, 3, 3, 1))), size=inp([2, 2]), align_corners=True, half_pixel_centers=True))
for shape, size in SIZES:
    for kw in FLAGS:
        out = (shape[0], size[0], size[1], shape[3])
        case("ResizeBilinearGrad/%s_%s_%s" % (shape, size, list(kw)), lambda shape=shape, out=out, kw=kw: raw.ResizeBilinearGrad(
            grads=inp(rnd(out)), original_image=inp(rnd(shape)), **kw))
        case("ResizeNearestNeighborGrad/%s_%s_%s" % (shape, size, list(kw)), lambda shape=shape, out=out, kw=kw: raw.ResizeNearestNeighborGrad(
            grads=inp(rnd(out)), size=inp(shape[1:3]), **kw))
for t in allowed("ResizeNearestNeighborGrad"):
    case("ResizeNearestNeighborGrad/" + short(t), lambda t=t: raw.ResizeNearestNeighborGrad(grads=inp(rnd((1, 4, 4, 2), t), t), size=inp([2, 3])))
for t in FLOATS:
    case("dropout/python_" + short(t), lambda t=t: tf.nn.dropout(inp(rnd((4, 5), t), t), rate=0.4, seed=7))
