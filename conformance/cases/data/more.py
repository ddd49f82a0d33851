"""Datasets around others: stats, pauses, private threads, lists, rebatching; tables filled from a dataset."""
from registry import raw, script, tf

L, S = tf.int64, tf.string
D = tf.data.Dataset


def drained(env, variant, types, n=30, shapes=None):
    shapes = shapes or [None] * len(types)
    it = raw.Iterator(shared_name="", container="", output_types=types, output_shapes=shapes)
    make = raw.MakeIterator(dataset=variant, iterator=it)
    got = raw.IteratorGetNext(iterator=it, output_types=types, output_shapes=shapes)
    out = []
    with env.session() as sess:
        sess.run(make)
        for _ in range(n):
            try:
                out.append(sess.run(got))
            except tf.errors.OutOfRangeError:
                break
    return out


def dataset(name, build, types=(L,)):
    """Elements of what `build` makes, or the error."""
    @script(name)
    def _(env):
        with tf.Graph().as_default():
            return [env.error(lambda: drained(env, build(), list(types)))]


def args(types=(L,)):
    return dict(output_types=list(types), output_shapes=[None] * len(types))


def of(d):
    return d._variant_tensor


for prefix in ("", "Experimental"):
    dataset(prefix + "LatencyStatsDataset/tag", lambda p=prefix: getattr(raw, p + "LatencyStatsDataset")(input_dataset=of(D.range(3)), tag="t", **args()))
    dataset(prefix + "BytesProducedStatsDataset/tag", lambda p=prefix: getattr(raw, p + "BytesProducedStatsDataset")(input_dataset=of(D.range(3)), tag="t", **args()))
    dataset(prefix + "SleepDataset/short", lambda p=prefix: getattr(raw, p + "SleepDataset")(input_dataset=of(D.range(3)), sleep_microseconds=tf.constant(1000, L), **args()))
    dataset(prefix + "SleepDataset/negative", lambda p=prefix: getattr(raw, p + "SleepDataset")(input_dataset=of(D.range(3)), sleep_microseconds=tf.constant(-1, L), **args()))
    dataset(prefix + "ThreadPoolDataset/two", lambda p=prefix: getattr(raw, p + "ThreadPoolDataset")(
        input_dataset=of(D.range(5).map(lambda x: x * x, num_parallel_calls=2)), thread_pool=getattr(raw, p + "ThreadPoolHandle")(num_threads=2, display_name="pool"), **args()))
    for replicas in (1, 2, 3, 0):
        dataset("%sRebatchDataset/%d" % (prefix, replicas), lambda p=prefix, r=replicas: getattr(raw, p + "RebatchDataset")(
            input_dataset=of(D.range(11).batch(4)), num_replicas=tf.constant(r, L), **args()))
    dataset(prefix + "RebatchDataset/scalars", lambda p=prefix: getattr(raw, p + "RebatchDataset")(input_dataset=of(D.range(4)), num_replicas=tf.constant(2, L), **args()))
    dataset(prefix + "ChooseFastestDataset/two", lambda p=prefix: getattr(raw, p + "ChooseFastestDataset")(
        input_datasets=[of(D.range(6)), of(D.range(6).prefetch(1))], num_experiments=2, **args()))
dataset("ListDataset/pairs", lambda: raw.ListDataset(tensors=[tf.constant(1, L), tf.constant("a"), tf.constant(2, L), tf.constant("b")], output_types=[L, S], output_shapes=[[], []]), (L, S))
dataset("ListDataset/singles", lambda: raw.ListDataset(tensors=[tf.constant(i, L) for i in range(4)], output_types=[L], output_shapes=[[]]))
dataset("ListDataset/shapes_differ", lambda: raw.ListDataset(tensors=[tf.constant([1, 2], L), tf.constant([3], L)], output_types=[L], output_shapes=[[None]]))
dataset("ListDataset/from_list", lambda: of(tf.data.experimental.from_list([(1, "a"), (2, "b"), (3, "c")])), (tf.int32, S))
dataset("ListDataset/odd", lambda: raw.ListDataset(tensors=[tf.constant(1, L), tf.constant("a"), tf.constant(2, L)], output_types=[L, S], output_shapes=[[], []]), (L, S))


@script("ComputeBatchSize/all")
def _(env):
    out = []
    for build in (lambda: D.range(10), lambda: D.range(10).batch(3), lambda: D.range(10).batch(3, drop_remainder=True), lambda: D.range(10).batch(3).prefetch(2), lambda: D.range(12).batch(2).batch(3),
                  lambda: D.range(10).batch(3).map(lambda x: x + 1), lambda: D.range(10).padded_batch(4), lambda: D.range(10).batch(3).shuffle(4).repeat(2).take(1),
                  lambda: D.zip((D.range(4).batch(2), D.range(4).batch(2))), lambda: D.from_tensors([1, 2, 3]), lambda: D.from_tensor_slices([[1, 2]])):
        with tf.Graph().as_default() as g:
            size = raw.ComputeBatchSize(input_dataset=of(build()))
            out.append(env.error(lambda: env.session(g).run(size)))
    return out


@script("GetOptions/merged")
def _(env):
    from google.protobuf import text_format
    from tensorflow.core.framework import dataset_options_pb2
    first, second = tf.data.Options(), tf.data.Options()
    first.deterministic, first.experimental_optimization.map_fusion = False, True
    second.deterministic, second.autotune.enabled = True, False
    out = []
    for build in (lambda: D.range(3), lambda: D.range(3).with_options(first), lambda: D.range(3).with_options(first).map(lambda x: x).with_options(second),
                  lambda: D.zip((D.range(2).with_options(first), D.range(3).with_options(second))), lambda: D.zip((D.range(2).with_options(second), D.range(3).with_options(first)))):
        with tf.Graph().as_default() as g:
            got = raw.GetOptions(input_dataset=of(build()))
            got = env.error(lambda: text_format.MessageToString(dataset_options_pb2.Options.FromString(env.session(g).run(got))))
            out.append(got)
    return out


@script("CompressElement/there_and_back")
def _(env):
    out = []
    with tf.Graph().as_default() as g:
        packed = raw.CompressElement(components=[tf.constant([1, 2]), tf.constant([["a", ""], ["bc", "d"]]), tf.constant(True)])
        sess = env.session(g)
        for types in ([tf.int32, S, tf.bool], [L, S, tf.bool], [tf.int32]):
            out.append(env.error(lambda: sess.run(raw.UncompressElement(compressed=packed, output_types=types, output_shapes=[None] * len(types)))))
        inside = D.range(4).map(lambda x: raw.CompressElement(components=[x, x * 2])).map(lambda c: tuple(raw.UncompressElement(compressed=c, output_types=[L, L], output_shapes=[[], []])))
        out.append(env.error(lambda: drained(env, of(inside), [L, L])))
    return out


@script("InitializeTableFromDataset/pairs")
def _(env):
    with tf.Graph().as_default() as g:
        table = raw.HashTableV2(key_dtype=S, value_dtype=L)
        pairs = D.from_tensor_slices((["a", "b", "c"], tf.constant([1, 2, 3], L)))
        fill = raw.InitializeTableFromDataset(table_handle=table, dataset=of(pairs))
        find = raw.LookupTableFindV2(table_handle=table, keys=tf.constant(["a", "c", "z"]), default_value=tf.constant(-1, L))
        sess = env.session(g)
        return [env.error(lambda: sess.run(op)) for op in (fill, find)]


@script("InitializeTableFromDataset/lookup_table")
def _(env):
    with tf.Graph().as_default() as g:
        pairs = D.from_tensor_slices((tf.constant([5, 6, 7], L), ["x", "y", "z"]))
        table = tf.lookup.StaticHashTable(tf.data.experimental.DatasetInitializer(pairs), "none")
        found = table.lookup(tf.constant([6, 1, 7], L))
        sess = env.session(g)
        sess.run(tf.tables_initializer())
        return sess.run(found)
