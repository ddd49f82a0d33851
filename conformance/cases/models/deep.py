"""Five dense layers with dropout and Adam, a hundred steps: a wrong draw or a wrong update would add up.

Nothing here has a kink where rounding decides: a ReLU whose sum is within a rounding error of zero passes
its gradient on one machine and not on the other, and Adam makes a percent of that within the hundred
steps (TensorFlow's own two sets of kernels part in a third of all seeds). So the single-precision models have smooth
activations, and the ReLUs compute in double precision, where no sum comes that close to zero.
"""
import numpy as np

from registry import script, tf

SIZES = [120, 80, 60, 40, 30, 10]
STEPS, BATCH = 100, 100


def batch(i, t):
    r = np.random.RandomState(i)
    y = r.randint(0, 10, BATCH)
    centre = np.random.RandomState(10 ** 6).rand(10, SIZES[0])
    x = centre[y] + 0.4 * r.randn(BATCH, SIZES[0])
    return x.astype(t.as_numpy_dtype), np.eye(10, dtype=t.as_numpy_dtype)[y]


def train(env, activation, t, seed, res, fed_rate, decay):
    """Every step's loss, then every variable and slot."""
    with tf.Graph().as_default() as g:
        tf.set_random_seed(seed)
        x, y = tf.placeholder(t, [None, SIZES[0]]), tf.placeholder(t, [None, 10])
        keep, step = tf.placeholder(t, []), tf.train.get_or_create_global_step()
        h = x
        for i, (n, m) in enumerate(zip(SIZES, SIZES[1:])):
            w = tf.get_variable("w%d" % i, initializer=tf.truncated_normal([n, m], stddev=0.1, dtype=t), use_resource=res)
            b = tf.get_variable("b%d" % i, initializer=tf.ones([m], t) / 10, use_resource=res)
            h = tf.matmul(h, w) + b
            if i < 4:
                h = tf.nn.dropout(activation(h), keep) if fed_rate else tf.nn.dropout(activation(h), rate=0.25)
        loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(logits=h, labels=y)) * 100
        rate = tf.cast(0.0001 + tf.train.exponential_decay(0.003, step, 20, 0.9), t) if decay else 0.003
        update = tf.train.AdamOptimizer(rate).minimize(loss, global_step=step)
        with env.session(g) as sess:
            sess.run(tf.global_variables_initializer())
            losses = []
            for i in range(STEPS):
                bx, by = batch(i, t)
                losses.append(sess.run([loss, update], {x: bx, y: by, keep: 0.75})[0])
            return [np.array(losses), {v.op.name: sess.run(v) for v in tf.global_variables()}]


for name, activation, t, options in [("relu", tf.nn.relu, tf.float64, dict(rtol=1e-6, atol=1e-8)), ("tanh", tf.tanh, tf.float32, dict(rtol=1e-3, atol=1e-4)),
                                     ("sigmoid", tf.sigmoid, tf.float32, dict(rtol=1e-3, atol=1e-4))]:
    for seed, res, fed_rate, decay in [(0, False, False, False), (3, True, True, True)]:
        @script("five_layers_dropout_adam/%s_%d" % (name, seed), **options)
        def run(env, activation=activation, t=t, seed=seed, res=res, fed_rate=fed_rate, decay=decay):
            return train(env, activation, t, seed, res, fed_rate, decay)
