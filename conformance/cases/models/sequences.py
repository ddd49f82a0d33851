"""Recurrent models: unrolled and in loops, one to one and sequence to sequence."""
import numpy as np

from cases.models._common import TOLERANCE, train, var
from registry import script, tf
from tensorflow.python.keras.layers.legacy_rnn import rnn_cell_impl as cells

B, T, D, H = 5, 7, 3, 6


def sequences(seed):
    r = np.random.RandomState(seed)
    x = r.randn(B, T, D).astype(np.float32)
    lengths = np.array([7, 3, 1, 5, 7], np.int32)
    return x, lengths, r.randint(0, 4, B).astype(np.int32)


def seeded(seed=3):
    return tf.random_uniform_initializer(-0.4, 0.4, seed=seed)


def cell(kind, res):
    with tf.variable_scope("cell", use_resource=res, initializer=seeded()):
        if kind == "gru":
            return cells.GRUCell(H, kernel_initializer=seeded())
        if kind == "peephole":
            return cells.LSTMCell(H, use_peepholes=True, num_proj=4, initializer=seeded(), cell_clip=2.0)
        if kind == "stacked":
            return cells.MultiRNNCell([cells.BasicRNNCell(H), cells.BasicLSTMCell(H, dtype=tf.float32)])
        return cells.BasicLSTMCell(H, forget_bias=1.0)


def classify(outputs, labels, res):
    n = int(outputs.shape[-1])
    logits = tf.matmul(outputs, var("w", [n, 4], res)) + var("b", [4], res)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = tf.train.AdamOptimizer(0.05)
    grads, variables = zip(*optimizer.compute_gradients(loss))
    grads, _ = tf.clip_by_global_norm(grads, 5.0)
    return loss, optimizer.apply_gradients(zip(grads, variables)), logits


def static(kind):
    def build(res):
        x, lengths, y = sequences(1)
        px, pl, py = tf.placeholder(tf.float32, [B, T, D]), tf.placeholder(tf.int32, [B]), tf.placeholder(tf.int32, [None])
        with tf.variable_scope("rnn", initializer=seeded()):
            outputs, _ = tf.nn.static_rnn(cell(kind, res), tf.unstack(px, axis=1), dtype=tf.float32, sequence_length=pl)
        loss, step, logits = classify(outputs[-1], py, res)
        return loss, step, {px: x, pl: lengths, py: y}, [logits]
    return build


def dynamic(kind, time_major=False):
    def build(res):
        x, lengths, y = sequences(2)
        if time_major:
            x = x.transpose(1, 0, 2)
        px = tf.placeholder(tf.float32, [None, None, D])
        pl, py = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
        with tf.variable_scope("rnn", initializer=seeded()):
            outputs, state = tf.nn.dynamic_rnn(cell(kind, res), px, sequence_length=pl, dtype=tf.float32, time_major=time_major)
        mean = tf.reduce_mean(outputs, 0 if time_major else 1)
        loss, step, logits = classify(mean, py, res)
        return loss, step, {px: x, pl: lengths, py: y}, [logits] + tf.nest.flatten(state)
    return build


def bidirectional(res):
    x, lengths, y = sequences(3)
    px, pl, py = tf.placeholder(tf.float32, [None, None, D]), tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
    with tf.variable_scope("rnn", initializer=seeded()):
        outputs, _ = tf.nn.bidirectional_dynamic_rnn(cells.BasicLSTMCell(H), cells.GRUCell(H), px, sequence_length=pl, dtype=tf.float32)
    loss, step, logits = classify(tf.reduce_max(tf.concat(outputs, -1), 1), py, res)
    return loss, step, {px: x, pl: lengths, py: y}, [logits]


def seq2seq(res):
    """An encoder, and a decoder in a loop of its own that feeds its best word back when told to."""
    r = np.random.RandomState(4)
    vocab, src, tgt = 11, r.randint(0, 11, (4, 6)).astype(np.int32), r.randint(0, 11, (4, 5)).astype(np.int32)
    ps, pt, teach = tf.placeholder(tf.int32, [None, None]), tf.placeholder(tf.int32, [None, None]), tf.placeholder(tf.bool, [])
    table = var("table", [vocab, D], res)
    out_w, out_b = var("out_w", [H, vocab], res), var("out_b", [vocab], res)
    with tf.variable_scope("encoder", initializer=seeded(1)):
        _, state = tf.nn.dynamic_rnn(cells.GRUCell(H), tf.nn.embedding_lookup(table, ps), dtype=tf.float32)
    w, u = var("dec_w", [D, H], res), var("dec_u", [H, H], res)
    steps, batch = tf.shape(pt)[1], tf.shape(pt)[0]
    targets = tf.TensorArray(tf.int32, steps).unstack(tf.transpose(pt))

    def body(t, h, word, logits):
        h = tf.tanh(tf.matmul(tf.nn.embedding_lookup(table, word), w) + tf.matmul(h, u))
        y = tf.matmul(h, out_w) + out_b
        y.set_shape([None, vocab])
        word = tf.cond(teach, lambda: targets.read(t), lambda: tf.argmax(y, 1, output_type=tf.int32))
        return t + 1, h, tf.reshape(word, [batch]), logits.write(t, y)
    start = (0, state, tf.zeros([batch], tf.int32), tf.TensorArray(tf.float32, steps))
    _, _, _, logits = tf.while_loop(lambda t, *_: t < steps, body, start, shape_invariants=None, swap_memory=False)
    logits = logits.stack()
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.transpose(pt), logits=logits))
    step = tf.train.AdagradOptimizer(0.3).minimize(loss)
    return loss, step, {ps: src, pt: tgt, teach: True}, [logits]


MODELS = {"static_lstm": static("lstm"), "static_gru": static("gru"), "dynamic_lstm": dynamic("lstm"), "dynamic_gru": dynamic("gru"),
          "dynamic_peephole": dynamic("peephole"), "dynamic_stacked": dynamic("stacked"), "dynamic_time_major": dynamic("lstm", True),
          "bidirectional": bidirectional, "seq2seq": seq2seq}
for res in (False, True):
    for name, build in MODELS.items():
        script("%s_%s" % (name, "resource" if res else "ref"), **TOLERANCE)(lambda env, build=build, res=res: train(env, build, res))
