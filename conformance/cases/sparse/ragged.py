"""Ragged tensors and counts: ranges, gathers, conversions, bins."""
import numpy as np

from registry import ALL, allowed, case, inp, raw, rnd, short, tf

L = tf.int64
INDEX = (tf.int32, L)


def ranges(starts, limits, deltas, t=tf.int32, splits=L):
    return list(raw.RaggedRange(starts=inp(starts, t), limits=inp(limits, t), deltas=inp(deltas, t), Tsplits=splits))


for t in allowed("RaggedRange"):
    for splits in INDEX:
        case("RaggedRange/%s_%s" % (short(t), short(splits)), lambda t=t, s=splits: ranges([0, 5, 8, 3], [3, 5, 2, 9], [1, 1, -2, 4], t, s))
for name, args in dict(
        scalars=(0, [2, 5], 1), all_scalars=(0, 4, 1), zero=([0], [2], [0]), sizes=([0, 1], [2, 3, 4], 1), matrix=([[0]], [2], [1]), limits_matrix=([0], [[2]], [1]),
        deltas_matrix=([0], [2], [[1]]), none=([], [], []), backwards=([5], [2], [1])).items():
    case("RaggedRange/" + name, lambda args=args: ranges(*args))
case("RaggedRange/fractions", lambda: ranges([0.5, 3.0], [2.1, 1.0], [0.5, -0.3], tf.float32))


def gathered(splits, values, indices, t=tf.float32, s=L, index=tf.int32):
    out = raw.RaggedGather(params_nested_splits=[inp(x, s) for x in splits], params_dense_values=inp(values, t), indices=inp(indices, index),
                           OUTPUT_RAGGED_RANK=len(splits) + (1 if isinstance(indices[0], list) else 0) if isinstance(indices, list) and indices else len(splits))
    return [list(out.output_nested_splits), out.output_dense_values]


for t in ALL:
    case("RaggedGather/%s" % short(t), lambda t=t: gathered([[0, 2, 2, 5]], rnd((5,), t), [2, 0, 2], t))
for s in INDEX:
    for index in INDEX:
        case("RaggedGather/nested_%s_%s" % (short(s), short(index)), lambda s=s, i=index: gathered([[0, 2, 3], [0, 1, 3, 4]], rnd((4, 2)), [1, 0, 0], s=s, index=i))
case("RaggedGather/matrix", lambda: gathered([[0, 2, 2, 5]], rnd((5,)), [[2, 0], [1, 1]]))
for name, args in dict(
        outside=([[0, 2, 5]], [1.0] * 5, [2]), negative=([[0, 2, 5]], [1.0] * 5, [-1]), empty_splits=([[]], [1.0], [0]), splits_matrix=([[[0, 1]]], [1.0], [0]),
        splits_beyond=([[0, 9]], [1.0], [0]), splits_down=([[0, 3, 1]], [1.0] * 3, [0]), splits_start=([[1, 3]], [1.0] * 3, [0]), scalar_values=([[0, 1]], 1.0, [0])).items():
    case("RaggedGather/" + name, lambda args=args: gathered(*args))


def to_sparse(splits, values, t=tf.float32, s=L):
    return list(raw.RaggedTensorToSparse(rt_nested_splits=[inp(x, s) for x in splits], rt_dense_values=inp(values, t)))


for t in ALL:
    case("RaggedTensorToSparse/%s" % short(t), lambda t=t: to_sparse([[0, 2, 2, 5]], rnd((5,), t), t))
for s in INDEX:
    case("RaggedTensorToSparse/nested_%s" % short(s), lambda s=s: to_sparse([[0, 2, 2, 3], [0, 1, 3, 4]], rnd((4, 2)), s=s))
for name, args in dict(
        empty_splits=([[]], [1.0]), start=([[1, 2]], [1.0, 2.0]), beyond=([[0, 2]], [1.0]), down=([[0, 2, 1, 3]], [1.0] * 3),
        scalar_values=([[0, 1]], 1.0), inner=([[0, 2], [0, 1]], [1.0]), none=([[0]], [])).items():
    case("RaggedTensorToSparse/" + name, lambda args=args: to_sparse(*args))


def to_dense(shape, values, default, partitions, kinds, t=tf.float32, index=L, shape_type=L):
    return raw.RaggedTensorToTensor(shape=inp(shape, shape_type), values=inp(values, t), default_value=inp(default, t),
                                    row_partition_tensors=[inp(p, index) for p in partitions], row_partition_types=kinds)


for t in ALL:
    case("RaggedTensorToTensor/%s" % short(t), lambda t=t: to_dense([-1, -1], rnd((5,), t), rnd((), t), [[0, 2, 2, 5]], ["ROW_SPLITS"], t))
for index in INDEX:
    case("RaggedTensorToTensor/rowids_%s" % short(index), lambda i=index: to_dense(
        [-1, -1], rnd((5,)), 0.5, [4, [0, 0, 2, 2, 3]], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"], index=i, shape_type=tf.int32))
for name, args in dict(
        nested=([-1, -1, -1], [1.0, 2, 3, 4], 9.0, [[0, 2, 2, 3], [0, 1, 3, 4]], ["ROW_SPLITS"] * 2), cut=([2, 1], [1.0, 2, 3, 4, 5], 9.0, [[0, 2, 2, 5]], ["ROW_SPLITS"]),
        padded=([4, 5], [1.0, 2, 3, 4, 5], 9.0, [[0, 2, 2, 5]], ["ROW_SPLITS"]), inner=([-1, -1, 2], [[1.0, 2], [3, 4]], 9.0, [[0, 0, 2]], ["ROW_SPLITS"]),
        inner_default=([-1, -1, 2], [[1.0, 2], [3, 4]], [7.0, 8.0], [[0, 1, 1, 2]], ["ROW_SPLITS"]), unknown_shape=(-1, [1.0, 2, 3], 0.0, [[0, 2, 3]], ["ROW_SPLITS"]),
        no_values=([-1, -1], [], 0.0, [[0, 0]], ["ROW_SPLITS"]), default_shape=([-1, -1], [1.0], [1.0, 2.0], [[0, 1]], ["ROW_SPLITS"]),
        shape_rank=([-1], [1.0], 0.0, [[0, 1]], ["ROW_SPLITS"]), shape_inner=([-1, -1, 3], [[1.0, 2], [3, 4]], 9.0, [[0, 0, 2]], ["ROW_SPLITS"]),
        beyond=([-1, -1], [1.0], 0.0, [[0, 4]], ["ROW_SPLITS"]), down=([-1, -1], [1.0, 2], 0.0, [[0, 2, 1, 2]], ["ROW_SPLITS"]),
        rowids_down=([-1, -1], [1.0, 2], 0.0, [3, [1, 0]], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"]), rowids_outside=([-1, -1], [1.0, 2], 0.0, [3, [0, 5]], ["FIRST_DIM_SIZE", "VALUE_ROWIDS"]),
        three=([-1, -1, -1, -1], [1.0, 2, 3, 4], 9.0, [3, [0, 0, 2], [0, 1, 1, 2], [0, 0, 1, 3]],
               ["FIRST_DIM_SIZE", "VALUE_ROWIDS", "VALUE_ROWIDS", "VALUE_ROWIDS"])).items():
    case("RaggedTensorToTensor/" + name, lambda args=args: to_dense(*args))

for t in ALL:
    case("RaggedFillEmptyRows/%s" % short(t), lambda t=t: list(raw.RaggedFillEmptyRows(
        value_rowids=inp([1, 1, 3], L), values=inp(rnd((3,), t), t), nrows=inp(5, L), default_value=inp(rnd((), t), t))))
    case("RaggedFillEmptyRowsGrad/%s" % short(t), lambda t=t: list(raw.RaggedFillEmptyRowsGrad(
        reverse_index_map=inp([2, 0, 3], L), grad_values=inp(rnd((6,), t), t))))
case("RaggedFillEmptyRows/outside", lambda: list(raw.RaggedFillEmptyRows(
    value_rowids=inp([1, 9], L), values=inp([1.0, 2.0]), nrows=inp(5, L), default_value=inp(0.0))))

SPARSE = dict(at=[[0, 0], [0, 1], [2, 0], [2, 2]], values=[1, 1, 2, 0], shape=[3, 4])
RAGGED = dict(splits=[0, 2, 2, 5], values=[1, 1, 2, 0, 2])


def count_dense(values=((1, 1, 3), (2, 0, 2)), weights=(), out=L, binary=False, t=tf.int32, **attrs):
    return list(raw.DenseCountSparseOutput(values=inp(values, t), weights=inp(weights, out), binary_output=binary, **attrs))


def count_sparse(s=SPARSE, weights=(), out=L, binary=False, t=tf.int32, **attrs):
    return list(raw.SparseCountSparseOutput(indices=inp(s["at"], L), values=inp(s["values"], t), dense_shape=inp(s["shape"], L), weights=inp(weights, out),
                                            binary_output=binary, **attrs))


def count_ragged(s=RAGGED, weights=(), out=L, binary=False, t=tf.int32, **attrs):
    return list(raw.RaggedCountSparseOutput(splits=inp(s["splits"], L), values=inp(s["values"], t), weights=inp(weights, out), binary_output=binary, **attrs))


KINDS = dict(Dense=(count_dense, [[0.5, 1.5, 2], [3, 4, 5]]), Sparse=(count_sparse, [1.0, 2, 3, 4]), Ragged=(count_ragged, [1.0, 2, 3, 4, 5]))
for kind, (count, weights) in KINDS.items():
    name = kind + "CountSparseOutput"
    for out in allowed(name, "output_type"):
        for t in INDEX:
            case("%s/%s_%s" % (name, short(out), short(t)), lambda c=count, out=out, t=t: c(out=out, t=t))
        case("%s/weights_%s" % (name, short(out)), lambda c=count, out=out, w=weights: c(out=out, weights=w))
    case("%s/binary" % name, lambda c=count: c(binary=True))
    case("%s/minlength" % name, lambda c=count: c(minlength=8))
    case("%s/maxlength" % name, lambda c=count: c(maxlength=2))
    case("%s/maxlength_zero" % name, lambda c=count: c(maxlength=0))
    case("%s/maxlength_zero_minlength" % name, lambda c=count, w=weights: c(maxlength=0, minlength=6, weights=w, out=tf.float32))
    case("%s/maxlength_below_minlength" % name, lambda c=count: c(maxlength=2, minlength=6))
    case("%s/bad_weights" % name, lambda c=count: c(weights=[1.0], out=tf.float32))
    case("%s/binary_weights" % name, lambda c=count, w=weights: c(weights=w, out=tf.float32, binary=True))
case("DenseCountSparseOutput/nothing", lambda: count_dense(values=[]))
case("DenseCountSparseOutput/no_columns", lambda: count_dense(values=[[], []]))
case("DenseCountSparseOutput/no_rows", lambda: count_dense(values=np.zeros((0, 3), np.int32)))
case("DenseCountSparseOutput/no_columns_minlength", lambda: count_dense(values=[[], []], minlength=3))
case("SparseCountSparseOutput/nothing", lambda: count_sparse(dict(at=np.zeros((0, 2)), values=[], shape=[3, 4])))
case("SparseCountSparseOutput/nothing_vector", lambda: count_sparse(dict(at=np.zeros((0, 1)), values=[], shape=[3])))
case("RaggedCountSparseOutput/nothing", lambda: count_ragged(dict(splits=[0, 0, 0], values=[])))
case("DenseCountSparseOutput/vector", lambda: count_dense(values=[1, 1, 5]))
case("DenseCountSparseOutput/negative", lambda: count_dense(values=[1, -1]))
case("DenseCountSparseOutput/scalar", lambda: count_dense(values=1))
case("DenseCountSparseOutput/cube", lambda: count_dense(values=[[[1]]]))
for name, options in dict(vector=dict(at=[[1], [2]], values=[3, 3], shape=[5]), negative=dict(values=[1, -1, 2, 0]), counts=dict(values=[1]), vector_at=dict(at=[1, 2, 3, 4]),
                          shape_matrix=dict(shape=[[3, 4]]), outside=dict(at=[[0, 0], [0, 1], [2, 0], [7, 2]]), columns=dict(at=[[0], [1], [2], [0]]), empty_shape=dict(shape=[])).items():
    case("SparseCountSparseOutput/" + name, lambda options=options: count_sparse(dict(SPARSE, **options)))
for name, options in dict(start=dict(splits=[1, 5]), end=dict(splits=[0, 3]), none=dict(splits=[]), down=dict(splits=[0, 4, 2, 5]), negative=dict(values=[1, -1, 2, 0, 2]),
                          one=dict(splits=[0])).items():
    case("RaggedCountSparseOutput/" + name, lambda options=options: count_ragged(dict(RAGGED, **options)))


def bin_sparse(s=SPARSE, size=4, weights=(), out=tf.float32, t=tf.int32, **attrs):
    return raw.SparseBincount(indices=inp(s["at"], L), values=inp(s["values"], t), dense_shape=inp(s["shape"], L), size=inp(size, t), weights=inp(weights, out), **attrs)


def bin_ragged(s=RAGGED, size=4, weights=(), out=tf.float32, t=tf.int32, **attrs):
    return raw.RaggedBincount(splits=inp(s["splits"], L), values=inp(s["values"], t), size=inp(size, t), weights=inp(weights, out), **attrs)


for name, (count, weights) in dict(SparseBincount=(bin_sparse, [1.0, 2, 3, 4]), RaggedBincount=(bin_ragged, [1.0, 2, 3, 4, 5])).items():
    for out in allowed(name):
        for t in INDEX:
            case("%s/%s_%s" % (name, short(out), short(t)), lambda c=count, out=out, t=t: c(out=out, t=t))
        case("%s/weights_%s" % (name, short(out)), lambda c=count, out=out, w=weights: c(out=out, weights=w))
    case("%s/binary" % name, lambda c=count: c(binary_output=True))
    case("%s/small" % name, lambda c=count: c(size=2))
    case("%s/negative_size" % name, lambda c=count: c(size=-2))
    case("%s/size_vector" % name, lambda c=count: c(size=[2]))
for name, options in dict(vector=dict(at=[[1], [2]], values=[3, 3], shape=[5]), negative=dict(values=[1, -1, 2, 0]), counts=dict(values=[1]), vector_at=dict(at=[1, 2, 3, 4]),
                          shape_matrix=dict(shape=[[3, 4]]), outside=dict(at=[[0, 0], [0, 1], [2, 0], [7, 2]]), columns=dict(at=[[0], [1], [2], [0]]), empty_shape=dict(shape=[])).items():
    case("SparseBincount/" + name, lambda options=options: bin_sparse(dict(SPARSE, **options)))
for name, options in dict(start=dict(splits=[1, 5]), end=dict(splits=[0, 3]), none=dict(splits=[]), negative=dict(values=[1, -1, 2, 0, 2])).items():
    case("RaggedBincount/" + name, lambda options=options: bin_ragged(dict(RAGGED, **options)))
