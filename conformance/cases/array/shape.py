"""Ops that move or describe shapes: Reshape, Squeeze, ExpandDims, Transpose, Shape, broadcasts."""
from registry import ALL, INTS, case, const, inp, raw, rnd, short, tf

INT_TYPES = [(tf.int32, "i32"), (tf.int64, "i64")]

for t in ALL:
    case("Identity/" + short(t), lambda t=t: [raw.Identity(input=inp(rnd(s, t), t)) for s in [(2, 3), (), (0, 2)]])
    case("Reshape/" + short(t), lambda t=t: raw.Reshape(tensor=inp(rnd((2, 6), t), t), shape=inp([3, -1])))
    case("ExpandDims/" + short(t), lambda t=t: raw.ExpandDims(input=inp(rnd((2, 3), t), t), axis=inp(1)))
    case("Squeeze/" + short(t), lambda t=t: raw.Squeeze(input=inp(rnd((1, 2, 1, 3), t), t)))
    case("Transpose/" + short(t), lambda t=t: raw.Transpose(x=inp(rnd((2, 3, 4), t), t), perm=inp([2, 0, 1])))
    case("Shape/" + short(t), lambda t=t: [raw.Shape(input=inp(rnd((2, 0, 3), t), t)),
                                          raw.Size(input=inp(rnd((2, 5), t), t)),
                                          raw.Rank(input=inp(rnd((2, 5, 1), t), t))])
    case("BroadcastTo/" + short(t), lambda t=t: raw.BroadcastTo(input=inp(rnd((3, 1), t), t), shape=inp([2, 3, 4])))
    case("StopGradient/" + short(t), lambda t=t: [raw.StopGradient(input=inp(rnd((2,), t), t)),
                                                 raw.PreventGradient(input=inp(rnd((2,), t), t), message="m")])

case("IdentityN", lambda: raw.IdentityN(input=[inp(1.5), inp([1, 2]), inp(["a", "b"]), inp(True)]))

for it, iname in INT_TYPES:
    for shape, to in [((6,), [2, 3]), ((2, 3), []), ((1,), []), ((), [1, 1]), ((0,), [0, 5]), ((0, 3), [-1]),
                      ((0,), [-1, 0]), ((2, 3), [-1, -1]), ((2, 3), [4, -1]), ((2, 3), [5]), ((2, 3), [-2, 3]),
                      ((0, 3), [0, -1]), ((4,), [[2, 2]]), ((2, 2), 4)]:
        case("Reshape/%s/%s_to_%s" % (iname, shape, to),
             lambda shape=shape, to=to, it=it: raw.Reshape(tensor=inp(rnd(shape)), shape=inp(to, it)))
    for axis in [0, 1, 2, -1, -3, 3, -4, [1], [0, 1]]:
        case("ExpandDims/%s/axis=%s" % (iname, axis),
             lambda axis=axis, it=it: raw.ExpandDims(input=inp(rnd((2, 3))), axis=inp(axis, it)))
    for shape, perm in [((2, 3), [1, 0]), ((2, 3), [0, 1]), ((2, 3, 4), [0, 2, 1]), ((2, 3, 4), [1, 0, 2]),
                        ((2, 3, 4), [2, 1, 0]), ((2, 3, 4, 5), [0, 3, 1, 2]), ((2, 3, 4, 5), [0, 2, 3, 1]),
                        ((2, 3, 4, 5), [3, 2, 1, 0]), ((2, 1, 4, 1, 3), [4, 3, 2, 1, 0]), ((), []), ((3,), [0]),
                        ((0, 3), [1, 0]), ((2, 2, 2, 2, 2, 2), [5, 0, 4, 1, 3, 2]), ((2, 3), [0, 0]), ((2, 3), [0]),
                        ((2, 3), [0, 2]), ((2, 3), [-1, 0]), ((2, 3), [[0, 1]]), ((2, 3, 4), [-1, -2, -3])]:
        case("Transpose/%s/%s_%s" % (iname, shape, perm),
             lambda shape=shape, perm=perm, it=it: raw.Transpose(x=inp(rnd(shape)), perm=inp(perm, it)))
    case("ConjugateTranspose/" + iname, lambda it=it: raw.ConjugateTranspose(
        x=inp(rnd((2, 3), tf.complex64)), perm=inp([1, 0], it)))
    case("ConjugateTranspose/f32/" + iname, lambda it=it: raw.ConjugateTranspose(x=inp(rnd((2, 3))), perm=inp([1, 0], it)))
    for shape in [(), (3,), (2, 0, 4), (1, 2, 3, 4, 5)]:
        case("Shape/%s/%s" % (iname, shape), lambda shape=shape, it=it: [
            raw.Shape(input=inp(rnd(shape)), out_type=it), raw.Size(input=inp(rnd(shape)), out_type=it)]
            + list(raw.ShapeN(input=[inp(rnd(shape)), inp(rnd((2,)))], out_type=it)))
    for shape, to in [((), [2, 3]), ((3,), [2, 3]), ((1, 3), [2, 3]), ((2, 1), [2, 3]), ((2, 3), [2, 3]),
                      ((1,), [0]), ((0,), [2, 0]), ((1, 1, 1), [2, 3, 4]), ((2, 1, 3, 1), [2, 4, 3, 2]),
                      ((3,), [4]), ((2, 3), [3]), ((2,), [2, 3]), ((3,), [-1]), ((1, 2, 1, 2, 1), [2, 2, 2, 2, 2]),
                      ((3,), [[3]]), ((), [])]:
        case("BroadcastTo/%s/%s_to_%s" % (iname, shape, to),
             lambda shape=shape, to=to, it=it: raw.BroadcastTo(input=inp(rnd(shape)), shape=inp(to, it)))
    for a, b in [([2, 3], [3]), ([2, 1], [1, 3]), ([], [2]), ([], []), ([4, 1, 3], [2, 1]), ([2], [3]),
                 ([0, 1], [1, 3]), ([1], [0]), ([5, 1, 1], [1, 4, 1])]:
        case("BroadcastArgs/%s/%s_%s" % (iname, a, b),
             lambda a=a, b=b, it=it: raw.BroadcastArgs(s0=inp(a, it), s1=inp(b, it)))
        case("BroadcastGradientArgs/%s/%s_%s" % (iname, a, b),
             lambda a=a, b=b, it=it: list(raw.BroadcastGradientArgs(s0=inp(a, it), s1=inp(b, it))))

for shape, dims in [((1, 2, 1), []), ((1, 2, 1), [0]), ((1, 2, 1), [-1]), ((1, 2, 1), [0, 2]), ((1, 1), []),
                    ((2, 3), []), ((), []), ((1, 0), []), ((1, 0), [0]), ((2, 1), [0]), ((1,), [2]), ((1,), [-2]),
                    ((1, 1, 1), [0, 0])]:
    case("Squeeze/%s_%s" % (shape, dims), lambda shape=shape, dims=dims: raw.Squeeze(
        input=inp(rnd(shape)), axis=dims))

for shape, want in [((2, 3), [2, 3]), ((2, 3), [None, 3]), ((2, 3), None), ((2, 3), [2, None]), ((2, 3), [3, 2]),
                    ((2, 3), [2]), ((), []), ((0, 2), [0, 2]), ((0, 2), [1, 2]), ((2,), [None, None])]:
    # The text names the fed tensor, which a distributed session calls otherwise than a local one.
    case("EnsureShape/%s_%s" % (shape, want), lambda shape=shape, want=want: raw.EnsureShape(
        input=inp(rnd(shape)), shape=tf.TensorShape(want)), oracle="server")

for off, shapes in [(0, [[2, 3], [4, 3]]), (1, [[2, 3], [2, 5], [2, 0]]), (-1, [[1, 2, 3], [1, 2, 4]]),
                    (0, [[2, 3], [2, 4]]), (2, [[2, 3], [2, 3]]), (0, [[2, 3], [2]]), (-3, [[2, 3], [2, 3]]),
                    (0, [[[2]], [[3]]])]:
    case("ConcatOffset/%d_%s" % (off, shapes), lambda off=off, shapes=shapes: list(raw.ConcatOffset(
        concat_dim=inp(off), shape=[inp(s) for s in shapes])))

case("Const/folded_chain", lambda: raw.Reshape(
    tensor=raw.Transpose(x=const(rnd((2, 3, 4))), perm=const([2, 0, 1])), shape=const([-1, 3])))
for t in ALL:
    case("Const/" + short(t), lambda t=t: [const(rnd((2, 3), t), t), const(rnd((), t), t), const(rnd((0, 4), t), t)])
    case("Const/splat_" + short(t), lambda t=t: tf.fill([3, 2], const(rnd((), t), t)))

case("Placeholder/unfed", lambda: raw.Placeholder(dtype=tf.float32))
case("Placeholder/unfed_shape", lambda: raw.Placeholder(dtype=tf.int64, shape=tf.TensorShape([2, None])))
case("Placeholder/unfed_known_shape", lambda: raw.Placeholder(dtype=tf.int64, shape=tf.TensorShape([2, 3])))
case("Placeholder/unfed_scalar", lambda: raw.Placeholder(dtype=tf.string, shape=tf.TensorShape([])))
case("Placeholder/unfed_bool_used", lambda: raw.LogicalNot(x=raw.Placeholder(dtype=tf.bool)))
case("PlaceholderWithDefault/unfed", lambda: raw.PlaceholderWithDefault(input=const([1.0, 2.0]), shape=[None]))
for t in ALL:
    case("ToBool/" + short(t), lambda t=t: [raw.ToBool(input=inp(v, t)) for v in (
        ["", "a", [], [""]] if t == tf.string else [0, 1, [], [0], [[1, 0]]])])
case("ToBool/floats", lambda: [raw.ToBool(input=inp(v, tf.float32)) for v in (-0.0, float("nan"), 1e9, 1e-3)])
