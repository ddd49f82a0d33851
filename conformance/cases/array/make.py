"""Ops that make values from little: Fill, Range, LinSpace, zeros and ones, and dense moves of space."""
from registry import ALL, FLOATS, INTS, allowed, case, const, inp, raw, rnd, short, tf


def vec(values, dtype=tf.int32):
    """An input whose static rank is known: the shape function of the space ops insists."""
    return inp(values, dtype, shape=[len(values)])


for t in ALL:
    s = short(t)
    case("Fill/" + s, lambda t=t: [raw.Fill(dims=inp([2, 3]), value=inp(rnd((), t), t)),
                                   raw.Fill(dims=inp([], tf.int32), value=inp(rnd((), t), t)),
                                   raw.Fill(dims=inp([0, 3], tf.int64), value=inp(rnd((), t), t))])
    case("ZerosLike/" + s, lambda t=t: [raw.ZerosLike(x=inp(rnd(d, t), t)) for d in [(2, 3), (), (0,)]])
    case("SpaceToBatchND/" + s, lambda t=t: raw.SpaceToBatchND(
        input=inp(rnd((1, 4, 4, 1), t), t), block_shape=vec([2, 2]), paddings=inp([[0, 0], [2, 0]])))
    case("BatchToSpaceND/" + s, lambda t=t: raw.BatchToSpaceND(
        input=inp(rnd((4, 2, 2, 1), t), t), block_shape=vec([2, 2]), crops=inp([[0, 1], [1, 0]])))
    case("SpaceToDepth/" + s, lambda t=t: raw.SpaceToDepth(input=inp(rnd((2, 4, 2, 3), t), t), block_size=2))
    case("DepthToSpace/" + s, lambda t=t: raw.DepthToSpace(input=inp(rnd((2, 2, 1, 12), t), t), block_size=2))
    case("DeepCopy/" + s, lambda t=t: raw.Snapshot(input=inp(rnd((2, 3), t), t)))
for t in allowed("OnesLike"):
    case("OnesLike/" + short(t), lambda t=t: [raw.OnesLike(x=inp(rnd(d, t), t)) for d in [(2, 3), (), (0,)]])
for dims in [[-1], [2, -3], [[2]], 3]:
    case("Fill/dims_%s" % (dims,), lambda dims=dims: raw.Fill(dims=inp(dims), value=inp(1.0)))
case("Fill/value_vector", lambda: raw.Fill(dims=inp([2]), value=inp([1.0])))

for t in allowed("Range", "Tidx"):
    for a, b, d in [(0, 5, 1), (2, 11, 3), (5, 5, 1), (3, 4, 2)]:
        case("Range/%s_%d_%d_%d" % (short(t), a, b, d), lambda t=t, a=a, b=b, d=d: raw.Range(
            start=inp(a, t), limit=inp(b, t), delta=inp(d, t)))
for t in (tf.float32, tf.float64, tf.int32, tf.int64):
    for a, b, d in [(5, 0, -1), (10, -3, -4), (0, 5, -1), (5, 0, 1), (0, 5, 0)]:
        case("Range/%s_%d_%d_%d" % (short(t), a, b, d), lambda t=t, a=a, b=b, d=d: raw.Range(
            start=inp(a, t), limit=inp(b, t), delta=inp(d, t)))
for t in FLOATS:
    for a, b, d in [(0.0, 1.0, 0.1), (0.5, -1.0, -0.25), (0.0, 3.0, 0.7)]:
        case("Range/%s_frac_%s_%s_%s" % (short(t), a, b, d), lambda t=t, a=a, b=b, d=d: raw.Range(
            start=inp(a, t), limit=inp(b, t), delta=inp(d, t)))
case("Range/vector_start", lambda: raw.Range(start=inp([0]), limit=inp(5), delta=inp(1)))
case("Range/vector_limit", lambda: raw.Range(start=inp(0), limit=inp([5]), delta=inp(1)))
case("Range/vector_delta", lambda: raw.Range(start=inp(0), limit=inp(5), delta=inp([1])))

for t in allowed("LinSpace"):
    for it in INTS:
        for n in [1, 2, 5, 11, 0, -1]:
            case("LinSpace/%s_%s_%d" % (short(t), short(it), n), lambda t=t, it=it, n=n: raw.LinSpace(
                start=inp(-1.5, t), stop=inp(2.25, t), num=inp(n, it)))
case("LinSpace/vector", lambda: raw.LinSpace(start=inp([0.0]), stop=inp(1.0), num=inp(3)))

for shape, block, pads in [((1, 2, 2, 1), [2, 2], [[0, 0], [0, 0]]), ((2, 3, 5, 2), [1, 2], [[0, 0], [1, 0]]),
                           ((1, 6), [3], [[0, 0]]), ((2, 4, 3), [2], [[0, 0]]), ((1, 3, 3, 1), [2, 2], [[0, 0], [0, 0]]),
                           ((1, 2, 2, 1), [0, 2], [[0, 0], [0, 0]]), ((1, 2, 2, 1), [2, 2], [[0, 0]]),
                           ((1, 2, 2, 1), [2, 2], [[-1, 1], [0, 0]]), ((1, 2), [2, 2], [[0, 0], [0, 0]]),
                           ((1, 4, 4, 4, 2), [2, 1, 2], [[0, 0], [0, 0], [0, 0]]), ((0, 2, 2, 1), [2, 2], [[0, 0], [0, 0]])]:
    for it in INTS:
        case("SpaceToBatchND/%s/%s_%s_%s" % (short(it), shape, block, pads), lambda shape=shape, b=block, p=pads, it=it:
             raw.SpaceToBatchND(input=inp(rnd(shape)), block_shape=vec(b, it), paddings=inp(p, it)))
for shape, block, crops in [((4, 1, 1, 1), [2, 2], [[0, 0], [0, 0]]), ((8, 1, 3, 1), [2, 2], [[0, 0], [2, 0]]),
                            ((6, 2), [3], [[1, 1]]), ((5, 1, 1, 1), [2, 2], [[0, 0], [0, 0]]),
                            ((4, 1, 1, 1), [2, 2], [[3, 0], [0, 0]]), ((4, 2, 2, 1), [2, 2], [[-1, 0], [0, 0]]),
                            ((4, 2, 2, 1), [2, 2, 2, 2], [[0, 0]] * 4), ((4, 2, 2, 1), [0, 2], [[0, 0], [0, 0]])]:
    case("BatchToSpaceND/%s_%s_%s" % (shape, block, crops), lambda shape=shape, b=block, c=crops: raw.BatchToSpaceND(
        input=inp(rnd(shape)), block_shape=vec(b), crops=inp(c)))
case("SpaceToBatch/plain", lambda: raw.SpaceToBatch(input=inp(rnd((1, 4, 4, 2))), paddings=inp([[0, 0], [1, 1]]), block_size=2))
case("BatchToSpace/plain", lambda: raw.BatchToSpace(input=inp(rnd((4, 2, 3, 2))), crops=inp([[0, 0], [1, 1]]), block_size=2))
for op, shape in [("SpaceToDepth", (1, 3, 4, 1)), ("SpaceToDepth", (1, 4, 3, 1)), ("DepthToSpace", (1, 2, 2, 3)),
                  ("SpaceToDepth", (4, 4, 1)), ("DepthToSpace", (2, 4)), ("SpaceToDepth", (0, 4, 4, 1)), ("DepthToSpace", (1, 3, 2, 8)),
                  ("SpaceToDepth", (2, 6, 4, 3))]:
    case("%s/%s" % (op, shape), lambda op=op, shape=shape: getattr(raw, op)(input=inp(rnd(shape)), block_size=2))
    case("%s/NCHW_%s" % (op, shape), lambda op=op, shape=shape: getattr(raw, op)(
        input=inp(rnd(shape)), block_size=2, data_format="NCHW"), text="names the layout pass when it rewrites")

# The same kernels with inputs the optimiser may fold.
case("folded/arith", lambda: const([1.0, 2.0, 3.0]) * const([4.0, 5.0, 6.0]) + inp([1.0, 1.0, 1.0]))
case("folded/shape_of_known", lambda: tf.shape(inp(rnd((2, 3)), shape=[2, 3])) + const([1, 1]))
case("folded/common_subexpression", lambda: [tf.exp(x) + tf.exp(x) for x in [inp(rnd((4,)))]])
case("folded/identity_chain", lambda: tf.identity(tf.identity(tf.identity(inp(rnd((2,)))))))
case("folded/unused_error", lambda: [tf.reshape(const([1, 2, 3]), inp([3])), tf.constant(7)])

