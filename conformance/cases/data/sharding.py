"""`AutoShardDataset`: which elements a worker gets, by file where files are read, else by element."""
import os
import re

from registry import raw, script, tf

L, S = tf.int64, tf.string
D = tf.data.Dataset
AUTO, FILE, DATA, HINT, OFF = 0, 1, 2, 3, -1


def files(env, n=4, lines=3):
    paths = []
    for i in range(n):
        paths.append(os.path.join(env.tmp, "f%d" % i))
        with open(paths[-1], "w") as f:
            f.write("".join("%d-%d\n" % (i, j) for j in range(lines)))
    return paths


def taken(env, dataset, workers, index, policy=AUTO, op="AutoShardDataset", n=40, replicas=0):
    """The elements that one worker gets."""
    def body():
        variant = dataset._variant_tensor if hasattr(dataset, "_variant_tensor") else dataset
        types = [L] if getattr(dataset, "element_spec", None) is not None and dataset.element_spec.dtype == L else [S]
        args = dict(input_dataset=variant, num_workers=tf.constant(workers, L), index=tf.constant(index, L), output_types=types, output_shapes=[None])
        if op == "AutoShardDataset":
            args["num_replicas"] = replicas
        sharded = getattr(raw, op)(auto_shard_policy=policy, **args)
        it = raw.Iterator(shared_name="", container="", output_types=types, output_shapes=[None])
        make = raw.MakeIterator(dataset=sharded, iterator=it)
        got = raw.IteratorGetNext(iterator=it, output_types=types, output_shapes=[None])
        out = []
        with env.session() as sess:
            sess.run(make)
            for _ in range(n):
                try:
                    out.append(sess.run(got)[0])
                except tf.errors.OutOfRangeError:
                    break
        return out
    got = env.error(body)
    if getattr(got, "kind", "") == "NotFoundError":  # ends with a node of the graph that TensorFlow made
        got.message = re.split("dataset: |Input node is ", got.message)[0]
    return got


def sharded(name, build, workers=3, policies=(AUTO, FILE, DATA, OFF), **kw):
    @script("AutoShardDataset/" + name)
    def _(env):
        out = []
        for policy in policies:
            for index in range(workers):
                with tf.Graph().as_default():
                    out.append(taken(env, build(env), workers, index, policy, **kw))
        return out


sharded("range", lambda env: D.range(10))
sharded("range_map_batch", lambda env: D.range(10).map(lambda x: x * 2).batch(2), policies=(AUTO, DATA))
sharded("range_prefetch", lambda env: D.range(10).prefetch(2), policies=(AUTO, DATA))
sharded("files", lambda env: tf.data.TextLineDataset(files(env)))
sharded("files_flat_map", lambda env: D.from_tensor_slices(files(env)).flat_map(tf.data.TextLineDataset))
sharded("files_interleave", lambda env: D.from_tensor_slices(files(env)).interleave(tf.data.TextLineDataset, cycle_length=2, block_length=2), policies=(AUTO, FILE))
sharded("files_parallel", lambda env: D.from_tensor_slices(files(env)).interleave(tf.data.TextLineDataset, cycle_length=2, num_parallel_calls=2, deterministic=True), policies=(AUTO, FILE))
sharded("files_map_after", lambda env: tf.data.TextLineDataset(files(env)).map(lambda s: s + "!").batch(2).prefetch(1), policies=(AUTO, FILE, DATA))
sharded("files_listed", lambda env: D.list_files(os.path.join(os.path.dirname(files(env)[0]), "f*"), shuffle=False).flat_map(tf.data.TextLineDataset), policies=(AUTO, FILE))
sharded("records", lambda env: tf.data.FixedLengthRecordDataset(files(env), 4), policies=(AUTO, FILE))
sharded("reader_of_a_tensor", lambda env: raw.TextLineDataset(filenames=files(env), compression_type="", buffer_size=tf.constant(0, L)), policies=(AUTO, FILE, DATA))
sharded("reader_of_a_file", lambda env: raw.TextLineDataset(filenames=files(env)[0], compression_type="", buffer_size=tf.constant(0, L)), policies=(AUTO, FILE, DATA))
sharded("shuffled_files", lambda env: D.from_tensor_slices(files(env, 6)).shuffle(10, seed=1).flat_map(tf.data.TextLineDataset), policies=(AUTO, FILE))
sharded("shuffled_files_kept", lambda env: D.from_tensor_slices(files(env, 6)).shuffle(10, seed=1, reshuffle_each_iteration=False).flat_map(tf.data.TextLineDataset).repeat(2), policies=(AUTO,))
sharded("zipped", lambda env: D.zip((tf.data.TextLineDataset(files(env)), tf.data.TextLineDataset(files(env)))).map(lambda a, b: a + b), policies=(AUTO, FILE))
sharded("zipped_with_range", lambda env: D.zip((tf.data.TextLineDataset(files(env)), D.range(100))).map(lambda a, b: a), policies=(AUTO, FILE))
sharded("concatenated", lambda env: tf.data.TextLineDataset(files(env)).concatenate(tf.data.TextLineDataset(files(env))), policies=(AUTO, FILE))
sharded("too_few_files", lambda env: tf.data.TextLineDataset(files(env, 2)), policies=(AUTO, FILE))
sharded("one_worker", lambda env: tf.data.TextLineDataset(files(env, 2)), workers=1)
sharded("options_below", lambda env: tf.data.TextLineDataset(files(env)).with_options(off()), policies=(AUTO, FILE))
sharded("hint_without_one", lambda env: D.range(10), policies=(HINT,))
sharded("hint", lambda env: D.range(10).shard(tf.data.experimental.SHARD_HINT, tf.data.experimental.SHARD_HINT).map(lambda x: x + 1), policies=(HINT,))
sharded("old_op", lambda env: D.range(10), policies=(AUTO,), op="ExperimentalAutoShardDataset")
sharded("old_op_files", lambda env: tf.data.TextLineDataset(files(env)), policies=(AUTO,), op="ExperimentalAutoShardDataset")


def off():
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


@script("AutoShardDataset/arguments")
def _(env):
    out = []
    for workers, index, policy in ((0, 0, 0), (-1, 0, 0), (3, 3, 0), (3, -1, 0), (1, 1, 0), (2, 0, 9)):
        with tf.Graph().as_default():
            out.append(taken(env, D.range(4), workers, index, policy))
    return out
