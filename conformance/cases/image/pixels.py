"""Colours and geometry of images."""
import numpy as np

from registry import FLOATS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

for op in ("RGBToHSV", "HSVToRGB"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: [getattr(raw, op)(images=inp(rnd(s, t, 0, 1), t)) for s in [(3,), (4, 5, 3), (0, 3)]],
             **({} if t in FLOATS else dict(rtol=5e-2, atol=2e-2)))
    case(op + "/greys", lambda op=op: getattr(raw, op)(images=inp([[0, 0, 0], [1, 1, 1], [.5, .5, .5], [1, 0, 0], [0, 1, 1], [.2, .2, .7]])))
    for shape in [(), (2,), (3, 4)]:
        case("%s/shape_%s" % (op, shape), lambda op=op, shape=shape: getattr(raw, op)(images=inp(rnd(shape))))
for delta in (-2.3, -0.5, 0.0, 0.1, 0.99, 7.0):
    case("AdjustHue/%s" % delta, lambda delta=delta: raw.AdjustHue(images=inp(rnd((2, 4, 3), lo=0, hi=1)), delta=inp(delta)), rtol=1e-4, atol=1e-5)
    case("AdjustSaturation/%s" % delta, lambda delta=delta: raw.AdjustSaturation(images=inp(rnd((2, 4, 3), lo=0, hi=1)), scale=inp(delta)), rtol=1e-4, atol=1e-5)
    case("AdjustContrastv2/%s" % delta, lambda delta=delta: raw.AdjustContrastv2(images=inp(rnd((3, 2, 4, 2))), contrast_factor=inp(delta)), rtol=1e-4, atol=1e-5)
for op, name in (("AdjustHue", "delta"), ("AdjustSaturation", "scale"), ("AdjustContrastv2", "contrast_factor")):
    for shape in [(2, 3), (2, 3, 4), (0, 2, 3), (2, 2, 3)]:
        case("%s/shape_%s" % (op, shape), lambda op=op, name=name, shape=shape: getattr(raw, op)(images=inp(rnd(shape)), **{name: inp(0.5)}))
    case(op + "/vector", lambda op=op, name=name: getattr(raw, op)(images=inp(rnd((2, 2, 3))), **{name: inp([0.5])}))
    case(op + "/half", lambda op=op, name=name: getattr(raw, op)(images=inp(rnd((2, 2, 3), tf.float16)), **{name: inp(0.5)}))

for op in ("ExtractGlimpse", "ExtractGlimpseV2"):
    for centered in (True, False):
        for normalized in (True, False):
            for size in [(2, 3), (4, 4), (7, 9)]:
                case("%s/%s_%s_%s" % (op, centered, normalized, size), lambda op=op, c=centered, n=normalized, size=size: getattr(raw, op)(
                    input=inp(rnd((4, 5, 6, 2))), size=inp(list(size)), centered=c, normalized=n, noise="zero", uniform_noise=False,
                    offsets=inp([[0.0, 0], [0.4, 0.2], [-0.8, 2.0], [3.0, -4.0]])))
    case(op + "/inside", lambda op=op: getattr(raw, op)(input=inp(rnd((1, 8, 8, 1))), size=inp([3, 3]), offsets=inp([[0.1, 0.1]])))
    for what, more in dict(noise=dict(noise="pink", uniform_noise=False)).items():
        case("%s/%s" % (op, what), lambda op=op, more=more: getattr(raw, op)(input=inp(rnd((1, 8, 8, 1))), size=inp([3, 3]), offsets=inp([[0.1, 0.1]]), **more))
    for i, s, o in [((8, 8, 1), (2,), (1, 2)), ((1, 8, 8, 1), (3,), (1, 2)), ((1, 8, 8, 1), (2,), (2,)), ((1, 8, 8, 1), (2,), (2, 2)), ((1, 8, 8, 1), (2,), (1, 3))]:
        case("%s/shapes_%s_%s_%s" % (op, i, s, o), lambda op=op, i=i, s=s, o=o: getattr(raw, op)(
            input=inp(rnd(i)), size=inp(np.full(s, 2), tf.int32), offsets=inp(np.zeros(o), tf.float32)))

MOVES = [[1, 0, 0, 0, 1, 0, 0, 0], [1, 0.2, -1, 0.1, 0.9, 1.3, 0, 0], [0.7, 0.1, 2, -0.3, 1.2, 0, 0.01, -0.02], [-1, 0, 5, 0, 1, 0, -1, 0]]
for t in allowed("ImageProjectiveTransformV3", "dtype"):
    for mode in ("CONSTANT", "REFLECT", "WRAP", "NEAREST"):
        for interpolation in ("NEAREST", "BILINEAR"):
            case("ImageProjectiveTransformV3/%s_%s_%s" % (short(t), mode, interpolation), lambda t=t, mode=mode, i=interpolation:
                 raw.ImageProjectiveTransformV3(images=inp(rnd((4, 5, 6, 2), t, 0, 100), t), transforms=inp(MOVES, tf.float32), output_shape=inp([7, 4]),
                                                fill_value=inp(3.0), interpolation=i, fill_mode=mode), **({} if t not in SMALL_FLOATS else dict(rtol=2e-2)))
case("ImageProjectiveTransformV2/shared", lambda: raw.ImageProjectiveTransformV2(
    images=inp(rnd((2, 5, 6, 1))), transforms=inp([MOVES[1]], tf.float32), output_shape=inp([5, 6]), interpolation="BILINEAR"))
for what, more in dict(rank=dict(images=(5, 6, 1)), moves=dict(transforms=(3, 8)), moves_wide=dict(transforms=(1, 9)), shape=dict(output_shape=[3]),
                       shape_rank=dict(output_shape=3), zero=dict(output_shape=[0, 2])).items():
    def build(more=more):
        return raw.ImageProjectiveTransformV2(
            images=inp(rnd(more.get("images", (2, 5, 6, 1)))), transforms=inp(rnd(more.get("transforms", (2, 8)))), output_shape=inp(more.get("output_shape", [3, 3])),
            interpolation="NEAREST")
    case("ImageProjectiveTransformV2/" + what, build)

KERNELS = ["lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic"]
for kernel in KERNELS + ["odd"]:
    for antialias in (True, False):
        for scale in [(1.0, 1.0), (0.5, 0.4), (2.3, 1.7)]:
            case("ScaleAndTranslate/%s_%s_%s" % (kernel, antialias, scale), lambda k=kernel, a=antialias, s=scale: raw.ScaleAndTranslate(
                images=inp(rnd((2, 6, 7, 2))), size=inp([5, 8]), scale=inp(list(s)), translation=inp([0.4, -1.2]), kernel_type=k, antialias=a), rtol=1e-4, atol=1e-5)
            case("ScaleAndTranslateGrad/%s_%s_%s" % (kernel, antialias, scale), lambda k=kernel, a=antialias, s=scale: raw.ScaleAndTranslateGrad(
                grads=inp(rnd((2, 5, 8, 2))), original_image=inp(rnd((2, 6, 7, 2))), scale=inp(list(s)), translation=inp([0.4, -1.2]),
                kernel_type=k, antialias=a), rtol=1e-4, atol=1e-5)
for t in allowed("ScaleAndTranslate"):
    case("ScaleAndTranslate/" + short(t), lambda t=t: raw.ScaleAndTranslate(
        images=inp(rnd((1, 6, 7, 1), t, 0, 50), t), size=inp([3, 3]), scale=inp([0.5, 0.5]), translation=inp([0.0, 0.0])), rtol=1e-4, atol=1e-4)
for what, more in dict(rank=dict(images=(6, 7, 1)), size=dict(size=[3]), size_rank=dict(size=3), zero=dict(size=[0, 3]), channels=dict(images=(1, 6, 7, 0)),
                       empty=dict(images=(1, 0, 7, 1)), scale=dict(scale=[0.0, 1.0]), scale_count=dict(scale=[1.0]), scale_rank=dict(scale=1.0)).items():
    case("ScaleAndTranslate/" + what, lambda more=more: raw.ScaleAndTranslate(
        images=inp(rnd(more.get("images", (1, 6, 7, 1)))), size=inp(more.get("size", [3, 3])), scale=inp(more.get("scale", [1.0, 1.0])), translation=inp([0.0, 0.0])))
