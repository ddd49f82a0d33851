"""Ops that pick and place by index: Gather, Scatter, OneHot, Where, Select, Unique."""
from registry import ALL, INTS, NUMBERS, allowed, case, inp, raw, rnd, short, tf

for t in ALL:
    s = short(t)
    for it in INTS:
        case("Gather/%s_%s" % (s, short(it)), lambda t=t, it=it: raw.Gather(
            params=inp(rnd((4, 3), t), t), indices=inp([[0, 3], [1, 1]], it)))
        case("GatherV2/%s_%s" % (s, short(it)), lambda t=t, it=it: raw.GatherV2(
            params=inp(rnd((4, 3), t), t), indices=inp([2, 0], it), axis=inp(1)))
        case("GatherNd/%s_%s" % (s, short(it)), lambda t=t, it=it: raw.GatherNd(
            params=inp(rnd((4, 3, 2), t), t), indices=inp([[0, 2], [3, 1]], it)))
        case("ScatterNd/%s_%s" % (s, short(it)), lambda t=t, it=it: raw.ScatterNd(
            indices=inp([[1], [3], [1]], it), updates=inp(rnd((3, 2), t), t), shape=inp([5, 2], it)))
    if t != tf.string:
        case("Where/" + s, lambda t=t: raw.Where(condition=inp(rnd((3, 4), t, lo=0, hi=1), t)))
    case("Select/" + s, lambda t=t: raw.Select(condition=inp(rnd((2, 3), tf.bool)), x=inp(rnd((2, 3), t), t),
                                              y=inp(rnd((2, 3), t), t)))
    case("SelectV2/" + s, lambda t=t: raw.SelectV2(condition=inp(rnd((2, 1), tf.bool)), t=inp(rnd((3,), t), t),
                                                  e=inp(rnd((2, 3), t), t)))
    case("OneHot/" + s, lambda t=t: raw.OneHot(indices=inp([0, 2, -1]), depth=inp(3), on_value=inp(rnd((), t, 1, 2), t),
                                              off_value=inp(rnd((), t, 0, 1), t)))
    case("Unique/" + s, lambda t=t: list(raw.Unique(x=inp(rnd((20,), t, 0, 4) if t.is_integer or t in (tf.bool, tf.string)
                                                         else rnd((6,), t), t))))
    for op in ("TensorScatterUpdate", "TensorScatterAdd", "TensorScatterSub", "TensorScatterMin", "TensorScatterMax"):
        case("%s/%s" % (op, s), lambda t=t, op=op: getattr(raw, op)(
            tensor=inp(rnd((5, 2), t), t), indices=inp([[1], [4], [1]]),
            updates=inp(rnd((3, 2), t), t) if op != "TensorScatterUpdate" else inp([rnd((2,), t)] * 3, t)))
for t in NUMBERS:
    case("ScatterNdNonAliasingAdd/" + short(t), lambda t=t: raw.ScatterNdNonAliasingAdd(
        input=inp(rnd((5, 2), t), t), indices=inp([[1], [4], [1]]), updates=inp(rnd((3, 2), t), t)))

for it in INTS:
    n = short(it)
    for pshape, idx, axis, batch in [
            ((5,), 2, 0, 0), ((5,), [], 0, 0), ((5,), [4, 0, 4], 0, 0), ((3, 4), [[1, 0]], 0, 0), ((3, 4), [3], -1, 0),
            ((2, 3, 4), [2, 0], 1, 0), ((2, 3, 4), [[1], [3]], 2, 0), ((2, 3, 4), [[0, 1], [2, 0]], 1, 1),
            ((2, 3, 4), [[0, 3], [2, 1]], 2, 1), ((2, 3), [[0, 1], [2, 2]], 1, 1), ((2, 3), [[0, 1], [2, 2]], -1, -1),
            ((5,), [5], 0, 0), ((5,), [-1], 0, 0), ((3, 4), [1, 7], 1, 0), ((3, 4), [0], 2, 0), ((3, 4), [0], -3, 0),
            ((0, 3), [], 0, 0), ((0, 3), [0], 0, 0), ((3, 0), [2, 1], 0, 0), ((), [0], 0, 0), ((2, 3), [[0], [1], [2]], 1, 1),
            ((2, 3), [0, 1], 0, 1)]:
        case("GatherV2/%s/%s_%s_%d_%d" % (n, pshape, idx, axis, batch),
             lambda pshape=pshape, idx=idx, axis=axis, batch=batch, it=it: raw.GatherV2(
                 params=inp(rnd(pshape)), indices=inp(idx, it), axis=inp(axis), batch_dims=batch))
    case("Gather/%s/out_of_range" % n, lambda it=it: raw.Gather(params=inp(rnd((3, 2))), indices=inp([0, 3], it)))
    case("Gather/%s/scalar_params" % n, lambda it=it: raw.Gather(params=inp(1.0), indices=inp([0], it)))
    for pshape, idx in [((5,), [[1], [4]]), ((3, 4), [[1, 2]]), ((3, 4), [[1], [0]]), ((3, 4), [[[1, 2]], [[0, 0]]]),
                        ((2, 3, 4), [[1, 2, 3]]), ((3, 4), [[3, 0]]), ((3, 4), [[0, -1]]), ((3,), [[0, 0]]), ((3, 4), [[], []]),
                        ((3, 4), 1), ((0, 2), [[0]]), ((2, 2), [1, 0]), ((2, 2, 2, 2), [[1, 0, 1]])]:
        case("GatherNd/%s/%s_%s" % (n, pshape, idx), lambda pshape=pshape, idx=idx, it=it: raw.GatherNd(
            params=inp(rnd(pshape)), indices=inp(idx, it)))
    for idx, ushape, shape in [([[0], [2]], (2,), [4]), ([[0, 1], [2, 2]], (2,), [3, 3]), ([[1]], (1, 3), [2, 3]),
                               ([[[0], [1]], [[1], [0]]], (2, 2, 3), [2, 3]), ([[4]], (1,), [4]), ([[-1]], (1,), [4]),
                               ([[0]], (2,), [4]), ([[0]], (1, 2), [4, 3]), ([[0, 0, 0]], (1,), [2, 2]), ([], (0,), [3]),
                               ([[0]], (1,), [0]), ([[0]], (1,), [-1]), ([[1, 1]], (1, 2), [2, 2, 2])]:
        case("ScatterNd/%s/%s_%s_%s" % (n, idx, ushape, shape), lambda idx=idx, ushape=ushape, shape=shape, it=it:
             raw.ScatterNd(indices=inp(idx, it), updates=inp(rnd(ushape)), shape=inp(shape, it)))
        case("TensorScatterAdd/%s/%s_%s_%s" % (n, idx, ushape, shape), lambda idx=idx, ushape=ushape, shape=shape, it=it:
             raw.TensorScatterAdd(tensor=inp(rnd([abs(d) for d in shape])), indices=inp(idx, it), updates=inp(rnd(ushape))))
        case("TensorScatterUpdate/%s/%s_%s_%s" % (n, idx, ushape, shape), lambda idx=idx, ushape=ushape, shape=shape, it=it:
             raw.TensorScatterUpdate(tensor=inp(rnd([abs(d) for d in shape])), indices=inp(idx, it),
                                     updates=inp(rnd(ushape))))
    for out in INTS:
        case("Unique/%s_out_%s" % (n, short(out)), lambda it=it, out=out: list(raw.Unique(
            x=inp([3, 1, 3, 2, 1], it), out_idx=out)))
        case("UniqueWithCounts/%s_out_%s" % (n, short(out)), lambda it=it, out=out: list(raw.UniqueWithCounts(
            x=inp([3, 1, 3, 2, 1], it), out_idx=out)))
        case("UniqueV2/%s_out_%s" % (n, short(out)), lambda it=it, out=out: list(raw.UniqueV2(
            x=inp([[3, 1], [3, 2], [3, 1]], it), axis=inp([0], tf.int64), out_idx=out)))
        case("ListDiff/%s_out_%s" % (n, short(out)), lambda it=it, out=out: list(raw.ListDiff(
            x=inp([3, 1, 3, 2, 1, 7], it), y=inp([1, 2], it), out_idx=out)))
    for x in [[0], [], [2, 0, 1], [0, 1, 2, 3], [0, 0], [3, 0, 1], [-1, 0], [[0, 1]], 0]:
        case("InvertPermutation/%s/%s" % (n, x), lambda x=x, it=it: raw.InvertPermutation(x=inp(x, it)))

for it in allowed("OneHot", "TI"):
    case("OneHot/index_" + short(it), lambda it=it: raw.OneHot(
        indices=inp([[0, 2], [3, 9]], it), depth=inp(4), on_value=inp(5.0), off_value=inp(-1.0)))
for idx, depth, axis in [([0, 1], 3, -1), ([0, 1], 3, 0), ([0, 1], 3, 1), ([[0, 1], [2, 0]], 3, 0), ([[0, 1], [2, 0]], 3, 1),
                         ([[0, 1], [2, 0]], 3, 2), (1, 3, -1), ([], 3, -1), ([0, 1], 0, -1), ([0, 1], -1, -1), ([0, 1], 3, 2),
                         ([0, 1], [3], -1)]:
    case("OneHot/%s_%s_%d" % (idx, depth, axis), lambda idx=idx, depth=depth, axis=axis: raw.OneHot(
        indices=inp(idx, tf.int64), depth=inp(depth), on_value=inp(1.0), off_value=inp(0.0), axis=axis))
case("OneHot/on_vector", lambda: raw.OneHot(indices=inp([0]), depth=inp(2), on_value=inp([1.0]), off_value=inp(0.0)))
case("OneHot/off_vector", lambda: raw.OneHot(indices=inp([0]), depth=inp(2), on_value=inp(1.0), off_value=inp([0.0])))

for shape in [(), (4,), (0,), (2, 0, 3), (2, 3, 2), (2, 2, 2, 2), (1, 2, 1, 2, 2), (2, 1, 2, 1, 2, 1), (1,) * 8, (1,) * 9]:
    case("Where/%s" % (shape,), lambda shape=shape: raw.Where(condition=inp(rnd(shape, tf.bool))))
case("Where/none", lambda: raw.Where(condition=inp([False, False])))
case("Where/nan", lambda: raw.Where(condition=inp([float("nan"), 0.0, -0.0, float("inf")])))

for c, x, y in [((), (2, 3), (2, 3)), ((2,), (2, 3), (2, 3)), ((3,), (2, 3), (2, 3)), ((2, 3), (2, 3), (3, 2)), ((), (), ()),
                ((0,), (0,), (0,)), ((2, 1), (2, 3), (2, 3)), ((4,), (4,), (4,)), ((2,), (), ()), ((2,), (3,), (3,)),
                ((1,), (1, 0), (1, 0)), ((2, 3, 4), (2, 3, 4), (2, 3, 4))]:
    case("Select/%s_%s_%s" % (c, x, y), lambda c=c, x=x, y=y: raw.Select(
        condition=inp(rnd(c, tf.bool)), x=inp(rnd(x)), y=inp(rnd(y))))
    case("SelectV2/%s_%s_%s" % (c, x, y), lambda c=c, x=x, y=y: raw.SelectV2(
        condition=inp(rnd(c, tf.bool)), t=inp(rnd(x)), e=inp(rnd(y))))
for c, x, y in [((3, 1), (1, 4), ()), ((2, 1, 2), (3, 1), (1,)), ((1, 1, 1, 1), (2, 3, 1, 1), (4, 5)), ((0, 1), (1, 3), ())]:
    case("SelectV2/%s_%s_%s" % (c, x, y), lambda c=c, x=x, y=y: raw.SelectV2(
        condition=inp(rnd(c, tf.bool)), t=inp(rnd(x)), e=inp(rnd(y))))

case("Unique/empty", lambda: list(raw.Unique(x=inp([], tf.int32))))
case("Unique/matrix", lambda: list(raw.Unique(x=inp([[1, 2]]))))
case("Unique/nan", lambda: list(raw.Unique(x=inp([1.0, float("nan"), 1.0, float("nan")]))))
case("UniqueV2/axis1", lambda: list(raw.UniqueV2(x=inp([[3, 1, 3], [3, 2, 3]]), axis=inp([1], tf.int64))))
case("UniqueV2/no_axis", lambda: list(raw.UniqueV2(x=inp([3, 1, 3]), axis=inp([], tf.int64))))

for it in INTS:
    case("DynamicPartition/" + short(it), lambda it=it: list(raw.DynamicPartition(
        data=inp(rnd((5, 2), it), it), partitions=inp([0, 2, 1, 0, 2]), num_partitions=4)))
case("DynamicPartition/bad", lambda: list(raw.DynamicPartition(
    data=inp(rnd((2,))), partitions=inp([0, 2]), num_partitions=2)))
case("DynamicPartition/shape", lambda: list(raw.DynamicPartition(
    data=inp(rnd((2,))), partitions=inp([0, 1, 1]), num_partitions=2)))
case("DynamicStitch/plain", lambda: raw.DynamicStitch(indices=[inp([0, 3]), inp([[1, 2]])],
                                                     data=[inp(rnd((2, 2))), inp(rnd((1, 2, 2)))]))
case("DynamicStitch/overlap", lambda: raw.DynamicStitch(indices=[inp([0, 1]), inp([1, 2])],
                                                       data=[inp(rnd((2,))), inp(rnd((2,)))]))
case("DynamicStitch/negative", lambda: raw.DynamicStitch(indices=[inp([-1])], data=[inp(rnd((1,)))]))
case("DynamicStitch/empty", lambda: raw.DynamicStitch(indices=[inp([], tf.int32)], data=[inp(rnd((0, 3)))]))
