"""Softmax regression on digits with Adagrad, under tf.train.Supervisor."""
from digits import classifier
from train import tf

STEPS = 100
FREE = {"accuracy": (0.8, None)}


def build(run):
    w = run.variable("weights", [784, 10], tf.zeros_initializer())
    b = run.variable("bias", [10], tf.zeros_initializer())
    return classifier(tf, run, lambda x: tf.matmul(x, w) + b, tf.train.AdagradOptimizer(0.01), 100, supervisor=True)
