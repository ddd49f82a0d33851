"""Colours, boxes and warps of images that are tensors already."""
import numpy as np

from registry import allowed, case, inp, raw, rnd, tf

I = tf.int32
F = tf.float32

for name, op in dict(RGBToHSV=raw.RGBToHSV, HSVToRGB=raw.HSVToRGB).items():
    for t in allowed(name):
        case("%s/%s" % (name, t.name), lambda op=op, t=t: op(images=inp(rnd((4, 5, 3), t, 0, 1))))
    case(name + "/edges", lambda op=op: op(images=inp(np.array([[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1], [-1, 2, 0.5], [300, 20, 255], [0.5, 0.5, 0.2]], np.float32))))
    case(name + "/empty", lambda op=op: op(images=inp(np.zeros((0, 3), np.float32))))
    case(name + "/channels", lambda op=op: op(images=inp(rnd((2, 4)))))
    case(name + "/scalar", lambda op=op: op(images=inp(1.0)))

for t in allowed("AdjustContrastv2"):
    case("AdjustContrastv2/" + t.name, lambda t=t: raw.AdjustContrastv2(images=inp(rnd((2, 5, 4, 3), t, 0, 9)), contrast_factor=inp(1.7)))
    case("AdjustHue/" + t.name, lambda t=t: raw.AdjustHue(images=inp(rnd((2, 5, 4, 3), t, 0, 1)), delta=inp(0.3)))
    case("AdjustSaturation/" + t.name, lambda t=t: raw.AdjustSaturation(images=inp(rnd((2, 5, 4, 3), t, 0, 1)), scale=inp(1.4)))
for delta in (0.0, -0.25, 1.0, -7.3, 0.5):
    case("AdjustHue/delta/%g" % delta, lambda delta=delta: raw.AdjustHue(images=inp(rnd((3, 3, 3), F, 0, 1)), delta=inp(delta)))
for scale in (0.0, 0.5, 3.0, -1.0):
    case("AdjustSaturation/scale/%g" % scale, lambda scale=scale: raw.AdjustSaturation(images=inp(rnd((3, 3, 3), F, 0, 1)), scale=inp(scale)))
EDGES = np.array([[[0, 0, 0], [1, 1, 1], [1, 0, 0], [0, 1, 0]], [[0, 0, 1], [0.5, 0.5, 0], [0, 0.5, 0.5], [2, -1, 0.5]]], np.float32)
case("AdjustHue/edges", lambda: raw.AdjustHue(images=inp(EDGES), delta=inp(0.2)))
case("AdjustSaturation/edges", lambda: raw.AdjustSaturation(images=inp(EDGES), scale=inp(0.7)))
for name, op in dict(AdjustHue=lambda i, v: raw.AdjustHue(images=i, delta=v), AdjustSaturation=lambda i, v: raw.AdjustSaturation(images=i, scale=v),
                     AdjustContrastv2=lambda i, v: raw.AdjustContrastv2(images=i, contrast_factor=v)).items():
    case(name + "/rank", lambda op=op: op(inp(rnd((2, 3))), inp(0.5)))
    case(name + "/vector", lambda op=op: op(inp(rnd((2, 2, 3))), inp([0.5])))
    case(name + "/channels", lambda op=op: op(inp(rnd((2, 2, 4))), inp(0.5)))
    case(name + "/empty", lambda op=op: op(inp(np.zeros((0, 2, 3), np.float32)), inp(0.5)))

BOXES = np.array([[[0.1, 0.1, 0.6, 0.5], [0, 0, 1, 1], [0.7, 0.2, 0.3, 0.9], [-1, -1, 2, 0.5], [2, 2, 3, 3], [0.5, 0.5, 0.5, 0.5]]], np.float32)
for depth in (1, 3, 4, 2):
    case("DrawBoundingBoxes/depth/%d" % depth, lambda depth=depth: raw.DrawBoundingBoxes(images=inp(rnd((1, 9, 8, depth))), boxes=inp(BOXES)))
    case("DrawBoundingBoxesV2/depth/%d" % depth, lambda depth=depth: raw.DrawBoundingBoxesV2(images=inp(rnd((1, 9, 8, depth))), boxes=inp(BOXES), colors=inp(rnd((2, 4), F, 0, 1))))
case("DrawBoundingBoxes/half", lambda: raw.DrawBoundingBoxes(images=inp(rnd((1, 9, 8, 3), tf.float16)), boxes=inp(BOXES)))
case("DrawBoundingBoxes/many", lambda: raw.DrawBoundingBoxes(images=inp(rnd((2, 20, 20, 3))), boxes=inp(np.array([[[i / 20, i / 20, 1 - i / 30, 1 - i / 40] for i in range(12)]] * 2, np.float32))))
case("DrawBoundingBoxes/none", lambda: raw.DrawBoundingBoxes(images=inp(rnd((1, 3, 3, 3))), boxes=inp(np.zeros((1, 0, 4), np.float32))))
case("DrawBoundingBoxes/rank", lambda: raw.DrawBoundingBoxes(images=inp(rnd((3, 3, 3))), boxes=inp(BOXES)))
case("DrawBoundingBoxes/box_rank", lambda: raw.DrawBoundingBoxes(images=inp(rnd((1, 3, 3, 3))), boxes=inp(BOXES[0])))
case("DrawBoundingBoxes/batch", lambda: raw.DrawBoundingBoxes(images=inp(rnd((2, 3, 3, 3))), boxes=inp(BOXES)))
case("DrawBoundingBoxes/corners", lambda: raw.DrawBoundingBoxes(images=inp(rnd((1, 3, 3, 3))), boxes=inp(BOXES[:, :, :3])))
case("DrawBoundingBoxesV2/colors_none", lambda: raw.DrawBoundingBoxesV2(images=inp(rnd((1, 5, 5, 3))), boxes=inp(BOXES), colors=inp(np.zeros((0, 4), np.float32))))
case("DrawBoundingBoxesV2/colors_rank", lambda: raw.DrawBoundingBoxesV2(images=inp(rnd((1, 5, 5, 3))), boxes=inp(BOXES), colors=inp([1.0, 2.0, 3.0])))
case("DrawBoundingBoxesV2/colors_few", lambda: raw.DrawBoundingBoxesV2(images=inp(rnd((1, 5, 5, 3))), boxes=inp(BOXES), colors=inp([[1.0, 2.0]])))


def distorted(size, boxes, covered=0.1, op="v2", seeds=(3, 5), **attrs):
    size, boxes = inp(size), inp(np.array(boxes, np.float32).reshape((1, -1, 4)) if len(boxes) else np.zeros((1, 0, 4), np.float32))
    if op == "v1":
        return list(raw.SampleDistortedBoundingBox(image_size=size, bounding_boxes=boxes, min_object_covered=covered, seed=seeds[0], seed2=seeds[1], **attrs))
    if op == "v2":
        return list(raw.SampleDistortedBoundingBoxV2(image_size=size, bounding_boxes=boxes, min_object_covered=inp(covered), seed=seeds[0], seed2=seeds[1], **attrs))
    return list(raw.StatelessSampleDistortedBoundingBox(image_size=size, bounding_boxes=boxes, min_object_covered=inp(covered), seed=inp(list(seeds), tf.int64), **attrs))


OBJECT = [[0.2, 0.2, 0.7, 0.6]]
for op in ("v1", "v2", "stateless"):
    for i in range(5):
        case("SampleDistortedBoundingBox/%s/seed/%d" % (op, i), lambda op=op, i=i: distorted([100, 80, 3], OBJECT, op=op, seeds=(i + 1, 2 * i + 1)))
    case("SampleDistortedBoundingBox/%s/hard" % op, lambda op=op: distorted([10, 80, 3], OBJECT, 0.99, op=op, area_range=[0.05, 0.2], max_attempts=7))
    case("SampleDistortedBoundingBox/%s/whole" % op, lambda op=op: distorted([40, 50, 3], [], op=op, use_image_if_no_bounding_boxes=True))
    case("SampleDistortedBoundingBox/%s/no_boxes" % op, lambda op=op: distorted([40, 50, 3], [], op=op))
    case("SampleDistortedBoundingBox/%s/size_count" % op, lambda op=op: distorted([40, 50], OBJECT, op=op))
    case("SampleDistortedBoundingBox/%s/size_rank" % op, lambda op=op: distorted([[40, 50, 3]], OBJECT, op=op))
    case("SampleDistortedBoundingBox/%s/outside" % op, lambda op=op: distorted([40, 50, 3], [[0, 0, 1.5, 1]], op=op))
    for name, attrs in dict(aspect_count=dict(aspect_ratio_range=[1.0]), aspect=dict(aspect_ratio_range=[0.0, 1.0]), area=dict(area_range=[0.0, 1.0]), area_count=dict(area_range=[0.1]),
                            area_large=dict(area_range=[0.5, 1.5]), attempts=dict(max_attempts=0)).items():
        case("SampleDistortedBoundingBox/%s/attr/%s" % (op, name), lambda op=op, attrs=attrs: distorted([40, 50, 3], OBJECT, op=op, **attrs))
for t in (tf.uint8, tf.int8, tf.int16, tf.int64):
    case("SampleDistortedBoundingBox/type/" + t.name, lambda t=t: distorted(np.array([100, 80, 3], t.as_numpy_dtype), OBJECT))
case("SampleDistortedBoundingBox/covered", lambda: distorted([40, 50, 3], OBJECT, -0.5))
case("SampleDistortedBoundingBox/v1/covered", lambda: distorted([40, 50, 3], OBJECT, -0.5, op="v1"))

MANY = np.array([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101], [1, 1, 0, 0]], np.float32)
SCORES = np.array([0.9, 0.75, 0.6, 0.95, 0.5, 0.3, 0.9], np.float32)
nms = dict(V1=lambda b, s, n, i=0.5, t=None, g=None: raw.NonMaxSuppression(boxes=b, scores=s, max_output_size=n, iou_threshold=i),
           V2=lambda b, s, n, i=0.5, t=None, g=None: raw.NonMaxSuppressionV2(boxes=b, scores=s, max_output_size=n, iou_threshold=inp(i)),
           V3=lambda b, s, n, i=0.5, t=0.4, g=None: raw.NonMaxSuppressionV3(boxes=b, scores=s, max_output_size=n, iou_threshold=inp(i), score_threshold=inp(t)),
           V4=lambda b, s, n, i=0.5, t=0.4, g=None: list(raw.NonMaxSuppressionV4(boxes=b, scores=s, max_output_size=n, iou_threshold=inp(i), score_threshold=inp(t), pad_to_max_output_size=True)),
           V5=lambda b, s, n, i=0.5, t=0.1, g=0.5: list(raw.NonMaxSuppressionV5(boxes=b, scores=s, max_output_size=n, iou_threshold=inp(i), score_threshold=inp(t), soft_nms_sigma=inp(g))))
for v, op in nms.items():
    case("NonMaxSuppression/%s/plain" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp(4)))
    case("NonMaxSuppression/%s/random" % v, lambda op=op: op(inp(rnd((60, 4), F, 0, 1)), inp(rnd((60,), F, 0, 1)), inp(30), 0.3))
    case("NonMaxSuppression/%s/none" % v, lambda op=op: op(inp(np.zeros((0, 4), np.float32)), inp(np.zeros(0, np.float32)), inp(3)))
    case("NonMaxSuppression/%s/zero" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp(0)))
    case("NonMaxSuppression/%s/negative" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp(-1)))
    case("NonMaxSuppression/%s/rank" % v, lambda op=op: op(inp(MANY[0]), inp(SCORES), inp(4)))
    case("NonMaxSuppression/%s/columns" % v, lambda op=op: op(inp(MANY[:, :3]), inp(SCORES), inp(4)))
    case("NonMaxSuppression/%s/scores" % v, lambda op=op: op(inp(MANY), inp(SCORES[:3]), inp(4)))
    case("NonMaxSuppression/%s/scores_rank" % v, lambda op=op: op(inp(MANY), inp([SCORES]), inp(4)))
    case("NonMaxSuppression/%s/count_rank" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp([4])))
    case("NonMaxSuppression/%s/iou_rank" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp(4), 0.5 if op is nms["V1"] else [0.5]))
    case("NonMaxSuppression/%s/score_rank" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp(4), 0.5, [0.5]))
    case("NonMaxSuppression/%s/iou" % v, lambda op=op: op(inp(MANY), inp(SCORES), inp(4), 1.5))
for i in (0.0, 0.2, 0.8, 1.0):
    case("NonMaxSuppression/V3/iou/%g" % i, lambda i=i: nms["V3"](inp(MANY), inp(SCORES), inp(9), i, 0.0))
    case("NonMaxSuppression/V5/iou/%g" % i, lambda i=i: nms["V5"](inp(MANY), inp(SCORES), inp(9), i, 0.0, 0.4))
case("NonMaxSuppression/V5/hard", lambda: nms["V5"](inp(MANY), inp(SCORES), inp(9), 0.5, 0.0, 0.0))
case("NonMaxSuppression/V5/pad", lambda: list(raw.NonMaxSuppressionV5(boxes=inp(MANY), scores=inp(SCORES), max_output_size=inp(9), iou_threshold=inp(0.5), score_threshold=inp(0.2), soft_nms_sigma=inp(0.3), pad_to_max_output_size=True)))
H = lambda v: inp(v, tf.float16)
case("NonMaxSuppression/V3/half", lambda: raw.NonMaxSuppressionV3(boxes=H(MANY), scores=H(SCORES), max_output_size=inp(4), iou_threshold=H(0.5), score_threshold=H(0.1)))
case("NonMaxSuppression/V5/half", lambda: list(raw.NonMaxSuppressionV5(boxes=H(MANY), scores=H(SCORES), max_output_size=inp(4), iou_threshold=H(0.5), score_threshold=H(0.1), soft_nms_sigma=H(0.5))))
OVER = np.array([[1, 0.6, 0.1], [0.6, 1, 0.2], [0.1, 0.2, 1]], np.float32)
over = lambda o, s: raw.NonMaxSuppressionWithOverlaps(overlaps=inp(o), scores=inp(s), max_output_size=inp(3), overlap_threshold=inp(0.5), score_threshold=inp(0.1))
case("NonMaxSuppressionWithOverlaps/plain", lambda: over(OVER, [0.5, 0.9, 0.3]))
case("NonMaxSuppressionWithOverlaps/square", lambda: over(OVER[:2], [0.5, 0.9]))
case("NonMaxSuppressionWithOverlaps/rank", lambda: over(OVER[0], [0.5, 0.9, 0.3]))


def combined(boxes, scores, per_class=3, total=5, iou=0.5, score=0.2, **attrs):
    return list(raw.CombinedNonMaxSuppression(boxes=inp(boxes), scores=inp(scores), max_output_size_per_class=inp(per_class), max_total_size=inp(total), iou_threshold=inp(iou), score_threshold=inp(score), **attrs))


case("CombinedNonMaxSuppression/shared", lambda: combined(rnd((2, 9, 1, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1)))
case("CombinedNonMaxSuppression/by_class", lambda: combined(rnd((2, 9, 3, 4), F, -0.5, 1.5), rnd((2, 9, 3), F, 0, 1)))
case("CombinedNonMaxSuppression/unclipped", lambda: combined(rnd((2, 9, 3, 4), F, -0.5, 1.5), rnd((2, 9, 3), F, 0, 1), clip_boxes=False))
case("CombinedNonMaxSuppression/padded", lambda: combined(rnd((2, 9, 3, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1), per_class=2, total=20, pad_per_class=True))
case("CombinedNonMaxSuppression/large", lambda: combined(rnd((1, 4, 1, 4), F, 0, 1), rnd((1, 4, 2), F, 0, 1), per_class=50, total=20))
case("CombinedNonMaxSuppression/classes", lambda: combined(rnd((2, 9, 2, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1)))
case("CombinedNonMaxSuppression/batch", lambda: combined(rnd((1, 9, 3, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1)))
case("CombinedNonMaxSuppression/boxes", lambda: combined(rnd((2, 8, 3, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1)))
case("CombinedNonMaxSuppression/per_class", lambda: combined(rnd((2, 9, 3, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1), per_class=0))
case("CombinedNonMaxSuppression/total", lambda: combined(rnd((2, 9, 3, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1), total=0))
case("CombinedNonMaxSuppression/iou", lambda: combined(rnd((2, 9, 3, 4), F, 0, 1), rnd((2, 9, 3), F, 0, 1), iou=2.0))


def glimpse(op, size, offsets, shape=(2, 6, 7, 3), **attrs):
    return op(input=inp(rnd(shape)), size=inp(size), offsets=inp(np.array(offsets, np.float32)), **dict(dict(noise="zero", uniform_noise=False), **attrs))


for name, op in dict(ExtractGlimpse=raw.ExtractGlimpse, ExtractGlimpseV2=raw.ExtractGlimpseV2).items():
    for norm in (True, False):
        for centered in (True, False):
            for k, offsets in enumerate(([[0, 0], [0.2, -0.3]], [[1, 1], [-1, 0.5]], [[0.9, 0.1], [3, -3]], [[-0.5, 0.5], [2.5, 1.5]])):
                case("%s/%s%s/%d" % (name, "n" * norm, "c" * centered, k), lambda op=op, norm=norm, centered=centered, offsets=offsets: glimpse(op, [3, 4], offsets, normalized=norm, centered=centered))
                case("%s/odd/%s%s/%d" % (name, "n" * norm, "c" * centered, k), lambda op=op, norm=norm, centered=centered, offsets=offsets: glimpse(op, [3, 3], offsets, shape=(2, 5, 5, 1), normalized=norm, centered=centered))
    case(name + "/large", lambda op=op: glimpse(op, [9, 9], [[0, 0], [0.1, 0.1]]))
    case(name + "/empty", lambda op=op: glimpse(op, [0, 4], [[0, 0], [0, 0]]))
    case(name + "/negative", lambda op=op: glimpse(op, [-1, 4], [[0, 0], [0, 0]]))
    case(name + "/rank", lambda op=op: glimpse(op, [3, 4], [[0, 0]], shape=(6, 7, 3)))
    case(name + "/size", lambda op=op: glimpse(op, [3], [[0, 0], [0, 0]]))
    case(name + "/offsets_rank", lambda op=op: glimpse(op, [3, 4], [0, 0]))
    case(name + "/offsets_batch", lambda op=op: glimpse(op, [3, 4], [[0, 0]]))
    case(name + "/offsets_columns", lambda op=op: glimpse(op, [3, 4], [[0, 0, 0], [0, 0, 0]]))
    case(name + "/noise", lambda op=op: glimpse(op, [3, 4], [[0, 0], [0, 0]], noise="bogus"))

TURN = [0.8, -0.5, 1.0, 0.5, 0.8, -1.0, 0.0, 0.0]
SHEAR = [1.0, 0.3, -2.0, 0.1, 1.2, 0.5, 0.02, -0.03]
for t in allowed("ImageProjectiveTransformV3", "dtype"):
    for how in ("NEAREST", "BILINEAR"):
        case("ImageProjectiveTransformV3/%s/%s" % (t.name, how), lambda t=t, how=how: raw.ImageProjectiveTransformV3(
            images=inp(rnd((2, 5, 6, 2), t, 0, 90)), transforms=inp([TURN, SHEAR]), output_shape=inp([6, 7]), fill_value=inp(7.5), interpolation=how))
for mode in ("REFLECT", "WRAP", "CONSTANT", "NEAREST"):
    for how in ("NEAREST", "BILINEAR"):
        for name, t in dict(turn=TURN, shear=SHEAR, far=[3.0, 0.0, -9.5, 0.0, 3.0, 11.25, 0.0, 0.0], half=[0.5, 0, -1.75, 0, 0.5, 0.25, 0, 0]).items():
            case("ImageProjectiveTransformV3/%s/%s/%s" % (mode, how, name), lambda mode=mode, how=how, t=t: raw.ImageProjectiveTransformV3(
                images=inp(rnd((2, 5, 6, 2))), transforms=inp([t]), output_shape=inp([6, 7]), fill_value=inp(1.5), interpolation=how, fill_mode=mode))
        case("ImageProjectiveTransformV3/%s/%s/one" % (mode, how), lambda mode=mode, how=how: raw.ImageProjectiveTransformV3(
            images=inp(rnd((1, 1, 1, 2))), transforms=inp([SHEAR]), output_shape=inp([3, 3]), fill_value=inp(1.5), interpolation=how, fill_mode=mode))
project = lambda images, transforms, size, how="NEAREST": raw.ImageProjectiveTransformV2(images=inp(images), transforms=inp(transforms), output_shape=inp(size), interpolation=how)
case("ImageProjectiveTransformV2/plain", lambda: project(rnd((2, 4, 4, 1)), [TURN], [4, 4]))
case("ImageProjectiveTransformV2/infinite", lambda: project(rnd((1, 4, 4, 1)), [[1.0, 0, 0, 0, 1, 0, -1, 0]], [4, 4]))
case("ImageProjectiveTransformV2/rank", lambda: project(rnd((4, 4, 1)), [TURN], [4, 4]))
case("ImageProjectiveTransformV2/transforms", lambda: project(rnd((3, 4, 4, 1)), [TURN, TURN], [4, 4]))
case("ImageProjectiveTransformV2/columns", lambda: project(rnd((3, 4, 4, 1)), [TURN[:6]], [4, 4]))
case("ImageProjectiveTransformV2/size_rank", lambda: project(rnd((1, 4, 4, 1)), [TURN], 4))
case("ImageProjectiveTransformV2/size_count", lambda: project(rnd((1, 4, 4, 1)), [TURN], [4, 4, 1]))
case("ImageProjectiveTransformV2/size_zero", lambda: project(rnd((1, 4, 4, 1)), [TURN], [4, 0]))

scaled = lambda image, size, scale, shift, **attrs: raw.ScaleAndTranslate(images=inp(image), size=inp(size), scale=inp(np.array(scale, np.float32)), translation=inp(np.array(shift, np.float32)), **attrs)
for kernel in ("lanczos1", "lanczos3", "lanczos5", "gaussian", "box", "triangle", "keyscubic", "mitchellcubic"):
    for anti in (True, False):
        case("ScaleAndTranslate/%s/%s" % (kernel, anti), lambda kernel=kernel, anti=anti: [scaled(rnd((2, 7, 8, 2)), size, s, t, kernel_type=kernel, antialias=anti) for size, s, t in (
            ([4, 3], [0.5, 0.4], [0.1, -0.3]), ([12, 15], [1.7, 2.0], [0, 0.5]), ([7, 8], [1, 1], [2.5, -1]))])
        case("ScaleAndTranslateGrad/%s/%s" % (kernel, anti), lambda kernel=kernel, anti=anti: raw.ScaleAndTranslateGrad(
            grads=inp(rnd((2, 4, 5, 2))), original_image=inp(rnd((2, 7, 8, 2))), scale=inp([0.6, 0.7]), translation=inp([0.3, -0.2]), kernel_type=kernel, antialias=anti))
for t in allowed("ScaleAndTranslate"):
    case("ScaleAndTranslate/type/" + t.name, lambda t=t: scaled(rnd((1, 5, 5, 1), t), [3, 4], [0.6, 0.8], [0, 0]))
for name, args in dict(rank=(np.zeros((5, 5, 1), np.float32), [3, 4], [1, 1], [0, 0]), size=(np.zeros((1, 5, 5, 1), np.float32), [0, 4], [1, 1], [0, 0]), size_count=(np.zeros((1, 5, 5, 1), np.float32), [4], [1, 1], [0, 0]),
                       scale=(np.zeros((1, 5, 5, 1), np.float32), [3, 4], [0, 1], [0, 0]), scale_count=(np.zeros((1, 5, 5, 1), np.float32), [3, 4], [1], [0, 0]), empty=(np.zeros((1, 0, 5, 1), np.float32), [3, 4], [1, 1], [0, 0]),
                       channels=(np.zeros((1, 5, 5, 0), np.float32), [3, 4], [1, 1], [0, 0]), batch=(np.zeros((0, 5, 5, 2), np.float32), [3, 4], [1, 1], [0, 0])).items():
    case("ScaleAndTranslate/check/" + name, lambda args=args: scaled(*args))
case("ScaleAndTranslate/kernel", lambda: scaled(rnd((1, 5, 5, 1)), [3, 4], [1, 1], [0, 0], kernel_type="bogus"))
