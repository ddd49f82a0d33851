"""Boxes: suppression of those that overlap, drawing, random crops."""
import numpy as np

from registry import case, inp, raw, rnd, short, tf

BOXES = [[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [0, 10.1, 1, 11.1], [0, 100, 1, 101]]
SCORES = [.9, .75, .6, .95, .5, .3]


def many(n=40):
    corner = rnd((n, 2), lo=0, hi=6)
    return np.concatenate([corner, corner + rnd((n, 2), lo=-1, hi=3)], 1).astype(np.float32)


def fetched(result):
    return list(result) if isinstance(result, tuple) else result


def suppress(version, boxes, scores, size=6, iou=0.5, score=0.0, sigma=0.0, t=tf.float32, **more):
    args = dict(boxes=inp(boxes, t), scores=inp(scores, t), max_output_size=inp(size))
    if version == 1:
        return raw.NonMaxSuppression(iou_threshold=iou, **args)
    args["iou_threshold"] = inp(iou, t)
    if version > 2:
        args["score_threshold"] = inp(score, t)
    if version > 4:
        args["soft_nms_sigma"] = inp(sigma, t)
    return fetched(getattr(raw, "NonMaxSuppressionV%d" % version)(**args, **more))


for version in (1, 2, 3, 4, 5):
    types = (tf.float32,) if version == 1 else (tf.float32, tf.float16)
    for t in types:
        s = "NonMaxSuppression%s/%s" % ("V%d" % version if version > 1 else "", short(t))
        case(s, lambda version=version, t=t: suppress(version, BOXES, SCORES, t=t))
        case(s + "_many", lambda version=version, t=t: suppress(version, many(), rnd((40,), lo=0, hi=1), 30, t=t))
        case(s + "_ties", lambda version=version, t=t: suppress(version, many(), np.full(40, 0.5), 30, 0.3, t=t))
        case(s + "_few", lambda version=version, t=t: suppress(version, BOXES, SCORES, 2, t=t))
        case(s + "_none", lambda version=version, t=t: suppress(version, np.zeros((0, 4)), np.zeros((0,)), t=t))
        case(s + "_zero", lambda version=version, t=t: suppress(version, BOXES, SCORES, 0, t=t))
        if version > 2:
            case(s + "_score", lambda version=version, t=t: suppress(version, BOXES, SCORES, score=0.55, t=t))
        if version > 3:
            case(s + "_padded", lambda version=version, t=t: suppress(version, BOXES, SCORES, 8, t=t, pad_to_max_output_size=True))
        if version > 4:
            case(s + "_soft", lambda version=version, t=t: suppress(version, many(), rnd((40,), lo=0, hi=1), 30, 0.4, 0.01, 0.5, t=t))
    s = "NonMaxSuppression%s/" % ("V%d" % version if version > 1 else "")
    for what, more in dict(
            iou_high=dict(iou=1.5), iou_low=dict(iou=-0.1), negative=dict(size=-1), flipped=dict(boxes=np.array(BOXES)[:, ::-1]),
            box_rank=dict(boxes=np.zeros(4)), box_columns=dict(boxes=np.zeros((6, 3))), score_rank=dict(scores=[SCORES]),
            score_count=dict(scores=SCORES[:5]), size_rank=dict(size=[3])).items():
        case(s + what, lambda version=version, more=more: suppress(version, **{**dict(boxes=BOXES, scores=SCORES), **more}))
    if version > 1:
        case(s + "iou_rank", lambda version=version: suppress(version, BOXES, SCORES, iou=[0.5]))
    if version > 2:
        case(s + "threshold_rank", lambda version=version: suppress(version, BOXES, SCORES, score=[0.5]))
case("NonMaxSuppressionV5/sigma_rank", lambda: suppress(5, BOXES, SCORES, sigma=[0.5]))
case("NonMaxSuppressionV5/sigma_negative", lambda: suppress(5, BOXES, SCORES, sigma=-0.5))


def overlaps(a, scores=(0.9, 0.5, 0.7, 0.1), size=3, threshold=0.4, score=0.2):
    return raw.NonMaxSuppressionWithOverlaps(overlaps=inp(a, tf.float32), scores=inp(list(scores)), max_output_size=inp(size),
                                             overlap_threshold=inp(threshold), score_threshold=inp(score))


case("NonMaxSuppressionWithOverlaps/plain", lambda: overlaps(rnd((4, 4), lo=0, hi=1)))
case("NonMaxSuppressionWithOverlaps/rank", lambda: overlaps(rnd((4,))))
case("NonMaxSuppressionWithOverlaps/square", lambda: overlaps(rnd((4, 3))))
case("NonMaxSuppressionWithOverlaps/scores", lambda: overlaps(rnd((4, 4)), scores=(0.1, 0.2)))


def combined(q=1, classes=2, batch=2, n=12, per_class=4, total=5, iou=0.3, score=0.1, pad=False, clip=True, **given):
    boxes = given.get("boxes", np.concatenate([rnd((batch, n, q, 2), lo=0, hi=0.6), rnd((batch, n, q, 2), lo=0.5, hi=1.3)], -1))
    scores = given.get("scores", rnd((batch, n, classes), lo=0, hi=1))
    return fetched(raw.CombinedNonMaxSuppression(
        boxes=inp(boxes, tf.float32), scores=inp(scores, tf.float32), max_output_size_per_class=inp(per_class), max_total_size=inp(total),
        iou_threshold=inp(iou), score_threshold=inp(score), pad_per_class=pad, clip_boxes=clip))


for what, more in dict(plain={}, own=dict(q=2), padded=dict(pad=True, total=50), unclipped=dict(clip=False), long=dict(total=50), none=dict(score=2.0),
                       iou=dict(iou=1.5), per_class=dict(per_class=0), total=dict(total=0), q=dict(q=3), rank=dict(boxes=np.zeros((2, 12, 4))),
                       columns=dict(boxes=np.zeros((2, 12, 1, 3))), batches=dict(boxes=np.zeros((3, 12, 1, 4))), scores=dict(scores=np.zeros((2, 11, 2))),
                       size_rank=dict(per_class=[1]), iou_rank=dict(iou=[0.5])).items():
    case("CombinedNonMaxSuppression/" + what, lambda more=more: combined(**more))

for t in (tf.float32, tf.float16):
    for depth in (1, 2, 3, 4):
        case("DrawBoundingBoxes/%s_%d" % (short(t), depth), lambda t=t, depth=depth: raw.DrawBoundingBoxes(
            images=inp(rnd((2, 7, 9, depth), t), t), boxes=inp([[[0, 0, 1, 1], [0.2, 0.3, 0.6, 0.9]], [[-0.5, -0.1, 0.5, 1.5], [0.9, 0, 0.1, 1]]])))
        case("DrawBoundingBoxesV2/%s_%d" % (short(t), depth), lambda t=t, depth=depth: raw.DrawBoundingBoxesV2(
            images=inp(rnd((1, 7, 9, depth), t), t), boxes=inp([[[0, 0, 1, 1], [0.2, 0.3, 0.6, 0.9]]]), colors=inp(rnd((2, 4)))))
case("DrawBoundingBoxesV2/colors_empty", lambda: raw.DrawBoundingBoxesV2(
    images=inp(rnd((1, 7, 9, 3))), boxes=inp([[[0.0, 0, 1, 1]] * 12]), colors=inp(np.zeros((0, 4)), tf.float32)))
case("DrawBoundingBoxesV2/colors_rank", lambda: raw.DrawBoundingBoxesV2(images=inp(rnd((1, 3, 3, 3))), boxes=inp([[[0.0, 0, 1, 1]]]), colors=inp([1.0])))
case("DrawBoundingBoxesV2/colors_few", lambda: raw.DrawBoundingBoxesV2(images=inp(rnd((1, 3, 3, 3))), boxes=inp([[[0.0, 0, 1, 1]]]), colors=inp([[1.0]])))
for a, b in [((3, 3, 3), (1, 1, 4)), ((1, 3, 3, 3), (1, 4)), ((2, 3, 3, 3), (1, 1, 4)), ((1, 3, 3, 3), (1, 1, 3)), ((1, 3, 3, 1), (1, 0, 4))]:
    case("DrawBoundingBoxes/shapes_%s_%s" % (a, b), lambda a=a, b=b: raw.DrawBoundingBoxes(images=inp(rnd(a)), boxes=inp(rnd(b, lo=0, hi=1))))

for t in (tf.uint8, tf.int8, tf.int16, tf.int32, tf.int64):
    for seed in range(4):
        case("SampleDistortedBoundingBoxV2/%s_%d" % (short(t), seed), lambda t=t, seed=seed: list(raw.SampleDistortedBoundingBoxV2(
            image_size=inp([40, 50, 3], t), bounding_boxes=inp([[[0.1, 0.2, 0.6, 0.8], [0, 0, 1, 1]]]), min_object_covered=inp(0.3), seed=seed + 1, seed2=7)))
        case("StatelessSampleDistortedBoundingBox/%s_%d" % (short(t), seed), lambda t=t, seed=seed: list(raw.StatelessSampleDistortedBoundingBox(
            image_size=inp([40, 50, 3], t), bounding_boxes=inp([[[0.1, 0.2, 0.6, 0.8]]]), min_object_covered=inp(0.3), seed=inp([seed, 3]))))


def distorted(size=(40, 50, 3), boxes=(((0.1, 0.2, 0.6, 0.8),),), **more):
    return list(raw.SampleDistortedBoundingBox(image_size=inp(size, tf.int32), bounding_boxes=inp(boxes, tf.float32), seed=3, seed2=4, **more))


for what, more in dict(plain={}, wide=dict(aspect_ratio_range=[3.0, 5.0]), small=dict(area_range=[0.01, 0.02]), covered=dict(min_object_covered=0.9),
                       never=dict(min_object_covered=1.0, area_range=[0.01, 0.02]), none=dict(boxes=np.zeros((1, 0, 4))),
                       whole=dict(boxes=np.zeros((1, 0, 4)), use_image_if_no_bounding_boxes=True), size=dict(size=(1, 2)), rank=dict(size=3),
                       box_rank=dict(boxes=((0.1, 0.2, 0.6, 0.8),)), columns=dict(boxes=np.zeros((1, 1, 3))), outside=dict(boxes=[[[0.0, 0, 1.5, 1]]]),
                       ratio=dict(aspect_ratio_range=[1.0]), ratio_zero=dict(aspect_ratio_range=[0.0, 1.0]), area=dict(area_range=[1.0]),
                       area_zero=dict(area_range=[0.0, 1.0]), area_large=dict(area_range=[0.5, 2.0]), attempts=dict(max_attempts=0),
                       negative=dict(min_object_covered=-1.0), empty=dict(size=(0, 0, 3))).items():
    case("SampleDistortedBoundingBox/" + what, lambda more=more: distorted(**more))
