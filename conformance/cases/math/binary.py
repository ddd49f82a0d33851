"""Elementwise functions of two arguments: every dtype, broadcasting, edges, wrong shapes."""
import numpy as np

from registry import FLOATS, INTS, allowed, case, inp, raw, rnd, short, tf

ARITHMETIC = """Add AddV2 Sub Mul MulNoNan Div DivNoNan RealDiv TruncateDiv FloorDiv FloorMod Mod TruncateMod Pow Maximum
Minimum SquaredDifference Atan2 Xlogy Xlog1py Xdivy""".split()
COMPARE = "Less LessEqual Greater GreaterEqual Equal NotEqual".split()
BITS = "BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift".split()
DIVIDES = ("Div", "RealDiv", "TruncateDiv", "FloorDiv", "FloorMod", "Mod", "TruncateMod")


def pair(op, t, a, b):
    """Operands in the domain of the op."""
    lo, hi = (-9, 9) if t.is_integer else (-3, 3)
    x, y = rnd(a, t, lo, hi), rnd(b, t, lo, hi)
    if t.is_integer and op in DIVIDES:
        y = np.where(y == 0, np.array(2, y.dtype), y)
    if op == "Pow":
        x, y = (rnd(a, t, -3, 3), rnd(b, t, 0, 3)) if t.is_integer else (rnd(a, t, 0.1, 3), y)
    if op in ("Xlogy", "Xlog1py"):
        y = rnd(b, t, 0.1, 3)
    if op in ("LeftShift", "RightShift"):
        y = rnd(b, t, 0, 6)
    return inp(x, t), inp(y, t)


def build(op, t, shapes):
    f = getattr(raw, op)
    return [f(x=p[0], y=p[1]) for p in (pair(op, t, a, b) for a, b in shapes)]


for op in ARITHMETIC + COMPARE + BITS:
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: build(
            op, t, [((3, 4), (3, 4)), ((), (3,)), ((3,), ()), ((), ()), ((0, 2), (0, 2)), ((2, 1, 3), (4, 1))]))

BROADCAST = [((2, 3), (3,)), ((3,), (2, 3)), ((2, 3), (2, 1)), ((2, 1), (1, 3)), ((1,), (4,)), ((1, 1), (3,)), ((2, 3, 4), (3, 1)),
             ((2, 1, 4), (3, 1)), ((5, 1, 4, 1), (3, 1, 2)), ((2, 3, 1, 5), (1, 4, 1)), ((0,), (1,)), ((0, 3), (3,)), ((2, 0), (1,)),
             ((1, 2, 1, 2, 1), (2, 1, 2, 1, 2)), ((2, 2, 2, 2, 2), (1, 2, 1, 2, 1)), ((17,), (17,)), ((100, 33), (33,)),
             ((100, 33), (100, 1)), ((2, 1, 2, 1, 2, 1), (1, 2, 1, 2, 1, 2))]
WRONG = [((2,), (3,)), ((2, 3), (2,)), ((2, 3), (4, 3)), ((0,), (2,)), ((2, 3, 4), (2, 3)), ((1, 0), (2, 2))]
for op in ("AddV2", "Sub", "Mul", "RealDiv", "Maximum", "SquaredDifference", "Less", "Equal"):
    for t in (tf.float32, tf.int32):
        for a, b in BROADCAST:
            case("%s/broadcast_%s_%s_%s" % (op, short(t), a, b), lambda op=op, t=t, a=a, b=b: build(op, t, [(a, b)]))
for op in ARITHMETIC + COMPARE:
    t = allowed(op)[0] if tf.float32 not in allowed(op) else tf.float32
    for a, b in WRONG[:2] if op not in ("AddV2", "Mul", "Less", "Pow") else WRONG:
        case("%s/wrong_%s_%s" % (op, a, b), lambda op=op, t=t, a=a, b=b: build(op, t, [(a, b)]))
case("AddV2/ten_dims", lambda: build("AddV2", tf.float32, [((1, 2) * 5, (2, 1) * 5)]))

for op in ("Div", "TruncateDiv", "FloorDiv", "FloorMod", "Mod", "TruncateMod"):
    for t in allowed(op):
        if t.is_integer:
            case("%s/by_zero_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(x=inp([4, 6], t), y=inp([2, 0], t)))
            case("%s/by_zero_scalar_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(x=inp([4, 6], t), y=inp(0, t)))
            case("%s/by_zero_left_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(x=inp(4, t), y=inp([2, 0], t)))
            if not t.is_unsigned:
                case("%s/signs_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
                    x=inp([7, -7, 7, -7, 6, -6], t), y=inp([3, 3, -3, -3, 3, -3], t)))
    case("%s/empty_by_zero" % op, lambda op=op: getattr(raw, op)(x=inp([], tf.int32), y=inp(0)))
for op in ("FloorDiv", "FloorMod", "Mod", "TruncateMod", "RealDiv", "Div", "TruncateDiv"):
    for t in FLOATS:
        if t in allowed(op):
            case("%s/edges_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
                x=inp([7.5, -7.5, 7.5, -7.5, 1.0, -1.0, 0.0, np.inf, np.nan, 5.0], t),
                y=inp([2.0, 2.0, -2.0, -2.0, 0.0, 0.0, 0.0, 2.0, 1.0, np.inf], t)))
for op in ("DivNoNan", "MulNoNan", "Xdivy", "Xlogy", "Xlog1py"):
    for t in FLOATS:
        case("%s/zeros_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            x=inp([1.0, 0.0, 0.0, np.inf, np.nan, 0.0, 2.0], t), y=inp([0.0, 0.0, np.nan, 0.0, 0.0, np.inf, 4.0], t)))
for op in ("Maximum", "Minimum"):
    for t in FLOATS:
        case("%s/nan_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            x=inp([np.nan, 1.0, np.inf, -np.inf, 0.0], t), y=inp([1.0, np.nan, 1.0, 1.0, -0.0], t)))
for op in COMPARE:
    for t in FLOATS:
        case("%s/nan_%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            x=inp([np.nan, 1.0, np.nan, 0.0, np.inf, 2.0], t), y=inp([1.0, np.nan, np.nan, -0.0, np.inf, 2.0], t)))
for op in ("Equal", "NotEqual"):
    case("%s/incompatible_ok" % op, lambda op=op: getattr(raw, op)(
        x=inp([1, 2]), y=inp([1, 2, 3]), incompatible_shape_error=False))
    case("%s/incompatible_broadcast" % op, lambda op=op: getattr(raw, op)(
        x=inp([[1], [2]]), y=inp([1, 2, 3]), incompatible_shape_error=False))
for t in allowed("Pow"):
    if t.is_integer and not t.is_unsigned:
        case("Pow/negative_%s" % short(t), lambda t=t: raw.Pow(x=inp([2, 3], t), y=inp([1, -1], t)))
for t in FLOATS:
    case("Pow/edges_%s" % short(t), lambda t=t: raw.Pow(
        x=inp([0.0, 0.0, -2.0, -2.0, -8.0, np.inf, 1.0, np.nan, 2.0, 0.0], t),
        y=inp([0.0, -1.0, 3.0, 2.0, 1 / 3, -1.0, np.nan, 0.0, np.inf, 5.0], t)))
    case("Atan2/edges_%s" % short(t), lambda t=t: raw.Atan2(
        y=inp([0.0, -0.0, 0.0, 1.0, -1.0, np.inf], t), x=inp([1.0, -1.0, -1.0, 0.0, 0.0, np.inf], t)))
for t in INTS:
    case("AddV2/wraps_%s" % short(t), lambda t=t: [raw.AddV2(x=inp([t.max, t.min], t), y=inp([1, -1], t)),
                                                  raw.Mul(x=inp([t.max, t.min], t), y=inp([2, 3], t)),
                                                  raw.Neg(x=inp([t.max, t.min], t)), raw.Abs(x=inp([t.max, -t.max], t))])
for op in ("LogicalAnd", "LogicalOr"):
    case(op, lambda op=op: [getattr(raw, op)(x=inp(rnd(a, tf.bool)), y=inp(rnd(b, tf.bool)))
                            for a, b in [((4, 5), (5,)), ((), ()), ((0,), (0,)), ((3, 1), (1, 4))]])
    case("%s/wrong" % op, lambda op=op: getattr(raw, op)(x=inp([True, False]), y=inp([True] * 3)))
for t in allowed("ApproximateEqual"):
    case("ApproximateEqual/" + short(t), lambda t=t: raw.ApproximateEqual(
        x=inp(rnd((20,), t, 0, 3), t), y=inp(rnd((20,), t, 0, 3), t), tolerance=1.0))
case("ApproximateEqual/wrong", lambda: raw.ApproximateEqual(x=inp(rnd((2,))), y=inp(rnd((3,)))))
for t in FLOATS:
    s = short(t)
    loose = dict(rtol=1e-4, atol=1e-6) if t == tf.float32 else dict(rtol=1e-7, atol=1e-9)
    case("Igamma/" + s, lambda t=t: [raw.Igamma(a=inp(rnd((9,), t, 0.2, 5), t), x=inp(rnd((9,), t, 0.1, 6), t)),
                                     raw.Igammac(a=inp(rnd((9,), t, 0.2, 5), t), x=inp(rnd((9,), t, 0.1, 6), t))], **loose)
    case("Zeta/" + s, lambda t=t: raw.Zeta(x=inp(rnd((9,), t, 1.2, 5), t), q=inp(rnd((9,), t, 0.5, 6), t)), **loose)
    case("Polygamma/" + s, lambda t=t: raw.Polygamma(a=inp([0.0, 1.0, 2.0, 3.0], t), x=inp(rnd((4,), t, 0.5, 6), t)), **loose)
    case("Betainc/" + s, lambda t=t: raw.Betainc(a=inp(rnd((9,), t, 0.5, 3), t), b=inp(rnd((9,), t, 0.5, 3), t),
                                                x=inp(rnd((9,), t, 0, 1), t)), **loose)
for t in FLOATS:
    case("NextAfter/" + short(t), lambda t=t: raw.NextAfter(
        x1=inp([1.0, 0.0, -1.0, np.inf, np.nan, 2.0], t), x2=inp([2.0, 1.0, -np.inf, 0.0, 1.0, 2.0], t)), rtol=0, atol=0)
case("Add/string_broadcast", lambda: raw.Add(x=inp(["a", "b"]), y=inp(["x"])))

for t in allowed("ClipByValue"):
    case("ClipByValue/" + short(t), lambda t=t: [
        raw.ClipByValue(t=inp(rnd((3, 4), t), t), clip_value_min=inp(1, t), clip_value_max=inp(2, t)),
        raw.ClipByValue(t=inp(rnd((0,), t), t), clip_value_min=inp(1, t), clip_value_max=inp(2, t))])
for lo, hi, name in [((3, 4), (), "vec_min"), ((), (3, 4), "vec_max"), ((3, 4), (3, 4), "both"), ((4,), (), "bad"), ((2, 4), (3, 4), "bad2")]:
    case("ClipByValue/" + name, lambda lo=lo, hi=hi: raw.ClipByValue(
        t=inp(rnd((3, 4))), clip_value_min=inp(rnd(lo, lo=-1, hi=0)), clip_value_max=inp(rnd(hi, lo=0, hi=1))))
case("ClipByValue/nan", lambda: raw.ClipByValue(t=inp([np.nan, 1.0, -5.0]), clip_value_min=inp(-1.0), clip_value_max=inp(0.5)))
