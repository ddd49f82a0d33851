"""Quantization: real and simulated."""
import numpy as np

from registry import case, inp, raw, rnd, short, tf

VALUES = [-7.3, -1.5, -0.5, -0.27, -1e-3, 0, 1e-3, 0.1, 0.3, 0.5, 1.0, 1.5, 2.5, 3.7, 6.1, 100.0, -100.0]

for bits in (2, 4, 8, 16, 1, 17):
    for narrow in (True, False):
        for low, high in [(-6.0, 6.0), (-0.1, 6.3), (0.5, 3.0), (-3.0, -0.5), (1.0, -1.0)]:
            s = "%d_%s_%s_%s" % (bits, narrow, low, high)
            args = dict(num_bits=bits, narrow_range=narrow)
            ends = dict(min=low, max=high)
            case("FakeQuantWithMinMaxArgs/" + s, lambda args=args, ends=ends: raw.FakeQuantWithMinMaxArgs(inputs=inp(VALUES), **args, **ends))
            case("FakeQuantWithMinMaxArgsGradient/" + s, lambda args=args, ends=ends: raw.FakeQuantWithMinMaxArgsGradient(
                gradients=inp(rnd((17,))), inputs=inp(VALUES), **args, **ends))
            if low < high:
                def fed(low=low, high=high):
                    return dict(min=inp(low), max=inp(high))

                def channels(low=low, high=high):
                    return dict(min=inp([low, low * 2, 0.0]), max=inp([high, high * 3, 0.0]))
                case("FakeQuantWithMinMaxVars/" + s, lambda args=args, e=fed: raw.FakeQuantWithMinMaxVars(inputs=inp(VALUES), **args, **e()))
                case("FakeQuantWithMinMaxVarsGradient/" + s, lambda args=args, e=fed: list(raw.FakeQuantWithMinMaxVarsGradient(
                    gradients=inp(rnd((17,))), inputs=inp(VALUES), **args, **e())))
                case("FakeQuantWithMinMaxVarsPerChannel/" + s, lambda args=args, e=channels: raw.FakeQuantWithMinMaxVarsPerChannel(
                    inputs=inp(rnd((4, 2, 3), lo=-9, hi=9)), **args, **e()))
                case("FakeQuantWithMinMaxVarsPerChannelGradient/" + s, lambda args=args, e=channels: list(raw.FakeQuantWithMinMaxVarsPerChannelGradient(
                    gradients=inp(rnd((4, 3))), inputs=inp(rnd((4, 3), lo=-9, hi=9)), **args, **e())))
case("FakeQuantWithMinMaxVars/zero", lambda: raw.FakeQuantWithMinMaxVars(inputs=inp(VALUES), min=inp(0.0), max=inp(0.0)))
case("FakeQuantWithMinMaxVarsGradient/zero", lambda: list(raw.FakeQuantWithMinMaxVarsGradient(
    gradients=inp(rnd((17,))), inputs=inp(VALUES), min=inp(0.0), max=inp(0.0))))
case("FakeQuantWithMinMaxVars/rank", lambda: raw.FakeQuantWithMinMaxVars(inputs=inp(VALUES), min=inp([0.0]), max=inp(0.0)))
case("FakeQuantWithMinMaxVars/rank_max", lambda: raw.FakeQuantWithMinMaxVars(inputs=inp(VALUES), min=inp(0.0), max=inp([0.0])))
case("FakeQuantWithMinMaxVarsGradient/shapes", lambda: list(raw.FakeQuantWithMinMaxVarsGradient(
    gradients=inp(rnd((3,))), inputs=inp(VALUES), min=inp(0.0), max=inp(1.0))))
case("FakeQuantWithMinMaxArgsGradient/shapes", lambda: raw.FakeQuantWithMinMaxArgsGradient(gradients=inp(rnd((3,))), inputs=inp(VALUES)))
for a, lo, hi in [((2, 3), (2,), (3,)), ((2, 3), (3,), (2,)), ((2, 3), (), (3,)), ((0, 3), (3,), (3,))]:
    case("FakeQuantWithMinMaxVarsPerChannel/shapes_%s_%s_%s" % (a, lo, hi), lambda a=a, lo=lo, hi=hi: raw.FakeQuantWithMinMaxVarsPerChannel(
        inputs=inp(rnd(a)), min=inp(rnd(lo, lo=-3, hi=-1)), max=inp(rnd(hi, lo=1, hi=3))))

SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 3e38, -3e38, 1.0, -1.0, 0.3]
for low, high in [(-6.0, 6.0), (0.0, 6.0), (-np.inf, np.inf), (0.0, np.inf), (-np.inf, 0.0), (-3e38, 3e38), (-1e-40, 1e-40), (np.nan, 1.0), (-1.0, np.nan), (np.nan, np.nan),
                  (1.0, 1.0), (-1.0, -1.0), (2.0, -2.0), (np.inf, np.inf)]:
    def ends(low=low, high=high):
        return dict(min=inp(low), max=inp(high))
    def each(low=low, high=high):
        return dict(min=inp([low, -1.0, low]), max=inp([high, 1.0, high]))
    s = "special_%s_%s" % (low, high)
    case("FakeQuantWithMinMaxArgs/" + s, lambda low=low, high=high: raw.FakeQuantWithMinMaxArgs(inputs=inp(SPECIAL), min=low, max=high))
    case("FakeQuantWithMinMaxArgsGradient/" + s, lambda low=low, high=high: raw.FakeQuantWithMinMaxArgsGradient(
        gradients=inp(rnd((11,))), inputs=inp(SPECIAL), min=low, max=high))
    case("FakeQuantWithMinMaxVars/" + s, lambda e=ends: raw.FakeQuantWithMinMaxVars(inputs=inp(SPECIAL), **e()))
    case("FakeQuantWithMinMaxVarsGradient/" + s, lambda e=ends: list(raw.FakeQuantWithMinMaxVarsGradient(gradients=inp(rnd((11,))), inputs=inp(SPECIAL), **e())))
    case("FakeQuantWithMinMaxVarsGradient/gradients_" + s, lambda e=ends: list(raw.FakeQuantWithMinMaxVarsGradient(gradients=inp(SPECIAL), inputs=inp(rnd((11,), lo=-9, hi=9)), **e())))
    rows = [[v] * 3 for v in SPECIAL]
    case("FakeQuantWithMinMaxVarsPerChannel/" + s, lambda e=each, rows=rows: raw.FakeQuantWithMinMaxVarsPerChannel(inputs=inp(rows), **e()))
    case("FakeQuantWithMinMaxVarsPerChannelGradient/" + s, lambda e=each, rows=rows: list(raw.FakeQuantWithMinMaxVarsPerChannelGradient(
        gradients=inp(rnd((11, 3))), inputs=inp(rows), **e())))
    case("FakeQuantWithMinMaxVarsPerChannelGradient/gradients_" + s, lambda e=each, rows=rows: list(raw.FakeQuantWithMinMaxVarsPerChannelGradient(
        gradients=inp(rows), inputs=inp(rnd((11, 3), lo=-9, hi=9)), **e())))

for t in (tf.float32, tf.float64, tf.float16):
    for signed in (True, False):
        for bits in (2, 8, 20):
            for mode in ("HALF_TO_EVEN", "HALF_UP"):
                for given in (True, False):
                    for narrow in (True, False):
                        def build(t=t, signed=signed, bits=bits, mode=mode, given=given, narrow=narrow):
                            args = dict(input=inp(rnd((4, 5), t, -3 if signed else 0, 9), t), input_min=inp(-2.0 if signed else 0.0, t), input_max=inp(7.0, t),
                                        signed_input=signed, range_given=given, narrow_range=narrow)
                            return [raw.QuantizeAndDequantizeV2(num_bits=bits, round_mode=mode, **args), raw.QuantizeAndDequantizeV4(num_bits=bits, round_mode=mode, **args),
                                    raw.QuantizeAndDequantizeV3(num_bits=inp(bits), **args)]
                        case("QuantizeAndDequantize/%s_%s_%d_%s_%s_%s" % (short(t), signed, bits, mode, given, narrow), build)
    for axis in (0, 1, 2):
        for given in (True, False):
            n = (3, 2, 4)[axis]
            case("QuantizeAndDequantizeV2/axis_%s_%d_%s" % (short(t), axis, given), lambda t=t, axis=axis, given=given, n=n: raw.QuantizeAndDequantizeV2(
                input=inp(rnd((3, 2, 4), t), t), input_min=inp(rnd((n,), t, -3, -1), t), input_max=inp(rnd((n,), t, 1, 3), t), range_given=given, axis=axis))
        case("QuantizeAndDequantizeV4Grad/axis_%s_%d" % (short(t), axis), lambda t=t, n=n, axis=axis: list(raw.QuantizeAndDequantizeV4Grad(
            gradients=inp(rnd((3, 2, 4), t), t), input=inp(rnd((3, 2, 4), t), t), input_min=inp(rnd((n,), t, -2, -1), t),
            input_max=inp(rnd((n,), t, 1, 2), t), axis=axis)))
    case("QuantizeAndDequantizeV4Grad/" + short(t), lambda t=t: list(raw.QuantizeAndDequantizeV4Grad(
        gradients=inp(rnd((3, 4), t), t), input=inp(rnd((3, 4), t), t), input_min=inp(-1.0, t), input_max=inp(1.5, t))))
for what, more in dict(bits=dict(num_bits=0), bits_high=dict(num_bits=63), axis=dict(axis=3), range=dict(range_given=True, input_min=2.0, input_max=1.0),
                       vector=dict(range_given=True, input_min=[1.0, 2.0]), zero=dict(x=np.zeros(3)), empty=dict(x=np.zeros(0))).items():
    def build(more=more):
        more = dict(more)
        x, low, high = more.pop("x", rnd((3,))), more.pop("input_min", 0.0), more.pop("input_max", 1.0)
        return raw.QuantizeAndDequantizeV2(input=inp(x, tf.float32), input_min=inp(low), input_max=inp(high), **more)
    case("QuantizeAndDequantizeV2/" + what, build)

CODES = (tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32)
for t in CODES:
    for mode in ("MIN_COMBINED", "MIN_FIRST", "SCALED"):
        if t == tf.qint32 and mode != "MIN_FIRST":
            continue  # The highest number is no float, and TensorFlow makes the lowest of it.
        for low, high in [(-3.0, 5.0), (0.0, 5.0), (-5.0, 0.0), (1.0, 2.0), (0.0, 0.0), (2.0, 1.0)]:
            for rounding in ("HALF_AWAY_FROM_ZERO", "HALF_TO_EVEN"):
                def build(t=t, mode=mode, low=low, high=high, rounding=rounding):
                    out, a, b = raw.QuantizeV2(input=inp([-9, -3, -1.5, -0.5, 0, 0.5, 1.25, 3, 5, 9.5]), min_range=inp(low), max_range=inp(high),
                                               T=t, mode=mode, round_mode=rounding)
                    code = {tf.qint8: tf.int8, tf.quint8: tf.uint8, tf.qint16: tf.int16, tf.quint16: tf.uint16, tf.qint32: tf.int32}[t]
                    return [tf.bitcast(out, code), a, b, raw.Dequantize(input=out, min_range=a, max_range=b, mode=mode)]
                case("QuantizeV2/%s_%s_%s_%s_%s" % (t.name, mode, low, high, rounding), build, rtol=1e-4, atol=1e-4)
        for narrow in (True, False):
            for dtype in (tf.float32, tf.bfloat16):
                case("Dequantize/%s_%s_%s_%s" % (t.name, mode, narrow, short(dtype)), lambda t=t, mode=mode, narrow=narrow, dtype=dtype: raw.Dequantize(
                    input=tf.bitcast(inp([0, 1, 5, 100, 7], {"int8": tf.int8, "uint8": tf.uint8, "int16": tf.int16, "uint16": tf.uint16, "int32": tf.int32}[t.name[1:]]), t),
                    min_range=inp(-3.5), max_range=inp(5.0), mode=mode, narrow_range=narrow, dtype=dtype), rtol=1e-4)
    for mode in ("MIN_COMBINED", "SCALED", "MIN_FIRST") if t != tf.qint32 else ():
        def build(t=t, mode=mode):
            out, a, b = raw.QuantizeV2(input=inp(rnd((2, 3, 4)), shape=(2, 3, 4)), min_range=inp([-1.0, -2, 0]), max_range=inp([1.0, 3, 2]), T=t, mode=mode, axis=1)
            out.set_shape((2, 3, 4))
            return [a, b, raw.Dequantize(input=out, min_range=a, max_range=b, mode=mode, axis=1)]
        case("QuantizeV2/axis_%s_%s" % (t.name, mode), build, rtol=1e-4, atol=1e-4)
for what, low, high, axis in [("vector", [1.0, 2.0], 3.0, -1), ("counts", [0.0, 0.0], [1.0, 1.0], 1), ("scalar", 0.0, 1.0, 1)]:
    case("QuantizeV2/bad_" + what, lambda low=low, high=high, axis=axis: raw.QuantizeV2(
        input=inp(rnd((2, 3))), min_range=inp(low), max_range=inp(high), T=tf.quint8, axis=axis)[1])
    case("Dequantize/bad_" + what, lambda low=low, high=high, axis=axis: raw.Dequantize(
        input=tf.bitcast(inp(rnd((2, 3), tf.uint8), tf.uint8, (2, 3)), tf.quint8), min_range=inp(low), max_range=inp(high), axis=axis))
