"""Ops that copy, count or describe what flows by, and what a task says of itself."""
import os
import time

import numpy as np

from registry import ALL, FLOATS, INTS, SMALL_FLOATS, case, inp, raw, rnd, script, short, tf

for t in ALL:
    case("Copy/" + short(t), lambda t=t: raw.Copy(input=inp(rnd((2, 3), t), t), tensor_name="n"))
    case("CopyHost/" + short(t), lambda t=t: raw.CopyHost(input=inp(rnd((2, 3), t), t)))
    case("DebugIdentity/" + short(t), lambda t=t: raw.DebugIdentity(input=inp(rnd((2,), t), t), tensor_name="a:0"))
    case("DebugGradientIdentity/" + short(t), lambda t=t: raw.DebugGradientIdentity(input=inp(rnd((2,), t), t)))


@script("DebugGradientRefIdentity/assigned_through")
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable([1.0, 2.0], use_resource=False)
        through = raw.Assign(ref=raw.DebugGradientRefIdentity(input=v._ref()), value=tf.constant([5.0, 6.0]))
        sess = env.session(g)
        sess.run(v.initializer)
        return sess.run(through), sess.run(v)


SPECIAL = [np.nan, 1.0, -np.inf, np.inf, np.nan, 0.0, -2.5]
for t in FLOATS + SMALL_FLOATS + INTS + [tf.int8, tf.uint8, tf.bool, tf.string]:
    values = SPECIAL if t.is_floating else [1, 0, 3]
    case("DebugNanCount/" + short(t), lambda t=t, v=values: raw.DebugNanCount(input=inp(v, t) if t != tf.string else inp(["a"]), tensor_name="a:0"))
    case("DebugNumericSummary/" + short(t), lambda t=t, v=values: raw.DebugNumericSummary(input=inp(v, t) if t != tf.string else inp(["a"]), tensor_name="a:0"))
for name, values in (("empty", []), ("matrix", [[1.0, 2.0], [3.0, -4.0]]), ("scalar", 7.5), ("only_nan", [np.nan]), ("zeros", [0.0, -0.0])):
    case("DebugNumericSummary/" + name, lambda v=values: raw.DebugNumericSummary(input=inp(v, tf.float32), tensor_name="a:0"))
    case("DebugNanCount/" + name, lambda v=values: raw.DebugNanCount(input=inp(v, tf.float32), tensor_name="a"))
case("DebugNumericSummary/bounds", lambda: raw.DebugNumericSummary(input=inp([1.0, 5.0, -7.0, 2.0]), tensor_name="a:0", lower_bound=-2.0, upper_bound=2.0))
case("DebugNumericSummary/mute", lambda: raw.DebugNumericSummary(input=inp([1.0, 5.0]), tensor_name="a:0", mute_if_healthy=True))
case("DebugNumericSummary/mute_sick", lambda: raw.DebugNumericSummary(input=inp([1.0, np.nan]), tensor_name="a:0", mute_if_healthy=True))
case("DebugNumericSummary/bad_bounds", lambda: raw.DebugNumericSummary(input=inp([1.0]), tensor_name="a:0", lower_bound=3.0, upper_bound=2.0))


@script("Timestamp/now")
def _(env):
    with tf.Graph().as_default() as g:
        a = raw.Timestamp()
        sess = env.session(g)
        before, got, later, after = time.time(), sess.run(a), sess.run(a), time.time()
        return before - 1 <= got <= later <= after + 1, got.dtype


case("SyncDevice/op", lambda: raw.SyncDevice())
case("DebugNanCount/no_name", lambda: raw.DebugNanCount(input=inp([1.0])))
case("DebugNanCount/bad_slot", lambda: raw.DebugNanCount(input=inp([1.0]), tensor_name="a:b"))
case("DebugNanCount/two_slots", lambda: raw.DebugNanCount(input=inp([1.0]), tensor_name="a:1:2"))


@script("ImmutableConst/file")
def _(env):
    path = os.path.join(env.tmp, "data")
    with open(path, "wb") as f:
        f.write(np.arange(6, dtype=np.float32).tobytes())
    out = []
    for dtype, shape, name in ((tf.float32, [2, 3], path), (tf.int32, [4], path), (tf.float32, [0], path), (tf.float32, [7], path), (tf.float32, [2], path + ".none"), (tf.string, [1], path)):
        with tf.Graph().as_default() as g:
            const = raw.ImmutableConst(dtype=dtype, shape=shape, memory_region_name=name)
            out.append(env.error(lambda: env.session(g).run(const)))
    return out


@script("CompositeTensorVariant/there_and_back")
def _(env):
    from tensorflow.python.ops import composite_tensor_ops
    with tf.Graph().as_default() as g:
        ragged = tf.ragged.constant([[1, 2], [], [3]])
        variant = composite_tensor_ops.composite_tensor_to_variants(ragged)
        back = composite_tensor_ops.composite_tensor_from_variant(variant, ragged._type_spec)
        sparse = tf.sparse.from_dense([[0, 1.0], [2.0, 0]])
        again = composite_tensor_ops.composite_tensor_from_variant(composite_tensor_ops.composite_tensor_to_variants(sparse), sparse._type_spec)
        sess = env.session(g)
        out = [sess.run(back.values), sess.run(back.row_splits), sess.run(again.values), sess.run(again.indices)]
        for wrong in (tf.RaggedTensorSpec([None, None], tf.float32), tf.SparseTensorSpec([None, None], tf.float32)):
            out.append(env.error(lambda: [sess.run(v) for v in tf.nest.flatten(composite_tensor_ops.composite_tensor_from_variant(variant, wrong), expand_composites=True)]))
        return out

