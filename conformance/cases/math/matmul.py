"""Matrix products: MatMul, BatchMatMul, Einsum, and their transposes and wrong shapes."""
import numpy as np

from registry import FLOATS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

FLAGS = [(False, False), (False, True), (True, False), (True, True)]


def operand(shape, transposed, t, adjoint=False):
    dims = list(shape)
    if transposed:
        dims[-1], dims[-2] = dims[-2], dims[-1]
    return inp(rnd(dims, t), t)


def tolerance(t):
    return dict(rtol=3e-2, atol=3e-2) if t in SMALL_FLOATS else dict(rtol=1e-4, atol=1e-5) if t in (
        tf.float32, tf.complex64) else {}


for t in allowed("MatMul"):
    for ta, tb in FLAGS:
        case("MatMul/%s_%d%d" % (short(t), ta, tb), lambda t=t, ta=ta, tb=tb: raw.MatMul(
            a=operand((3, 4), ta, t), b=operand((4, 5), tb, t), transpose_a=ta, transpose_b=tb), **tolerance(t))
for m, k, n in [(1, 1, 1), (1, 7, 5), (5, 7, 1), (1, 9, 1), (0, 3, 2), (2, 0, 3), (2, 3, 0), (17, 33, 9), (64, 64, 64), (100, 784, 10),
                (33, 129, 65), (128, 256, 16), (200, 3, 200)]:
    for ta, tb in FLAGS:
        case("MatMul/%dx%dx%d_%d%d" % (m, k, n, ta, tb), lambda m=m, k=k, n=n, ta=ta, tb=tb: raw.MatMul(
            a=operand((m, k), ta, tf.float32), b=operand((k, n), tb, tf.float32), transpose_a=ta, transpose_b=tb),
            rtol=1e-4, atol=1e-4)
for a, b in [((2, 3), (4, 5)), ((2, 3), (3,)), ((2,), (2, 3)), ((), (2, 3)), ((2, 3, 4), (4, 5)), ((0, 3), (4, 0))]:
    case("MatMul/wrong_%s_%s" % (a, b), lambda a=a, b=b: raw.MatMul(a=inp(rnd(a)), b=inp(rnd(b))))
case("MatMul/wrong_transposed", lambda: raw.MatMul(a=inp(rnd((2, 3))), b=inp(rnd((3, 2))), transpose_a=True))
case("MatMul/nan", lambda: raw.MatMul(a=inp([[np.nan, 1.0], [np.inf, 0.0]]), b=inp([[1.0, 0.0], [0.0, 1.0]])))

for op in ("BatchMatMul", "BatchMatMulV2"):
    for t in allowed(op):
        for ax, ay in FLAGS:
            case("%s/%s_%d%d" % (op, short(t), ax, ay), lambda op=op, t=t, ax=ax, ay=ay: getattr(raw, op)(
                x=operand((2, 3, 4), ax, t), y=operand((2, 4, 5), ay, t), adj_x=ax, adj_y=ay), **tolerance(t))
    for a, b in [((2, 3), (3, 4)), ((2, 2, 2, 3), (2, 2, 3, 2)), ((0, 2, 3), (0, 3, 2)), ((2, 0, 3), (2, 3, 2)), ((2, 3, 0), (2, 0, 2)),
                 ((1, 1, 1), (1, 1, 1)), ((8, 16, 16), (8, 16, 16)), ((3, 2), (3, 2)), ((2, 2, 3), (3, 3, 2)), ((2,), (2,)),
                 ((2, 2, 3), (2, 4, 2)), ((2, 2, 3), (3, 2)), ((1, 2, 3), (4, 3, 2)), ((5, 1, 2, 3), (4, 3, 2)), ((2, 3), (5, 3, 2)),
                 ((), (2, 2)), ((4, 3, 2, 5), (3, 1, 2))]:
        case("%s/shapes_%s_%s" % (op, a, b), lambda op=op, a=a, b=b: getattr(raw, op)(x=inp(rnd(a)), y=inp(rnd(b))),
             rtol=1e-4, atol=1e-5)
for t in FLOATS:
    case("BatchMatMulV3/" + short(t), lambda t=t: raw.BatchMatMulV3(
        x=inp(rnd((2, 3, 4), t), t), y=inp(rnd((4, 5), t), t), Tout=t), **tolerance(t))

EINSUM = [("ij,jk->ik", [(2, 3), (3, 4)]), ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]), ("ij->ji", [(2, 3)]), ("ii->i", [(3, 3)]),
          ("ii->", [(3, 3)]), ("ij->", [(2, 3)]), ("ij->i", [(2, 3)]), ("i,i->", [(4,), (4,)]), ("i,j->ij", [(3,), (4,)]),
          ("ij,ij->ij", [(2, 3), (2, 3)]), ("bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]), ("bhqk,bhkd->bhqd", [(2, 2, 3, 5), (2, 2, 5, 4)]),
          ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]), ("b...,b...->b", [(2, 3, 4), (2, 3, 4)]), ("abc,cd->abd", [(2, 3, 4), (4, 5)]),
          ("abc,cde->abde", [(2, 3, 4), (4, 2, 3)]), ("ij,kj->ik", [(2, 3), (4, 3)]), ("ab,bc,cd->ad", [(2, 3), (3, 4), (4, 5)]),
          ("ij,jk->ki", [(2, 3), (3, 4)]), ("i->ii", [(3,)]), ("...->...", [(2, 3)]), ("ij,jk->ik", [(0, 3), (3, 4)]), ("ij,jk->ik", [(2, 0), (0, 4)]),
          (",->", [(), ()]), ("ijk->kij", [(2, 3, 4)]), ("...i,...i->...", [(2, 3), (3,)])]
for equation, shapes in EINSUM:
    for t in (tf.float32, tf.float64, tf.complex64):
        if len(shapes) <= 2:
            case("Einsum/%s_%s_%s" % (equation, shapes, short(t)), lambda e=equation, shapes=shapes, t=t: raw.Einsum(
                inputs=[inp(rnd(s, t), t) for s in shapes], equation=e), **tolerance(t))
for equation, shapes in [("ij,jk->ik", [(2, 3), (4, 5)]), ("ij,jk->ik", [(2, 3), (3,)]), ("ii->i", [(2, 3)]), ("ij->ji", [(2,)])]:
    case("Einsum/wrong_%s_%s" % (equation, shapes), lambda e=equation, shapes=shapes: raw.Einsum(
        inputs=[inp(rnd(s)) for s in shapes], equation=e))
case("tf.einsum/three", lambda: tf.einsum("ab,bc,cd->ad", inp(rnd((2, 3)), shape=[2, 3]), inp(rnd((3, 4)), shape=[3, 4]),
                                         inp(rnd((4, 5)), shape=[4, 5])), rtol=1e-4)
case("tf.tensordot", lambda: tf.tensordot(inp(rnd((2, 3, 4)), shape=[2, 3, 4]), inp(rnd((4, 3, 5)), shape=[4, 3, 5]), [[1, 2], [1, 0]]),
     rtol=1e-4)
case("SparseMatMul", lambda: raw.SparseMatMul(a=inp(rnd((3, 4))), b=inp(rnd((4, 2))), a_is_sparse=True), rtol=1e-4)

for m, k, n in [(1, 1, 5), (5, 1, 1), (1, 5, 1), (5, 1, 5), (1, 1, 40), (3, 1, 40), (40, 1, 3), (3, 40, 1)]:
    for ta in (False, True):
        for tb in (False, True):
            for t in (tf.float32, tf.float64, tf.int32, tf.complex64):
                case("MatMul/thin_%s_%d_%d_%d_%s_%s" % (short(t), m, k, n, ta, tb), lambda m=m, k=k, n=n, ta=ta, tb=tb, t=t: raw.MatMul(
                    a=inp(rnd((k, m) if ta else (m, k), t), t), b=inp(rnd((n, k) if tb else (k, n), t), t), transpose_a=ta, transpose_b=tb))
