"""Reductions, ArgMax, cumulative sums, AddN, segment sums."""
import numpy as np

from registry import ALL, FLOATS, INTS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

REDUCE = ["Sum", "Mean", "Prod", "Max", "Min", "EuclideanNorm"]
AXES = [(0,), (1,), (-1,), (0, 1), (1, 2), (0, 2), (0, 1, 2), (), (2, 0), (-3, 2)]

for op in REDUCE:
    for t in allowed(op):
        loose = dict(rtol=2e-2, atol=2e-2) if t in SMALL_FLOATS else {}
        lo, hi = (0.5, 1.5) if op == "Prod" and t.is_floating else (-3, 3)
        case("%s/%s" % (op, short(t)), lambda op=op, t=t, lo=lo, hi=hi: [getattr(raw, op)(
            input=inp(rnd((2, 3, 4), t, lo, hi), t), axis=inp(a)) for a in ([0], [1], [2], [0, 1, 2], [0, 2], 1)]
            + [getattr(raw, op)(input=inp(rnd((0, 3), t, lo, hi), t), axis=inp(a)) for a in ([1],)], **loose)
    for t in INTS:
        for axes in AXES:
            for keep in (False, True):
                case("%s/%s_axes_%s_keep_%s" % (op, short(t), axes, keep), lambda op=op, t=t, axes=axes, keep=keep:
                     getattr(raw, op)(input=inp(rnd((2, 3, 4), lo=0.5, hi=1.5)), axis=inp(list(axes), t), keep_dims=keep))
    for axes in ([3], [-4], [0, 0], [0, -3], [[0], [1]]):
        case("%s/bad_axes_%s" % (op, axes), lambda op=op, axes=axes: getattr(raw, op)(
            input=inp(rnd((2, 3, 4))), axis=inp(axes)))
    for shape, axes in [((), []), ((0,), [0]), ((3, 0), [0]), ((3, 0), [1]), ((0, 0), [0, 1]), ((1, 5, 1), [0, 2]), ((7,), [0]),
                        ((2, 3, 4, 5), [1, 3]), ((2, 3, 4, 5), [0, 2]), ((2, 2, 2, 2, 2, 2), [0, 2, 4]), ((100, 37), [0]),
                        ((100, 37), [1]), ((4, 1000), [1]), ((1000, 4), [0])]:
        case("%s/shape_%s_%s" % (op, shape, axes), lambda op=op, shape=shape, axes=axes: getattr(raw, op)(
            input=inp(rnd(shape, lo=0.9, hi=1.1)), axis=inp(axes, tf.int32)), rtol=1e-4)
    case("%s/nan" % op, lambda op=op: getattr(raw, op)(
        input=inp([[1.0, np.nan], [np.inf, 2.0], [-np.inf, np.inf]]), axis=inp([1])))
for op in ("All", "Any"):
    for t in INTS:
        for axes in AXES:
            case("%s/%s_%s" % (op, short(t), axes), lambda op=op, t=t, axes=axes: [getattr(raw, op)(
                input=inp(rnd((2, 3, 4), tf.bool)), axis=inp(list(axes), t), keep_dims=k) for k in (False, True)])
    case("%s/empty" % op, lambda op=op: getattr(raw, op)(input=inp(rnd((0, 2), tf.bool)), axis=inp([0])))
    case("%s/bad_axis" % op, lambda op=op: getattr(raw, op)(input=inp(rnd((2, 2), tf.bool)), axis=inp([5])))
case("Sum/cancel", lambda: raw.Sum(input=inp(np.tile([1e4, 1.0, -1e4], 300).astype(np.float32)), axis=inp(0)), atol=0.1)
case("Mean/half_many", lambda: raw.Mean(input=inp(np.ones((5000,)), tf.float16), axis=inp(0)))
case("Mean/int_negative", lambda: raw.Mean(input=inp([-7, 2, 2]), axis=inp(0)))

for op in ("ArgMax", "ArgMin"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: [getattr(raw, op)(
            input=inp(rnd((3, 4, 2), t), t), dimension=inp(d)) for d in (0, 1, 2, -1)])
    for shape, dim in [((5,), 0), ((2, 3), 2), ((2, 3), -3), ((2, 0), 0), ((2, 0), 1), ((0, 2), 1), ((), 0), ((2, 3), [0]),
                       ((2, 2, 2, 2), 2), ((2, 1, 3, 1, 2), -3)]:
        case("%s/%s_%s" % (op, shape, dim), lambda op=op, shape=shape, dim=dim: getattr(raw, op)(
            input=inp(rnd(shape)), dimension=inp(dim)))
    for out in allowed(op, "output_type"):
        for it in INTS:  # TensorFlow 2.21 reads an int16 dimension as if it were int32
            case("%s/out_%s_idx_%s" % (op, short(out), short(it)), lambda op=op, out=out, it=it: getattr(raw, op)(
                input=inp(rnd((3, 4))), dimension=inp(1, it), output_type=out))
    case("%s/ties_nan" % op, lambda op=op: getattr(raw, op)(
        input=inp([[1.0, 3.0, 3.0], [np.nan, 1.0, 2.0], [2.0, np.nan, 5.0], [np.inf, np.inf, 0.0]]), dimension=inp(1)))

for op in ("Cumsum", "Cumprod"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(x=inp(rnd((3, 4), t), t), axis=inp(1)))
    for exclusive in (False, True):
        for reverse in (False, True):
            for axis in (0, 1, 2, -1, -3):
                case("%s/%s_%s_%d" % (op, exclusive, reverse, axis), lambda op=op, e=exclusive, r=reverse, axis=axis:
                     getattr(raw, op)(x=inp(rnd((2, 3, 4), lo=0.5, hi=1.5)), axis=inp(axis, tf.int64), exclusive=e, reverse=r))
    for shape, axis in [((), 0), ((0,), 0), ((3, 0), 0), ((3,), 1), ((3,), -2), ((3,), [0])]:
        case("%s/shape_%s_%s" % (op, shape, axis), lambda op=op, shape=shape, axis=axis: getattr(raw, op)(
            x=inp(rnd(shape)), axis=inp(axis)))
for t in FLOATS:
    case("CumulativeLogsumexp/" + short(t), lambda t=t: raw.CumulativeLogsumexp(x=inp(rnd((3, 4), t), t), axis=inp(1)))

for t in allowed("AddN"):
    case("AddN/" + short(t), lambda t=t: [raw.AddN(inputs=[inp(rnd((2, 3), t), t) for _ in range(n)]) for n in (1, 2, 3, 9)])
case("AddN/scalars", lambda: raw.AddN(inputs=[inp(1.0), inp(2.0)]))
case("AddN/empty", lambda: raw.AddN(inputs=[inp(rnd((0, 2))), inp(rnd((0, 2)))]))
case("AddN/mismatch", lambda: raw.AddN(inputs=[inp(rnd((2,))), inp(rnd((3,)))]))
case("AddN/mismatch_third", lambda: raw.AddN(inputs=[inp(rnd((2,))), inp(rnd((2,))), inp(rnd((2, 1)))]))
case("AccumulateNV2", lambda: raw.AccumulateNV2(inputs=[inp(rnd((2, 3)), shape=[2, 3]) for _ in range(3)], shape=[2, 3]))

for op in ("SegmentSum", "SegmentMean", "SegmentProd", "SegmentMax", "SegmentMin"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            data=inp(rnd((5, 2), t), t), segment_ids=inp([0, 0, 1, 3, 3])))
    for ids in ([], [1, 0], [-1, 0], [0], [0, 5]):
        case("%s/ids_%s" % (op, ids), lambda op=op, ids=ids: getattr(raw, op)(
            data=inp(rnd((0 if not ids else 2, 3))), segment_ids=inp(ids, tf.int64)))
for op in ("UnsortedSegmentSum", "UnsortedSegmentProd", "UnsortedSegmentMax", "UnsortedSegmentMin"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            data=inp(rnd((5, 2), t), t), segment_ids=inp([2, 0, -1, 3, 2]), num_segments=inp(5)))
    for ids, n in (([], 2), ([0, 4], 4), ([0], 3), ([[0, 1], [1, 0]], 2), ([0, 1], 0), ([0, 1], -1)):
        for it in INTS:
            case("%s/%s_%s_%d" % (op, short(it), ids, n), lambda op=op, ids=ids, n=n, it=it: getattr(raw, op)(
                data=inp(rnd(np.shape(ids) if np.ndim(ids) == 2 else (2 if ids else 0, 3))), segment_ids=inp(ids, it),
                num_segments=inp(n, it)))
for op in ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN"):
    for t in FLOATS:
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            data=inp(rnd((5, 2), t), t), indices=inp([4, 0, 2, 2]), segment_ids=inp([0, 0, 1, 2])))
    case("%s/bad_index" % op, lambda op=op: getattr(raw, op)(
        data=inp(rnd((5, 2))), indices=inp([5, 0]), segment_ids=inp([0, 0])))
    case("%s/bad_ids" % op, lambda op=op: getattr(raw, op)(
        data=inp(rnd((5, 2))), indices=inp([1, 0]), segment_ids=inp([1, 0])))
case("Bincount", lambda: raw.Bincount(arr=inp([1, 1, 4, 9]), size=inp(6), weights=inp([], tf.float32)))
case("Cross", lambda: raw.Cross(a=inp(rnd((2, 3))), b=inp(rnd((2, 3)))))
