"""Random ops: the very bits TensorFlow draws for given seeds, and the same sequence over runs."""
import numpy as np

from registry import ALL, INTS, allowed, case, const, init, inp, raw, rnd, short, steps, tf

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


def repeated(build, n=3):
    """The same node, run `n` times: its generator goes on where it stopped."""
    fetch = build()
    fetch = list(fetch) if isinstance(fetch, tuple) else fetch
    return steps(*[fetch] * n)


NORMAL = dict(rtol=1e-5, atol=1e-6)
for name, lo, hi in [("wide", -2.0, 2.0), ("narrow", -1.0, 1.0), ("tail", 3.0, 5.0), ("sliver", 1.0, 1.1), ("below", -np.inf, -1.0), ("above", 2.0, np.inf)]:
    for t in (tf.float32, tf.float64):
        case("ParameterizedTruncatedNormal/%s_%s" % (name, short(t)), lambda t=t, lo=lo, hi=hi: repeated(lambda: raw.ParameterizedTruncatedNormal(
            shape=inp([2, 7]), means=inp(0, t), stdevs=inp(1, t), minvals=inp(lo, t), maxvals=inp(hi, t), seed=3, seed2=5)), **NORMAL)
case("ParameterizedTruncatedNormal/rows", lambda: repeated(lambda: raw.ParameterizedTruncatedNormal(
    shape=inp([3, 4]), means=inp([0.0, 10.0, -5.0]), stdevs=inp([1.0, 2.0, 0.5]), minvals=inp([-2.0, 9.0, -6.0]), maxvals=inp([2.0, 10.0, -5.5]), seed=3, seed2=5)), **NORMAL)
for name, args in [("deviation", (0.0, -1.0, -1.0, 1.0)), ("order", (0.0, 1.0, 1.0, 1.0)), ("unbounded", (0.0, 1.0, -np.inf, np.inf)), ("length", ([0.0] * 3, 1.0, -1.0, 1.0)),
                   ("rank", ([[0.0]], 1.0, -1.0, 1.0))]:
    case("ParameterizedTruncatedNormal/bad_" + name, lambda a=args: raw.ParameterizedTruncatedNormal(
        shape=inp([2, 3]), means=inp(a[0], tf.float32), stdevs=inp(a[1]), minvals=inp(a[2]), maxvals=inp(a[3]), seed=1, seed2=2))
for shape in ([], [-1], 3):
    case("ParameterizedTruncatedNormal/shape_%s" % shape, lambda shape=shape: raw.ParameterizedTruncatedNormal(
        shape=inp(shape, tf.int32), means=inp(0.0), stdevs=inp(1.0), minvals=inp(-1.0), maxvals=inp(1.0), seed=1, seed2=2))
for out in allowed("RandomPoissonV2", "dtype"):
    case("RandomPoissonV2/out_" + short(out), lambda out=out: repeated(lambda: raw.RandomPoissonV2(
        shape=inp([4]), rate=inp([0.5, 9.9, 10.0, 300.0], tf.float32), seed=51, seed2=52, dtype=out)))
case("RandomPoissonV2/edge", lambda: raw.RandomPoissonV2(shape=inp([2]), rate=inp([0.0, np.inf, 1e9]), seed=1, seed2=2, dtype=tf.float64))
case("RandomGamma/edge", lambda: raw.RandomGamma(shape=inp([2]), alpha=inp([-1.0, 0.0, np.nan, 1e6]), seed=1, seed2=2), rtol=1e-6)
case("RandomGamma/bad_shape", lambda: raw.RandomGamma(shape=inp(3), alpha=inp(1.0), seed=1, seed2=2))
for op, arg in (("StatelessRandomGammaV2", "alpha"), ("StatelessRandomPoisson", "lam")):
    kw = {} if arg == "alpha" else dict(dtype=tf.int32)
    case(op, lambda op=op, arg=arg, kw=kw: [getattr(raw, op)(shape=inp(s), seed=inp([1, 2]), **{arg: inp(v, tf.float32)}, **kw)
                                            for s, v in (([4], 3.0), ([4, 2], [3.0, 20.0]), ([3, 2, 2], [[0.5, 1.0], [2.0, 12.0]]))], rtol=1e-6)
    case(op + "/bad", lambda op=op, arg=arg, kw=kw: getattr(raw, op)(shape=inp([4, 3]), seed=inp([1, 2]), **{arg: inp([3.0, 20.0])}, **kw))
case("StatelessRandomGammaV3", lambda: raw.StatelessRandomGammaV3(shape=inp([4, 2]), key=inp([1], tf.uint64, [1]), counter=inp([1, 2], tf.uint64, [2]),
                                                                alg=inp(1), alpha=inp([3.0, 20.0])), rtol=1e-6)
case("StatelessShuffle", lambda: [raw.StatelessShuffle(value=inp(rnd(s)), key=inp([1], tf.uint64, [1]), counter=inp([1, 2], tf.uint64, [2]), alg=inp(1))
                                  for s in ((10,), (7, 2), (), (1,), (0,))])
for bad in (dict(key=[1, 2]), dict(counter=[[1, 2]]), dict(alg=0), dict(alg=[1])):
    case("StatelessRandomUniformV2/bad_%s" % bad, lambda bad=bad: raw.StatelessRandomUniformV2(
        shape=inp([2]), key=inp(bad.get("key", [1]), tf.uint64), counter=inp(bad.get("counter", [1, 2]), tf.uint64), alg=inp(bad.get("alg", 1))))

TRUE = [[1], [2], [7]]
for unique in (False, True):
    for op in ("UniformCandidateSampler", "LogUniformCandidateSampler", "LearnedUnigramCandidateSampler", "ThreadUnsafeUnigramCandidateSampler"):
        case("%s/%s" % (op, unique), lambda op=op, unique=unique: repeated(lambda: getattr(raw, op)(
            true_classes=inp(TRUE, tf.int64), num_true=1, num_sampled=6, unique=unique, range_max=10, seed=61, seed2=62)))
    case("FixedUnigramCandidateSampler/%s" % unique, lambda unique=unique: repeated(lambda: raw.FixedUnigramCandidateSampler(
        true_classes=inp([[1], [2]], tf.int64), num_true=1, num_sampled=3, unique=unique, range_max=6, unigrams=[1.0, 2.0, 3.0, 4.0],
        num_reserved_ids=2, distortion=0.75, seed=61, seed2=62)))
    case("AllCandidateSampler/%s" % unique, lambda unique=unique: list(raw.AllCandidateSampler(
        true_classes=inp(TRUE, tf.int64), num_true=1, num_sampled=8, unique=unique, seed=1, seed2=2)))
case("LogUniformCandidateSampler/large", lambda: repeated(lambda: raw.LogUniformCandidateSampler(
    true_classes=inp(rnd((20, 3), tf.int64, 0, 9999), tf.int64), num_true=3, num_sampled=64, unique=True, range_max=10000, seed=7, seed2=8)))
for name, kw in [("range", dict(num_sampled=11)), ("columns", dict(num_true=2)), ("rank", dict(true=[1])), ("outside", dict(true=[[10]])), ("negative", dict(true=[[-1]]))]:
    case("UniformCandidateSampler/bad_" + name, lambda kw=kw: list(raw.UniformCandidateSampler(
        true_classes=inp(kw.get("true", TRUE), tf.int64), num_true=kw.get("num_true", 1), num_sampled=kw.get("num_sampled", 4), unique=True, range_max=10, seed=1, seed2=2)))
for name, kw in [("none", {}), ("size", dict(unigrams=[1.0, 2.0])), ("both", dict(unigrams=[1.0], vocab_file="/none")), ("file", dict(vocab_file="/none"))]:
    case("FixedUnigramCandidateSampler/bad_" + name, lambda kw=kw: list(raw.FixedUnigramCandidateSampler(
        true_classes=inp(TRUE, tf.int64), num_true=1, num_sampled=2, unique=False, range_max=10, seed=1, seed2=2, **kw)))
case("ComputeAccidentalHits", lambda: list(raw.ComputeAccidentalHits(true_classes=inp([[1, 2], [3, 4]], tf.int64), sampled_candidates=inp([2, 3, 2, 9, 4], tf.int64), num_true=2)))
case("ComputeAccidentalHits/columns", lambda: list(raw.ComputeAccidentalHits(true_classes=inp([[1, 2]], tf.int64), sampled_candidates=inp([2], tf.int64), num_true=1)))
case("ComputeAccidentalHits/rank", lambda: list(raw.ComputeAccidentalHits(true_classes=inp([[1, 2]], tf.int64), sampled_candidates=inp([[2]], tf.int64), num_true=2)))


def generator(build, state=(5, 6, 7), n=2):
    """An op on a generator's state, and the state it leaves."""
    handle = raw.VarHandleOp(dtype=tf.int64, shape=[len(state)])
    init(raw.AssignVariableOp(resource=handle, value=const(np.array(state, np.int64))))
    fetch = build(handle)
    with tf.control_dependencies([fetch]):
        after = raw.ReadVariableOp(resource=handle, dtype=tf.int64)
    return steps(*[[after] if isinstance(fetch, tf.Operation) else [fetch, after]] * n)


for op in ("StatefulUniform", "StatefulStandardNormalV2", "StatefulTruncatedNormal"):
    for t in (tf.float16, tf.float32, tf.float64):
        case("%s/%s" % (op, short(t)), lambda op=op, t=t: generator(lambda h: getattr(raw, op)(resource=h, algorithm=inp(1, tf.int64), shape=inp([5]), dtype=t)), **EXACT)
for t in INTS:
    case("StatefulUniformInt/" + short(t), lambda t=t: generator(lambda h: raw.StatefulUniformInt(
        resource=h, algorithm=inp(1, tf.int64), shape=inp([5]), minval=inp(1, t), maxval=inp(100, t))))
for t in (tf.int32, tf.int64, tf.uint32, tf.uint64):
    case("StatefulUniformFullInt/" + short(t), lambda t=t: generator(lambda h: raw.StatefulUniformFullInt(resource=h, algorithm=inp(1, tf.int64), shape=inp([5]), dtype=t)))
for alg in (0, 1, 2, 3):
    case("RngReadAndSkip/%d" % alg, lambda alg=alg: generator(lambda h: raw.RngReadAndSkip(resource=h, alg=inp(alg), delta=inp(10, tf.uint64))))
    case("RngSkip/%d" % alg, lambda alg=alg: generator(lambda h: raw.RngSkip(resource=h, algorithm=inp(alg, tf.int64), delta=inp(-10, tf.int64))))
case("StatefulUniform/short_state", lambda: generator(lambda h: raw.StatefulUniform(resource=h, algorithm=inp(1, tf.int64), shape=inp([5])), state=(1, 2)))

for t in (tf.float16, tf.float32, tf.float64):
    for out in (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64):
        case("StatelessRandomBinomial/%s_%s" % (short(t), short(out)), lambda t=t, out=out: raw.StatelessRandomBinomial(
            shape=inp([4, 3, 5]), seed=inp([7, 8]), counts=inp([[5.0], [100.0], [0.0]], t), probs=inp([0.1, 0.5, 0.9, 0.0, 1.0], t), dtype=out))
for what, shape, counts, probs in [("shape", [4], (2,), (2,)), ("batch", [2, 2], (2,), (3,)), ("rank", 3, (3,), (3,)), ("none", [0, 2], (2,), (2,)), ("scalar", [], (), ())]:
    case("StatelessRandomBinomial/" + what, lambda shape=shape, counts=counts, probs=probs: raw.StatelessRandomBinomial(
        shape=inp(shape, tf.int32), seed=inp([7, 8]), counts=inp(rnd(counts, tf.float64, 1, 9)), probs=inp(rnd(probs, tf.float64, 0, 1))))


def drawn():
    state = tf.Variable([1, 2, 3], dtype=tf.int64, use_resource=True)
    init(state.initializer)
    draw = raw.StatefulRandomBinomial(resource=state.handle, algorithm=inp(1, tf.int64), shape=inp([3, 2]), counts=inp([20.0, 80.0], tf.float64),
                                      probs=inp([0.3, 0.6], tf.float64))
    # Only one: TensorFlow loses the update of a state that its initial value still shares.
    return draw


case("StatefulRandomBinomial/drawn", drawn)
for t in (tf.float32, tf.float64):
    case("RandomGammaGrad/" + short(t), lambda t=t: [raw.RandomGammaGrad(alpha=inp(rnd((20,), t, 0.05, 8), t), sample=inp(rnd((20,), t, 0.01, 12), t)),
                                                    raw.RandomGammaGrad(alpha=inp([0.5, 100, 1000.0], t), sample=inp([0.1, 100, 1010], t)),
                                                    raw.RandomGammaGrad(alpha=inp([[0.5], [2.0]], t), sample=inp([0.1, 1.0, 3.0], t))], rtol=1e-3, atol=1e-6)
