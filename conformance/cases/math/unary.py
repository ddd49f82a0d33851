"""Elementwise functions of one argument, over every dtype their signature permits."""
import numpy as np

from registry import FLOATS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

REAL_SPECIALS = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan]
UNARY = """Abs Neg Reciprocal Inv Square Sqrt Rsqrt Exp Expm1 Log Log1p Sin Cos Tan Asin Acos Atan Sinh Cosh Tanh Asinh
Acosh Atanh Sigmoid Erf Erfc Erfinv Ndtri Lgamma Digamma Sign Floor Ceil Round Rint IsNan IsInf IsFinite Invert
BesselI0e BesselI1e PopulationCount""".split()
FEATURES = "Softplus Softsign Elu Selu Relu Relu6 LeakyRelu".split()
GRADS = "SigmoidGrad TanhGrad SqrtGrad RsqrtGrad ReciprocalGrad InvGrad".split()
# Functions whose implementations differ in more than rounding far from the usual range.
LOOSE = {"Lgamma": 1e-4, "Digamma": 1e-4, "Erfinv": 1e-4, "Ndtri": 1e-4, "BesselI0e": 1e-4, "BesselI1e": 1e-4, "Tan": 1e-4}


def values(t, op):
    """Ordinary values plus the edges of the type."""
    if t == tf.bool:
        return [True, False]
    if t.is_complex:
        return np.concatenate([np.array([0, 1, -1, 1j, 0.5 - 2j], t.as_numpy_dtype), rnd((8,), t, -2, 2)])
    if t.is_floating:
        return np.concatenate([np.array(REAL_SPECIALS, t.as_numpy_dtype), rnd((40,), t)])
    edges = [0, 1, 2, 100, t.max, t.min] if op in ("Invert", "PopulationCount", "Sign", "Relu") else [0, 1, 2, 9]
    return np.concatenate([np.array(edges, t.as_numpy_dtype), rnd((8,), t, -9, 9)])


def tolerance(op, t):
    if op in LOOSE and t == tf.float32:
        return dict(rtol=LOOSE[op], atol=1e-5)
    if t in SMALL_FLOATS and op in LOOSE:
        return dict(rtol=3e-2, atol=1e-2)
    return {}


for op in UNARY + FEATURES:
    arg = "features" if op in FEATURES else "x"
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t, arg=arg: [
            getattr(raw, op)(**{arg: inp(values(t, op), t)}),
            getattr(raw, op)(**{arg: inp(rnd((2, 3, 2), t, 0, 1), t)}),
            getattr(raw, op)(**{arg: inp(rnd((), t, 0, 1), t)}),
            getattr(raw, op)(**{arg: inp(rnd((0, 3), t), t)})], **tolerance(op, t))
for op in GRADS:
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: [
            getattr(raw, op)(y=inp(rnd((5, 3), t, 0.1, 2), t), dy=inp(rnd((5, 3), t), t)),
            getattr(raw, op)(y=inp(rnd((0,), t), t), dy=inp(rnd((0,), t), t))])
for op in GRADS:
    case("%s/special" % op, lambda op=op: getattr(raw, op)(
        y=inp([0.0, 1.0, -1.0, np.inf, np.nan]), dy=inp([1.0, 0.0, np.inf, 2.0, 3.0])))
for op in ("SoftplusGrad", "SoftsignGrad", "ReluGrad", "Relu6Grad", "LeakyReluGrad"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: [
            getattr(raw, op)(gradients=inp(rnd((4, 5), t), t), features=inp(rnd((4, 5), t, -8, 8), t)),
            getattr(raw, op)(gradients=inp(rnd((0,), t), t), features=inp(rnd((0,), t), t))])
    case("%s/special" % op, lambda op=op: getattr(raw, op)(
        gradients=inp([1.0, 2.0, 3.0, 4.0, 5.0, np.nan]), features=inp([0.0, -0.0, np.inf, -np.inf, np.nan, 6.0])))
    case("%s/shapes" % op, lambda op=op: getattr(raw, op)(gradients=inp(rnd((2,))), features=inp(rnd((3,)))))
for op in ("EluGrad", "SeluGrad"):
    for t in allowed(op):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: getattr(raw, op)(
            gradients=inp(rnd((4, 5), t), t), outputs=inp(rnd((4, 5), t, -0.9, 3), t)))
    case("%s/shapes" % op, lambda op=op: getattr(raw, op)(gradients=inp(rnd((2,))), outputs=inp(rnd((3,)))))
for t in FLOATS + SMALL_FLOATS:
    for alpha in (0.0, 0.1, 0.9, 2.0):
        case("LeakyRelu/alpha_%s_%s" % (alpha, short(t)), lambda t=t, alpha=alpha: [
            raw.LeakyRelu(features=inp(rnd((9,), t), t), alpha=alpha),
            raw.LeakyReluGrad(gradients=inp(rnd((9,), t), t), features=inp(rnd((9,), t), t), alpha=alpha)])

for t, out in [(tf.complex64, tf.float32), (tf.complex128, tf.float64)]:
    for op in ("Real", "Imag", "Angle"):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t, out=out: [
            getattr(raw, op)(input=inp(rnd(s, t), t), Tout=out) for s in [(4, 2), (), (0,)]])
    case("ComplexAbs/" + short(t), lambda t=t, out=out: raw.ComplexAbs(x=inp(rnd((3, 2), t), t), Tout=out))
    case("Conj/" + short(t), lambda t=t: raw.Conj(input=inp(rnd((3, 2), t), t)))
    case("Complex/" + short(t), lambda t=t, out=out: [
        raw.Complex(real=inp(rnd((3, 1), out), out), imag=inp(rnd((2,), out), out), Tout=t)])
case("LogicalNot", lambda: [raw.LogicalNot(x=inp(rnd(s, tf.bool))) for s in [(3, 2), (), (0,)]])
case("Exp/overflow", lambda: raw.Exp(x=inp([88.0, 89.0, -87.0, -104.0, 0.0])))
case("Tanh/saturated", lambda: raw.Tanh(x=inp([-20.0, -9.1, 9.1, 20.0, 1e-5, -1e-9])))
case("Sigmoid/saturated", lambda: raw.Sigmoid(x=inp([-100.0, -88.0, -20.0, 20.0, 88.0, 100.0])))
case("Softplus/edges", lambda: raw.Softplus(features=inp([-100.0, -20.0, -14.0, 14.0, 20.0, 100.0])))
case("Log1p/small", lambda: raw.Log1p(x=inp([1e-7, -1e-7, 1e-30, -1.0, -2.0])))
case("Expm1/small", lambda: raw.Expm1(x=inp([1e-7, -1e-7, 1e-30, -20.0, 20.0])))
case("Round/halves", lambda: [raw.Round(x=inp([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609.0])),
                              raw.Rint(x=inp([0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 8388609.0]))])
for big in [(1000, 7), (257,), (64, 64, 5)]:
    case("Exp/big_%s" % (big,), lambda big=big: [raw.Exp(x=inp(rnd(big))), raw.Tanh(x=inp(rnd(big))), raw.Relu(features=inp(rnd(big)))])
