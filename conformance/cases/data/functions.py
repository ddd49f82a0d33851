"""Datasets with functions: values, orders, errors with their context, state, and the end."""
from registry import case, inp, raw, rnd, script, steps, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string
D = tf.data.Dataset
AUTO = tf.data.AUTOTUNE


def walk(dataset, n):
    it = tf.data.make_initializable_iterator(dataset)
    element = it.get_next()
    return steps(it.initializer, *[tf.nest.flatten(element)] * n)


def once(dataset, n):
    element = tf.data.make_one_shot_iterator(dataset).get_next()
    return steps(*[tf.nest.flatten(element)] * n)


def bad(x):
    """Fails for 1: an op that says so, as CheckNumerics does."""
    return tf.debugging.check_numerics(1.0 / tf.cast(x - 1, F), "oops")


def parse(x):
    """Fails for 3, without state."""
    return tf.strings.to_number(tf.gather(["1", "2", "x", "4", "5", "6"], tf.cast(x, I)), I)


r = D.range
case("MapDataset/values", lambda: walk(r(4).map(lambda x: (x * x, tf.cast(x, F) / 2)), 5))
case("MapDataset/one_shot", lambda: once(r(4).map(lambda x: x + 1), 6))
case("MapDataset/capture", lambda: (lambda c: walk(r(3).map(lambda x: tf.cast(x, F) * c), 4))(inp(2.5, shape=[])))
case("MapDataset/error", lambda: walk(r(4).map(bad, name="m"), 6))
case("MapDataset/error_parallel", lambda: walk(r(6).map(parse, name="m"), 8))
case("MapDataset/error_below", lambda: walk(r(6).map(bad, name="m").take(4).repeat(2).skip(1), 9))
case("MapDataset/batch_error", lambda: walk(r(6).map(parse, name="m").batch(2), 5))
case("MapDataset/batch", lambda: walk(r(7).map(lambda x: x * 2).batch(3), 4))
case("MapDataset/batch_drop", lambda: walk(r(7).map(lambda x: x * 2).batch(3, drop_remainder=True), 4))
case("MapDataset/batch_shapes", lambda: walk(r(1, 4).map(lambda x: tf.fill([x], x)).batch(2), 4), text="names whichever call is over first")
case("MapDataset/nested", lambda: walk(r(4).map(lambda x: tf.data.experimental.get_single_element(r(x).batch(10))), 5))
case("MapDataset/single_error", lambda: walk(r(2).map(lambda x: tf.data.experimental.get_single_element(r(x + 1)), name="m"), 4))
for calls in (1, 2, 7, AUTO):
    case("ParallelMapDatasetV2/%s" % calls, lambda calls=calls: walk(r(50).map(lambda x: x * 3, num_parallel_calls=calls).batch(20), 4))
    case("ParallelMapDatasetV2/error_%s" % calls, lambda calls=calls: walk(r(6).map(parse, num_parallel_calls=calls, name="m"), 8))
case("ParallelMapDatasetV2/sloppy", lambda: r(50).map(lambda x: x * 3, num_parallel_calls=3, deterministic=False).reduce(
    tf.constant(0, L), lambda a, x: a + x))


def parallel_raw(calls, op=raw.ParallelMapDatasetV2, dtype=L):
    @tf.function(input_signature=[tf.TensorSpec([], L)])
    def f(x):
        return x + 1
    d = op(input_dataset=r(3)._variant_tensor, other_arguments=[], num_parallel_calls=inp(calls, dtype, []), f=f.get_concrete_function(),
           output_types=[L], output_shapes=[[]])
    it = raw.IteratorV2(shared_name="", container="", output_types=[L], output_shapes=[[]])
    n = raw.IteratorGetNext(iterator=it, output_types=[L], output_shapes=[[]])
    return steps(raw.MakeIterator(dataset=d, iterator=it), *[list(n)] * 4)


for calls in (-2, -1, 0, 1, 5):
    case("ParallelMapDatasetV2/calls_%d" % calls, lambda calls=calls: parallel_raw(calls))
    case("ParallelMapDataset/calls_%d" % calls, lambda calls=calls: parallel_raw(calls, raw.ParallelMapDataset, I))

case("FilterDataset/values", lambda: walk(r(20).filter(lambda x: tf.equal(x % 7, 3)), 4))
case("FilterDataset/none", lambda: walk(r(200).filter(lambda x: x < 0), 2))
case("FilterDataset/error", lambda: walk(r(4).filter(lambda x: bad(x) > -5, name="f"), 5))
case("FlatMapDataset/values", lambda: walk(r(4).flat_map(lambda x: D.from_tensors(x).repeat(x)), 7))
case("FlatMapDataset/error", lambda: walk(r(4).flat_map(lambda x: D.from_tensors(bad(x)), name="f"), 6))
case("FlatMapDataset/inner_error", lambda: walk(r(3).flat_map(lambda x: r(3).map(lambda y: bad(x + y - 1), name="m")), 11))
case("FlatMapDataset/nested", lambda: walk(r(3).flat_map(lambda x: r(x + 1).flat_map(lambda y: D.from_tensors((x, y)))), 7))
case("FlatMapDataset/empty", lambda: walk(r(300).flat_map(lambda x: r(0)), 2))
case("FlatMapDataset/filter_nested", lambda: walk(r(30).flat_map(lambda x: r(x).filter(lambda y: tf.equal(y, 28)).map(lambda y: (x, y))), 3))
for cycle, block in [(1, 1), (2, 1), (2, 3), (3, 2), (7, 1), (1, 5)]:
    for calls in (None, 1, AUTO):
        case("InterleaveDataset/%d_%d_%s" % (cycle, block, calls), lambda cycle=cycle, block=block, calls=calls: walk(
            r(5).interleave(lambda x: D.from_tensors(x).repeat(x), cycle_length=cycle, block_length=block, num_parallel_calls=calls).batch(6), 3))
    case("ParallelInterleaveDataset/%d_%d" % (cycle, block), lambda cycle=cycle, block=block: walk(
        r(5).apply(tf.data.experimental.parallel_interleave(lambda x: D.from_tensors(x).repeat(x), cycle, block, sloppy=False)).batch(6), 3))
# The first dataset ends before the second element comes from below.
slow = lambda x: x + tf.cast(tf.reduce_sum(tf.zeros([1 << 22]) * tf.cast(x, tf.float32)), L)
for cycle in (2, 3):
    case("InterleaveDataset/slow_input_%d" % cycle, lambda cycle=cycle: walk(
        r(5).map(slow).interleave(lambda x: D.from_tensors(x).repeat(x), cycle_length=cycle, num_parallel_calls=AUTO).batch(6), 3))
for calls in (None, 2):
    case("InterleaveDataset/error_%s" % calls, lambda calls=calls: walk(
        r(4).interleave(lambda x: D.from_tensors(bad(x)), cycle_length=2, num_parallel_calls=calls, name="i"), 6))
    case("InterleaveDataset/inner_error_%s" % calls, lambda calls=calls: walk(
        r(4).interleave(lambda x: r(x, x + 3).map(bad, name="m"), cycle_length=2, num_parallel_calls=calls), 14))
case("InterleaveDataset/sloppy", lambda: r(9).interleave(lambda x: r(x), cycle_length=3, num_parallel_calls=2, deterministic=False).reduce(
    tf.constant(0, L), lambda a, x: a + x))

case("TakeWhileDataset/values", lambda: walk(r(9).take_while(lambda x: x < 4), 6))
case("TakeWhileDataset/error", lambda: walk(r(4).take_while(lambda x: bad(x) > -5), 6))
case("ScanDataset/values", lambda: walk(r(5).scan(tf.constant(0, L), lambda s, x: (s + x, s * 10 + x)), 6))
case("ScanDataset/two_states", lambda: walk(r(5).scan((tf.constant(0, L), tf.zeros([0], L)), lambda s, x: ((s[0] + x, tf.concat([s[1], [x]], 0)), s[1])), 6))
case("ScanDataset/error", lambda: walk(r(4).scan(0.0, lambda s, x: (s + 1, s + bad(x))), 6))
case("ReduceDataset/sum", lambda: r(10).reduce(tf.constant(0, L), lambda a, x: a + x))
case("ReduceDataset/tuple", lambda: r(4).reduce((0.0, tf.constant([], L)), lambda a, x: (a[0] + 1, tf.concat([a[1], [x]], 0))))
case("ReduceDataset/empty", lambda: r(0).reduce(tf.constant(7, L), lambda a, x: a + x))
case("ReduceDataset/error", lambda: r(4).reduce(0.0, lambda a, x: a + bad(x)))
case("ReduceDataset/input_error", lambda: r(4).map(bad, name="m").reduce(0.0, lambda a, x: a + x))

case("GroupByWindowDataset/values", lambda: walk(r(11).group_by_window(lambda x: x % 3, lambda k, d: d.batch(2), window_size=3), 8))
case("GroupByWindowDataset/keys", lambda: walk(r(9).group_by_window(lambda x: -(x % 3), lambda k, d: d.map(lambda x: (k, x)), window_size_func=lambda k: 2 - k), 10))
case("GroupByWindowDataset/size", lambda: walk(r(9).group_by_window(lambda x: x % 3, lambda k, d: d, window_size_func=lambda k: k), 2))
case("GroupByWindowDataset/key_error", lambda: walk(r(3).group_by_window(lambda x: tf.cast(bad(x), L), lambda k, d: d.batch(2), window_size=3), 4))
case("GroupByWindowDataset/reduce_error", lambda: walk(r(6).group_by_window(lambda x: x % 2, lambda k, d: d.batch(3).map(lambda v: bad(k), name="m"), window_size=3), 4))
case("GroupByReducerDataset/values", lambda: walk(r(11).apply(tf.data.experimental.group_by_reducer(lambda x: x % 3, tf.data.experimental.Reducer(
    lambda k: k * 100, lambda s, x: s + x, lambda s: s * 2))), 4))
case("MapAndBatchDataset/values", lambda: walk(r(10).apply(tf.data.experimental.map_and_batch(lambda x: (x, x * x), 4)), 4))
case("MapAndBatchDataset/drop", lambda: walk(r(10).apply(tf.data.experimental.map_and_batch(lambda x: x, 4, drop_remainder=True, num_parallel_calls=3)), 4))
case("MapAndBatchDataset/error", lambda: walk(r(10).apply(tf.data.experimental.map_and_batch(parse, 2)), 6))
case("MapAndBatchDataset/shapes", lambda: walk(r(1, 4).apply(tf.data.experimental.map_and_batch(lambda x: tf.fill([x], x), 2)), 3),
     text="names whichever call is over first")


def seeded(make):
    """What is random restarts with its iterator, not with each walk inside it."""
    it = tf.data.make_initializable_iterator(make(lambda x: tf.random.uniform([], seed=42)))
    n = it.get_next()
    return steps(it.initializer, *[n] * 5, it.initializer, *[n] * 5)


case("MapDataset/random_repeat", lambda: seeded(lambda f: r(2).map(f).repeat(3)))
case("MapDataset/random_flat", lambda: seeded(lambda f: r(3).flat_map(lambda x: r(2).map(f))))
case("MapDataset/random_two", lambda: seeded(lambda f: D.zip((r(5).map(f), r(5).map(f)))))


def variables():
    """A function that reads a variable sees its value when it runs."""
    v = tf.get_variable("v", initializer=3.0, use_resource=True)
    d = r(4).map(lambda x: tf.cast(x, F) * v)
    it = tf.data.make_initializable_iterator(d)
    return steps(v.initializer, it.initializer, it.get_next(), it.get_next())


case("MapDataset/variable", variables)
case("EnumerateDataset/values", lambda: walk(r(5, 8).enumerate(10), 4))
case("PaddedBatchDataset/function", lambda: walk(r(1, 7).map(lambda x: tf.fill([x], x)).padded_batch(3, [None]), 3))
case("SparseDataset/map", lambda: walk(r(3).map(lambda x: tf.SparseTensor([[x]], [x * 10], [4])).batch(2), 3))
case("SparseDataset/unbatch", lambda: walk(r(4).map(lambda x: tf.SparseTensor([[x]], [x * 10], [4])).batch(2).unbatch(), 5))
case("WindowDataset/flat", lambda: walk(r(7).window(3, shift=2).flat_map(lambda w: w.batch(3)), 5))
case("WindowDataset/tuple", lambda: walk(D.zip((r(5), r(10, 15))).window(2, drop_remainder=True).flat_map(lambda a, b: D.zip((a.batch(2), b.batch(2)))), 3))
case("UnbatchDataset/function", lambda: walk(r(3).map(lambda x: tf.fill([x], x)).unbatch(), 5))
case("UniqueDataset/ints", lambda: walk(D.from_tensor_slices([1, 2, 1, 3, 2, 4]).unique(), 5))
case("UniqueDataset/strings", lambda: walk(D.from_tensor_slices(["a", "b", "a"]).unique(), 3))
case("IgnoreErrorsDataset/values", lambda: walk(r(5).map(bad).apply(tf.data.experimental.ignore_errors()), 6))
case("DirectedInterleaveDataset/choose", lambda: walk(D.choose_from_datasets([r(3), r(10, 12), r(20, 29)], D.from_tensor_slices(tf.constant([0, 1, 2, 1, 1, 0, 2], L))), 8))
case("DirectedInterleaveDataset/stop", lambda: walk(D.choose_from_datasets([r(3), r(10, 11)], D.from_tensor_slices(tf.constant([0, 1, 1, 0], L)), stop_on_empty_dataset=True), 4))
case("DirectedInterleaveDataset/range", lambda: walk(D.choose_from_datasets([r(3), r(10, 12)], D.from_tensor_slices(tf.constant([0, 2, 1], L))), 4))
case("SampleFromDatasets/seeded", lambda: walk(D.sample_from_datasets([r(9), r(10, 19), r(20, 29)], [0.5, 0.3, 0.2], seed=7).batch(15), 3))
case("RandomDataset/seeded", lambda: walk(D.random(seed=5).take(6), 7))
case("DenseToSparseBatchDataset/values", lambda: walk(r(5).map(lambda x: tf.fill([x], x)).apply(tf.data.experimental.dense_to_sparse_batch(2, [4])), 4))
case("DenseToSparseBatchDataset/too_long", lambda: walk(r(5).map(lambda x: tf.fill([x], x)).apply(tf.data.experimental.dense_to_sparse_batch(2, [2])), 4))
case("BucketBySequenceLength/values", lambda: walk(r(1, 12).map(lambda x: tf.fill([x % 5 + 1], x)).bucket_by_sequence_length(
    lambda x: tf.shape(x)[0], [3, 5], [2, 2, 1]), 9))


def with_options():
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_optimization.map_parallelization = False
    return r(9).map(lambda x: x * 2, num_parallel_calls=3).with_options(options).batch(4)


case("OptionsDataset/deterministic", lambda: walk(with_options(), 4))
