"""Reductions over segments of rows: sorted, unsorted, and over chosen rows with their gradients."""
from registry import FLOATS, INTS, NUMBERS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

NAN = float("nan")
SORTED = ("SegmentSum", "SegmentMean", "SegmentMax", "SegmentMin", "SegmentProd")
UNSORTED = ("UnsortedSegmentSum", "UnsortedSegmentMax", "UnsortedSegmentMin", "UnsortedSegmentProd")
CHOSEN = ("SparseSegmentSum", "SparseSegmentMean", "SparseSegmentSqrtN")

for op in SORTED:
    for t in allowed(op):
        for it in INTS:
            case("%s/%s_%s" % (op, short(t), short(it)), lambda op=op, t=t, it=it: getattr(raw, op)(
                data=inp(rnd((5, 2), t, 1, 4), t), segment_ids=inp([0, 0, 1, 3, 3], it)))
    for shape, ids in [((4,), [0, 1, 0, 2]), ((4,), [0, 0, 1]), ((4,), [-1, 0, 0, 1]), ((4,), [[0, 0, 1, 1]]), ((), 0), ((0, 2), []),
                       ((3,), [1, 1, 1]), ((2, 2), [5, 3]), ((3, 0), [0, 0, 1]), ((2,), [0, -1]), ((40, 3), sorted([i % 7 for i in range(40)]))]:
        case("%s/%s_%s" % (op, shape, ids), lambda op=op, shape=shape, ids=ids: getattr(raw, op)(
            data=inp(rnd(shape, tf.float32, 1, 2)), segment_ids=inp(ids, tf.int32)))
    case(op + "/nan", lambda op=op: getattr(raw, op)(
        data=inp([1.0, NAN, NAN, 2.0, NAN]), segment_ids=inp([0, 0, 1, 1, 2])))

for op in UNSORTED:
    for t in allowed(op):
        for it in allowed(op, "Tindices"):
            case("%s/%s_%s" % (op, short(t), short(it)), lambda op=op, t=t, it=it: getattr(raw, op)(
                data=inp(rnd((5, 2), t, 1, 4), t), segment_ids=inp([3, 0, -1, 3, 1], it), num_segments=inp(5)))
    for shape, ids, n in [((4,), [0, 5, 0, 2], 4), ((4,), [0, 0, 1], 3), ((4,), [0, 0, 1, 1], -1), ((2, 2), [[0, 1], [1, 1]], 2),
                          ((), 0, 2), ((2,), [0, 0], [2]), ((2, 3), [[0, 1], [1, 1]], 2), ((0,), [], 2), ((2,), [0, 9], 0),
                          ((0, 3), [], 2), ((2, 2, 3), [[0, 1], [1, 7]], 2), ((2, 0), [0, 1], 3)]:
        case("%s/%s_%s_%s" % (op, shape, ids, n), lambda op=op, shape=shape, ids=ids, n=n: getattr(raw, op)(
            data=inp(rnd(shape)), segment_ids=inp(ids, tf.int32), num_segments=inp(n)))
    case(op + "/nan", lambda op=op: getattr(raw, op)(
        data=inp([1.0, NAN, NAN, 2.0, NAN]), segment_ids=inp([0, 0, 1, 1, 2]), num_segments=inp(4)))

for op in CHOSEN:
    for t in allowed(op):
        for it in INTS:
            for st in INTS:
                name = "%s_%s_%s" % (short(t), short(it), short(st))
                case("%s/%s" % (op, name), lambda op=op, t=t, it=it, st=st: getattr(raw, op)(
                    data=inp(rnd((4, 3), t, 0, 9), t), indices=inp([0, 3, 3, 1, 2], it), segment_ids=inp([0, 0, 1, 3, 3], st)))
                case("%sWithNumSegments/%s" % (op, name), lambda op=op, t=t, it=it, st=st: getattr(raw, op + "WithNumSegments")(
                    data=inp(rnd((4, 3), t, 0, 9), t), indices=inp([0, 3, 3, 1], it), segment_ids=inp([0, 0, 1, 3], st),
                    num_segments=inp(6)))
    for t in FLOATS + SMALL_FLOATS:
        case("%sGrad/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op + "Grad")(
            grad=inp(rnd((3, 2), t), t), indices=inp([0, 3, 3, 1]), segment_ids=inp([0, 0, 1, 2]), output_dim0=inp(5)))
        case("%sGradV2/%s" % (op, short(t)), lambda op=op, t=t: list(getattr(raw, op + "GradV2")(
            grad=inp(rnd((3, 2), t), t), indices=inp([7, 3, 3, 1]), segment_ids=inp([0, 0, 1, 2]), dense_output_dim0=inp(9))))
    for shape, idx, ids in [((3, 2), [0, 3], [0, 0]), ((3, 2), [0, -1], [0, 0]), ((3, 2), [0, 1], [1, 0]), ((3, 2), [0, 1], [-1, 0]), ((3, 2), [0, 1], [0, -1]),
                            ((3, 2), [0, 1], [0]), ((3, 2), [[0, 1]], [0, 1]), ((3, 2), [0, 1], [[0, 1]]), ((), [0], [0]),
                            ((3, 2), [], []), ((3,), [0, 2], [1, 1]), ((3, 2, 2), [0, 2, 1], [0, 0, 0]), ((3, 0), [0, 1], [0, 1]),
                            ((20, 4), [i * 7 % 20 for i in range(30)], sorted([i % 4 for i in range(30)]))]:
        case("%s/%s_%s_%s" % (op, shape, idx, ids), lambda op=op, shape=shape, idx=idx, ids=ids: getattr(raw, op)(
            data=inp(rnd(shape)), indices=inp(idx, tf.int32), segment_ids=inp(ids, tf.int32)))
    for n in [2, -1, [4], 3]:
        case("%sWithNumSegments/%s" % (op, n), lambda op=op, n=n: getattr(raw, op + "WithNumSegments")(
            data=inp(rnd((3, 2))), indices=inp([0, 2, 1]), segment_ids=inp([0, 0, 2]), num_segments=inp(n)))
    case(op + "WithNumSegments/empty", lambda op=op: getattr(raw, op + "WithNumSegments")(
        data=inp(rnd((3, 2))), indices=inp([], tf.int32), segment_ids=inp([], tf.int32), num_segments=inp(2)))
    for grad, idx, ids, n in [((2, 2), [0, 4], [0, 0], 4), ((2, 2), [0, 1], [0, 2], 4), ((2, 2), [0, 1], [0, -1], 4),
                              ((2, 2), [0, 1], [0, 1], [4]), ((2, 2), [0, 1], [0], 4), ((2, 2), [0, 1], [1, 0], 2),
                              ((2, 2), [0, 1], [1, 0], -2), ((2, 2), [-1, 1], [1, 0], 2), ((2, 2), [[0, 1]], [0, 1], 4),
                              ((2, 2), [0, 1], [[0, 1]], 4), ((), [0], [0], 4), ((0, 2), [0], [0], 4)]:
        case("%sGrad/%s_%s_%s_%s" % (op, grad, idx, ids, n), lambda op=op, grad=grad, idx=idx, ids=ids, n=n: getattr(raw, op + "Grad")(
            grad=inp(rnd(grad)), indices=inp(idx), segment_ids=inp(ids), output_dim0=inp(n)))
        if n != -2:
            case("%sGradV2/%s_%s_%s_%s" % (op, grad, idx, ids, n), lambda op=op, grad=grad, idx=idx, ids=ids, n=n: list(
                getattr(raw, op + "GradV2")(grad=inp(rnd(grad)), indices=inp(idx), segment_ids=inp(ids), dense_output_dim0=inp(n))))
