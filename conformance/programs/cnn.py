"""Two convolutions with pooling, two dense layers, momentum, batch 32."""
from digits import classifier
from train import tf

STEPS = 60
FREE = {"loss": (None, 2.2)}


def build(run):
    def weights(name, shape, deviation):
        return run.variable(name, shape, tf.truncated_normal_initializer(stddev=deviation, seed=9))

    def layer(h, name, shape):
        h = tf.nn.conv2d(h, weights(name + "/w", shape, 0.1), [1, 1, 1, 1], "SAME")
        h = tf.nn.relu(tf.nn.bias_add(h, run.variable(name + "/b", shape[-1:], tf.zeros_initializer())))
        return tf.nn.max_pool2d(h, 2, 2, "SAME")

    def logits(x):
        h = layer(tf.reshape(x, [-1, 28, 28, 1]), "conv1", [5, 5, 1, 8])
        h = tf.reshape(layer(h, "conv2", [5, 5, 8, 16]), [-1, 784])
        h = tf.nn.relu(tf.matmul(h, weights("dense/w", [784, 64], 0.03)) + run.variable("dense/b", [64], tf.zeros_initializer()))
        return tf.matmul(h, weights("out/w", [64, 10], 0.1)) + run.variable("out/b", [10], tf.zeros_initializer())
    return classifier(tf, run, logits, tf.train.MomentumOptimizer(0.02, 0.9), 32)
