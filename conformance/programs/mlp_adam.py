"""Three dense layers with ReLU and Adam, batch 100."""
from digits import classifier
from train import tf

STEPS = 40
FREE = {"accuracy": (0.8, None)}


def build(run):
    def dense(x, name, n_in, n_out):
        w = run.variable(name + "/w", [n_in, n_out], tf.truncated_normal_initializer(stddev=n_in ** -0.5, seed=5))
        return tf.nn.bias_add(tf.matmul(x, w), run.variable(name + "/b", [n_out], tf.zeros_initializer()))

    def logits(x):
        h = tf.nn.relu(dense(x, "first", 784, 256))
        return dense(tf.nn.relu(dense(h, "second", 256, 256)), "out", 256, 10)
    return classifier(tf, run, logits, tf.train.AdamOptimizer(1e-3), 100)
