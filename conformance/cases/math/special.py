"""Special functions beyond the usual ones, and corners of scans, clips and gradients."""
import numpy as np

from registry import FLOATS, allowed, case, inp, raw, rnd, short, tf

BESSEL = "I0 I1 I0e I1e J0 J1 K0 K1 K0e K1e Y0 Y1".split()


def loose(t):
    return dict(rtol=1e-4, atol=2e-6) if t == tf.float32 else dict(rtol=1e-6, atol=1e-9)


for name in BESSEL:
    op = "Bessel" + name
    for t in FLOATS:
        low = 0.2 if name[0] in "KY" else -8
        case("%s/far_%s" % (op, short(t)), lambda op=op, t=t, low=low: [
            getattr(raw, op)(x=inp(rnd((20,), t, low, 8), t)), getattr(raw, op)(x=inp(rnd((20,), t, 20, 60), t)),
            getattr(raw, op)(x=inp(rnd((0, 2), t), t)), getattr(raw, op)(x=inp([np.nan], t))], **loose(t))
EDGES = [0.0, -0.0, -1.0, -0.3, -5.5, -1e-3, 1e-3, 1e-10, 1e-20, 1e-30, 1e-37, 1e-45, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 10.0, 25.0, 80.0, 90.0, 120.0, 700.0, 720.0, 1e3,
         1e4, 1e5, 1e6, 1e8, -1e8, 1e10, 1e20, 1e30, 3e38, np.inf, -np.inf, np.nan]
for name in BESSEL:
    for t in FLOATS:
        extra = [1e-300, 5e-324, 1e300, 1.7e308, -1e300] if t == tf.float64 else []
        case("Bessel%s/edges_%s" % (name, short(t)), lambda name=name, t=t, extra=extra: getattr(raw, "Bessel" + name)(x=inp(EDGES + extra, t)), **loose(t))
    for t in (tf.float16, tf.bfloat16):
        case("Bessel%s/edges_%s" % (name, short(t)), lambda name=name, t=t: getattr(raw, "Bessel" + name)(x=inp([0.0, -1.0, 1e-4, 0.5, 3.0, 20.0, 300.0, np.inf, -np.inf, np.nan], t)))

for t in FLOATS:
    case("IgammaGradA/" + short(t), lambda t=t: raw.IgammaGradA(
        a=inp(rnd((9,), t, 0.2, 5), t), x=inp(rnd((9,), t, 0.1, 6), t)), rtol=1e-4, atol=1e-6)
    case("Igamma/edges_" + short(t), lambda t=t: [f(
        a=inp([1.0, 1.0, -1.0, 1.0, np.nan, 1.0], t), x=inp([0.0, -1.0, 1.0, np.inf, 1.0, np.nan], t))
        for f in (raw.Igamma, raw.Igammac)])
    case("Zeta/edges_" + short(t), lambda t=t: raw.Zeta(
        x=inp([1.0, 0.5, 2.0, 2.0, 2.0, 2.5], t), q=inp([2.0, 1.0, -1.0, 0.0, -1.5, -0.5], t)), rtol=1e-5)
    case("Polygamma/edges_" + short(t), lambda t=t: raw.Polygamma(
        a=inp([1.5, -1.0, 1.0, 10.0], t), x=inp([1.0, 1.0, -1.0, 3.0], t)), rtol=1e-4)
    case("Betainc/edges_" + short(t), lambda t=t: raw.Betainc(
        a=inp([-1.0, 0.0, 1.0, 1.0, np.nan, 1.0, 1.0], t), b=inp([1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0], t),
        x=inp([0.5, 0.5, 0.5, 1.5, 0.5, 0.0, 1.0], t)))
for a, b, x in [((), (), (3,)), ((3,), (), ()), ((2, 2), (2, 3), (2, 2)), ((3,), (3,), (4,)), ((), (), ()), ((), (0,), (0,))]:
    case("Betainc/shapes_%s_%s_%s" % (a, b, x), lambda a=a, b=b, x=x: raw.Betainc(
        a=inp(rnd(a, lo=0.5, hi=3)), b=inp(rnd(b, lo=0.5, hi=3)), x=inp(rnd(x, lo=0, hi=1))), rtol=1e-4)

for exclusive in (False, True):
    for reverse in (False, True):
        for axis in (0, 1, -1, 2, -3):
            case("CumulativeLogsumexp/%s_%s_%d" % (exclusive, reverse, axis), lambda e=exclusive, r=reverse, axis=axis:
                 raw.CumulativeLogsumexp(x=inp(rnd((3, 4))), axis=inp(axis), exclusive=e, reverse=r), rtol=1e-4)
case("CumulativeLogsumexp/specials", lambda: raw.CumulativeLogsumexp(
    x=inp([-np.inf, -np.inf, 1.0, np.inf, 2.0, np.nan]), axis=inp(0)))

for t in (tf.complex64, tf.complex128):
    case("ClipByValue/parts_" + short(t), lambda t=t: raw.ClipByValue(
        t=inp([1 + 1j, 0.5 + 9j, -3, 2 - 1j, 4j], t), clip_value_min=inp(1j, t), clip_value_max=inp(2 + 5j, t)))
case("ClipByValue/crossed", lambda: raw.ClipByValue(t=inp([1.0, 5.0]), clip_value_min=inp(6.0), clip_value_max=inp(2.0)))
case("ClipByValue/nan_bounds", lambda: raw.ClipByValue(
    t=inp([1.0, np.nan, 9.0]), clip_value_min=inp(np.nan, tf.float32), clip_value_max=inp(2.0)))
for t in (tf.float32, tf.float64, tf.float16):
    case("ReluGrad/not_finite_" + short(t), lambda t=t: [f(
        gradients=inp([np.nan, np.inf, -np.inf, 1.0], t), features=inp([-1.0, -1.0, 0.0, 7.0], t))
        for f in (raw.ReluGrad, raw.Relu6Grad)])
for t in allowed("Cross"):
    case("Cross/" + short(t), lambda t=t: raw.Cross(a=inp(rnd((2, 3), t), t), b=inp(rnd((2, 3), t), t)))
for a, b in [((3,), (2,)), ((2,), (2,)), ((), ()), ((2, 3), (3,)), ((0, 3), (0, 3)), ((2, 2), (2, 2))]:
    case("Cross/shapes_%s_%s" % (a, b), lambda a=a, b=b: raw.Cross(a=inp(rnd(a)), b=inp(rnd(b))))
for shape in [(70000,), (300, 400), (5, 3, 1000)]:
    for op in ("Sum", "Mean", "Max", "Min", "EuclideanNorm"):
        case("%s/large_%s" % (op, shape), lambda op=op, shape=shape: [getattr(raw, op)(
            input=inp(rnd(shape)), axis=inp(list(axes), tf.int32))
            for axes in ((0,), tuple(range(len(shape))), (len(shape) - 1,))], rtol=1e-4, atol=1e-3)
    case("ArgMax/large_%s" % (shape,), lambda shape=shape: [f(
        input=inp(rnd(shape)), dimension=inp(d)) for f in (raw.ArgMax, raw.ArgMin) for d in (0, len(shape) - 1)])
for a, b in [((300, 400), (400,)), ((300, 400), (300, 1)), ((300, 10), (10,)), ((300, 10), (300, 1)), ((100000,), ()), ((), (100000,))]:
    case("Mul/large_%s_%s" % (a, b), lambda a=a, b=b: [f(
        x=inp(rnd(a)), y=inp(rnd(b))) for f in (raw.Mul, raw.Sub, raw.Maximum, raw.Less)])
for op in ("Dawsn", "Expint", "FresnelCos", "FresnelSin", "Spence"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: [getattr(raw, op)(x=inp(rnd((40,), t, lo, hi), t)) for lo, hi in ((-0.3, 0.3), (-3, 3), (0, 9), (-30, 30))],
             **({} if t == tf.float64 else dict(rtol=3e-5, atol=1e-5)))
    case(op + "/edges", lambda op=op: getattr(raw, op)(x=inp([0, 1, -1, 1.5, 0.5, np.inf, -np.inf, np.nan, 1e-30, 600, 1e5], tf.float64)), rtol=1e-8)
