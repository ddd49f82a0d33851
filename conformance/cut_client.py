"""A worker's client in the scenes of cuts.py: trains for ever with plain sessions, and writes down what it is about to do.

Each line of the trace is JSON: {"t": seconds, "doing": "open" | "first" | "step" | "close"} before and {"t", "did", ...} after, so that
whoever reads it knows where a client hangs. A session that failed is closed and another opened at once, in the middle
of the cut too.
"""
import argparse
import json
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--cluster", type=json.loads, required=True)
    p.add_argument("--worker", type=int, required=True)
    p.add_argument("--trace", required=True)
    p.add_argument("--size", type=int, default=50, help="numbers in each variable")
    p.add_argument("--pause", type=float, default=0.02, help="seconds between steps")
    p.add_argument("--all-tasks", action="store_true", help="sessions know the other worker too")
    options = p.parse_args()
    file = open(options.trace, "a", buffering=1)

    def write(**what):
        file.write(json.dumps(dict(t=time.time(), **what)) + "\n")

    def doing(what, body):
        write(doing=what)
        value = body()
        write(did=what)
        return value

    setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(options.cluster),
                                            worker_device="/job:worker/task:%d" % options.worker)
    with tf.device(setter):
        x = tf.placeholder(tf.float32, [options.size], name="x")
        w = tf.get_variable("w", [options.size], initializer=tf.ones_initializer())
        b = tf.get_variable("b", [options.size], initializer=tf.zeros_initializer())
        loss = tf.reduce_mean(tf.square(w * x + b - (0.1 * x + 0.3)))
        step = tf.train.get_or_create_global_step()
        op = tf.train.GradientDescentOptimizer(0.05).minimize(loss, global_step=step)
        missing = tf.report_uninitialized_variables()
        init = tf.global_variables_initializer()
    filters = [] if options.all_tasks else ["/job:ps", "/job:worker/task:%d" % options.worker]
    config = tf.ConfigProto(device_filters=filters)
    feed = {x: np.random.RandomState(options.worker).rand(options.size).astype(np.float32)}
    target = "grpc://" + options.cluster["worker"][options.worker]
    while True:
        try:
            session = doing("open", lambda: tf.Session(target, config=config))
            try:
                if len(doing("first", lambda: session.run(missing))):
                    doing("init", lambda: session.run(init))
                while True:
                    write(doing="step")
                    write(did="step", step=int(session.run([op, step], feed)[1]))
                    time.sleep(options.pause)
            finally:
                doing("close", session.close)
        except tf.errors.OpError as e:
            write(error=type(e).__name__, text=str(e).partition("\n\nOriginal stack trace")[0][:600])


if __name__ == "__main__":
    main()
