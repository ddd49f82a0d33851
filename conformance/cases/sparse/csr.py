"""Sparse matrices by rows, which are variants on their way from op to op."""
import numpy as np

from registry import any_op, case, const, rnd, short, tf

TYPES = [tf.float32, tf.float64, tf.complex64, tf.complex128]
PLACES = [[0, 1], [1, 0], [1, 2]]
BATCHED = [[0, 0, 0], [0, 1, 1], [2, 1, 0]]


def fed(value, dtype=None):
    """These ops want to know shapes: fed, and of a known one."""
    value = np.asarray(value, tf.as_dtype(dtype).as_numpy_dtype if dtype else None)
    from registry import inp
    return inp(value, dtype, value.shape)


def matrix(t=tf.float32, places=PLACES, shape=(2, 3)):
    places = np.array(places, np.int64).reshape(-1, len(shape))
    return any_op("SparseTensorToCSRSparseMatrix", indices=fed(places, tf.int64), values=fed(rnd((len(places),), t), t), dense_shape=const(shape, tf.int64))


def sparse(m, t=tf.float32):
    return list(any_op("CSRSparseMatrixToSparseTensor", sparse_matrix=m, type=t))


def dense(m, t=tf.float32):
    return any_op("CSRSparseMatrixToDense", sparse_input=m, type=t)


for t in TYPES:
    s = short(t)
    case("SparseTensorToCSRSparseMatrix/" + s, lambda t=t: sparse(matrix(t), t))
    case("CSRSparseMatrixToDense/" + s, lambda t=t: dense(matrix(t), t))
    case("CSRSparseMatrixToDense/batch_" + s, lambda t=t: dense(matrix(t, BATCHED, (3, 2, 2)), t))
    case("CSRSparseMatrixComponents/" + s, lambda t=t: list(any_op("CSRSparseMatrixComponents", csr_sparse_matrix=matrix(t), index=fed(0, tf.int32), type=t)))
    case("DenseToCSRSparseMatrix/" + s, lambda t=t: sparse(any_op("DenseToCSRSparseMatrix", dense_input=fed(rnd((2, 3), t), t), indices=fed(PLACES, tf.int64)), t))
    case("DenseToCSRSparseMatrix/batch_" + s, lambda t=t: sparse(any_op("DenseToCSRSparseMatrix", dense_input=fed(rnd((3, 2, 2), t), t), indices=fed(BATCHED, tf.int64)), t))
    for conjugate in (False, True):
        case("SparseMatrixTranspose/%s_%s" % (s, conjugate), lambda t=t, c=conjugate: sparse(any_op("SparseMatrixTranspose", input=matrix(t), type=t, conjugate=c), t))
    case("SparseMatrixTranspose/batch_" + s, lambda t=t: sparse(any_op("SparseMatrixTranspose", input=matrix(t, BATCHED, (3, 2, 2)), type=t), t))
    for how in ({}, dict(transpose_a=True), dict(adjoint_a=True), dict(transpose_b=True), dict(adjoint_b=True), dict(transpose_output=True),
                dict(conjugate_output=True), dict(transpose_output=True, conjugate_output=True, adjoint_a=True, transpose_b=True)):
        turned = any(k.endswith("_a") for k in how)
        b = (2, 4) if turned else (3, 4)
        b = b[::-1] if any(k.endswith("_b") for k in how) else b
        name = "%s_%s" % (s, "_".join(how))
        case("SparseMatrixMatMul/" + name, lambda t=t, how=how, b=b: any_op("SparseMatrixMatMul", a=matrix(t), b=fed(rnd(b, t), t), **how))
    case("SparseMatrixMatMul/batch_" + s, lambda t=t: any_op("SparseMatrixMatMul", a=matrix(t, BATCHED, (3, 2, 2)), b=fed(rnd((3, 2, 5), t), t)))
    for how in ({}, dict(transpose_a=True), dict(adjoint_a=True), dict(transpose_b=True), dict(adjoint_b=True)):
        other = ([[0, 0], [2, 1], [2, 0]], (3, 2)) if not how else (PLACES, (2, 3))
        case("SparseMatrixSparseMatMul/%s_%s" % (s, "_".join(how)), lambda t=t, how=how, o=other: sparse(any_op(
            "SparseMatrixSparseMatMul", a=matrix(t), b=matrix(t, *o), type=t, **how), t))
    case("SparseMatrixSparseMatMul/batch_" + s, lambda t=t: sparse(any_op(
        "SparseMatrixSparseMatMul", a=matrix(t, BATCHED, (3, 2, 2)), b=matrix(t, BATCHED, (3, 2, 2)), type=t), t))

    def definite(t, shape=(5, 5)):
        a = np.where(rnd(shape) > 1.0, rnd(shape, t, -1, 1), 0).astype(t.as_numpy_dtype)
        a = np.matmul(a, np.conj(np.swapaxes(a, -1, -2))) + 4 * np.eye(5, dtype=a.dtype)
        return any_op("DenseToCSRSparseMatrix", dense_input=fed(a, t), indices=fed(np.argwhere(a), tf.int64))

    for order in ([0, 1, 2, 3, 4], [4, 2, 0, 1, 3]):
        case("SparseMatrixSparseCholesky/%s_%s" % (s, order[0]), lambda t=t, order=order: dense(any_op(
            "SparseMatrixSparseCholesky", input=definite(t), permutation=fed(order, tf.int32), type=t), t), rtol=1e-4, atol=1e-5)
    case("SparseMatrixSparseCholesky/batch_" + s, lambda t=t: dense(any_op("SparseMatrixSparseCholesky", input=definite(t, (2, 5, 5)), permutation=fed(
        [[0, 1, 2, 3, 4], [4, 2, 0, 1, 3]], tf.int32), type=t), t), rtol=1e-4, atol=1e-5)
case("SparseMatrixNNZ/one", lambda: any_op("SparseMatrixNNZ", sparse_matrix=matrix()))
case("SparseMatrixNNZ/batch", lambda: any_op("SparseMatrixNNZ", sparse_matrix=matrix(places=BATCHED, shape=(3, 2, 2))))
for name, places in [("unsorted", [[1, 0], [0, 1], [1, 2]]), ("columns", [[0, 1], [1, 2], [1, 0]]), ("twice", [[0, 1], [0, 1]]), ("empty", []),
                     ("row", [[0, 1], [2, 1]]), ("column", [[0, 1], [1, 3]]), ("negative", [[0, -1]])]:
    case("SparseTensorToCSRSparseMatrix/" + name, lambda p=places: sparse(matrix(places=p)))
    case("DenseToCSRSparseMatrix/" + name, lambda p=places: sparse(any_op("DenseToCSRSparseMatrix", dense_input=fed(rnd((2, 3)), tf.float32), indices=fed(
        np.array(p, np.int64).reshape(-1, 2), tf.int64))))
case("CSRSparseMatrixToSparseTensor/type", lambda: sparse(matrix(), tf.float64))
case("CSRSparseMatrixToDense/type", lambda: dense(matrix(), tf.float64))
for index in (1, -1):
    case("CSRSparseMatrixComponents/index_%d" % index, lambda i=index: list(any_op("CSRSparseMatrixComponents", csr_sparse_matrix=matrix(), index=fed(i, tf.int32), type=tf.float32)))
case("CSRSparseMatrixComponents/type", lambda: list(any_op("CSRSparseMatrixComponents", csr_sparse_matrix=matrix(), index=fed(0, tf.int32), type=tf.float64)))
case("SparseMatrixTranspose/type", lambda: sparse(any_op("SparseMatrixTranspose", input=matrix(), type=tf.float64), tf.float64))
case("SparseMatrixMatMul/type", lambda: any_op("SparseMatrixMatMul", a=matrix(), b=fed(rnd((3, 4), tf.float64), tf.float64)))
case("SparseMatrixSparseMatMul/type", lambda: sparse(any_op("SparseMatrixSparseMatMul", a=matrix(), b=matrix(tf.float64), transpose_b=True, type=tf.float32)))
case("SparseMatrixSparseCholesky/indefinite", lambda: dense(any_op("SparseMatrixSparseCholesky", input=any_op(
    "DenseToCSRSparseMatrix", dense_input=fed(np.array([[1, 2], [2, 1]], np.float32), tf.float32), indices=fed([[0, 0], [0, 1], [1, 0], [1, 1]], tf.int64)),
    permutation=fed([0, 1], tf.int32), type=tf.float32)))
case("SparseMatrixSparseCholesky/rank", lambda: dense(any_op("SparseMatrixSparseCholesky", input=definite(tf.float32), permutation=fed([[0, 1, 2, 3, 4]], tf.int32), type=tf.float32)))
