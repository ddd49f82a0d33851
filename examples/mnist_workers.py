"""Trains a digit classifier on a cluster with the stock TensorFlow client, one process for each worker.

  downpour run --ps 2 --workers 2 --serve all -- python3 examples/mnist_workers.py [--steps 2000]

Ordinary between-graph training: each worker builds the graph, variables lie on the ps tasks, worker 0 is the chief and saves
checkpoints. Which task to be stands in TF_CONFIG and its server in DOWNPOUR_TARGET; `downpour run` sets both. When a task is
lost, TensorFlow's MonitoredTrainingSession restores the last checkpoint and goes on.
"""
import argparse
import gzip
import json
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

# TensorFlow looks only every 30 s whether the chief has initialised the variables.
manager = tf.train.SessionManager.__init__
tf.train.SessionManager.__init__ = lambda *args, **more: manager(*args, **{**more, "recovery_wait_secs": 1})


def mnist(folder, name):
    def idx(kind, header):
        with gzip.open(os.path.join(folder, "%s-%s-ubyte.gz" % (name, kind))) as f:
            return np.frombuffer(f.read(), np.uint8, offset=header)
    return idx("images-idx3", 16).reshape(-1, 784).astype(np.float32) / 255.0, idx("labels-idx1", 8).astype(np.int64)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--data", default=os.path.join(here, "..", "data", "mnist"), help="folder of the four MNIST files")
    p.add_argument("--dir", default=os.environ.get("DOWNPOUR_DIR", ".") + "/train", help="where checkpoints go")
    p.add_argument("--steps", type=int, default=2000)
    options = p.parse_args()
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, index = tf.train.ClusterSpec(config["cluster"]), config["task"]["index"]
    task = "/job:%s/task:%d" % (config["task"]["type"], index)
    images, labels = mnist(options.data, "train")
    share = np.arange(index, len(images), cluster.num_tasks("worker"))
    draws = np.random.RandomState(index)

    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=task)):
        x, y = tf.placeholder(tf.float32, [None, 784]), tf.placeholder(tf.int64, [None])
        w = tf.get_variable("w", [784, 10], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [10], initializer=tf.zeros_initializer())
        logits = tf.matmul(x, w) + b
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

    filters = tf.ConfigProto(device_filters=["/job:ps", task])
    done = 0
    with tf.train.MonitoredTrainingSession(
            os.environ["DOWNPOUR_TARGET"], is_chief=index == 0, checkpoint_dir=options.dir, save_checkpoint_secs=1,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None, config=filters) as session:
        while done < options.steps:
            rows = draws.choice(share, 100)
            _, done, now = session.run([train, step, loss], {x: images[rows], y: labels[rows]})
            if done % 100 < 2:
                print("step %d loss %.4f" % (done, now), flush=True)
        if index == 0:
            test = dict(zip((x, y), mnist(options.data, "t10k")))
            print("test accuracy %.4f after %d steps" % (session.run(accuracy, test), session.run(step)), flush=True)


if __name__ == "__main__":
    main()
