"""Whole models: ten training steps agree with TensorFlow's, with ref and with resource variables."""
import numpy as np

from cases.models._common import TOLERANCE, data, train, var
from registry import script, tf


def linear_regression(res):
    x, y = data(1, (32, 5))
    px, py = tf.placeholder(tf.float32, [None, 5]), tf.placeholder(tf.float32, [None, 1])
    p = tf.matmul(px, var("w", [5, 1], res)) + var("b", [1], res)
    loss = tf.reduce_mean(tf.square(p - py))
    return loss, tf.train.GradientDescentOptimizer(0.1).minimize(loss), {px: x, py: y}, [p]


def softmax(res):
    x, y = data(2, (50, 20), 4)
    px, py = tf.placeholder(tf.float32, [None, 20]), tf.placeholder(tf.int32, [None])
    logits = tf.matmul(px, var("w", [20, 4], res)) + var("b", [4], res)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=py, logits=logits))
    gs = tf.train.get_or_create_global_step()
    step = tf.train.AdagradOptimizer(0.5).minimize(loss, global_step=gs)
    acc = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), py), tf.float32))
    return loss, step, {px: x, py: y}, [acc, gs]


def mlp(res):
    x, y = data(3, (40, 30), 10)
    px, py = tf.placeholder(tf.float32, [None, 30]), tf.placeholder(tf.int32, [None])
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(px, var("w1", [30, 64], res)), var("b1", [64], res)))
    h = tf.nn.tanh(tf.nn.bias_add(tf.matmul(h, var("w2", [64, 32], res)), var("b2", [32], res)))
    logits = tf.matmul(h, var("w3", [32, 10], res)) + var("b3", [10], res)
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.one_hot(py, 10), logits=logits))
    loss += 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    return loss, tf.train.AdamOptimizer(0.01).minimize(loss), {px: x, py: y}, [tf.nn.softmax(logits)]


def conv(h, name, shape, res, stride=1):
    return tf.nn.conv2d(h, var(name, shape, res, 0.2), [1, stride, stride, 1], "SAME")


def batch_norm(h, name, n, res):
    """Batch norm with moving averages, as tf.layers wires it: updates are returned to run with the step."""
    with tf.variable_scope(name, use_resource=res):
        scale = tf.get_variable("gamma", [n], initializer=tf.ones_initializer())
        offset = tf.get_variable("beta", [n], initializer=tf.zeros_initializer())
        mean = tf.get_variable("moving_mean", [n], initializer=tf.zeros_initializer(), trainable=False)
        variance = tf.get_variable("moving_variance", [n], initializer=tf.ones_initializer(), trainable=False)
        y, batch_mean, batch_var = tf.nn.fused_batch_norm(h, scale, offset, epsilon=1e-3)
        for moving, batch in ((mean, batch_mean), (variance, batch_var)):
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, moving.assign_sub((moving - batch) * 0.1))
        return y


def minimize(optimizer, loss):
    with tf.control_dependencies(tf.get_collection(tf.GraphKeys.UPDATE_OPS)):
        return optimizer.minimize(loss)


def cnn(res):
    x, y = data(4, (8, 12, 12, 3), 5)
    px, py = tf.placeholder(tf.float32, [None, 12, 12, 3]), tf.placeholder(tf.int32, [None])
    h = tf.nn.relu(batch_norm(conv(px, "c1", [3, 3, 3, 8], res), "bn1", 8, res))
    h = tf.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    h = tf.nn.relu(batch_norm(conv(h, "c2", [3, 3, 8, 16], res), "bn2", 16, res))
    h = tf.nn.avg_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "VALID")
    logits = tf.matmul(tf.reshape(h, [-1, 9 * 16]), var("w", [144, 5], res)) + var("b", [5], res)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=py, logits=logits))
    return loss, minimize(tf.train.MomentumOptimizer(0.05, 0.9), loss), {px: x, py: y}, [logits]


def resnet(res):
    x, y = data(5, (6, 16, 16, 3), 4)
    px, py = tf.placeholder(tf.float32, [None, 16, 16, 3]), tf.placeholder(tf.int32, [None])

    def block(h, name, cin, cout, stride):
        r = tf.nn.relu(batch_norm(h, name + "_bna", cin, res))
        short = conv(r, name + "_proj", [1, 1, cin, cout], res, stride) if stride != 1 or cin != cout else h
        r = conv(r, name + "_a", [3, 3, cin, cout], res, stride)
        r = conv(tf.nn.relu(batch_norm(r, name + "_bnb", cout, res)), name + "_b", [3, 3, cout, cout], res)
        return short + r
    h = conv(px, "stem", [3, 3, 3, 8], res)
    for name, cin, cout, stride in (("r1", 8, 8, 1), ("r2", 8, 16, 2), ("r3", 16, 16, 1), ("r4", 16, 32, 2)):
        h = block(h, name, cin, cout, stride)
    h = tf.reduce_mean(tf.nn.relu(batch_norm(h, "final", 32, res)), [1, 2])
    logits = tf.matmul(h, var("w", [32, 4], res)) + var("b", [4], res)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=py, logits=logits))
    loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    rate = tf.train.exponential_decay(0.05, tf.train.get_or_create_global_step(), 5, 0.5, staircase=True)
    return loss, minimize(tf.train.MomentumOptimizer(rate, 0.9, use_nesterov=True), loss), {px: x, py: y}, [logits]


def transformer(res):
    """One block: embedding, multi-head attention with a causal mask, layer norm, feed forward, tied softmax."""
    r = np.random.RandomState(6)
    tokens = r.randint(0, 30, (4, 9)).astype(np.int32)
    pt = tf.placeholder(tf.int32, [None, 9])
    d, heads = 16, 4
    table = var("table", [30, d], res)
    pos = var("pos", [8, d], res)

    def norm(h, name):
        mean, variance = tf.nn.moments(h, [-1], keepdims=True)
        scale = tf.get_variable(name + "_g", [d], initializer=tf.ones_initializer(), use_resource=res)
        return (h - mean) * tf.rsqrt(variance + 1e-5) * scale + tf.get_variable(name + "_b", [d], initializer=tf.zeros_initializer(), use_resource=res)

    def split(h):
        return tf.transpose(tf.reshape(h, [-1, 8, heads, d // heads]), [0, 2, 1, 3])
    inputs, targets = pt[:, :-1], pt[:, 1:]
    h = tf.nn.embedding_lookup(table, inputs) * d ** 0.5 + pos
    n = norm(h, "ln1")
    q, k, v = (split(tf.tensordot(n, var(name, [d, d], res), 1)) for name in ("wq", "wk", "wv"))
    scores = tf.matmul(q, k, transpose_b=True) / (d // heads) ** 0.5
    scores += (1.0 - tf.linalg.band_part(tf.ones([8, 8]), -1, 0)) * -1e9
    att = tf.reshape(tf.transpose(tf.matmul(tf.nn.softmax(scores), v), [0, 2, 1, 3]), [-1, 8, d])
    h += tf.tensordot(att, var("wo", [d, d], res), 1)
    n = norm(h, "ln2")
    f = tf.tensordot(n, var("f1", [d, 32], res), 1)
    f = 0.5 * f * (1.0 + tf.erf(f / 2.0 ** 0.5))
    h += tf.tensordot(f, var("f2", [32, d], res), 1)
    logits = tf.einsum("bsd,vd->bsv", norm(h, "ln3"), table)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=targets, logits=logits))
    opt = tf.train.AdamOptimizer(0.01)
    grads, variables = zip(*opt.compute_gradients(loss))
    grads, size = tf.clip_by_global_norm(grads, 1.0)
    return loss, opt.apply_gradients(zip(grads, variables)), {pt: tokens}, [logits, size]


def embedding(optimizer):
    """Sparse gradients: rows of a table touched more than once in a batch."""
    def build(res):
        r = np.random.RandomState(8)
        ids, y = r.randint(0, 12, (16, 3)).astype(np.int32), r.randn(16).astype(np.float32)
        pi, py = tf.placeholder(tf.int32, [None, 3]), tf.placeholder(tf.float32, [None])
        table = var("table", [12, 4], res)
        p = tf.reduce_sum(tf.nn.embedding_lookup(table, pi), [1, 2]) + var("b", [1], res)
        loss = tf.reduce_mean(tf.square(p - py))
        return loss, optimizer().minimize(loss), {pi: ids, py: y}, [p]
    return build


def dense(optimizer):
    def build(res):
        x, y = data(9, (16, 6))
        px, py = tf.placeholder(tf.float32, [None, 6]), tf.placeholder(tf.float32, [None, 1])
        h = tf.nn.sigmoid(tf.matmul(px, var("w1", [6, 5], res)) + var("b1", [5], res))
        p = tf.matmul(h, var("w2", [5, 1], res))
        loss = tf.reduce_mean(tf.square(p - py))
        return loss, optimizer().minimize(loss), {px: x, py: y}, [p]
    return build


OPTIMIZERS = dict(
    sgd=lambda: tf.train.GradientDescentOptimizer(0.1), momentum=lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    nesterov=lambda: tf.train.MomentumOptimizer(0.05, 0.9, use_nesterov=True), adagrad=lambda: tf.train.AdagradOptimizer(0.3),
    adagrad_da=lambda: tf.train.AdagradDAOptimizer(0.3, tf.train.get_or_create_global_step(), l1_regularization_strength=0.001),
    adadelta=lambda: tf.train.AdadeltaOptimizer(1.0, 0.9), adam=lambda: tf.train.AdamOptimizer(0.05), ftrl=lambda: tf.train.FtrlOptimizer(0.3, l1_regularization_strength=0.001),
    ftrl_shrink=lambda: tf.train.FtrlOptimizer(0.3, l2_shrinkage_regularization_strength=0.01), rmsprop=lambda: tf.train.RMSPropOptimizer(0.01, momentum=0.5),
    rmsprop_centered=lambda: tf.train.RMSPropOptimizer(0.01, centered=True), proximal_sgd=lambda: tf.train.ProximalGradientDescentOptimizer(0.1, l1_regularization_strength=0.001),
    proximal_adagrad=lambda: tf.train.ProximalAdagradOptimizer(0.3, l1_regularization_strength=0.001))

MODELS = dict(linear_regression=linear_regression, softmax=softmax, mlp=mlp, cnn=cnn, resnet=resnet, transformer=transformer)
for res in (False, True):
    for name, build in MODELS.items():
        script("%s_%s" % (name, "resource" if res else "ref"), **TOLERANCE)(lambda env, build=build, res=res: train(env, build, res))
    for name, optimizer in OPTIMIZERS.items():
        kind = "resource" if res else "ref"
        script("optimizer/%s_%s" % (name, kind), **TOLERANCE)(lambda env, o=optimizer, res=res: train(env, dense(o), res))
        script("optimizer/%s_sparse_%s" % (name, kind), **TOLERANCE)(lambda env, o=optimizer, res=res: train(env, embedding(o), res))


@script("moving_average", **TOLERANCE)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable([1.0, 2.0], name="v")
        step = tf.Variable(0.0, name="step")
        ema = tf.train.ExponentialMovingAverage(0.9, num_updates=step)
        with tf.control_dependencies([tf.assign_add(v, [1.0, 1.0]), tf.assign_add(step, 1.0)]):
            update = ema.apply([v])
        with env.session(g) as sess:
            sess.run(tf.global_variables_initializer())
            return [sess.run([update, ema.average(v)])[1] for _ in range(5)]


@script("monitored_session", **TOLERANCE)
def _(env):
    """The usual training loop: hooks, checkpoints, restore in a second session."""
    out = []
    for _ in range(2):
        with tf.Graph().as_default():
            gs = tf.train.get_or_create_global_step()
            w = tf.get_variable("w", [3], initializer=tf.ones_initializer())
            loss = tf.reduce_sum(tf.square(w))
            step = tf.train.GradientDescentOptimizer(0.1).minimize(loss, global_step=gs)
            tf.summary.scalar("loss", loss)
            with tf.control_dependencies([step]):  # else reading races with the update
                after = [gs.read_value(), tf.reduce_sum(tf.square(w.read_value()))]
            with tf.train.MonitoredTrainingSession(master=env.target, checkpoint_dir=env.tmp, save_checkpoint_steps=2, log_step_count_steps=None,
                                                   hooks=[tf.train.StopAtStepHook(num_steps=3)]) as sess:
                while not sess.should_stop():
                    out.append(sess.run(after))
        env.reset()
    return out


@script("learning_rate_schedules", **TOLERANCE)
def _(env):
    with tf.Graph().as_default() as g:
        gs = tf.placeholder(tf.int64, [])
        nodes = [tf.train.exponential_decay(0.1, gs, 10, 0.9), tf.train.exponential_decay(0.1, gs, 10, 0.9, staircase=True), tf.train.polynomial_decay(0.1, gs, 100, 0.01, 2.0),
                 tf.train.natural_exp_decay(0.1, gs, 10, 0.5), tf.train.inverse_time_decay(0.1, gs, 10, 0.5), tf.train.cosine_decay(0.1, gs, 100),
                 tf.train.linear_cosine_decay(0.1, gs, 100)]
        with env.session(g) as sess:
            return [sess.run(nodes, {gs: k}) for k in (0, 1, 7, 10, 55, 100, 1000)]


@script("piecewise_constant")
def _(env):
    with tf.Graph().as_default() as g:
        gs = tf.placeholder(tf.int64, [])
        node = tf.train.piecewise_constant(gs, [5, 10], [1.0, 0.5, 0.1])
        with env.session(g) as sess:
            return [sess.run(node, {gs: k}) for k in (0, 5, 6, 10, 11)]


@script("metrics")
def _(env):
    with tf.Graph().as_default() as g:
        lab, pred = tf.placeholder(tf.int64, [None]), tf.placeholder(tf.int64, [None])
        acc, up1 = tf.metrics.accuracy(lab, pred)
        mean, up2 = tf.metrics.mean(tf.cast(pred, tf.float32))
        prec, up3 = tf.metrics.precision(lab, pred)
        with env.session(g) as sess:
            sess.run(tf.local_variables_initializer())
            ups = [sess.run([up1, up2, up3], {lab: [0, 1, 1, i % 2], pred: [0, 1, 0, 1]}) for i in range(3)]
            return [ups, sess.run([acc, mean, prec])]
