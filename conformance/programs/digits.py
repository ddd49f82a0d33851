"""Digits for the classifiers: synthetic ones from a seed, or MNIST's own files."""
import gzip
import os

import numpy as np

TEST = 1000


class Digits:
    """Images in [0, 1] and one-hot labels; the first TEST are for testing."""

    def __init__(self, folder=None):
        if folder:
            def idx(name, header):
                with gzip.open(os.path.join(folder, name)) as f:
                    return np.frombuffer(f.read(), np.uint8, offset=header)
            images = np.concatenate([idx("t10k-images-idx3-ubyte.gz", 16), idx("train-images-idx3-ubyte.gz", 16)])
            labels = np.concatenate([idx("t10k-labels-idx1-ubyte.gz", 8), idx("train-labels-idx1-ubyte.gz", 8)])
            self.images = images.reshape(-1, 784).astype(np.float32) / 255
        else:
            r = np.random.RandomState(7)
            labels = r.randint(0, 10, 6000)
            # Patches of four by four: something that a convolution can see.
            shapes = np.kron(r.rand(10, 7, 7), np.ones((4, 4))).reshape(10, 784)
            self.images = np.clip(shapes[labels] + 0.4 * r.randn(6000, 784), 0, 1).astype(np.float32)
        self.labels = np.eye(10, dtype=np.float32)[labels]

    def batch(self, worker, i, size):
        """A worker's i-th batch; always the same one."""
        rows = TEST + np.random.RandomState(1000 * worker + i).randint(0, len(self.images) - TEST, size)
        return self.images[rows], self.labels[rows]

    def test(self):
        return self.images[:TEST], self.labels[:TEST]


def classifier(tf, run, logits_of, optimizer, size, supervisor=False):
    """The model around `logits_of(images)`: loss, accuracy, batches."""
    from train import Model
    digits = Digits(run.options.data)
    x = tf.placeholder(tf.float32, [None, 784], name="x")
    y = tf.placeholder(tf.float32, [None, 10], name="y")
    logits = logits_of(x)
    loss = tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.stop_gradient(y), logits=logits))
    right = tf.equal(tf.argmax(logits, 1), tf.argmax(y, 1))
    measures = {"loss": loss, "accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}
    images, labels = digits.test()
    return Model(loss, optimizer, lambda worker, i: dict(zip((x, y), digits.batch(worker, i, size))), measures,
                 {x: images, y: labels}, supervisor=supervisor)
