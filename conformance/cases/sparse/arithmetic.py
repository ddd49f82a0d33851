"""Sparse tensors that are added, reduced, multiplied, compared."""
from registry import SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

L = tf.int64
A = dict(at=[[0, 1], [1, 0], [2, 2]], shape=[3, 4])
B = dict(at=[[0, 0], [0, 1], [2, 2], [2, 3]], shape=[3, 4])
AT = [[0, 1], [0, 3], [1, 0], [2, 2], [2, 3]]
SHAPE = [3, 4]


def tol(t):
    return dict(rtol=2e-2, atol=4e-2) if t in SMALL_FLOATS else {}


def added(a=A, b=B, t=tf.float32, thresh=0, real=None, n=3, m=4):
    real = real or {tf.complex64: tf.float32, tf.complex128: tf.float64}.get(t, t)
    return list(raw.SparseAdd(a_indices=inp(a["at"], L), a_values=inp(rnd((n,), t), t), a_shape=inp(a["shape"], L), b_indices=inp(b["at"], L),
                              b_values=inp(rnd((m,), t), t), b_shape=inp(b["shape"], L), thresh=inp(thresh, real)))


for t in allowed("SparseAdd"):
    case("SparseAdd/%s" % short(t), lambda t=t: added(t=t), **tol(t))
    case("SparseAdd/thresh_%s" % short(t), lambda t=t: added(t=t, thresh=2), **tol(t))
case("SparseAdd/real_type", lambda: added(t=tf.float32, real=tf.int32))
case("SparseAdd/complex_real", lambda: added(t=tf.complex64, real=tf.float64))
for name, options in dict(
        shapes=dict(b=dict(B, shape=[3, 5])), ranks=dict(b=dict(B, shape=[3])), thresh_vector=dict(thresh=[1.0]), counts=dict(n=2), counts_b=dict(m=2),
        vector_at=dict(a=dict(A, at=[1])), vector_at_b=dict(b=dict(B, at=[1])), shape_matrix=dict(a=dict(A, shape=[[3, 4]])), shape_matrix_b=dict(b=dict(B, shape=[[3, 4]])),
        columns=dict(a=dict(A, at=[[0], [1], [2]])), columns_b=dict(b=dict(B, at=[[0], [1], [2], [3]])), unsorted=dict(a=dict(A, at=[[2, 2], [0, 1], [1, 0]])),
        scalar_shape=dict(a=dict(at=[[0], [1], [2]], shape=[]), b=dict(at=[[0], [1], [2], [3]], shape=[])),
        infinite=dict(thresh=float("inf"))).items():
    case("SparseAdd/" + name, lambda options=options: added(**options))
case("SparseAdd/empty", lambda: list(raw.SparseAdd(
    a_indices=inp(rnd((0, 2), L), L), a_values=inp([], tf.float32), a_shape=inp([2, 2], L), b_indices=inp([[1, 1]], L), b_values=inp([3.0]), b_shape=inp([2, 2], L),
    thresh=inp(0.0))))
case("SparseAdd/values_matrix", lambda: list(raw.SparseAdd(
    a_indices=inp([[0, 0]], L), a_values=inp([[1.0]]), a_shape=inp([2, 2], L), b_indices=inp([[1, 1]], L), b_values=inp([3.0]), b_shape=inp([2, 2], L),
    thresh=inp(0.0))))


def added_grad(grads=5, a=A["at"], b=B["at"], total=((0, 0), (0, 1), (1, 0), (2, 2), (2, 3)), t=tf.float32):
    return list(raw.SparseAddGrad(backprop_val_grad=inp(rnd((grads,), t), t), a_indices=inp(a, L), b_indices=inp(b, L), sum_indices=inp(total, L)))


for t in allowed("SparseAddGrad"):
    case("SparseAddGrad/%s" % short(t), lambda t=t: added_grad(t=t))
case("SparseAddGrad/shrunk", lambda: added_grad(grads=2, total=[[0, 0], [2, 3]]))
case("SparseAddGrad/counts", lambda: added_grad(grads=4))
case("SparseAddGrad/columns", lambda: added_grad(a=[[0], [1]]))
case("SparseAddGrad/vector_at", lambda: added_grad(a=[0, 1]))
case("SparseAddGrad/sum_columns", lambda: added_grad(grads=1, total=[[0, 1, 2]]))
case("SparseAddGrad/grad_matrix", lambda: list(raw.SparseAddGrad(
    backprop_val_grad=inp([[1.0]]), a_indices=inp([[0]], L), b_indices=inp([[0]], L), sum_indices=inp([[0]], L))))


def with_dense(op, dense, at=AT, shape=SHAPE, t=tf.float32, n=5, lo=1, hi=5):
    return op(sp_indices=inp(at, L), sp_values=inp(rnd((n,), t, lo, hi), t), sp_shape=inp(shape, L), dense=inp(rnd(dense, t, lo, hi), t))


for name in ("SparseDenseCwiseAdd", "SparseDenseCwiseMul", "SparseDenseCwiseDiv"):
    op = getattr(raw, name)
    for t in allowed(name):
        case("%s/%s" % (name, short(t)), lambda op=op, t=t: with_dense(op, (3, 4), t=t), **tol(t))
    for dense in ((4,), (1,), (), (3, 1), (1, 4), (1, 1)):
        case("%s/dense_%s" % (name, "x".join(map(str, dense))), lambda op=op, dense=dense: with_dense(op, dense))
    for word, options in dict(
            fit=dict(dense=(2, 4)), rank=dict(dense=(1, 3, 4)), counts=dict(dense=(3, 4), n=4), columns=dict(dense=(3, 4), at=[[0], [1], [2], [0], [0]]),
            vector_at=dict(dense=(3, 4), at=[0, 1, 2, 3, 4]), outside=dict(dense=(3, 4), at=[[9, 9]], n=1), shape_matrix=dict(dense=(3, 4), shape=[[3, 4]]),
            empty_shape=dict(dense=(), shape=[])).items():
        case("%s/%s" % (name, word), lambda op=op, options=options: with_dense(op, **options))
    case("%s/no_elements" % name, lambda op=op: op(
        sp_indices=inp(rnd((0, 2), L), L), sp_values=inp([], tf.float32), sp_shape=inp([2, 2], L), dense=inp(rnd((2, 2)))))
case("SparseDenseCwiseDiv/zero", lambda: raw.SparseDenseCwiseDiv(
    sp_indices=inp([[0], [1], [2]], L), sp_values=inp([0.0, 1.0, -1.0]), sp_shape=inp([3], L), dense=inp([0.0, 0.0, 0.0])))
case("SparseDenseCwiseDiv/integer_zero", lambda: raw.SparseDenseCwiseDiv(
    sp_indices=inp([[0], [1]], L), sp_values=inp([4, 1]), sp_shape=inp([2], L), dense=inp([3, 0])))
case("SparseDenseCwiseDiv/zero_elsewhere", lambda: raw.SparseDenseCwiseDiv(
    sp_indices=inp([[0], [1]], L), sp_values=inp([4, 1]), sp_shape=inp([3], L), dense=inp([3, 1, 0])))
case("SparseDenseCwiseDiv/negative", lambda: raw.SparseDenseCwiseDiv(
    sp_indices=inp([[0], [1]], L), sp_values=inp([-7, 7]), sp_shape=inp([2], L), dense=inp([2, -2])))


def reduced(op, axes, at=AT, shape=SHAPE, keep=False, t=tf.float32, n=5, values=None):
    out = op(input_indices=inp(at, L), input_values=inp(rnd((n,), t) if values is None else values, t), input_shape=inp(shape, L),
             reduction_axes=inp(axes, tf.int32), keep_dims=keep)
    return out if hasattr(out, "op") else list(out)


CUBE = dict(at=[[0, 0, 1], [0, 1, 0], [1, 0, 1], [1, 1, 1], [1, 2, 0]], shape=[2, 3, 2])
for name in ("SparseReduceSum", "SparseReduceMax", "SparseReduceSumSparse", "SparseReduceMaxSparse"):
    op = getattr(raw, name)
    for t in allowed(name):
        case("%s/%s" % (name, short(t)), lambda op=op, t=t: reduced(op, [1], t=t), **tol(t))
    for axes in ([], [0], [1], [0, 1], [-1], [1, 1], [-2, 1], 0):
        for keep in (False, True):
            case("%s/axes_%s_%s" % (name, "_".join(map(str, axes)) if isinstance(axes, list) else "scalar", keep),
                 lambda op=op, axes=axes, keep=keep: reduced(op, axes, keep=keep))
    for axes in ([0], [1], [0, 2], [2], [1, 0], [0, 1, 2]):
        case("%s/cube_%s" % (name, "_".join(map(str, axes))), lambda op=op, axes=axes: reduced(op, axes, **CUBE))
    for word, options in dict(
            outside=dict(axes=[2]), below=dict(axes=[-3]), counts=dict(axes=[0], n=4), vector_at=dict(axes=[0], at=[0]), shape_matrix=dict(axes=[0], shape=[[3, 4]]),
            columns=dict(axes=[0], at=[[0], [1], [2], [0], [1]]), place=dict(axes=[0], at=[[9, 0]], n=1), far=dict(axes=[1], at=[[9, 0]], n=1), below_zero=dict(axes=[1], at=[[-1, 0]], n=1), axes_matrix=dict(axes=[[0]]),
            unsorted=dict(axes=[1], at=[[2, 2], [0, 3], [1, 0], [0, 1], [2, 3]]), negative_shape=dict(axes=[0], shape=[-3, 4])).items():
        case("%s/%s" % (name, word), lambda op=op, options=options: reduced(op, **options))
    case("%s/no_elements" % name, lambda op=op: (lambda out: out if hasattr(out, "op") else list(out))(op(
        input_indices=inp(rnd((0, 2), L), L), input_values=inp([], tf.float32), input_shape=inp([2, 3], L), reduction_axes=inp([1]))))


def softened(at=AT, shape=SHAPE, t=tf.float32, n=5):
    return raw.SparseSoftmax(sp_indices=inp(at, L), sp_values=inp(rnd((n,), t), t), sp_shape=inp(shape, L))


for t in allowed("SparseSoftmax"):
    case("SparseSoftmax/%s" % short(t), lambda t=t: softened(t=t), **tol(t))
case("SparseSoftmax/cube", lambda: softened(**CUBE))
for name, options in dict(rank1=dict(at=[[0], [1]], shape=[4], n=2), counts=dict(n=4), vector_at=dict(at=[0, 1, 2, 3, 4]), shape_matrix=dict(shape=[[3, 4]]),
                          columns=dict(at=[[0], [1], [2], [0], [1]]), place=dict(at=[[9, 9]], n=1), unsorted=dict(at=[[2, 2], [0, 3], [1, 0], [0, 1], [2, 3]])).items():
    case("SparseSoftmax/" + name, lambda options=options: softened(**options))


def compared(op, a=A, b=B, t=tf.float32, n=3, m=4):
    return list(op(a_indices=inp(a["at"], L), a_values=inp(rnd((n,), t), t), a_shape=inp(a["shape"], L), b_indices=inp(b["at"], L),
                   b_values=inp(rnd((m,), t), t), b_shape=inp(b["shape"], L)))


for name in ("SparseSparseMaximum", "SparseSparseMinimum"):
    op = getattr(raw, name)
    for t in allowed(name):
        case("%s/%s" % (name, short(t)), lambda op=op, t=t: compared(op, t=t))
    for word, options in dict(
            shapes=dict(b=dict(B, shape=[3, 5])), ranks=dict(b=dict(B, shape=[3])), counts=dict(n=2), counts_b=dict(m=2), vector_at=dict(a=dict(A, at=[1])),
            shape_matrix=dict(a=dict(A, shape=[[3, 4]])), columns=dict(a=dict(A, at=[[0], [1], [2]]))).items():
        case("%s/%s" % (name, word), lambda op=op, options=options: compared(op, **options))


def product(b, at=AT, shape=SHAPE, t=tf.float32, n=5, index=L, **attrs):
    return raw.SparseTensorDenseMatMul(a_indices=inp(at, index), a_values=inp(rnd((n,), t), t), a_shape=inp(shape, L), b=inp(rnd(b, t), t), **attrs)


for t in allowed("SparseTensorDenseMatMul"):
    for index in (tf.int32, L):
        case("SparseTensorDenseMatMul/%s_%s" % (short(t), short(index)), lambda t=t, index=index: product((4, 2), t=t, index=index), **tol(t))
for t in (tf.float32, tf.complex64):
    case("SparseTensorDenseMatMul/adjoint_a_%s" % short(t), lambda t=t: product((3, 2), t=t, adjoint_a=True))
    case("SparseTensorDenseMatMul/adjoint_b_%s" % short(t), lambda t=t: product((2, 4), t=t, adjoint_b=True))
    case("SparseTensorDenseMatMul/adjoint_ab_%s" % short(t), lambda t=t: product((2, 3), t=t, adjoint_a=True, adjoint_b=True))
case("SparseTensorDenseMatMul/wide", lambda: product((4, 70)))
for name, options in dict(
        fit=dict(b=(3, 2)), adjoint=dict(b=(3, 2), adjoint_b=True), vector=dict(b=(4,)), shape3=dict(b=(4, 2), shape=[3, 4, 5]), shape_matrix=dict(b=(4, 2), shape=[SHAPE]),
        counts=dict(b=(4, 2), n=4), columns=dict(b=(4, 2), at=[[0], [1], [2], [0], [1]]), outside_k=dict(b=(4, 2), at=[[0, 9]], n=1), outside_m=dict(b=(4, 2), at=[[9, 0]], n=1),
        negative=dict(b=(4, 2), at=[[-1, 0]], n=1), vector_at=dict(b=(4, 2), at=[1, 2]), no_columns=dict(b=(4, 0)),
        outside_adjoint=dict(b=(3, 2), at=[[0, 9]], n=1, adjoint_a=True), outside_k_adjoint=dict(b=(3, 2), at=[[9, 0]], n=1, adjoint_a=True)).items():
    case("SparseTensorDenseMatMul/" + name, lambda options=options: product(**options))
case("SparseTensorDenseMatMul/no_elements", lambda: raw.SparseTensorDenseMatMul(
    a_indices=inp(rnd((0, 2), L), L), a_values=inp([], tf.float32), a_shape=inp([2, 3], L), b=inp(rnd((3, 2)))))


def dense_sum(b, at=AT, shape=SHAPE, t=tf.float32, n=5, index=L):
    return raw.SparseTensorDenseAdd(a_indices=inp(at, index), a_values=inp(rnd((n,), t), t), a_shape=inp(shape, index), b=inp(rnd(b, t), t))


for t in allowed("SparseTensorDenseAdd"):
    for index in (tf.int32, L):
        case("SparseTensorDenseAdd/%s_%s" % (short(t), short(index)), lambda t=t, index=index: dense_sum((3, 4), t=t, index=index), **tol(t))
for name, options in dict(
        twice=dict(b=(3, 4), at=[[0, 1], [0, 1]], n=2), rank1=dict(b=(4,), at=[[1], [3]], shape=[4], n=2), rank3=dict(b=(2, 3, 2), **CUBE), shapes=dict(b=(3, 5)), ranks=dict(b=(3,)),
        counts=dict(b=(3, 4), n=4), vector_at=dict(b=(3, 4), at=[1]), shape_matrix=dict(b=(3, 4), shape=[SHAPE]), columns=dict(b=(3, 4), at=[[0], [1], [2], [0], [1]]),
        outside=dict(b=(3, 4), at=[[9, 9]], n=1), scalar=dict(b=(), at=[[0]], shape=[], n=1), rank6=dict(b=(1,) * 6, at=[[0] * 6], shape=[1] * 6, n=1)).items():
    case("SparseTensorDenseAdd/" + name, lambda options=options: dense_sum(**options))


def both(a, b, ta=tf.float32, tb=tf.float32, **attrs):
    return raw.SparseMatMul(a=inp(rnd(a, ta), ta), b=inp(rnd(b, tb), tb), **attrs)


for ta in (tf.float32, tf.bfloat16):
    for tb in (tf.float32, tf.bfloat16):
        case("SparseMatMul/%s_%s" % (short(ta), short(tb)), lambda ta=ta, tb=tb: both((3, 4), (4, 5), ta, tb, b_is_sparse=True), rtol=1e-2, atol=1e-2)
case("SparseMatMul/transposed", lambda: both((4, 3), (5, 4), transpose_a=True, transpose_b=True, a_is_sparse=True), rtol=1e-4)
case("SparseMatMul/fit", lambda: both((3, 4), (5, 4)))
case("SparseMatMul/rank", lambda: both((3,), (5, 4)))
case("SparseMatMul/rank_b", lambda: both((3, 5), (5,)))
case("SparseMatMul/empty", lambda: both((0, 4), (4, 5)))
case("SparseMatMul/no_inner", lambda: both((2, 0), (0, 5)))
