"""Linear regression y = 0.1 x + 0.3 by gradient descent: two scalars, one on each ps."""
import numpy as np
from train import Model, tf

STEPS = 60
# Asynchronous training at everyone's own pace must come at least this far.
FREE = {"loss": (None, 0.05)}


def points(worker, i):
    x = np.random.RandomState(1000 * worker + i).rand(100).astype(np.float32)
    return x, 0.1 * x + 0.3


def build(run):
    x = tf.placeholder(tf.float32, [100], name="x")
    y = tf.placeholder(tf.float32, [100], name="y")
    w = run.variable("w", initializer=tf.random_uniform([1], -1.0, 1.0, seed=1))
    b = run.variable("b", [1], tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * x + b - y))
    return Model(loss, tf.train.GradientDescentOptimizer(0.1), lambda worker, i: dict(zip((x, y), points(worker, i))),
                 {"loss": loss, "slope": w[0], "offset": b[0]}, dict(zip((x, y), points(9, 9))))
