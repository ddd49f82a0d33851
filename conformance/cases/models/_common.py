"""Training a model the same way on both sides."""
import numpy as np

from registry import tf

# Training amplifies the last bits of a step; ten steps of these models stay well within this.
TOLERANCE = dict(rtol=2e-3, atol=2e-4)
STEPS = 10


def data(seed, shape, classes=None):
    r = np.random.RandomState(seed)
    x = r.randn(*shape).astype(np.float32)
    y = r.randint(0, classes, shape[0]).astype(np.int32) if classes else r.randn(shape[0], 1).astype(np.float32)
    return x, y


def var(name, shape, res, scale=0.3):
    return tf.get_variable(name, shape, use_resource=res, initializer=tf.random_normal_initializer(stddev=scale, seed=len(name) + int(np.prod(shape))))


def train(env, build, res):
    """Losses of every step, the variables at the end, and an evaluation."""
    with tf.Graph().as_default() as g:
        tf.set_random_seed(7)
        with tf.variable_scope("m", use_resource=res):
            loss, step, feeds, extra = build(res)
        watched = tf.global_variables()
        with env.session(g) as sess:
            sess.run(tf.global_variables_initializer())
            sess.run(tf.tables_initializer())
            losses = [sess.run([loss, step], feeds)[0] for _ in range(STEPS)]
            return [losses, {v.op.name: sess.run(v) for v in watched}, sess.run(extra, feeds)]
