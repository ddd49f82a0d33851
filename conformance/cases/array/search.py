"""Counting, searching, rolling, stitching, rows changed in place, image patches, edit distance."""
from registry import ALL, FLOATS, INTS, NUMBERS, allowed, case, inp, raw, rnd, short, tf

NAN = float("nan")

# The in-place ops write into what they are given, even into memory the client feeds from: DeepCopy first.
for t in ALL:
    s = short(t)
    case("Roll/" + s, lambda t=t: raw.Roll(input=inp(rnd((3, 4), t), t), shift=inp([1, -2]), axis=inp([0, 1])))
    case("Reverse/" + s, lambda t=t: raw.Reverse(tensor=inp(rnd((2, 3), t), t), dims=inp([True, False])))
    case("InplaceUpdate/" + s, lambda t=t: raw.InplaceUpdate(x=raw.DeepCopy(x=inp(rnd((3, 2), t), t)), i=inp([2, 0]), v=inp(rnd((2, 2), t), t)))
    case("InplaceAdd/" + s, lambda t=t: raw.InplaceAdd(x=raw.DeepCopy(x=inp(rnd((3, 2), t), t)), i=inp([2, 2]), v=inp(rnd((2, 2), t), t)))
    case("InplaceSub/" + s, lambda t=t: raw.InplaceSub(x=raw.DeepCopy(x=inp(rnd((3, 2), t), t)), i=inp([-1, 5]), v=inp(rnd((2, 2), t), t)))
    case("DynamicStitch/" + s, lambda t=t: raw.DynamicStitch(
        indices=[inp([0, 3]), inp([1, 2])], data=[inp(rnd((2, 2), t), t), inp(rnd((2, 2), t), t)]))
    case("ParallelDynamicStitch/" + s, lambda t=t: raw.ParallelDynamicStitch(
        indices=[inp([0, 3]), inp([1, 2])], data=[inp(rnd((2, 2), t), t), inp(rnd((2, 2), t), t)]))
    case("DynamicPartition/" + s, lambda t=t: list(raw.DynamicPartition(
        data=inp(rnd((4, 2), t), t), partitions=inp([1, 0, 1, 2]), num_partitions=3)))
    case("Empty/" + s, lambda t=t: raw.Empty(shape=inp([2, 3]), dtype=t, init=True))
    case("GuaranteeConst/" + s, lambda t=t: raw.GuaranteeConst(input=inp(rnd((2,), t), t)))
    case("UniqueWithCountsV2/" + s, lambda t=t: list(raw.UniqueWithCountsV2(
        x=inp(rnd((6, 1), t, 0, 2), t), axis=inp([0], tf.int64))))
    case("TensorStridedSliceUpdate/" + s, lambda t=t: raw.TensorStridedSliceUpdate(
        input=inp(rnd((4, 3), t), t), begin=inp([3, 0]), end=inp([0, 3]), strides=inp([-2, 2]), value=inp(rnd((2,), t), t)))
for t in NUMBERS + [tf.bool]:
    case("ExtractImagePatches/" + short(t), lambda t=t: raw.ExtractImagePatches(
        images=inp(rnd((2, 4, 5, 2), t), t), ksizes=[1, 2, 3, 1], strides=[1, 2, 1, 1], rates=[1, 1, 2, 1], padding="SAME"))

for shape, shift, axis in [((5,), 2, 0), ((2, 3), [1, 1], [1, 1]), ((2, 3), [0, -7], [-2, -1]), ((), 1, 0), ((3,), [1], 0),
                           ((3,), 1, 1), ((3,), 1, -2), ((3,), [1], [[0]]), ((3,), [[1]], [0]), ((0,), 1, 0), ((3,), [1, 2], [0]),
                           ((2, 3, 4), [1, 2], [0, 2]), ((2, 3, 4), [-1], [1])]:
    for it in INTS:
        case("Roll/%s/%s_%s_%s" % (short(it), shape, shift, axis), lambda shape=shape, shift=shift, axis=axis, it=it: raw.Roll(
            input=inp(rnd(shape)), shift=inp(shift, it), axis=inp(axis, it)))

for dims in [[True, False], [True], [[True, False]], True]:
    case("Reverse/%s" % (dims,), lambda dims=dims: raw.Reverse(tensor=inp(rnd((2, 3))), dims=inp(dims)))

for t in allowed("DenseBincount", "T"):
    for it in INTS:
        for binary in (False, True):
            case("DenseBincount/%s_%s_%s" % (short(t), short(it), binary), lambda t=t, it=it, binary=binary: [
                raw.DenseBincount(input=inp(x, it), size=inp(4, it), weights=inp(w, t), binary_output=binary)
                for x, w in [([0, 1, 1, 5], []), ([[0, 1, 1], [2, 2, 9]], []), ([0, 1, 1], [1, 2, 3]), ([[3, 1]], [[4, 5]]), (2, [])]])
    case("Bincount/" + short(t), lambda t=t: [raw.Bincount(arr=inp(x), size=inp(4), weights=inp(w, t))
                                              for x, w in [([0, 1, 1, 5], []), ([[0, 1], [3, 3]], [[1, 2], [3, 4]])]])
for x, n, w in [([0, -1], 3, []), ([[0, -1]], 3, []), ([[[0]]], 3, []), ([0, 1], -1, []), ([0, 1], [3], []), ([0, 1], 3, [1.0]),
                ([0, 1], 0, []), ([], 2, [])]:
    case("DenseBincount/%s_%s_%s" % (x, n, w), lambda x=x, n=n, w=w: raw.DenseBincount(
        input=inp(x, tf.int32), size=inp(n), weights=inp(w, tf.float32)))
    case("Bincount/%s_%s_%s" % (x, n, w), lambda x=x, n=n, w=w: raw.Bincount(
        arr=inp(x, tf.int32), size=inp(n), weights=inp(w, tf.float32)))

for t in allowed("Bucketize"):
    case("Bucketize/" + short(t), lambda t=t: raw.Bucketize(input=inp([-5, 0, 1, 2, 3, 100], t), boundaries=[0.0, 1.5, 3.0]))
case("Bucketize/nan", lambda: raw.Bucketize(input=inp([NAN, -1.0]), boundaries=[0.0]))
case("Bucketize/unsorted", lambda: raw.Bucketize(input=inp([1.0]), boundaries=[3.0, 0.0]))
case("Bucketize/none", lambda: raw.Bucketize(input=inp([[1.0], [2.0]]), boundaries=[]))

for op in ("LowerBound", "UpperBound"):
    for t in [t for t in allowed("LowerBound") if t != tf.string]:
        for out in INTS:
            case("%s/%s_%s" % (op, short(t), short(out)), lambda op=op, t=t, out=out: getattr(raw, op)(
                sorted_inputs=inp([[1, 1, 2, 5], [0, 3, 3, 9]], t), values=inp([[0, 1, 2], [3, 4, 10]], t), out_type=out))
    for a, b in [((2, 4), (1, 2)), ((4,), (2,)), ((2, 4), (2,)), ((2, 0), (2, 3)), ((2, 3), (2, 0))]:
        case("%s/%s_%s" % (op, a, b), lambda op=op, a=a, b=b: getattr(raw, op)(sorted_inputs=inp(rnd(a)), values=inp(rnd(b))))
    case(op + "/nan", lambda op=op: getattr(raw, op)(sorted_inputs=inp([[1.0, 2.0]]), values=inp([[NAN]])))

for i, d in [([3, 5], [2, 3]), (3, [2, 3]), ([6], [2, 3]), ([-1], [2, 3]), ([1], 5), ([1], [[2]]), ([[1]], [2]), ([1], [0, 3]),
             ([], [2, 3]), ([1], [-2, 3]), ([0], []), ([0, 1], [])]:
    for it in INTS:
        case("UnravelIndex/%s/%s_%s" % (short(it), i, d), lambda i=i, d=d, it=it: raw.UnravelIndex(indices=inp(i, it), dims=inp(d, it)))

for x, axis in [([[1, 2], [1, 2], [3, 4]], [0]), ([[1, 2, 1], [3, 4, 3]], [1]), ([[1, 2]], [2]), ([[1, 2]], [-3]), ([[1, 2]], [0, 1]),
                ([[1, 2]], 0), ([[1, 2]], [])]:
    case("UniqueV2/%s_%s" % (x, axis), lambda x=x, axis=axis: list(raw.UniqueV2(x=inp(x), axis=inp(axis, tf.int64))))
for shape, axis in [((2, 0), 0), ((0, 2), 0), ((0, 2), 1), ((2, 0), 1)]:
    case("UniqueV2/empty_%s_%d" % (shape, axis), lambda shape=shape, axis=axis: list(raw.UniqueV2(
        x=inp(rnd(shape)), axis=inp([axis], tf.int64))))
case("ListDiff/nan", lambda: list(raw.ListDiff(x=inp([NAN, 1.0, 2.0]), y=inp([NAN, 2.0]))))
case("ListDiff/matrix_x", lambda: list(raw.ListDiff(x=inp([[1]]), y=inp([1]))))
case("ListDiff/matrix_y", lambda: list(raw.ListDiff(x=inp([1]), y=inp([[1]]))))

for op in ("InplaceUpdate", "InplaceAdd", "InplaceSub"):
    for x, i, v in [((3, 2), [4], (1, 2)), ((3, 2), [0], (2, 2)), ((3, 2), [0], (1, 3)), ((3, 2), 0, (2,)), ((3,), [1], (1,)),
                    ((3, 2), [], (0, 2))]:
        case("%s/%s_%s_%s" % (op, x, i, v), lambda op=op, x=x, i=i, v=v: getattr(raw, op)(
            x=raw.DeepCopy(x=inp(rnd(x))), i=inp(i, tf.int32), v=inp(rnd(v))))

for op in ("DynamicStitch", "ParallelDynamicStitch"):
    for idx, data in [([[0, 2], [1]], [(2,), (2,)]), ([[0, 2], [1]], [(2, 2), (1, 3)]), ([0, [1]], [(2,), (1, 2)]),
                      ([[0, 2]], [()]), ([[0], 1], [(1, 2), (3,)]), ([[0, -1], [1]], [(2,), (1,)]), ([[0, 2], [2]], [(2,), (1,)])]:
        case("%s/%s_%s" % (op, idx, data), lambda op=op, idx=idx, data=data: getattr(raw, op)(
            indices=[inp(i) for i in idx], data=[inp(rnd(d)) for d in data]))
for p, shape in [([[0, 1], [1, 1]], (2, 2)), (1, (3,)), (1, ()), ([[0, 1], [1, 7]], (2, 2)), ([0, -1], (2,)), ([], (0, 3))]:
    case("DynamicPartition/%s_%s" % (p, shape), lambda p=p, shape=shape: list(raw.DynamicPartition(
        data=inp(rnd(shape)), partitions=inp(p, tf.int32), num_partitions=2)))

for shape in [[-2], [[2]], 2, [], [0]]:
    case("Empty/%s" % (shape,), lambda shape=shape: raw.Empty(shape=inp(shape, tf.int32), dtype=tf.float32, init=True))

for k, s, r, p, shape in [
        (2, 1, 1, "VALID", (1, 3, 3, 1)), (2, 2, 1, "SAME", (1, 3, 3, 1)), (2, 1, 2, "VALID", (1, 4, 4, 1)),
        (3, 2, 2, "SAME", (1, 5, 5, 2)), (5, 1, 1, "VALID", (1, 3, 3, 1)), (2, 1, 1, "VALID", (3, 3, 1)),
        (0, 1, 1, "VALID", (1, 3, 3, 1)), (2, 1, 1, "VALID", (0, 3, 3, 1)), (4, 1, 1, "VALID", (1, 3, 3, 1)),
        (3, 7, 1, "SAME", (1, 3, 3, 1))]:
    case("ExtractImagePatches/%d_%d_%d_%s_%s" % (k, s, r, p, shape), lambda k=k, s=s, r=r, p=p, shape=shape: raw.ExtractImagePatches(
        images=inp(rnd(shape)), ksizes=[1, k, k, 1], strides=[1, s, s, 1], rates=[1, r, r, 1], padding=p))
for name, lists in [("ksizes", ([2, 2, 2, 1], [1] * 4, [1] * 4)), ("strides", ([1, 2, 2, 1], [1, 1, 1, 2], [1] * 4)),
                    ("rates", ([1, 2, 2, 1], [1] * 4, [1, 1, 1, 3]))]:
    case("ExtractImagePatches/bad_" + name, lambda lists=lists: raw.ExtractImagePatches(
        images=inp(rnd((1, 3, 3, 1))), ksizes=lists[0], strides=lists[1], rates=lists[2], padding="VALID"))

for masks in [{}, {"begin_mask": 1}, {"end_mask": 2}, {"shrink_axis_mask": 1}, {"new_axis_mask": 1}, {"ellipsis_mask": 1}]:
    for v in [(), (1,), (2,), (2, 2), (1, 2), (3, 2), (2, 3)]:
        case("TensorStridedSliceUpdate/%s_%s" % (masks, v), lambda masks=masks, v=v: raw.TensorStridedSliceUpdate(
            input=inp(rnd((4, 3))), begin=inp([1, 0]), end=inp([3, 2]), strides=inp([1, 1]), value=inp(rnd(v)), **masks))

PAIRS = [[0, 0], [0, 1], [1, 0]]
for t in ALL:
    case("EditDistance/" + short(t), lambda t=t: raw.EditDistance(
        hypothesis_indices=inp(PAIRS, tf.int64), hypothesis_values=inp(rnd((3,), t, 0, 2), t), hypothesis_shape=inp([2, 2], tf.int64),
        truth_indices=inp(PAIRS, tf.int64), truth_values=inp(rnd((3,), t, 0, 2), t), truth_shape=inp([2, 2], tf.int64)))
for n, (hi, hv, hs, ti, tv, ts) in enumerate([
        (PAIRS, [1, 2, 3], [2, 2], [[0, 0]], [1], [2, 2]), ([[0, 0]], [1], [3, 2], PAIRS, [1, 3, 3], [2, 2]),
        ([0, 0], [1], [3, 2], PAIRS, [1, 3, 3], [2, 2]), (PAIRS, [[1, 2, 3]], [2, 2], PAIRS, [1, 3, 3], [2, 2]),
        (PAIRS, [1, 2, 3], [[2, 2]], PAIRS, [1, 3, 3], [2, 2]), (PAIRS, [1, 2], [2, 2], PAIRS, [1, 3, 3], [2, 2]),
        (PAIRS, [1, 2, 3], [2, 2, 2], PAIRS, [1, 3, 3], [2, 2]), (PAIRS, [1, 2, 3], [2, 2], PAIRS, [1, 3], [2, 2]),
        (PAIRS, [1, 2, 3], [2, 2], [[0, 0, 0]], [1], [1, 1, 1]), ([[0]], [1], [1], [[0]], [1], [1]),
        ([[5, 0]], [1], [2, 2], [[0, 0]], [1], [2, 2]), ([[1, 0], [0, 0]], [1, 2], [2, 2], PAIRS, [1, 3, 3], [2, 2])]):
    for normalize in (True, False):
        case("EditDistance/%d_%s" % (n, normalize), lambda a=(hi, hv, hs, ti, tv, ts), normalize=normalize: raw.EditDistance(
            hypothesis_indices=inp(a[0], tf.int64), hypothesis_values=inp(a[1]), hypothesis_shape=inp(a[2], tf.int64),
            truth_indices=inp(a[3], tf.int64), truth_values=inp(a[4]), truth_shape=inp(a[5], tf.int64), normalize=normalize))

for x in FLOATS:
    case("Where/denormal_" + short(x), lambda x=x: raw.Where(condition=inp([1e-310 if x == tf.float64 else 1e-40, 1.0, 0.0], x)))
