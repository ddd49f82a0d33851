"""Sparse tensors whose elements move but do not change: dense form, order, shape, slices, joins, empty rows."""
from registry import ALL, allowed, case, inp, raw, rnd, short, tf

L = tf.int64
AT = [[0, 1], [0, 3], [1, 0], [2, 2], [2, 3]]
SHAPE = [3, 4]


def ids(v=AT):
    return inp(v, L)


def vals(t=tf.float32, n=5):
    return inp(rnd((n,), t), t)


def dense(at=AT, shape=SHAPE, values=(1.0, 2.0, 3.0, 4.0, 5.0), default=-1.0, index=L, **attrs):
    return raw.SparseToDense(sparse_indices=inp(at, index), output_shape=inp(shape, index), sparse_values=inp(values),
                             default_value=inp(default), **attrs)


for t in ALL:
    for index in (tf.int32, L):
        case("SparseToDense/%s_%s" % (short(t), short(index)), lambda t=t, index=index: raw.SparseToDense(
            sparse_indices=inp(AT, index), output_shape=inp(SHAPE, index), sparse_values=vals(t), default_value=inp(rnd((), t), t)))
case("SparseToDense/one_value", lambda: dense(values=7.0))
case("SparseToDense/vector_of_places", lambda: dense(at=[1, 3], shape=[5], values=[1.0, 2.0]))
case("SparseToDense/scalar_place", lambda: dense(at=2, shape=[5], values=3.0))
case("SparseToDense/scalar_shape", lambda: dense(at=2, shape=5, values=3.0))
case("SparseToDense/empty", lambda: dense(at=[[0, 1]][:0], shape=[2, 0], values=[]))
case("SparseToDense/no_elements", lambda: raw.SparseToDense(
    sparse_indices=inp(rnd((0, 2), L), L), output_shape=inp([2, 2], L), sparse_values=inp([], tf.float32), default_value=inp(1.0)))
case("SparseToDense/last_wins", lambda: dense(at=[[0, 1], [0, 1]], values=[1.0, 2.0], validate_indices=False))
for name, options in dict(
        rank3=dict(at=[[[0, 1]]]), columns=dict(at=[[0, 1, 2]], values=[1.0]), default=dict(default=[1.0]),
        counts=dict(values=[1.0, 2.0]), matrix_values=dict(values=[[1.0]]), shape_rank=dict(shape=[[3, 4]]),
        outside=dict(at=[[0, 4]], values=[1.0]), negative=dict(at=[[-1, 0]], values=[1.0]), order=dict(at=[[1, 0], [0, 1]], values=[1.0, 2.0]),
        twice=dict(at=[[1, 0], [1, 0]], values=[1.0, 2.0]), outside_unchecked=dict(at=[[0, 4]], values=[1.0], validate_indices=False),
        negative_shape=dict(shape=[-3, 4]), huge=dict(shape=[1 << 40, 1 << 40]), order_unchecked=dict(
            at=[[1, 0], [0, 1]], values=[1.0, 2.0], validate_indices=False), vector_outside=dict(at=[1, 5], shape=[5], values=[1.0, 2.0])).items():
    case("SparseToDense/" + name, lambda options=options: dense(**options))

for t in ALL:
    case("SparseReorder/%s" % short(t), lambda t=t: list(raw.SparseReorder(
        input_indices=ids([[2, 2], [0, 3], [1, 0], [0, 1], [2, 3]]), input_values=vals(t), input_shape=inp(SHAPE, L))))
for name, (at, values, shape) in dict(
        sorted=(AT, [1.0, 2, 3, 4, 5], SHAPE), twice=([[1, 1], [0, 0], [1, 1]], [1.0, 2, 3], [2, 2]), rank1=([[3], [1]], [1.0, 2], [4]),
        vector_at=([1, 2], [1.0, 2], [4]), counts=([[1]], [1.0, 2], [4]), columns=([[1, 1]], [1.0], [4]), shape_matrix=([[1]], [1.0], [[4]]),
        values_matrix=([[1]], [[1.0]], [4]), outside=([[9], [1]], [1.0, 2], [4]), negative=([[1], [-9]], [1.0, 2], [4]),
        huge=([[1, 1, 1]], [1.0], [1 << 40, 1 << 40, 1 << 40]), negative_shape=([[1]], [1.0], [-4]),
        rank3=([[1, 0, 2], [0, 5, 1], [0, 0, 9]], [1.0, 2, 3], [2, 6, 10])).items():
    case("SparseReorder/" + name, lambda at=at, values=values, shape=shape: list(raw.SparseReorder(
        input_indices=ids(at), input_values=inp(values, tf.float32), input_shape=inp(shape, L))))
case("SparseReorder/empty", lambda: list(raw.SparseReorder(
    input_indices=inp(rnd((0, 2), L), L), input_values=inp([], tf.float32), input_shape=inp([2, 2], L))))

for name, (at, old, new) in dict(
        flat=(AT, SHAPE, [12]), same=(AT, SHAPE, SHAPE), infer=(AT, SHAPE, [2, -1]), three=(AT, SHAPE, [3, 2, 2]), wrong=(AT, SHAPE, [5]),
        two_unknown=(AT, SHAPE, [-1, -1]), negative=(AT, SHAPE, [-2, -6]), not_divisible=(AT, SHAPE, [5, -1]), zero_infer=([[0]][:0], [0, 3], [-1, 0]),
        new_matrix=(AT, SHAPE, [[12]]), old_matrix=(AT, [SHAPE], [12]), columns=([[1]], SHAPE, [12]), vector_at=([1], SHAPE, [12]),
        outside=([[9, 9]], SHAPE, [12]), negative_place=([[-1, 0]], SHAPE, [12]), empty_shape=(AT, [], [12]), to_scalar=([[0, 0]], [1, 1], []),
        negative_old=(AT, [-3, 4], [12]), huge=([[1, 1]], [1 << 40, 1 << 40], [-1]), huge_new=([[0, 1]], SHAPE, [1 << 40, 1 << 40])).items():
    case("SparseReshape/" + name, lambda at=at, old=old, new=new: list(raw.SparseReshape(
        input_indices=ids(at), input_shape=inp(old, L), new_shape=inp(new, L))))
case("SparseReshape/no_elements", lambda: list(raw.SparseReshape(
    input_indices=inp(rnd((0, 2), L), L), input_shape=inp([0, 3], L), new_shape=inp([3, -1], L))))
case("SparseReshape/none_infer", lambda: list(raw.SparseReshape(
    input_indices=inp(rnd((0, 2), L), L), input_shape=inp([2, 3], L), new_shape=inp([3, -1], L))))


def part(start, size, at=AT, shape=SHAPE, t=tf.float32, n=5):
    return list(raw.SparseSlice(indices=ids(at), values=vals(t, n), shape=inp(shape, L), start=inp(start, L), size=inp(size, L)))


for t in allowed("SparseSlice"):
    case("SparseSlice/%s" % short(t), lambda t=t: part([0, 1], [2, 3], t=t))
for name, options in dict(
        all=dict(start=[0, 0], size=[3, 4]), beyond=dict(start=[1, 1], size=[9, 9]), none=dict(start=[2, 0], size=[1, 2]), outside=dict(start=[3, 4], size=[1, 1]),
        ranks=dict(start=[0], size=[3, 4]), sizes=dict(start=[0, 0], size=[3]), matrix=dict(start=[[0, 0]], size=[3, 4]), negative=dict(start=[-1, 0], size=[3, 4]),
        negative_size=dict(start=[0, 0], size=[-1, 4]), counts=dict(start=[0, 0], size=[3, 4], n=4), columns=dict(start=[0], size=[3], at=[[0, 1]], shape=[3], n=1),
        vector_at=dict(start=[0], size=[3], at=[1], shape=[3], n=1), shape_matrix=dict(start=[0, 0], size=[3, 4], shape=[[3, 4]])).items():
    case("SparseSlice/" + name, lambda options=options: part(**options))


def part_grad(t=tf.float32, grads=3, at=AT, start=(0, 1), out=((0, 0), (0, 2), (2, 1))):
    return raw.SparseSliceGrad(backprop_val_grad=vals(t, grads), input_indices=ids(at), input_start=inp(start, L), output_indices=ids(out))


for t in allowed("SparseSliceGrad"):
    case("SparseSliceGrad/%s" % short(t), lambda t=t: part_grad(t))
case("SparseSliceGrad/counts", lambda: part_grad(grads=2))
case("SparseSliceGrad/ranks", lambda: part_grad(start=(0,)))
case("SparseSliceGrad/vector_at", lambda: part_grad(at=[1]))
case("SparseSliceGrad/vector_out", lambda: part_grad(out=[1, 2, 3]))
case("SparseSliceGrad/columns", lambda: part_grad(out=[[1], [2], [3]]))
case("SparseSliceGrad/matrix_start", lambda: part_grad(start=[[0, 1]]))
case("SparseSliceGrad/unmatched", lambda: part_grad(out=((0, 0), (1, 2), (2, 1))))


def joined(dim, at, values, shapes, t=tf.float32):
    return list(raw.SparseConcat(indices=[ids(a) for a in at], values=[inp(v, t) for v in values], shapes=[inp(s, L) for s in shapes], concat_dim=dim))


PAIR = dict(at=([[0, 1], [1, 0]], [[0, 0], [1, 1]]), values=([1.0, 2.0], [3.0, 4.0]), shapes=([2, 2], [2, 3]))
for t in ALL:
    case("SparseConcat/%s" % short(t), lambda t=t: joined(1, PAIR["at"], (rnd((2,), t), rnd((2,), t)), PAIR["shapes"], t))
for dim in (1, -1, 0, -2, 2, -3):
    case("SparseConcat/dim%d" % dim, lambda dim=dim: joined(dim, **PAIR))
case("SparseConcat/rows", lambda: joined(0, **dict(PAIR, shapes=([2, 3], [2, 3]))))
case("SparseConcat/three", lambda: joined(0, PAIR["at"] + ([[0, 2]],), PAIR["values"] + ([9.0],), ([2, 3],) * 3))
for name, options in dict(
        ranks=dict(shapes=([2, 2], [2, 3, 1])), vector_at=dict(at=([0, 1], [[0, 0], [1, 1]])), counts=dict(values=([1.0], [2.0, 3.0])),
        values_matrix=dict(values=([[1.0], [2.0]], [2.0, 3.0])), shape_matrix=dict(shapes=([[2, 2]], [2, 3])), columns=dict(at=([[0], [1]], [[0, 0], [1, 1]])),
        unsorted=dict(at=([[1, 0], [0, 1]], [[1, 1], [0, 0]])), outside=dict(at=([[7, 0], [8, 1]], [[0, 0], [1, 1]])),
        huge=dict(shapes=([2, (1 << 62)], [2, (1 << 62)]))).items():
    case("SparseConcat/" + name, lambda options=options: joined(1, **dict(PAIR, **options)))


def cut(dim, count, at=AT, shape=SHAPE, t=tf.float32, n=5):
    out = raw.SparseSplit(split_dim=inp(dim, L), indices=ids(at), values=vals(t, n), shape=inp(shape, L), num_split=count)
    return [list(part) for part in out]


for t in ALL:
    case("SparseSplit/%s" % short(t), lambda t=t: cut(1, 2, t=t))
for name, options in dict(
        rows=dict(dim=0, count=3), uneven=dict(dim=1, count=3), one=dict(dim=1, count=1), negative=dict(dim=-1, count=2), outside=dict(dim=2, count=2), many=dict(dim=0, count=4),
        dim_vector=dict(dim=[0], count=1), dim_pair=dict(dim=[0, 1], count=1), vector_at=dict(dim=0, count=1, at=[1], n=1), counts=dict(dim=0, count=1, n=3),
        shape_matrix=dict(dim=0, count=1, shape=[SHAPE]), columns=dict(dim=0, count=1, shape=[3]), place=dict(dim=0, count=3, at=[[7, 0]], n=1),
        negative_place=dict(dim=0, count=3, at=[[-7, 0]], n=1), uneven_rows=dict(dim=0, count=2)).items():
    case("SparseSplit/" + name, lambda options=options: cut(**options))


def filled(at=((1, 0), (1, 2), (3, 1)), values=(1.0, 2.0, 3.0), shape=(5, 4), default=-1.0, t=tf.float32):
    return list(raw.SparseFillEmptyRows(indices=ids(at), values=inp(values, t), dense_shape=inp(shape, L), default_value=inp(default, t)))


for t in ALL:
    case("SparseFillEmptyRows/%s" % short(t), lambda t=t: filled(values=rnd((3,), t), default=rnd((), t), t=t))
for name, options in dict(
        full=dict(at=[[0, 0], [1, 2], [2, 1]], shape=[3, 4]), unordered=dict(at=[[3, 1], [1, 0], [1, 2]]), unordered_full=dict(at=[[2, 1], [1, 0], [0, 2]], shape=[3, 4]),
        columns=dict(at=[[3, 1, 5], [1, 0, 5], [1, 2, 5]], shape=[5, 4, 6]), outside=dict(at=[[9, 1], [1, 0], [1, 2]]), negative=dict(at=[[-1, 1], [1, 0], [1, 2]]),
        counts=dict(values=[1.0]), default=dict(default=[1.0]), vector_at=dict(at=[1, 2, 3]), values_matrix=dict(values=[[1.0], [2.0], [3.0]]),
        shape_matrix=dict(shape=[[5, 4]]), no_rows_but_elements=dict(shape=[0, 4]), empty_shape=dict(shape=[]),
        ranks=dict(shape=[5]), negative_shape=dict(shape=[-5, 4])).items():
    case("SparseFillEmptyRows/" + name, lambda options=options: filled(**options))
for rows in (0, 3):
    case("SparseFillEmptyRows/no_elements_%d" % rows, lambda rows=rows: list(raw.SparseFillEmptyRows(
        indices=inp(rnd((0, 2), L), L), values=inp([], tf.float32), dense_shape=inp([rows, 4], L), default_value=inp(1.0))))

for t in allowed("SparseFillEmptyRowsGrad"):
    case("SparseFillEmptyRowsGrad/%s" % short(t), lambda t=t: list(raw.SparseFillEmptyRowsGrad(
        reverse_index_map=inp([2, 0, 3], L), grad_values=vals(t, 6))))
for name, (back, grads) in dict(map_matrix=([[1]], [1.0]), grad_matrix=([1], [[1.0]]), outside=([1, 4], [1.0, 2]), negative=([-1], [1.0, 2]), none=([], [1.0, 2])).items():
    case("SparseFillEmptyRowsGrad/" + name, lambda back=back, grads=grads: list(raw.SparseFillEmptyRowsGrad(
        reverse_index_map=inp(back, L), grad_values=inp(grads, tf.float32))))
