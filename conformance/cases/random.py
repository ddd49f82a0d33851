"""Random ops: the very bits TensorFlow draws for given seeds, and the same sequence over runs."""
import numpy as np

from registry import ALL, INTS, allowed, case, inp, raw, rnd, short, steps, tf

EXACT = dict(rtol=0, atol=0)
SEEDS = [(1, 0), (0, 1), (42, 7), (-3, 2**40 + 5)]
SHAPES = [[5], [2, 3], [], [0, 3], [257], [1000, 3]]

for op in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
    for t in allowed(op, "dtype"):
        for seed, seed2 in SEEDS:
            case("%s/%s_%d_%d" % (op, short(t), seed, seed2), lambda op=op, t=t, seed=seed, seed2=seed2: steps(*[
                [getattr(raw, op)(shape=inp(s, it), dtype=t, seed=seed, seed2=seed2) for s in ([5], [2, 3], [64])
                 for it in INTS]] * 3), **EXACT)
        for shape in SHAPES:
            case("%s/%s_shape_%s" % (op, short(t), shape), lambda op=op, t=t, shape=shape: getattr(raw, op)(
                shape=inp(shape, tf.int32), dtype=t, seed=87654321, seed2=4), **EXACT)
    for shape in ([-1], [[2]], 3):
        case("%s/bad_%s" % (op, shape), lambda op=op, shape=shape: getattr(raw, op)(
            shape=inp(shape, tf.int32), dtype=tf.float32, seed=1, seed2=2))

    def sequence(op=op):
        fetch = getattr(raw, op)(shape=inp([7]), dtype=tf.float32, seed=3, seed2=4)
        return steps(*[fetch] * 5)
    case("%s/sequence" % op, sequence, **EXACT)

    def two_nodes(op=op):
        a, b = (getattr(raw, op)(shape=inp([4]), dtype=tf.float32, seed=9, seed2=s) for s in (1, 2))
        return steps([a, b], a, b, [b, a])
    case("%s/two_nodes" % op, two_nodes, **EXACT)
    case("%s/long_then_short" % op, lambda op=op: [steps(f, f)
                                                  for f in [getattr(raw, op)(shape=inp([3001]), dtype=tf.float32, seed=5, seed2=6)]][0], **EXACT)

for t in allowed("RandomUniformInt", "Tout"):
    for lo, hi in [(0, 10), (-5, 5), (0, 1), (t.min, t.max), (3, 2**31 - 1)]:
        case("RandomUniformInt/%s_%d_%d" % (short(t), lo, hi), lambda t=t, lo=lo, hi=hi: [steps(f, f) for f in [raw.RandomUniformInt(
            shape=inp([17]), minval=inp(lo, t), maxval=inp(hi, t), seed=11, seed2=12)]][0])
    for lo, hi in [(5, 5), (6, 5)]:
        case("RandomUniformInt/%s_bad_%d_%d" % (short(t), lo, hi), lambda t=t, lo=lo, hi=hi: raw.RandomUniformInt(
            shape=inp([3]), minval=inp(lo, t), maxval=inp(hi, t), seed=11, seed2=12))
    case("RandomUniformInt/%s_vector_bound" % short(t), lambda t=t: raw.RandomUniformInt(
        shape=inp([3]), minval=inp([1], t), maxval=inp(4, t), seed=1))
for t in ALL:
    case("RandomShuffle/" + short(t), lambda t=t: [steps(f, f, f) for f in [raw.RandomShuffle(
        value=inp(rnd((9, 2), t), t), seed=21, seed2=22)]][0], **EXACT)
for shape in [(), (0,), (1,), (2,), (100,), (3, 0), (10, 2, 2)]:
    case("RandomShuffle/%s" % (shape,), lambda shape=shape: raw.RandomShuffle(value=inp(rnd(shape)), seed=5, seed2=6), **EXACT)
for t in allowed("Multinomial"):
    for out in INTS:
        case("Multinomial/%s_%s" % (short(t), short(out)), lambda t=t, out=out: [steps(f, f) for f in [raw.Multinomial(
            logits=inp(rnd((3, 5), t), t), num_samples=inp(20), seed=31, seed2=32, output_dtype=out)]][0])
for name, logits, n in [("one_class", np.zeros((2, 1)), 4), ("zero_samples", np.zeros((2, 3)), 0), ("no_batch", np.zeros((0, 3)), 4),
                        ("no_classes", np.zeros((2, 0)), 4), ("rank", np.zeros((3,)), 4), ("negative", np.zeros((2, 3)), -1),
                        ("certain", np.array([[-1e9, 0, -1e9]]), 10), ("inf", np.array([[-np.inf, 0, 1.0]]), 10)]:
    case("Multinomial/" + name, lambda logits=logits, n=n: raw.Multinomial(
        logits=inp(logits.astype(np.float32)), num_samples=inp(n), seed=1, seed2=2))
for t in allowed("RandomGamma"):
    case("RandomGamma/" + short(t), lambda t=t: [steps(f, f) for f in [raw.RandomGamma(
        shape=inp([7]), alpha=inp([0.3, 1.0, 2.5, 20.0], t), seed=41, seed2=42)]][0], rtol=1e-6 if t.size > 2 else 2e-3, atol=0)
for t in allowed("ParameterizedTruncatedNormal", "dtype"):
    case("ParameterizedTruncatedNormal/" + short(t), lambda t=t: raw.ParameterizedTruncatedNormal(
        shape=inp([2, 50]), means=inp(0.5, t), stdevs=inp(1.5, t), minvals=inp(-1.0, t), maxvals=inp(2.0, t), seed=3, seed2=5),
        rtol=1e-5 if t.size > 2 else 2e-2, atol=1e-6 if t.size > 2 else 1e-2)
for r in allowed("RandomPoissonV2", "R"):
    case("RandomPoissonV2/" + short(r), lambda r=r: raw.RandomPoissonV2(
        shape=inp([6]), rate=inp([1, 4, 30], r), seed=51, seed2=52, dtype=tf.int64))

for op in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
    for t in allowed(op, "dtype"):
        for seed in ([1, 2], [-7, 2**31 - 1], [0, 0]):
            case("%s/%s_%s" % (op, short(t), seed), lambda op=op, t=t, seed=seed: [
                getattr(raw, op)(shape=inp(s, tf.int32), seed=inp(seed, st), dtype=t) for s in SHAPES for st in INTS], **EXACT)
    for seed in ([1], [1, 2, 3], [[1, 2]], 1):
        case("%s/bad_seed_%s" % (op, seed), lambda op=op, seed=seed: getattr(raw, op)(
            shape=inp([3]), seed=inp(seed, tf.int64), dtype=tf.float32))
    case("%s/repeats" % op, lambda op=op: [steps(f, f) for f in [getattr(raw, op)(
        shape=inp([9]), seed=inp([5, 6]), dtype=tf.float32)]][0], **EXACT)
    v2 = op + "V2"
    for t in allowed(v2, "dtype"):
        for key, counter in [([3], [1, 2]), ([2**63], [2**64 - 1, 2**64 - 1])]:
            for alg in (1, 2, 3):
                case("%s/%s_%s_alg%d" % (v2, short(t), key, alg), lambda v2=v2, t=t, key=key, counter=counter, alg=alg: [
                    getattr(raw, v2)(shape=inp(s, tf.int32), key=inp(key, tf.uint64, [1]), counter=inp(counter, tf.uint64, [2]),
                                     alg=inp(alg), dtype=t) for s in ([5], [2, 3], [100], [0])], **EXACT)
for t in allowed("StatelessRandomUniformInt", "dtype"):
    for lo, hi in [(0, 10), (-5, 5), (t.min, t.max), (5, 5), (6, 5)]:
        case("StatelessRandomUniformInt/%s_%d_%d" % (short(t), lo, hi), lambda t=t, lo=lo, hi=hi: raw.StatelessRandomUniformInt(
            shape=inp([17]), seed=inp([3, 4]), minval=inp(lo, t), maxval=inp(hi, t)))
for t in allowed("StatelessRandomUniformIntV2", "dtype"):
    case("StatelessRandomUniformIntV2/" + short(t), lambda t=t: raw.StatelessRandomUniformIntV2(
        shape=inp([17]), key=inp([9], tf.uint64, [1]), counter=inp([0, 0], tf.uint64, [2]), alg=inp(1), minval=inp(2, t), maxval=inp(1000, t)))
for t in allowed("StatelessRandomUniformFullInt", "dtype"):
    case("StatelessRandomUniformFullInt/" + short(t), lambda t=t: raw.StatelessRandomUniformFullInt(
        shape=inp([17]), seed=inp([3, 4]), dtype=t))
    case("StatelessRandomUniformFullIntV2/" + short(t), lambda t=t: raw.StatelessRandomUniformFullIntV2(
        shape=inp([17]), key=inp([9], tf.uint64, [1]), counter=inp([0, 0], tf.uint64, [2]), alg=inp(1), dtype=t))
case("StatelessMultinomial", lambda: raw.StatelessMultinomial(logits=inp(rnd((3, 5))), num_samples=inp(20), seed=inp([1, 2])))
case("StatelessRandomGetKeyCounter", lambda: [list(raw.StatelessRandomGetKeyCounter(seed=inp(s, tf.int64))) for s in ([1, 2], [-1, 2**60])])
case("StatelessRandomGetKeyCounterAlg", lambda: list(raw.StatelessRandomGetKeyCounterAlg(seed=inp([1, 2]))))
case("StatelessRandomGetAlg", lambda: raw.StatelessRandomGetAlg())


def graph_seed():
    tf.set_random_seed(1234)
    nodes = [tf.random_uniform([3]), tf.random_normal([3], seed=5), tf.truncated_normal([3]), tf.random_shuffle(tf.range(6)),
             tf.random_uniform([4], 0, 100, tf.int32)]
    return steps(nodes, nodes)


case("python/graph_seed", graph_seed, **EXACT)
for name, make in [("glorot_uniform", tf.glorot_uniform_initializer), ("glorot_normal", tf.glorot_normal_initializer),
                   ("he", lambda seed: tf.initializers.he_normal(seed=seed)), ("orthogonal", None),
                   ("variance_scaling", tf.variance_scaling_initializer), ("random_normal", tf.random_normal_initializer)]:
    if make is not None:
        case("python/initializer_" + name, lambda make=make: make(seed=3)([5, 4]), **EXACT)
