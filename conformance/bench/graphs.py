"""The models of the benchmark rows: each builds a graph and returns (fetches, feed function)."""
import numpy as np
import tensorflow.compat.v1 as tf


class Digits:
    """Ten noisy prototypes in 784 dimensions, fixed seed: shaped like MNIST, always at hand."""

    def __init__(self, n=4000, seed=7):
        r = np.random.RandomState(seed)
        label = r.randint(0, 10, n)
        self.x = np.clip(r.rand(10, 784)[label] + 0.5 * r.randn(n, 784), 0, 1).astype(np.float32)
        self.y = np.eye(10, dtype=np.float32)[label]
        self.r = r

    def batch(self, k):
        i = self.r.randint(0, len(self.x) - k)
        return self.x[i:i + k], self.y[i:i + k]


def inputs(batch):
    data = Digits()
    x = tf.placeholder(tf.float32, [None, 784], name="x")
    y = tf.placeholder(tf.float32, [None, 10], name="y")

    def feed():
        xs, ys = data.batch(batch)
        return {x: xs, y: ys}
    return x, y, feed


def weights(name, shape, scale):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=scale, seed=5))


def cross_entropy(labels, logits):
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.stop_gradient(labels), logits=logits))


def mlp():
    """784-1024-1024-10, ReLU, Adam(1e-3), batch 100."""
    x, y, feed = inputs(100)
    h = x
    for name, n_in, n_out in (("l1", 784, 1024), ("l2", 1024, 1024), ("out", 1024, 10)):
        h = tf.nn.bias_add(tf.matmul(h, weights(name + "_w", [n_in, n_out], n_in ** -0.5)), tf.get_variable(
            name + "_b", [n_out], initializer=tf.zeros_initializer()))
        h = h if name == "out" else tf.nn.relu(h)
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(1e-3).minimize(cross_entropy(y, h), global_step=step)
    return [train, step], feed


def cnn():
    """conv5x5x32, pool, conv5x5x64, pool, dense 512, 10; Momentum(0.01, 0.9), batch 64, NHWC."""
    x, y, feed = inputs(64)

    def conv(h, name, shape):
        h = tf.nn.conv2d(h, weights(name + "_w", shape, 0.1), [1, 1, 1, 1], "SAME")
        h = tf.nn.relu(tf.nn.bias_add(h, weights(name + "_b", shape[-1:], 0.1)))
        return tf.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    h = conv(tf.reshape(x, [-1, 28, 28, 1]), "c1", [5, 5, 1, 32])
    h = tf.reshape(conv(h, "c2", [5, 5, 32, 64]), [-1, 7 * 7 * 64])
    h = tf.nn.relu(tf.matmul(h, weights("f1_w", [3136, 512], 0.02)) + weights("f1_b", [512], 0.1))
    logits = tf.matmul(h, weights("f2_w", [512, 10], 0.05)) + weights("f2_b", [10], 0.1)
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(cross_entropy(y, logits), global_step=step)
    return [train, step], feed


def op_chain():
    """1,000 scalar adds in a row. Unknown shapes and a fed operand leave an optimiser nothing to fold or regroup."""
    x = tf.placeholder(tf.float32, name="x")
    y = x
    for _ in range(1000):
        y = tf.add(y, x)
    one = np.float32(1.0)
    return [y], lambda: {x: one}
