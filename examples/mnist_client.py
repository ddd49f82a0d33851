"""Trains a digit classifier on a Downpour server with the stock TensorFlow client.

  cargo run --release -- serve --port 2222             # terminal 1
  python examples/mnist_client.py --port 2222          # terminal 2: any python with TensorFlow 2.x

Everything runs on the server; this process only builds the graph and feeds batches. Without
`--data` the digits are synthetic (ten noisy prototypes of 28x28), so nothing is downloaded; with
`--data DIR` the four MNIST files (train-images-idx3-ubyte.gz, ...) are read from DIR.
"""
import argparse
import gzip
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)


def synthetic(n=12000, seed=7):
    """Images and labels that a linear model separates, but not at once."""
    r = np.random.RandomState(seed)
    labels = r.randint(0, 10, n)
    images = np.clip(r.rand(10, 784)[labels] + 0.8 * r.randn(n, 784), 0, 1)
    return images.astype(np.float32), labels.astype(np.int64)


def mnist(folder):
    """Images and labels of MNIST's IDX files, training set first."""
    def idx(name, header):
        with gzip.open(os.path.join(folder, name)) as f:
            return np.frombuffer(f.read(), np.uint8, offset=header)
    images = np.concatenate([idx("train-images-idx3-ubyte.gz", 16), idx("t10k-images-idx3-ubyte.gz", 16)])
    labels = np.concatenate([idx("train-labels-idx1-ubyte.gz", 8), idx("t10k-labels-idx1-ubyte.gz", 8)])
    return images.reshape(-1, 784).astype(np.float32) / 255.0, labels.astype(np.int64)


def build(hidden, rate):
    x = tf.placeholder(tf.float32, [None, 784], name="x")
    y = tf.placeholder(tf.int64, [None], name="y")
    h, size = x, 784
    if hidden:
        w = tf.get_variable("hidden/w", [784, hidden], initializer=tf.truncated_normal_initializer(stddev=784 ** -0.5, seed=1))
        b = tf.get_variable("hidden/b", [hidden], initializer=tf.zeros_initializer())
        h, size = tf.nn.relu(tf.matmul(x, w) + b), hidden
    w = tf.get_variable("out/w", [size, 10], initializer=tf.truncated_normal_initializer(stddev=size ** -0.5, seed=2))
    b = tf.get_variable("out/b", [10], initializer=tf.zeros_initializer())
    logits = tf.matmul(h, w) + b
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdamOptimizer(rate).minimize(loss, global_step=step)
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))
    return x, y, train, loss, step, accuracy


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--port", type=int, default=2222, help="the server's port on this machine")
    p.add_argument("--target", help="a server elsewhere, as grpc://host:port")
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--batch", type=int, default=100)
    p.add_argument("--hidden", type=int, default=128, help="hidden units; 0 is plain softmax regression")
    p.add_argument("--rate", type=float, default=1e-3)
    p.add_argument("--data", help="folder with the MNIST files")
    p.add_argument("--save", help="checkpoint prefix to write at the end, on the server's file system")
    options = p.parse_args()
    target = options.target or "grpc://127.0.0.1:%d" % options.port

    images, labels = mnist(options.data) if options.data else synthetic()
    test = slice(-2000, None)
    x, y, train, loss, step, accuracy = build(options.hidden, options.rate)
    saver = tf.train.Saver()
    order = np.random.RandomState(3)
    with tf.Session(target) as session:
        session.run(tf.global_variables_initializer())
        print("training on %s: %s" % (target, session.list_devices()[0].name))
        start = time.time()
        for i in range(1, options.steps + 1):
            rows = order.randint(0, len(images) - 2000, options.batch)
            _, value, at = session.run([train, loss, step], {x: images[rows], y: labels[rows]})
            if i % 100 == 0 or i == options.steps:
                score = session.run(accuracy, {x: images[test], y: labels[test]})
                print("step %5d  loss %.4f  test accuracy %.3f  %.0f steps/s" % (at, value, score, i / (time.time() - start)))
        if options.save:
            print("saved", saver.save(session, options.save, global_step=step))


if __name__ == "__main__":
    main()
