"""Decompositions, solvers and functions of matrices."""
import numpy as np

from registry import allowed, case, inp, raw, rnd, short, tf

FOUR = [tf.float32, tf.float64, tf.complex64, tf.complex128]
SHAPES = [(1, 1), (2, 2), (5, 5), (2, 3, 3), (0, 2, 2), (0, 0), (2, 0, 0)]


def loose(t):
    return dict(rtol=2e-3, atol=2e-4) if t in (tf.float32, tf.complex64) else dict(rtol=1e-8, atol=1e-9)


def regular(shape, t):
    """Well conditioned square matrices."""
    a = rnd(shape, t, -1, 1)
    return a + np.eye(shape[-1], dtype=a.dtype) * 3 if shape[-1] else a


def hermitian(shape, t):
    a = rnd(shape, t)
    return a + np.conj(np.swapaxes(a, -1, -2))


def sizes(values):
    """Vectors are known up to a phase only."""
    return [np.abs(v) for v in values]


for t in allowed("SelfAdjointEigV2"):
    for shape in SHAPES:
        if shape not in [(5, 5), (2, 3, 3)] and t not in FOUR:
            continue
        case("SelfAdjointEigV2/%s_%s" % (short(t), shape), lambda t=t, shape=shape: list(raw.SelfAdjointEigV2(
            input=inp(hermitian(shape, t), t), compute_v=True)), post=sizes, **loose(t))
    case("SelfAdjointEigV2/values_%s" % short(t), lambda t=t: raw.SelfAdjointEigV2(
        input=inp(hermitian((3, 4, 4), t), t), compute_v=False).e, **loose(t))
    case("SelfAdjointEigV2/lower_%s" % short(t), lambda t=t: raw.SelfAdjointEigV2(
        input=inp(rnd((4, 4), t), t), compute_v=False).e, **loose(t))
for shape in [(3,), (2, 3), ()]:
    case("SelfAdjointEigV2/bad_%s" % (shape,), lambda shape=shape: raw.SelfAdjointEigV2(input=inp(rnd(shape)))[0])
case("SelfAdjointEigV2/nan", lambda: raw.SelfAdjointEigV2(input=inp(np.full((3, 3), np.nan)))[0])

for t in allowed("Svd"):
    for shape in [(1, 1), (3, 3), (5, 3), (3, 5), (2, 4, 2), (0, 3), (3, 0), (0, 0), (0, 2, 3)]:
        for full in (False, True):
            # The vectors beyond the rank are any basis of the rest: their projector is compared.
            def build(t=t, shape=shape, full=full):
                s, u, v = raw.Svd(input=inp(rnd(shape, t), t), compute_uv=True, full_matrices=full)
                return [s, u, v, tf.matmul(u, u, adjoint_b=True), tf.matmul(v, v, adjoint_b=True)]

            def known(values, full=full):
                s, u, v, pu, pv = values
                k = s.shape[-1]
                return [s, np.abs(u[..., :k]), np.abs(v[..., :k]), pu, pv, np.array(u.shape), np.array(v.shape)]
            case("Svd/%s_%s_%s" % (short(t), shape, full), build, post=known, **loose(t))
    case("Svd/values_%s" % short(t), lambda t=t: raw.Svd(input=inp(rnd((2, 6, 4), t), t), compute_uv=False).s, **loose(t))
case("Svd/nan", lambda: list(raw.Svd(input=inp([[np.nan, 1.0], [2.0, 3.0]]), compute_uv=True)))
case("Svd/vector", lambda: raw.Svd(input=inp([1.0, 2.0]), compute_uv=False).s)
case("Svd/low_rank", lambda: raw.Svd(input=inp(np.outer(np.arange(5.0), np.arange(4.0)), tf.float64), compute_uv=False).s, atol=1e-12)

for t in allowed("Eig"):
    out = tf.complex64 if t in (tf.float32, tf.complex64) else tf.complex128

    def build(t=t, out=out, shape=(4, 4)):
        a = inp(rnd(shape, t), t)
        e, v = raw.Eig(input=a, Tout=out, compute_v=True)
        return [tf.sort(tf.abs(e)), tf.matmul(tf.cast(a, out), v) - v * e[..., None, :], tf.norm(v, axis=-2)]
    case("Eig/%s" % short(t), build, **loose(t))
    case("Eig/batch_%s" % short(t), lambda b=build: b(shape=(2, 3, 3)), **loose(t))
    case("Eig/values_%s" % short(t), lambda t=t, out=out: tf.sort(tf.abs(raw.Eig(
        input=inp(rnd((3, 3), t), t), Tout=out, compute_v=False).e)), **loose(t))
case("Eig/bad", lambda: raw.Eig(input=inp(rnd((2, 3))), Tout=tf.complex64).e)
case("Eig/empty", lambda: list(raw.Eig(input=inp(rnd((0, 0))), Tout=tf.complex64)))

for t in allowed("Lu"):
    for it in (tf.int32, tf.int64):
        for shape in SHAPES:
            case("Lu/%s_%s_%s" % (short(t), short(it), shape), lambda t=t, it=it, shape=shape: list(raw.Lu(
                input=inp(rnd(shape, t), t), output_idx_type=it)), **loose(t))
case("Lu/singular", lambda: list(raw.Lu(input=inp(np.ones((3, 3))))))
case("Lu/bad", lambda: list(raw.Lu(input=inp(rnd((2, 3))))))
case("Lu/vector", lambda: list(raw.Lu(input=inp(rnd((3,))))))

for t in allowed("MatrixSolveLs"):
    for shape in [(4, 2), (2, 4), (3, 3), (2, 5, 3), (3, 0)]:
        for fast in (True, False):
            for l2 in (0.0, 0.25):
                case("MatrixSolveLs/%s_%s_%s_%s" % (short(t), shape, fast, l2), lambda t=t, shape=shape, fast=fast, l2=l2:
                     raw.MatrixSolveLs(matrix=inp(rnd(shape, t), t), rhs=inp(rnd(shape[:-1] + (2,), t), t),
                                       l2_regularizer=inp(l2, tf.float64), fast=fast), **loose(t))
for fast in (True, False):
    case("MatrixSolveLs/deficient_%s" % fast, lambda fast=fast: raw.MatrixSolveLs(
        matrix=inp(np.outer([1.0, 2, 3], [1.0, 1]), tf.float64), rhs=inp(rnd((3, 1), tf.float64)),
        l2_regularizer=inp(0.0, tf.float64), fast=fast), rtol=1e-8)
    case("MatrixSolveLs/deficient_wide_%s" % fast, lambda fast=fast: raw.MatrixSolveLs(
        matrix=inp(np.outer([1.0, 2], [1.0, 1, 1]), tf.float64), rhs=inp(rnd((2, 1), tf.float64)),
        l2_regularizer=inp(0.0, tf.float64), fast=fast), rtol=1e-8)
case("MatrixSolveLs/negative", lambda: raw.MatrixSolveLs(matrix=inp(rnd((3, 2))), rhs=inp(rnd((3, 1))), l2_regularizer=inp(-1.0, tf.float64)))
case("MatrixSolveLs/vector_l2", lambda: raw.MatrixSolveLs(matrix=inp(rnd((3, 2))), rhs=inp(rnd((3, 1))), l2_regularizer=inp([1.0], tf.float64)))
for a, b in [((3, 2), (2, 1)), ((3,), (3, 1)), ((2, 3, 2), (3, 3, 1)), ((3, 2), (1, 3, 1))]:
    case("MatrixSolveLs/shapes_%s_%s" % (a, b), lambda a=a, b=b: raw.MatrixSolveLs(
        matrix=inp(rnd(a)), rhs=inp(rnd(b)), l2_regularizer=inp(0.0, tf.float64)))

for op in ("MatrixSquareRoot", "MatrixLogarithm"):
    for t in allowed(op):
        for shape in SHAPES:
            case("%s/%s_%s" % (op, short(t), shape), lambda op=op, t=t, shape=shape: getattr(raw, op)(
                input=inp(regular(shape, t), t)), **loose(t))
    for shape in [(2, 3), (3,)]:
        t = tf.complex64
        case("%s/bad_%s" % (op, shape), lambda op=op, shape=shape, t=t: getattr(raw, op)(input=inp(rnd(shape, t), t)))
case("MatrixSquareRoot/triangular", lambda: raw.MatrixSquareRoot(input=inp([[4.0, 4.0], [0.0, 4.0]], tf.float64)))
case("MatrixLogarithm/negative", lambda: raw.MatrixLogarithm(input=inp([[-4, 1], [0.5, -2 + 1j]], tf.complex128)), rtol=1e-8)

for t in allowed("TridiagonalSolve"):
    for pivot, perturb in [(True, False), (False, False), (True, True), (False, True)]:
        for n in (1, 2, 5):
            def build(t=t, pivot=pivot, perturb=perturb, n=n):
                d = rnd((2, 3, n), t)
                d[:, 1] += 7
                return raw.TridiagonalSolve(diagonals=inp(d, t), rhs=inp(rnd((2, n, 2), t), t),
                                            partial_pivoting=pivot, perturb_singular=perturb)
            case("TridiagonalSolve/%s_%s_%s_%d" % (short(t), pivot, perturb, n), build, **loose(t))
    case("TridiagonalMatMul/" + short(t), lambda t=t: [raw.TridiagonalMatMul(
        superdiag=inp(rnd((2, 1, n), t), t), maindiag=inp(rnd((2, 1, n), t), t), subdiag=inp(rnd((2, 1, n), t), t),
        rhs=inp(rnd((2, n, 2), t), t)) for n in (1, 2, 4)])
    for lower in (True, False):
        for adjoint in (True, False):
            for bands, n in [(1, 3), (2, 4), (3, 3), (4, 5)]:
                def build(t=t, lower=lower, adjoint=adjoint, bands=bands, n=n):
                    a = rnd((2, bands, n), t)
                    a[:, 0 if lower else -1] += 7
                    return raw.BandedTriangularSolve(matrix=inp(a, t), rhs=inp(rnd((n, 2), t), t), lower=lower, adjoint=adjoint)
                case("BandedTriangularSolve/%s_%s_%s_%d_%d" % (short(t), lower, adjoint, bands, n), build, **loose(t))
for pivot, perturb in [(True, False), (False, False), (True, True)]:
    for n in (1, 3):
        case("TridiagonalSolve/zero_%s_%s_%d" % (pivot, perturb, n), lambda pivot=pivot, perturb=perturb, n=n: raw.TridiagonalSolve(
            diagonals=inp(np.zeros((3, n)), tf.float64), rhs=inp(rnd((n, 2), tf.float64)), partial_pivoting=pivot, perturb_singular=perturb))
case("TridiagonalSolve/pivots", lambda: raw.TridiagonalSolve(
    diagonals=inp([[1.0, 2, 3, 0], [0.0, 1, 0, 2], [0.0, 4, 5, 6]], tf.float64), rhs=inp(rnd((4, 2), tf.float64))))
case("TridiagonalSolve/four_rows", lambda: raw.TridiagonalSolve(diagonals=inp(rnd((4, 3))), rhs=inp(rnd((3, 1)))))
case("TridiagonalSolve/mismatch", lambda: raw.TridiagonalSolve(diagonals=inp(rnd((3, 3))), rhs=inp(rnd((2, 1)))))
case("TridiagonalSolve/empty", lambda: raw.TridiagonalSolve(diagonals=inp(rnd((3, 0))), rhs=inp(rnd((0, 1)))))
for d in range(3):
    case("TridiagonalMatMul/bad_%d" % d, lambda d=d: raw.TridiagonalMatMul(
        superdiag=inp(rnd((1, 3 + (d == 0)))), maindiag=inp(rnd((1, 3 + (d == 1)))), subdiag=inp(rnd((1, 3 + (d == 2)))), rhs=inp(rnd((3, 1)))))
case("BandedTriangularSolve/singular", lambda: raw.BandedTriangularSolve(matrix=inp(np.zeros((1, 2)), tf.float32), rhs=inp(rnd((2, 1)))))
case("BandedTriangularSolve/mismatch", lambda: raw.BandedTriangularSolve(matrix=inp(rnd((1, 2))), rhs=inp(rnd((3, 1)))))
case("BandedTriangularSolve/batches", lambda: raw.BandedTriangularSolve(matrix=inp(rnd((2, 1, 2))), rhs=inp(rnd((3, 2, 1)))))
case("BandedTriangularSolve/empty", lambda: raw.BandedTriangularSolve(matrix=inp(rnd((0, 2))), rhs=inp(rnd((2, 1)))))

for t in allowed("CholeskyGrad"):
    case("CholeskyGrad/%s" % short(t), lambda t=t: raw.CholeskyGrad(
        l=inp(np.tril(regular((2, 5, 5), t)), t), grad=inp(rnd((2, 5, 5), t), t)), **loose(t))
case("CholeskyGrad/large", lambda: raw.CholeskyGrad(
    l=inp(np.tril(regular((70, 70), tf.float64) + 30 * np.eye(70))), grad=inp(rnd((70, 70), tf.float64))), rtol=1e-8)
case("CholeskyGrad/mismatch", lambda: raw.CholeskyGrad(l=inp(rnd((2, 2))), grad=inp(rnd((3, 3)))))
case("CholeskyGrad/not_square", lambda: raw.CholeskyGrad(l=inp(rnd((2, 3))), grad=inp(rnd((2, 3)))))
for op in ("MatrixInverse", "MatrixDeterminant", "LogMatrixDeterminant"):
    for t in allowed(op):
        for shape in SHAPES:
            case("%s/%s_%s" % (op, short(t), shape), lambda op=op, t=t, shape=shape: getattr(raw, op)(
                input=inp(regular(shape, t), t)), **(loose(t) if t in FOUR else {}))
for t in allowed("Cholesky"):
    case("Cholesky/%s" % short(t), lambda t=t: raw.Cholesky(input=inp(
        hermitian((2, 3, 3), t) + 20 * np.eye(3, dtype=t.as_numpy_dtype), t)), **(loose(t) if t in FOUR else {}))
for op in ("MatrixSolve", "MatrixTriangularSolve"):
    for t in allowed(op):
        for adjoint in (False, True):
            case("%s/%s_%s" % (op, short(t), adjoint), lambda op=op, t=t, adjoint=adjoint: getattr(raw, op)(
                matrix=inp(regular((2, 3, 3), t), t), rhs=inp(rnd((2, 3, 2), t), t), adjoint=adjoint), **(loose(t) if t in FOUR else {}))
for t in allowed("Qr"):
    for shape in [(3, 3), (4, 2), (2, 4), (2, 3, 2), (0, 2), (2, 0)]:
        for full in (False, True):
            case("Qr/%s_%s_%s" % (short(t), shape, full), lambda t=t, shape=shape, full=full: list(raw.Qr(
                input=inp(rnd(shape, t), t), full_matrices=full)), **(loose(t) if t in FOUR else dict(rtol=2e-2, atol=2e-2)))
