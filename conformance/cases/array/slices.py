"""Cutting and joining: Slice, StridedSlice, Concat, Split, Pack, Unpack, Pad, Tile, Reverse."""
import numpy as np

from registry import ALL, INTS, allowed, case, inp, raw, rnd, short, tf

for t in ALL:
    s = short(t)
    case("Slice/" + s, lambda t=t: raw.Slice(input=inp(rnd((4, 5), t), t), begin=inp([1, 0]), size=inp([2, -1])))
    case("StridedSlice/" + s, lambda t=t: raw.StridedSlice(
        input=inp(rnd((4, 5), t), t), begin=inp([3, 0]), end=inp([0, 5]), strides=inp([-1, 2])))
    case("ConcatV2/" + s, lambda t=t: raw.ConcatV2(
        values=[inp(rnd((2, 3), t), t), inp(rnd((2, 1), t), t), inp(rnd((2, 0), t), t)], axis=inp(1)))
    case("Concat/" + s, lambda t=t: raw.Concat(
        concat_dim=inp(0), values=[inp(rnd((2, 3), t), t), inp(rnd((1, 3), t), t)]))
    case("Split/" + s, lambda t=t: list(raw.Split(axis=inp(1), value=inp(rnd((2, 6), t), t), num_split=3)))
    case("SplitV/" + s, lambda t=t: list(raw.SplitV(
        value=inp(rnd((2, 6), t), t), size_splits=inp([1, 2, 3]), axis=inp(1), num_split=3)))
    case("Pack/" + s, lambda t=t: [raw.Pack(values=[inp(rnd((2, 3), t), t), inp(rnd((2, 3), t), t)], axis=a)
                                   for a in (0, 1, 2, -1)])
    case("Unpack/" + s, lambda t=t: [list(raw.Unpack(value=inp(rnd((2, 3), t), t), num=n, axis=a))
                                     for n, a in ((2, 0), (3, 1), (3, -1))])
    case("Pad/" + s, lambda t=t: raw.Pad(input=inp(rnd((2, 3), t), t), paddings=inp([[1, 0], [0, 2]])))
    case("PadV2/" + s, lambda t=t: raw.PadV2(input=inp(rnd((2, 3), t), t), paddings=inp([[1, 0], [0, 2]]),
                                            constant_values=inp(rnd((), t), t)))
    case("MirrorPad/" + s, lambda t=t: [raw.MirrorPad(input=inp(rnd((3, 4), t), t), paddings=inp([[1, 2], [2, 1]]),
                                                     mode=m) for m in ("REFLECT", "SYMMETRIC")])
    case("Tile/" + s, lambda t=t: raw.Tile(input=inp(rnd((2, 3), t), t), multiples=inp([2, 3])))
    case("ReverseV2/" + s, lambda t=t: raw.ReverseV2(tensor=inp(rnd((2, 3, 2), t), t), axis=inp([0, 2])))
    case("ReverseSequence/" + s, lambda t=t: raw.ReverseSequence(
        input=inp(rnd((3, 4, 2), t), t), seq_lengths=inp([4, 0, 2]), seq_dim=1, batch_dim=0))
for t in allowed("Reverse"):
    case("Reverse/" + short(t), lambda t=t: raw.Reverse(tensor=inp(rnd((2, 3), t), t), dims=inp([True, False])))

for it in INTS:
    n = short(it)
    for shape, begin, size in [((5,), [1], [3]), ((5,), [0], [-1]), ((5,), [5], [0]), ((5,), [2], [4]), ((5,), [-1], [1]),
                               ((5,), [6], [0]), ((2, 3), [0, 1], [2, 2]), ((2, 3), [0], [2]), ((2, 3), [0, 1], [1]),
                               ((2, 3, 4), [1, 0, 2], [-1, 2, 2]), ((), [], []), ((0, 3), [0, 1], [0, 2]),
                               ((2, 3), [0, 0], [-2, 1]), ((2, 2, 2, 2, 2), [1, 0, 1, 0, 1], [1, 2, 1, 2, 1]),
                               ((3,), [[0]], [[1]])]:
        case("Slice/%s/%s_%s_%s" % (n, shape, begin, size), lambda shape=shape, b=begin, z=size, it=it: raw.Slice(
            input=inp(rnd(shape)), begin=inp(b, it), size=inp(z, it)))
    for shapes, axis in [([(2, 3), (4, 3)], 0), ([(2, 3), (2, 1)], -1), ([(2, 3), (2, 3)], -2), ([(0, 3), (2, 3)], 0),
                         ([(1, 2, 3), (1, 2, 3)], 2), ([(2, 3), (2, 4)], 0), ([(2, 3), (3,)], 0), ([(2, 3), (2, 3)], 2),
                         ([(2, 3), (2, 3)], -3), ([(), ()], 0), ([(2,), (3,)], [0]), ([(2, 2)] * 9, 1),
                         ([(2, 3, 4, 5), (2, 3, 1, 5)], 2)]:
        case("ConcatV2/%s/%s_%s" % (n, shapes, axis), lambda shapes=shapes, axis=axis, it=it: raw.ConcatV2(
            values=[inp(rnd(s)) for s in shapes], axis=inp(axis, it)))
    for reps, shape in [([2], (3,)), ([0], (3,)), ([1, 1], (2, 3)), ([3, 1, 2], (1, 2, 3)), ([], ()), ([2], (2, 3)),
                        ([-1], (3,)), ([2, 2], (0, 3)), ([2, 1, 2, 1, 2], (1, 2, 1, 2, 1)), ([[2]], (3,))]:
        case("Tile/%s/%s_%s" % (n, shape, reps), lambda reps=reps, shape=shape, it=it: raw.Tile(
            input=inp(rnd(shape)), multiples=inp(reps, it)))
    for pads, shape in [([[0, 0]], (3,)), ([[2, 1]], (0,)), ([[1, 1], [0, 0], [2, 0]], (1, 2, 3)),
                        (np.zeros((0, 2)), ()), ([[1, 1]], (2, 3)), ([[-1, 0]], (3,)), ([[1, 1, 1]], (3,)), ([1, 1], (3,)),
                        ([[1, 0]] * 6, (1, 1, 2, 1, 2, 1))]:
        case("Pad/%s/%s_%s" % (n, shape, np.asarray(pads).tolist()), lambda pads=pads, shape=shape, it=it: raw.Pad(
            input=inp(rnd(shape)), paddings=inp(pads, it)))
        for mode in ("REFLECT", "SYMMETRIC"):
            case("MirrorPad/%s/%s/%s_%s" % (n, mode, shape, np.asarray(pads).tolist()),
                 lambda pads=pads, shape=shape, it=it, mode=mode: raw.MirrorPad(
                     input=inp(rnd(shape)), paddings=inp(pads, it), mode=mode))
    case("MirrorPad/%s/too_far" % n, lambda it=it: raw.MirrorPad(
        input=inp(rnd((3,))), paddings=inp([[3, 0]], it), mode="REFLECT"))
    case("MirrorPad/%s/too_far_symmetric" % n, lambda it=it: raw.MirrorPad(
        input=inp(rnd((3,))), paddings=inp([[0, 4]], it), mode="SYMMETRIC"))
    for mode in ("REFLECT", "SYMMETRIC"):
        case("MirrorPadGrad/%s/%s" % (n, mode), lambda it=it, mode=mode: raw.MirrorPadGrad(
            input=inp(rnd((5, 6))), paddings=inp([[1, 1], [1, 2]], it), mode=mode))
    for axes in [[0], [1], [-1], [0, 1, 2], [], [0, 0], [3], [-4], [0, -3]]:
        case("ReverseV2/%s/%s" % (n, axes), lambda axes=axes, it=it: raw.ReverseV2(
            tensor=inp(rnd((2, 3, 4))), axis=inp(axes, it)))
    for lens, sd, bd in [([1, 2], 1, 0), ([3, 0], 1, 0), ([4, 1], 1, 0), ([-1, 1], 1, 0), ([1, 2, 1], 1, 0),
                         ([1, 2, 1], 0, 1), ([1, 2], 2, 0), ([1, 2], 3, 0), ([1, 2], 0, 0)]:
        case("ReverseSequence/%s/%s_%d_%d" % (n, lens, sd, bd), lambda lens=lens, sd=sd, bd=bd, it=it:
             raw.ReverseSequence(input=inp(rnd((2, 3, 4))), seq_lengths=inp(lens, it), seq_dim=sd, batch_dim=bd))
    for sizes, axis in [([1, 2, 3], 0), ([-1, 2, 1], 0), ([6, -1, 0], 0), ([-1, -1, 2], 0), ([1, 2, 4], 0), ([1, 2, -3], 0),
                        ([1, 1, 1], 1), ([1, 1, 1], -1), ([1, 1, 1], 2), ([2, 4], 0), ([[1], [2], [3]], 0)]:
        case("SplitV/%s/%s_%d" % (n, sizes, axis), lambda sizes=sizes, axis=axis, it=it: list(raw.SplitV(
            value=inp(rnd((6, 3))), size_splits=inp(sizes, it), axis=inp(axis), num_split=3)))

for axis, n in [(0, 2), (0, 3), (-1, 3), (-2, 6), (1, 2), (2, 1), (-3, 1), (0, 6), (0, 1)]:
    case("Split/%d_%d" % (axis, n), lambda axis=axis, n=n: list(raw.Split(
        axis=inp(axis), value=inp(rnd((6, 3))), num_split=n)))
case("Split/empty", lambda: list(raw.Split(axis=inp(0), value=inp(rnd((0, 3))), num_split=2)))
case("Split/axis_vector", lambda: list(raw.Split(axis=inp([0]), value=inp(rnd((6, 3))), num_split=2)))
case("Pack/scalars", lambda: raw.Pack(values=[inp(1), inp(2), inp(3)], axis=0))
case("Pack/mismatch", lambda: raw.Pack(values=[inp([1, 2]), inp([1, 2, 3])], axis=0))
case("Pack/bad_axis", lambda: raw.Pack(values=[inp([1, 2]), inp([1, 2])], axis=2))
case("Pack/bad_axis_negative", lambda: raw.Pack(values=[inp([1, 2]), inp([1, 2])], axis=-3))
case("Pack/empty", lambda: raw.Pack(values=[inp(rnd((0, 2))), inp(rnd((0, 2)))], axis=1))
case("Pack/one", lambda: raw.Pack(values=[inp(rnd((2, 2)))], axis=1))
for num, axis in [(3, 0), (2, 1), (2, 2), (2, -3), (2, 0)]:
    case("Unpack/%d_%d" % (num, axis), lambda num=num, axis=axis: list(raw.Unpack(
        value=inp(rnd((2, 3))), num=num, axis=axis)))
case("Unpack/scalar", lambda: list(raw.Unpack(value=inp(1.0), num=1, axis=0)))
case("Unpack/zero", lambda: [raw.Identity(input=inp(1.0))] + list(raw.Unpack(value=inp(rnd((0, 2))), num=0, axis=0)))
case("Unpack/empty_inner", lambda: list(raw.Unpack(value=inp(rnd((2, 0))), num=2, axis=0)))

STRIDED = [  # shape, python index
    ((5,), np.s_[1:4]), ((5,), np.s_[::2]), ((5,), np.s_[::-1]), ((5,), np.s_[4:1:-2]), ((5,), np.s_[-3:]),
    ((5,), np.s_[7:]), ((5,), np.s_[:-7]), ((5,), np.s_[2]), ((5,), np.s_[-1]), ((4, 5), np.s_[1]), ((4, 5), np.s_[:, 2]),
    ((4, 5), np.s_[1:3, ::2]), ((4, 5), np.s_[..., 1]), ((2, 3, 4), np.s_[..., 0]), ((2, 3, 4), np.s_[0, ...]),
    ((2, 3, 4), np.s_[1, :, ::-1]), ((2, 3, 4), np.s_[:, np.newaxis, 1]), ((2, 3), np.s_[np.newaxis]),
    ((2, 3), np.s_[..., np.newaxis]), ((2, 3, 4), np.s_[np.newaxis, ..., np.newaxis]), ((2, 3, 4, 5), np.s_[0, ..., 2:4]),
    ((0, 3), np.s_[:, 1:]), ((0, 3), np.s_[0:0]), ((3, 4), np.s_[5:2]), ((), np.s_[...]), ((), np.s_[np.newaxis]),
    ((2, 2, 2, 2, 2), np.s_[:, 0, ::-1, 1:, ...]), ((2, 3, 4, 5, 2, 3), np.s_[:, ::2, 1:3, ::-2, 0]),
    ((3,), np.s_[3]), ((3,), np.s_[-4]), ((2, 3), np.s_[0, 0, 0]), ((3, 3), np.s_[-1, -1])]
for i, (shape, index) in enumerate(STRIDED):
    case("StridedSlice/python_%d_%s" % (i, shape), lambda shape=shape, index=index: inp(rnd(shape))[index])
for name, kw in [("zero_stride", dict(begin=[0], end=[1], strides=[0])),
                 ("two_ellipsis", dict(begin=[0, 0], end=[1, 1], strides=[1, 1], ellipsis_mask=3)),
                 ("rank_mismatch", dict(begin=[0, 0], end=[1], strides=[1])),
                 ("too_many", dict(begin=[0] * 4, end=[1] * 4, strides=[1] * 4)),
                 ("shrink_negative", dict(begin=[0], end=[1], strides=[-1], shrink_axis_mask=1)),
                 ("begin_mask", dict(begin=[3], end=[2], strides=[1], begin_mask=1)),
                 ("end_mask", dict(begin=[1], end=[0], strides=[1], end_mask=1)),
                 ("masks_negative", dict(begin=[1], end=[1], strides=[-1], end_mask=1, begin_mask=1)),
                 ("not_vector", dict(begin=[[0]], end=[[1]], strides=[[1]]))]:
    case("StridedSlice/" + name, lambda kw=kw: raw.StridedSlice(
        input=inp(rnd((3, 4, 2))), **{k: inp(v) if isinstance(v, list) else v for k, v in kw.items()}))
    case("StridedSlice/i64_" + name, lambda kw=kw: raw.StridedSlice(
        input=inp(rnd((3, 4, 2))), **{k: inp(v, tf.int64) if isinstance(v, list) else v for k, v in kw.items()}))
for name, shape, dy, kw in [
        ("plain", [4, 5], (2, 3), dict(begin=[1, 0], end=[3, 5], strides=[1, 2])),
        ("negative", [5], (3,), dict(begin=[4], end=[-6], strides=[-2])),
        ("shrink", [3, 4], (4,), dict(begin=[1, 0], end=[2, 4], strides=[1, 1], shrink_axis_mask=1)),
        ("new_axis", [3], (1, 3), dict(begin=[0, 0], end=[0, 3], strides=[1, 1], new_axis_mask=1)),
        ("ellipsis", [2, 3, 4], (2, 3, 2), dict(begin=[0, 1], end=[0, 3], strides=[1, 1], ellipsis_mask=1)),
        ("wrong_dy", [4], (3,), dict(begin=[1], end=[3], strides=[1])),
        ("empty", [0, 2], (0, 1), dict(begin=[0, 1], end=[0, 2], strides=[1, 1]))]:
    for it in INTS:
        case("StridedSliceGrad/%s/%s" % (short(it), name), lambda shape=shape, dy=dy, kw=kw, it=it: raw.StridedSliceGrad(
            shape=inp(shape, it), dy=inp(rnd(dy)),
            **{k: inp(v, it) if isinstance(v, list) else v for k, v in kw.items()}))
for t in ALL:
    case("StridedSliceGrad/" + short(t), lambda t=t: raw.StridedSliceGrad(
        shape=inp([4, 3]), begin=inp([0, 1]), end=inp([4, 2]), strides=inp([2, 1]), dy=inp(rnd((2, 1), t), t)))
