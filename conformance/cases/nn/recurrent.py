"""LSTM and GRU cells as one op each."""
import numpy as np

from registry import any_op, case, inp, rnd, short, tf

TIME, BATCH, INPUT, CELL = 3, 2, 4, 5
WEIGHTS = dict(w=(INPUT + CELL, 4 * CELL), wci=(CELL,), wcf=(CELL,), wco=(CELL,), b=(4 * CELL,))
STATES = ["i", "cs", "f", "o", "ci", "co"]


def made(shapes, t):
    return {name: inp(rnd(shape, t, -1, 1), t) for name, shape in shapes.items()}


def state(t, *shape):
    """Values as gates leave them, between 0 and 1."""
    return inp(rnd(shape, t, 0, 1), t)


def cell(op, t, over={}, **attrs):
    shapes = dict(x=(BATCH, INPUT), cs_prev=(BATCH, CELL), h_prev=(BATCH, CELL), **WEIGHTS)
    given = made({**shapes, **over}, t)
    if op == "LSTMBlockCellGrad":
        given.update({n: state(t, BATCH, CELL) for n in STATES})
        given.update(made(dict(cs_grad=(BATCH, CELL), h_grad=(BATCH, CELL)), t))
    return list(any_op(op, **given, **attrs))


def sequence(op, t, live=TIME, over={}, **attrs):
    shapes = dict(x=(TIME, BATCH, INPUT), cs_prev=(BATCH, CELL), h_prev=(BATCH, CELL), **WEIGHTS)
    given = made({**shapes, **over}, t)
    if "Grad" in op:
        given.update({n: state(t, TIME, BATCH, CELL) for n in STATES + ["h"]})
        given.update(made({n: (TIME, BATCH, CELL) for n in ("cs_grad", "h_grad")}, t))
    out = any_op(op, seq_len_max=inp(live, tf.int64), **given, **attrs)
    # Behind the last step only the states are defined.
    return [out[1], out[6]] if "Grad" not in op and live != TIME else list(out)


for t in (tf.float32, tf.float16):
    loose = dict(rtol=1e-4, atol=1e-5) if t == tf.float32 else dict(rtol=3e-2, atol=3e-2)
    for peephole in (False, True):
        s = "%s_%s" % (short(t), peephole)
        case("LSTMBlockCell/" + s, lambda t=t, p=peephole: cell("LSTMBlockCell", t, use_peephole=p), **loose)
        case("LSTMBlockCell/clip_" + s, lambda t=t, p=peephole: cell("LSTMBlockCell", t, use_peephole=p, cell_clip=0.1, forget_bias=0.5), **loose)
        case("LSTMBlockCellGrad/" + s, lambda t=t, p=peephole: cell("LSTMBlockCellGrad", t, use_peephole=p), **loose)
        for op in ("BlockLSTM", "BlockLSTMV2", "BlockLSTMGrad", "BlockLSTMGradV2"):
            for live in (TIME, 2, 0):
                case("%s/%s_%d" % (op, s, live), lambda op=op, t=t, p=peephole, live=live: sequence(op, t, live, use_peephole=p), **loose)
            if "Grad" not in op:
                case("%s/clip_%s" % (op, s), lambda op=op, t=t, p=peephole: sequence(op, t, use_peephole=p, cell_clip=0.2), **loose)

for name, shape in [("x", (BATCH, INPUT, 1)), ("x", (BATCH + 1, INPUT)), ("x", (BATCH, INPUT + 1)), ("cs_prev", (BATCH, CELL, 1)), ("cs_prev", (1, CELL)),
                    ("h_prev", (1, CELL)), ("h_prev", (BATCH, 1)), ("w", (1, 4 * CELL)), ("w", (INPUT + CELL, 3)), ("w", (9, 20, 1)), ("wci", (1, CELL)),
                    ("wcf", (1, CELL)), ("b", (3,)), ("b", (1, 4 * CELL))]:
    case("LSTMBlockCell/wrong_%s_%s" % (name, shape), lambda name=name, shape=shape: cell("LSTMBlockCell", tf.float32, {name: shape}))
for name, shape in [("x", (BATCH, INPUT)), ("x", (TIME, 1, INPUT)), ("x", (TIME, BATCH, 1)), ("cs_prev", (BATCH, CELL, 1)), ("h_prev", (1, CELL)), ("w", (1, 4 * CELL)),
                    ("w", (INPUT + CELL, 3)), ("wci", (2,)), ("wcf", (1, CELL)), ("wco", (1,)), ("b", (3,))]:
    for op in ("BlockLSTM", "BlockLSTMV2"):
        case("%s/wrong_%s_%s" % (op, name, shape), lambda op=op, name=name, shape=shape: sequence(op, tf.float32, TIME, {name: shape}))
case("BlockLSTM/wrong_limit", lambda: sequence("BlockLSTM", tf.float32, [TIME]))

GRU = dict(x=(BATCH, INPUT), h_prev=(BATCH, CELL), w_ru=(INPUT + CELL, 2 * CELL), w_c=(INPUT + CELL, CELL), b_ru=(2 * CELL,), b_c=(CELL,))


def gru(op, over={}):
    given = made({**GRU, **over}, tf.float32)
    if op == "GRUBlockCellGrad":
        given.update({n: state(tf.float32, *over.get(n, (BATCH, CELL))) for n in "ruc"})
        given["d_h"] = inp(rnd(over.get("d_h", (BATCH, CELL))))
    return list(any_op(op, **given))


for op in ("GRUBlockCell", "GRUBlockCellGrad"):
    case(op + "/values", lambda op=op: gru(op), rtol=1e-4, atol=1e-5)
    for name, shape in [("x", (2, 4, 1)), ("x", (3, INPUT)), ("h_prev", (BATCH, 1)), ("w_ru", (1, 1)), ("w_ru", (9, 10, 1)), ("w_ru", (9, 1)), ("w_c", (1, 5)), ("w_c", (9, 1)),
                        ("b_ru", (1,)), ("b_c", (1,)), ("b_c", (1, 5))]:
        case("%s/wrong_%s_%s" % (op, name, shape), lambda op=op, name=name, shape=shape: gru(op, {name: shape}))
for name in ("r", "u", "c", "d_h"):
    for shape in [(BATCH, CELL, 1), (1, CELL), (BATCH, 1)]:
        case("GRUBlockCellGrad/wrong_%s_%s" % (name, shape), lambda name=name, shape=shape: gru("GRUBlockCellGrad", {name: shape}))
