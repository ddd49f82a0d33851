"""Datasets without functions: sources, batches, orders, what they refuse, and cardinalities."""
from registry import ALL, case, inp, raw, rnd, short, steps, tf

F, I, L, S, V = tf.float32, tf.int32, tf.int64, tf.string, tf.variant
D = tf.data.Dataset


def walk(dataset, n):
    """Initialises an iterator and takes n elements; the steps after the end say what the end says."""
    it = tf.data.make_initializable_iterator(dataset)
    element = it.get_next()
    return steps(it.initializer, *[tf.nest.flatten(element)] * n)


def walk_raw(dataset, types, shapes, n):
    """As walk, for a dataset made by a raw op."""
    it = raw.IteratorV2(shared_name="", container="", output_types=types, output_shapes=shapes)
    make = raw.MakeIterator(dataset=dataset, iterator=it)
    element = raw.IteratorGetNext(iterator=it, output_types=types, output_shapes=shapes)
    return steps(make, *[list(element)] * n)


def scalar(value):
    return inp(value, L, [])


def one(value, dtype=None):
    """A dataset of rows of a fed tensor, shape unknown."""
    value = inp(value, dtype)
    return raw.TensorSliceDataset(components=[value], output_shapes=[None])


for dtype in ALL:
    case("TensorDataset/%s" % short(dtype), lambda dtype=dtype: walk(D.from_tensors((inp(rnd((2, 3), dtype)), inp(7))), 2))
    case("TensorSliceDataset/%s" % short(dtype), lambda dtype=dtype: walk(D.from_tensor_slices((inp(rnd((3, 2), dtype), shape=[3, 2]), inp([1, 2, 3], shape=[3]))), 4))
case("TensorDataset/shape", lambda: walk_raw(raw.TensorDataset(components=[inp([1, 2])], output_shapes=[[3]]), [I], [[3]], 1))
case("TensorSliceDataset/scalar", lambda: walk_raw(one(3), [I], [None], 1))
case("TensorSliceDataset/lengths", lambda: walk_raw(raw.TensorSliceDataset(components=[inp([1, 2]), inp([1, 2, 3])], output_shapes=[None, None]), [I, I], [None, None], 1))
case("TensorSliceDataset/shape", lambda: walk_raw(raw.TensorSliceDataset(components=[inp([[1, 2]])], output_shapes=[[3]]), [I], [[3]], 1))
case("TensorSliceDataset/empty", lambda: walk_raw(one([], F), [F], [None], 1))
case("TensorSliceDataset/no_rows", lambda: walk_raw(one([[], []], F), [F], [None], 3))


def sparse(indices, values, shape):
    d = raw.SparseTensorSliceDataset(indices=inp(indices, L), values=inp(values), dense_shape=inp(shape, L))
    t, s = [L, tf.as_dtype(inp(values).dtype), L], [None, None, None]
    return walk_raw(d, t, s, 5)


case("SparseTensorSliceDataset/rows", lambda: sparse([[0, 1], [0, 3], [2, 0]], [1.0, 2.0, 3.0], [4, 5]))
case("SparseTensorSliceDataset/strings", lambda: sparse([[1, 1, 0]], [b"a"], [2, 2, 1]))
case("SparseTensorSliceDataset/vector", lambda: sparse([[1]], [7], [2]))
case("SparseTensorSliceDataset/order", lambda: sparse([[1, 1], [0, 3]], [1.0, 2.0], [4, 5]))
case("SparseTensorSliceDataset/indices", lambda: sparse([1, 1], [1.0, 2.0], [4, 5]))
case("SparseTensorSliceDataset/values", lambda: sparse([[1, 1], [2, 1]], [[1.0, 2.0]], [4, 5]))
case("SparseTensorSliceDataset/shape", lambda: sparse([[1, 1], [2, 1]], [1.0, 2.0], [[4, 5]]))
case("SparseTensorSliceDataset/count", lambda: sparse([[1, 1], [2, 1]], [1.0], [4, 5]))
case("SparseTensorSliceDataset/rank", lambda: sparse([[1, 1], [2, 1]], [1.0, 2.0], [4, 5, 6]))


def span(*args, dtype=L, n=5):
    start, stop, step = map(scalar, args)
    d = raw.RangeDataset(start=start, stop=stop, step=step, output_types=[dtype], output_shapes=[[]])
    return walk_raw(d, [dtype], [[]], n)


case("RangeDataset/up", lambda: span(1, 7, 2))
case("RangeDataset/down", lambda: span(7, 1, -2))
case("RangeDataset/none", lambda: span(7, 1, 2))
case("RangeDataset/zero_step", lambda: span(7, 1, 0))
case("RangeDataset/vector", lambda: walk_raw(raw.RangeDataset(start=inp([1], L), stop=scalar(3), step=scalar(1), output_types=[L], output_shapes=[[]]), [L], [[]], 2))
for dtype in ALL:
    if not dtype.is_complex and dtype not in (tf.bool, tf.string):
        case("RangeDataset/%s" % short(dtype), lambda dtype=dtype: span(1, 4, 1, dtype=dtype))


def counted(op, count, n=6, of=4):
    return walk_raw(op(input_dataset=D.range(of)._variant_tensor, count=scalar(count), output_types=[L], output_shapes=[[]]), [L], [[]], n)


for op in (raw.TakeDataset, raw.SkipDataset, raw.RepeatDataset):
    for count in (-2, -1, 0, 1, 3, 9):
        case("%s/%d" % (op.__name__, count), lambda op=op, count=count: counted(op, count))
        case("%s/empty_%d" % (op.__name__, count), lambda op=op, count=count: counted(op, count, 2, of=0))
case("RepeatDataset/nested_empty", lambda: walk(D.range(0).repeat().repeat(3).concatenate(D.range(0).repeat()).concatenate(D.range(2)).repeat(2), 5))


def shards(count, index, strict=False, of=10):
    d = raw.ShardDataset(input_dataset=D.range(of)._variant_tensor, num_shards=scalar(count), index=scalar(index), require_non_empty=strict,
                         output_types=[L], output_shapes=[[]])
    return walk_raw(d, [L], [[]], 5)


for args in [(3, 0), (3, 2), (1, 0), (0, 0), (-1, 0), (3, 3), (3, -1), (11, 10), (11, 10, True), (3, 0, True, 2)]:
    case("ShardDataset/%s" % "_".join(map(str, args)), lambda args=args: shards(*args))

case("ZipDataset/shortest", lambda: walk(D.zip((D.range(3), (D.range(10, 12), D.from_tensors(inp([1.0])).repeat()))), 4))
case("ConcatenateDataset/two", lambda: walk(D.range(2).concatenate(D.range(5, 7)), 6))
case("ConcatenateDataset/types", lambda: walk_raw(raw.ConcatenateDataset(
    input_dataset=D.range(2)._variant_tensor, another_dataset=one([1.0]), output_types=[L], output_shapes=[None]), [L], [None], 1))
case("ConcatenateDataset/shapes", lambda: walk(D.from_tensors(tf.zeros([2])).concatenate(D.from_tensors(tf.zeros([3]))), 3))


def batch(size, drop, n=4, of=7):
    d = raw.BatchDatasetV2(input_dataset=D.range(of)._variant_tensor, batch_size=scalar(size), drop_remainder=inp(drop, tf.bool), output_types=[L], output_shapes=[[None]])
    return walk_raw(d, [L], [[None]], n)


for size in (-1, 0, 1, 3, 7, 100):
    for drop in (False, True):
        case("BatchDatasetV2/%d_%s" % (size, drop), lambda size=size, drop=drop: batch(size, drop))
for dtype in ALL:
    case("BatchDataset/%s" % short(dtype), lambda dtype=dtype: walk(D.from_tensor_slices(inp(rnd((5, 2), dtype), shape=[5, 2])).batch(2), 4))
case("BatchDatasetV2/shapes", lambda: walk_raw(raw.BatchDatasetV2(
    input_dataset=raw.ConcatenateDataset(input_dataset=one([[1, 2], [3, 4], [5, 6]]), another_dataset=one([[1, 2, 3]]), output_types=[I], output_shapes=[None]),
    batch_size=scalar(2), drop_remainder=inp(False, tf.bool), output_types=[I], output_shapes=[None]), [I], [None], 3))
case("UnbatchDataset/rows", lambda: walk(D.from_tensor_slices((inp(rnd((4, 3, 2)), shape=[4, 3, 2]), inp([[1, 2, 3]] * 4, shape=[4, 3]))).unbatch(), 4))
case("UnbatchDataset/batched", lambda: walk(D.range(5).batch(2).unbatch(), 6))
case("UnbatchDataset/lengths", lambda: walk_raw(raw.UnbatchDataset(
    input_dataset=raw.TensorDataset(components=[inp([1, 2]), inp([1, 2, 3])], output_shapes=[None, None]), output_types=[I, I], output_shapes=[None, None]), [I, I], [None, None], 2))
case("UnbatchDataset/scalar", lambda: walk_raw(raw.UnbatchDataset(
    input_dataset=raw.TensorDataset(components=[inp(1)], output_shapes=[None]), output_types=[I], output_shapes=[None]), [I], [None], 2))


def padded(rows, shape, value, size=2, drop=False, n=3, dtype=I):
    """A padded batch of elements of different lengths."""
    d = None
    for row in rows:
        e = raw.TensorDataset(components=[inp(row, dtype)], output_shapes=[None])
        d = e if d is None else raw.ConcatenateDataset(input_dataset=d, another_dataset=e, output_types=[dtype], output_shapes=[None])
    d = raw.PaddedBatchDatasetV2(input_dataset=d, batch_size=scalar(size), padded_shapes=[inp(shape, L)], padding_values=[value],
                                 drop_remainder=inp(drop, tf.bool), output_shapes=[None])
    return walk_raw(d, [dtype], [None], n)


ROWS = [[1], [2, 3], [4, 5, 6], [], [7]]
case("PaddedBatchDatasetV2/longest", lambda: padded(ROWS, [-1], inp(0), n=4))
case("PaddedBatchDatasetV2/value", lambda: padded(ROWS, [-1], inp(-1), size=3))
case("PaddedBatchDatasetV2/drop", lambda: padded(ROWS, [-1], inp(-1), drop=True, n=4))
case("PaddedBatchDatasetV2/fixed", lambda: padded(ROWS, [4], inp(9), size=5))
case("PaddedBatchDatasetV2/too_small", lambda: padded(ROWS, [2], inp(9), size=5))
case("PaddedBatchDatasetV2/rank", lambda: padded(ROWS, [-1, 2], inp(9), size=5))
case("PaddedBatchDatasetV2/matrices", lambda: padded([[[1, 2], [3, 4]], [[5], [6], [7]], [[8, 9, 10]]], [-1, -1], inp(0), size=3))
case("PaddedBatchDatasetV2/cubes", lambda: padded([rnd((2, 1, 3), I), rnd((1, 2, 2), I)], [3, -1, 4], inp(-7)))
case("PaddedBatchDatasetV2/strings", lambda: padded([[b"a"], [b"b", b"c"]], [3], inp(b"pad"), dtype=S))
case("PaddedBatchDatasetV2/size", lambda: padded(ROWS, [-1], inp(0), size=0))
case("PaddedBatchDatasetV2/type", lambda: padded(ROWS, [-1], inp(0.0)))
case("PaddedBatchDatasetV2/value_shape", lambda: padded(ROWS, [-1], inp([0])))
case("PaddedBatchDatasetV2/shape_shape", lambda: padded(ROWS, 3, inp(0)))
case("PaddedBatchDatasetV2/negative", lambda: padded(ROWS, [-2], inp(0)))
for dtype in ALL:
    case("PaddedBatchDataset/%s" % short(dtype), lambda dtype=dtype: padded([rnd((2,), dtype), rnd((3,), dtype)], [-1], inp(rnd((), dtype)), dtype=dtype))


def window(size, shift, stride, drop, of=7):
    d = raw.WindowDataset(input_dataset=D.range(of)._variant_tensor, size=scalar(size), shift=scalar(shift), stride=scalar(stride),
                          drop_remainder=inp(drop, tf.bool), output_types=[V], output_shapes=[[]])
    it = raw.IteratorV2(shared_name="", container="", output_types=[V], output_shapes=[[]])
    inner = raw.IteratorGetNext(iterator=it, output_types=[V], output_shapes=[[]])[0]
    batched = raw.BatchDataset(input_dataset=inner, batch_size=tf.constant(100, L), output_types=[L], output_shapes=[[None]])
    element = raw.DatasetToSingleElement(dataset=batched, output_types=[L], output_shapes=[[None]])
    return steps(raw.MakeIterator(dataset=d, iterator=it), *[list(element)] * 9)


for args in [(2, 2, 1, False), (2, 2, 1, True), (3, 1, 1, True), (3, 1, 2, False), (2, 5, 1, False), (1, 1, 1, True), (10, 1, 1, False), (0, 1, 1, True),
             (1, 0, 1, True), (1, 1, 0, True)]:
    case("WindowDataset/%s" % "_".join(map(str, args)), lambda args=args: window(*args))


def shuffled(buffer, seed, reshuffle=None, repeat=2, of=8, **more):
    return walk(D.range(of).shuffle(buffer, seed=seed, reshuffle_each_iteration=reshuffle).repeat(repeat), of * repeat + 1)


for buffer in (1, 3, 8, 100):
    for reshuffle in (True, False):
        case("ShuffleDataset/%d_%s" % (buffer, reshuffle), lambda buffer=buffer, reshuffle=reshuffle: shuffled(buffer, 42, reshuffle))
case("ShuffleDataset/large", lambda: walk(D.range(1000).shuffle(300, seed=7).batch(250), 5))
case("ShuffleDataset/empty", lambda: shuffled(5, 1, of=0))
case("ShuffleDataset/epochs", lambda: shuffled(5, 1, of=2, repeat=9))


def shuffle_raw(size, seeds=(3, 4), op=raw.ShuffleDataset, n=3, **more):
    d = op(input_dataset=D.range(4)._variant_tensor, buffer_size=scalar(size), seed=scalar(seeds[0]), seed2=scalar(seeds[1]),
           output_types=[L], output_shapes=[[]], **more)
    return walk_raw(d, [L], [[]], n)


for size in (-2, -1, 0, 2):
    case("ShuffleDataset/size_%d" % size, lambda size=size: shuffle_raw(size))
for count in (-2, -1, 0, 1, 3):
    for size in (0, 2, 9):
        case("ShuffleAndRepeatDataset/%d_%d" % (count, size), lambda count=count, size=size: shuffle_raw(
            size, op=raw.ShuffleAndRepeatDataset, count=scalar(count), n=14))
case("ShuffleAndRepeatDataset/fixed", lambda: shuffle_raw(9, op=raw.ShuffleAndRepeatDataset, count=scalar(3), n=13, reshuffle_each_iteration=False))


def shuffle_again():
    """Running the initialiser again starts the same order again."""
    it = tf.data.make_initializable_iterator(D.range(6).shuffle(4, seed=5).repeat(2))
    element = it.get_next()
    return steps(it.initializer, *[element] * 8, it.initializer, *[element] * 13)


case("ShuffleDataset/again", shuffle_again)


def shuffle_v3(reshuffle, dummy):
    if dummy:
        generator = raw.DummySeedGenerator()
    else:
        generator = raw.AnonymousSeedGenerator(seed=scalar(1), seed2=scalar(2), reshuffle=inp(reshuffle, tf.bool))[0]
    d = raw.ShuffleDatasetV3(input_dataset=D.range(5)._variant_tensor, buffer_size=scalar(5), seed=scalar(8), seed2=scalar(9), seed_generator=generator,
                             reshuffle_each_iteration=reshuffle, output_types=[L], output_shapes=[[]])
    d = raw.RepeatDataset(input_dataset=d, count=scalar(3), output_types=[L], output_shapes=[[]])
    return walk_raw(d, [L], [[]], 16)


for reshuffle in (True, False):
    case("ShuffleDatasetV3/dummy_%s" % reshuffle, lambda reshuffle=reshuffle: shuffle_v3(reshuffle, True))

case("CacheDataset/memory", lambda: walk(D.range(5).shuffle(5, seed=3).cache().repeat(3), 16))
case("CacheDataset/part", lambda: walk(D.range(5).shuffle(5, seed=3).cache().take(3).repeat(2), 7))
for size in (-2, -1, 0, 1, 3):
    case("PrefetchDataset/%d" % size, lambda size=size: walk_raw(raw.PrefetchDataset(
        input_dataset=D.range(5)._variant_tensor, buffer_size=scalar(size), output_types=[L], output_shapes=[[]]), [L], [[]], 7))
case("PrefetchDataset/nested", lambda: walk(D.range(20).prefetch(2).batch(3).prefetch(5).prefetch(tf.data.AUTOTUNE), 8))
case("AssertCardinalityDataset/right", lambda: walk(D.range(3).apply(tf.data.experimental.assert_cardinality(3)), 4))
case("AssertCardinalityDataset/few", lambda: walk(D.range(3).apply(tf.data.experimental.assert_cardinality(4)), 4))
case("AssertCardinalityDataset/many", lambda: walk(D.range(3).apply(tf.data.experimental.assert_cardinality(1)), 4))
case("AssertCardinalityDataset/infinite", lambda: walk(D.range(1).apply(tf.data.experimental.assert_cardinality(-1)), 2))


def sizes():
    r = D.range
    all_ = [r(5), r(0), r(7, 1, -2), r(5).take(3), r(5).take(-1), r(5).repeat(), r(5).repeat(3), r(5).repeat(0), r(0).repeat(), r(5).skip(2), r(5).skip(9),
            r(5).skip(-1), r(5).repeat().skip(2), r(5).repeat().take(2), r(5).batch(2), r(5).batch(2, drop_remainder=True), r(5).shard(2, 0), r(5).shard(2, 1),
            D.zip((r(5), r(3))), D.zip((r(5).repeat(), r(3))), D.zip((r(5).repeat(), r(3).repeat())), r(5).concatenate(r(2)), r(5).concatenate(r(2).repeat()),
            r(5).shuffle(2), r(5).cache(), r(5).prefetch(1), r(5).window(2), r(5).window(2, drop_remainder=True), r(5).window(2, shift=1, stride=2, drop_remainder=True),
            r(6).batch(2).unbatch(), D.from_tensors(1), D.from_tensor_slices([1, 2]), D.from_tensor_slices(tf.ones([2, 3])).unbatch(), r(5).enumerate(),
            D.range(5).apply(tf.data.experimental.assert_cardinality(5)), tf.data.TextLineDataset("x"), r(5).padded_batch(2, []),
            r(5).shuffle(2).repeat(), tf.data.experimental.Counter()]
    return [tf.data.experimental.cardinality(d) for d in all_]


case("DatasetCardinality/all", sizes)
case("DatasetToSingleElement/one", lambda: tf.data.experimental.get_single_element(D.range(5).batch(9)))
case("DatasetToSingleElement/none", lambda: tf.data.experimental.get_single_element(D.range(0)))
case("DatasetToSingleElement/two", lambda: tf.data.experimental.get_single_element(D.range(2)))
case("DatasetToSingleElement/no_dataset", lambda: raw.DatasetToSingleElement(dataset=raw.OptionalNone(), output_types=[L], output_shapes=[[]]))
case("WrapDatasetVariant/there_and_back", lambda: walk_raw(raw.UnwrapDatasetVariant(input_handle=raw.WrapDatasetVariant(input_handle=D.range(2)._variant_tensor)), [L], [[]], 3))
case("WrapDatasetVariant/wrapped", lambda: walk_raw(raw.WrapDatasetVariant(input_handle=D.range(2)._variant_tensor), [L], [[]], 1))
case("UnwrapDatasetVariant/bare", lambda: walk_raw(raw.UnwrapDatasetVariant(input_handle=D.range(2)._variant_tensor), [L], [[]], 1))
