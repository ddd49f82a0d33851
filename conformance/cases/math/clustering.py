"""Where k-means begins, random places in ranges, rounding by chance, and the convolution that tells its rank itself."""
import numpy as np

from registry import case, const, inp, raw, rnd, tf
from tensorflow.python.framework import op_def_library

L = tf.int64
POINTS = (40, 3)
for seed in (1, 7, 2 ** 40 + 5):
    for retries in (0, 1, -1):
        case("KmeansPlusPlusInitialization/%d_%d" % (seed, retries), lambda a=(seed, retries): op_def_library.apply_op(
            "KmeansPlusPlusInitialization", points=inp(rnd(POINTS)), num_to_sample=const(6, L), seed=const(a[0], L), num_retries_per_sample=const(a[1], L)))
    case("KMC2ChainInitialization/%d" % seed, lambda seed=seed: op_def_library.apply_op(
        "KMC2ChainInitialization", distances=inp(np.abs(rnd((200,)))), seed=const(seed, L)))
for name, points, count in (("too_many", (3, 2), 4), ("none", (3, 2), 0), ("no_points", (0, 2), 1), ("rank", (3,), 1)):
    case("KmeansPlusPlusInitialization/wrong_" + name, lambda points=points, count=count: op_def_library.apply_op(
        "KmeansPlusPlusInitialization", points=inp(rnd(points)), num_to_sample=inp(count, L), seed=inp(1, L), num_retries_per_sample=inp(0, L)))
for t in (tf.int32, tf.int64, tf.uint32, tf.uint64):
    for rounds in (4, 8):
        case("RandomIndexShuffle/%s_%d" % (t.name, rounds), lambda t=t, rounds=rounds: raw.RandomIndexShuffle(
            index=inp(np.arange(30), t), seed=inp([5, 6, 7], t), max_index=inp(70000, t, ()), rounds=rounds))
case("RandomIndexShuffle/rows", lambda: raw.RandomIndexShuffle(
    index=inp([3, 0, 9], L), seed=inp([[1, 2, 3], [4, 5, 6], [7, 8, 9]], L), max_index=inp([3, 1, 2 ** 40], L)))
case("RandomIndexShuffle/wrong_seed", lambda: raw.RandomIndexShuffle(index=inp([3, 0], L), seed=inp([1, 2], L), max_index=inp([3, 1], L)))
for t in (tf.half, tf.bfloat16, tf.float32, tf.float64):
    for to in (tf.int8, tf.int16, tf.int32):
        case("StochasticCastToInt/%s_%s" % (t.name, to.name), lambda t=t, to=to: op_def_library.apply_op(
            "StochasticCastToInt", input=inp(rnd((5, 7), t, -200, 200), t), key=const([7], tf.uint64), counter=const([1, 2], tf.uint64),
            alg=const(1), Tout=to))
case("StochasticCastToInt/ends", lambda: op_def_library.apply_op(
    "StochasticCastToInt", input=inp([np.nan, np.inf, -np.inf, 1e30, -1e30, 127.5, 3.0, 2.5]), key=const([7], tf.uint64),
    counter=const([1, 2], tf.uint64), alg=const(1), Tout=tf.int8))
for name, x, f in (("2d", (2, 6, 5, 3), (3, 2, 3, 4)), ("3d", (1, 4, 5, 6, 2), (2, 3, 2, 2, 3))):
    for padding in ("SAME", "VALID"):
        case("Conv/%s_%s" % (name, padding), lambda a=(x, f, padding): op_def_library.apply_op(
            "Conv", input=inp(rnd(a[0])), filter=inp(rnd(a[1])), strides=[1] * len(a[0]), padding=a[2], explicit_paddings=[],
            data_format="CHANNELS_LAST", dilations=[], batch_dims=1, groups=1), rtol=1e-4, atol=1e-4)
