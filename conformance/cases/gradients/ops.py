"""Ops with gradients that no other case feeds floating inputs to: graphs.py differentiates them."""
import numpy as np

from registry import case, const, inp, raw, rnd, short, tf

for t in (tf.float32, tf.float64):
    for padding, stride in (("SAME", 1), ("VALID", 2)):
        kw = dict(strides=[1, stride, stride, stride, 1], padding=padding)
        name = "%s_%s" % (short(t), padding)
        case("Conv3D/" + name, lambda t=t, kw=kw: raw.Conv3D(
            input=inp(rnd((2, 4, 5, 4, 2), t), t), filter=inp(rnd((2, 2, 2, 2, 3), t), t), **kw))
        pool = dict(ksize=[1, 2, 2, 2, 1], **kw)
        case("AvgPool3D/" + name, lambda t=t, kw=pool: raw.AvgPool3D(input=inp(rnd((2, 4, 5, 4, 2), t), t), **kw))
        if t == tf.float32:
            case("MaxPool3D/" + name, lambda kw=pool: raw.MaxPool3D(input=inp(rnd((2, 4, 5, 4, 2))), **kw))
        case("Dilation2D/" + name, lambda t=t, stride=stride, padding=padding: raw.Dilation2D(
            input=inp(rnd((2, 5, 6, 3), t), t), filter=inp(rnd((2, 3, 3), t), t), strides=[1, stride, stride, 1],
            rates=[1, 1, 1, 1], padding=padding))
    case("NthElement/" + short(t), lambda t=t: raw.NthElement(input=inp(rnd((3, 7), t), t), n=const(2)))
    case("NthElement/%s_ties" % short(t), lambda t=t: raw.NthElement(
        input=inp([[1, 2, 2, 2, 3], [0, 0, 5, 5, 5]], t), n=const(2), reverse=True))
    case("ResizeBicubic/" + short(t), lambda t=t: raw.ResizeBicubic(
        images=inp(rnd((2, 4, 5, 3), t), t), size=const([7, 3]), half_pixel_centers=True), rtol=1e-4, atol=1e-4)
    case("PlaceholderWithDefault/" + short(t), lambda t=t: raw.PlaceholderWithDefault(
        input=inp(rnd((2, 3), t), t), shape=[2, 3]))
for method in ("bilinear", "nearest"):
    case("CropAndResize/" + method, lambda method=method: raw.CropAndResize(
        image=inp(rnd((2, 6, 7, 3))), boxes=inp(np.array([[0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]], np.float32)),
        box_ind=inp([1, 0]), crop_size=const([3, 4]), method=method))
