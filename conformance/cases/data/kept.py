"""Datasets kept in folders, elements by their numbers, and statistics of pipelines."""
import glob
import os

import numpy as np

from registry import const, raw, script, tf
from tensorflow.python.data.ops import dataset_ops

I, L, S = tf.int32, tf.int64, tf.string
D = tf.data.Dataset
V2 = dataset_ops.DatasetV2


def drain(env, dataset, n=40, twice=False):
    """All elements, errors included; with `twice` of two walks."""
    it = tf.data.make_initializable_iterator(dataset)
    element = it.get_next()
    out = []
    with env.session() as sess:
        for _ in range(2 if twice else 1):
            out.append(env.error(lambda: sess.run(it.initializer)))
            for _ in range(n):
                got = env.error(lambda: sess.run(tf.nest.flatten(element)))
                out.append(got)
                if getattr(got, "kind", ""):
                    break
    return out


def words(n=9):
    return D.range(n).map(lambda i: (i, tf.strings.as_string(i * 11), tf.fill([2, i], tf.cast(i, tf.float32))))


def save(env, dataset, path, **kw):
    with env.session() as sess:
        return env.error(lambda: sess.run(dataset.save(path, **kw)) is None)


SPEC = (tf.TensorSpec([], L), tf.TensorSpec([], S), tf.TensorSpec([2, None], tf.float32))
for how in (None, "GZIP"):
    @script("SaveDataset/%s" % how)
    def saved(env, how=how):
        path = os.path.join(env.tmp, "kept")
        out = [save(env, words(), path, compression=how)]
        files = sorted(os.path.relpath(f, path) for f in glob.glob(path + "/*/*/*"))
        out.append(["/".join(f.split("/")[1:]) for f in files])
        loaded = D.load(path, element_spec=SPEC, compression=how)
        with env.session() as sess:
            out.append(env.error(lambda: sess.run(tf.data.experimental.cardinality(loaded))))
        return out + drain(env, loaded)

    # What one side wrote the other reads: the second session is in process.
    @script("LoadDataset/of_the_other_%s" % how)
    def crossed(env, how=how):
        path = os.path.join(env.tmp, "kept")
        save(env, words(), path, compression=how, shard_func=lambda i, *_: i % 3)
        with tf.Graph().as_default(), tf.Session() as here:
            element = tf.data.make_one_shot_iterator(D.load(path, element_spec=SPEC, compression=how)).get_next()
            got = [here.run(element) for _ in range(9)]
        back = os.path.join(env.tmp, "back")
        with tf.Graph().as_default(), tf.Session() as here:
            here.run(words().save(back, compression=how))
        return sorted(int(g[0]) for g in got), drain(env, D.load(back, element_spec=SPEC, compression=how))


@script("LoadDataset/missing")
def missing(env):
    spec = tf.TensorSpec([], L)
    return drain(env, D.load(os.path.join(env.tmp, "nothing"), element_spec=spec))


for how in ("AUTO", "GZIP", None):
    @script("SnapshotDatasetV2/%s" % how)
    def snapshot(env, how=how):
        path = os.path.join(env.tmp, "shot")
        out = drain(env, words(6).snapshot(path, compression=how), twice=True)
        # Each run's folder has a random name, and the pipeline's is each side's own.
        return out, sorted("/".join(f.split("/")[-2:]) for f in glob.glob(path + "/*/*/*/*"))


@script("SnapshotDatasetV2/functions")
def functions(env):
    path = os.path.join(env.tmp, "shot")
    dataset = words(8).snapshot(path, shard_func=lambda i, *_: i % 2, reader_func=lambda d: d.interleave(lambda x: x, cycle_length=2))
    return drain(env, dataset, twice=True), len(glob.glob(path + "/*/*/*.shard"))


def at(env, dataset, indices):
    from tensorflow.python.data.experimental.ops import random_access
    tensors = [random_access.at(dataset, const(i, L)) for i in indices]
    with env.session() as sess:
        return [env.error(lambda t=t: sess.run(t)) for t in tensors]


PIPELINES = {
    "range": lambda: D.range(3, 30, 4), "slices": lambda: D.from_tensor_slices((np.arange(6), list("abcdef"))),
    "map": lambda: V2.range(7).map(lambda x: x * x), "parallel": lambda: V2.range(7).map(lambda x: x + 1, num_parallel_calls=2),
    "batch": lambda: D.range(8).batch(3), "drop": lambda: D.range(8).batch(3, drop_remainder=True), "take": lambda: D.range(9).take(4),
    "skip": lambda: D.range(9).skip(5), "repeat": lambda: D.range(3).repeat(2), "zip": lambda: D.zip((D.range(4), D.range(10, 16))),
    "concatenate": lambda: D.range(3).concatenate(D.range(20, 24)), "shard": lambda: D.range(10).shard(3, 1), "prefetch": lambda: D.range(5).prefetch(1),
}
for name, make in PIPELINES.items():
    @script("GetElementAtIndex/" + name)
    def element(env, make=make):
        return at(env, make(), [0, 1, 2, 3, 4, 7, -1])

    @script("GlobalShuffleDataset/" + name)
    def shuffled(env, make=make):
        from tensorflow.python.data.experimental.ops import global_shuffle_op
        return drain(env, global_shuffle_op._global_shuffle(make(), seed=42), twice=True)


@script("GetElementAtIndex/filter")
def not_addressed(env):
    # A map of the first version may give fewer elements than it takes. (TensorFlow drops one that changes nothing.)
    got = at(env, D.range(9).filter(lambda x: x > 3), [0]) + at(env, D.range(9).map(lambda x: x * x), [0])
    return [getattr(g, "kind", g) for g in got]


def made(variant, spec):
    """A dataset out of a variant that an op made."""
    return dataset_ops.DatasetV1Adapter(dataset_ops._VariantDataset(variant, spec))


def index_flat_map(shuffle):
    # Element i of the range holds i numbers; the flat index says which one and where in it.
    inner = D.range(1, 5)
    sizes = np.array([0, 1, 3, 6, 10])

    def place(i):
        row = tf.searchsorted(const(sizes), [i], side="right")[0] - 1
        return tf.cast(row, L), i - tf.gather(const(sizes), row)

    from tensorflow.python.data.ops import structured_function
    f = structured_function.StructuredFunctionWrapper(lambda n: tf.range(n * 10, n * 10 + n), "f", dataset=inner)
    g = structured_function.StructuredFunctionWrapper(place, "g", input_structure=tf.TensorSpec([], L))
    variant = raw.IndexFlatMapDataset(
        input_dataset=inner._variant_tensor, map_func_other_args=f.function.captured_inputs, index_map_func_other_args=g.function.captured_inputs,
        output_cardinality=const(10, L), map_func=f.function, index_map_func=g.function, output_types=[L], output_shapes=[[]])
    dataset = made(variant, tf.TensorSpec([], L))
    if not shuffle:
        return dataset
    from tensorflow.python.data.experimental.ops import global_shuffle_op
    return global_shuffle_op._global_shuffle(dataset, seed=7)


for shuffle in (False, True):
    @script("IndexFlatMapDataset/%s" % ("shuffled" if shuffle else "in_turn"))
    def flat(env, shuffle=shuffle):
        got = drain(env, index_flat_map(shuffle), n=10)
        return got


@script("WeightedFlatMapDataset/three")
def weighted(env):
    inputs = [D.range(10), D.range(100, 110), D.range(200, 204)]
    variant = raw.WeightedFlatMapDataset(
        input_datasets=[d._variant_tensor for d in inputs], weights=[const(w, tf.float64) for w in (0.2, 0.3, 0.5)], output_types=[L], output_shapes=[[]])
    return drain(env, made(variant, tf.TensorSpec([], L)))


@script("StatsAggregator/bytes")
def stats(env):
    handle = raw.StatsAggregatorHandle()
    inner = D.range(9).batch(4)
    kw = dict(output_types=[L], output_shapes=[[None]])
    told = raw.BytesProducedStatsDataset(input_dataset=inner._variant_tensor, tag="bytes", **kw)
    told = raw.SetStatsAggregatorDataset(input_dataset=told, stats_aggregator=handle, tag="t", counter_prefix="", **kw)
    it = raw.Iterator(shared_name="it", container="", **kw)
    make = raw.MakeIterator(dataset=told, iterator=it)
    element = raw.IteratorGetNext(iterator=it, **kw)
    text = raw.StatsAggregatorSummary(iterator=handle)
    with env.session() as sess:
        sess.run(make)
        for _ in range(3):
            sess.run(element)
        return env.error(lambda: sess.run(text))
