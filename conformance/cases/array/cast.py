"""Cast between every pair of types, Bitcast, and the values at the edges of each type."""
import numpy as np

from registry import NUMBERS, allowed, case, inp, raw, rnd, short, tf

BASIC = NUMBERS + [tf.bool]


def edge_values(t):
    """Values whose conversion is defined: in range of the narrowest integer where it matters."""
    if t == tf.bool:
        return [True, False]
    if t.is_complex:
        return [0, 1 + 2j, -3.75 - 1j, 100.5]
    if t.is_floating:
        return [0.0, -0.0, 1.0, 1.5, 2.5, 3.999, 100.25, 0.1]
    return [0, 1, 2, 100, 127] if t.is_unsigned else [0, 1, -1, 100, -100, 127]


for a in BASIC:
    for b in BASIC:
        case("Cast/%s_to_%s" % (short(a), short(b)), lambda a=a, b=b: raw.Cast(x=inp(edge_values(a), a), DstT=b))
for a in (tf.float32, tf.float64):
    for b in (tf.int32, tf.int64, tf.int8, tf.int16, tf.float16, tf.bfloat16, tf.bool):
        case("Cast/negative_%s_to_%s" % (short(a), short(b)), lambda a=a, b=b: raw.Cast(
            x=inp([-0.5, -1.5, -2.999, -100.0], a), DstT=b))
for a in (tf.float32, tf.float64):
    for b in (tf.float16, tf.bfloat16, tf.float32, tf.float64, tf.bool, tf.complex64):
        case("Cast/special_%s_to_%s" % (short(a), short(b)), lambda a=a, b=b: raw.Cast(
            x=inp([np.inf, -np.inf, np.nan, 65504.0, 65520.0, 1e-8, 6e-8, 3.3e38, 1e-40], a), DstT=b))
for a, b in [(tf.int64, tf.int32), (tf.int32, tf.int8), (tf.int32, tf.uint8), (tf.int64, tf.uint32), (tf.int16, tf.int8),
             (tf.uint64, tf.int64), (tf.uint32, tf.int32), (tf.int32, tf.uint64), (tf.int64, tf.int16)]:
    case("Cast/wrap_%s_to_%s" % (short(a), short(b)), lambda a=a, b=b: raw.Cast(
        x=inp([a.max, a.min, 300, 200, a.max // 3], a), DstT=b))
for b in (tf.float16, tf.bfloat16, tf.float32):
    case("Cast/big_i64_to_" + short(b), lambda b=b: raw.Cast(
        x=inp([2**62 + 1, -2**53 - 1, 16777217, 33554433, 65519, 257], tf.int64), DstT=b))
for b in (tf.float32, tf.int32, tf.bool, tf.string):
    case("Cast/empty_to_" + short(b), lambda b=b: raw.Cast(x=inp(rnd((0, 3))), DstT=b))
    case("Cast/string_to_" + short(b), lambda b=b: raw.Cast(x=inp(["1", "2"]), DstT=b))
    case("Cast/scalar_to_" + short(b), lambda b=b: raw.Cast(x=inp(2.75), DstT=b))
case("Cast/truncate", lambda: raw.Cast(x=inp([1.0, 3.14159265, 1e-3, 1e30]), DstT=tf.bfloat16, Truncate=True))
case("Cast/truncate_f16", lambda: raw.Cast(x=inp([1.0, 3.14159265, 1e-3, 6e4]), DstT=tf.float16, Truncate=True))

for a in allowed("Bitcast"):
    for b in allowed("Bitcast", "type"):
        shape = (2, 3) if a.size >= b.size else (2, b.size // a.size)
        case("Bitcast/%s_to_%s" % (short(a), short(b)), lambda a=a, b=b, shape=shape: raw.Bitcast(
            input=inp(rnd(shape, a, 0, 100), a), type=b))
case("Bitcast/bad_last_dim", lambda: raw.Bitcast(input=inp(rnd((2, 3), tf.uint8), tf.uint8), type=tf.int32))
case("Bitcast/scalar_small", lambda: raw.Bitcast(input=inp(1, tf.uint8), type=tf.int32))
