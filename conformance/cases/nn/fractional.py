"""Pools with cells of two sizes."""
import numpy as np

from registry import case, inp, raw, rnd, short, tf

TYPES = (tf.float32, tf.float64, tf.int32, tf.int64)
for op in ("FractionalMaxPool", "FractionalAvgPool"):
    def pool(op=op, shape=(2, 9, 11, 3), ratio=(1.0, 1.5, 2.2, 1.0), t=tf.float32, seed=5, **more):
        return list(getattr(raw, op)(value=inp(rnd(shape, t, -9, 9), t), pooling_ratio=list(ratio), seed=seed, seed2=seed, deterministic=True, **more))
    for t in TYPES:
        for pseudo in (True, False):
            for overlapping in (True, False):
                case("%s/%s_%s_%s" % (op, short(t), pseudo, overlapping), lambda p=pool, t=t, r=pseudo, o=overlapping: p(t=t, pseudo_random=r, overlapping=o))

        def gradient(op=op, t=t, overlapping=True):
            rows, columns = [0, 2, 3, 5, 7], [0, 3, 4, 6]
            x, g = rnd((2, 7, 6, 2), t, -9, 9), inp(rnd((2, 4, 3, 2), t, -9, 9), t)
            seqs = dict(row_pooling_sequence=inp(rows, tf.int64), col_pooling_sequence=inp(columns, tf.int64), overlapping=overlapping)
            if "Avg" in op:
                return raw.FractionalAvgPoolGrad(orig_input_tensor_shape=inp([2, 7, 6, 2], tf.int64), out_backprop=g, **seqs)
            y = np.zeros((2, 4, 3, 2), x.dtype)
            for r in range(4):
                for c in range(3):
                    y[:, r, c] = x[:, rows[r]:rows[r + 1] + overlapping, columns[c]:columns[c + 1] + overlapping].max((1, 2))
            return raw.FractionalMaxPoolGrad(orig_input=inp(x, t), orig_output=inp(y, t), out_backprop=g, **seqs)
        for overlapping in (True, False):
            case("%sGrad/%s_%s" % (op, short(t), overlapping), lambda f=gradient, o=overlapping: f(overlapping=o))
    case(op + "/even", lambda p=pool: p(shape=(1, 8, 6, 1), ratio=(1.0, 2.0, 2.0, 1.0), pseudo_random=True))
    case(op + "/one", lambda p=pool: p(ratio=(1.0, 1.0, 1.0, 1.0)))
    case(op + "/rank", lambda p=pool: p(shape=(9, 11, 3)))
    case(op + "/small", lambda p=pool: p(shape=(1, 2, 2, 1), ratio=(1.0, 3.0, 1.0, 1.0)))
    case(op + "/batch", lambda p=pool: p(ratio=(1.5, 1.5, 1.5, 1.5)))
    case(op + "/seeds", lambda op=op: getattr(raw, op)(value=inp(rnd((1, 5, 5, 1))), pooling_ratio=[1.0, 1.5, 1.5, 1.0], seed=1)[0])
