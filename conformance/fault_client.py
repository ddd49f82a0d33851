"""A worker's client in the scenes of faults.py: trains for ever through its own task and writes down every step.

Each line of the trace is JSON: {"t": seconds, "step": global step} after a step, {"t", "session": n} when the n-th session
is open, {"t", "error": class, "text"} when one was lost. MonitoredTrainingSession recovers by itself; the Supervisor's users
write the loop below. An error that neither recovers from is written down too, and the program begins anew.
"""
import argparse
import json
import logging
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.INFO)


class Trace(logging.Handler):
    """Writes steps, sessions and errors, also those that TensorFlow's client only logs."""

    def __init__(self, path):
        super().__init__(logging.INFO)
        self.file = open(path, "a", buffering=1)
        self.sessions = 0

    def write(self, **what):
        self.file.write(json.dumps(dict(t=time.time(), **what)) + "\n")

    def opened(self):
        self.sessions += 1
        self.write(session=self.sessions)

    def emit(self, record):
        text = record.getMessage()
        if "An error was raised" in text or "error occurred when attempting to close" in text:
            error = record.args[0] if record.args else None
            text = text.partition("Error: ")[2]
            self.write(error=type(error).__name__, text=text.partition("\n\nOriginal stack trace")[0][:600])


class Opened(tf.train.SessionRunHook):
    """Tells the trace of each session that MonitoredTrainingSession opens."""

    def __init__(self, trace):
        self.trace = trace

    def after_create_session(self, session, coord):
        self.trace.opened()


def build(options):
    """Linear regression; returns the training op, the global step, a feed function and hooks."""
    workers = len(options.cluster["worker"])
    x = tf.placeholder(tf.float32, [50], name="x")
    w = tf.get_variable("w", [1], initializer=tf.ones_initializer())
    b = tf.get_variable("b", [1], initializer=tf.zeros_initializer())
    loss = tf.reduce_mean(tf.square(w * x + b - (0.1 * x + 0.3)))
    step = tf.train.get_or_create_global_step()
    optimizer, hooks = tf.train.GradientDescentOptimizer(0.05), []
    if options.sync:
        optimizer = tf.train.SyncReplicasOptimizer(optimizer, replicas_to_aggregate=workers, total_num_replicas=workers)
        hooks = [optimizer.make_session_run_hook(options.worker == 0)]
    op = optimizer.minimize(loss, global_step=step)
    random = np.random.RandomState(options.worker)
    return op, step, lambda: {x: random.rand(50).astype(np.float32)}, hooks


def monitored(options, trace, step_once, step, hooks, config):
    with tf.train.MonitoredTrainingSession(
            options.target, is_chief=options.worker == 0, checkpoint_dir=options.folder, save_checkpoint_secs=2,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None, config=config,
            hooks=hooks + [Opened(trace)], stop_grace_period_secs=1) as session:
        while not session.should_stop():
            step_once(session)


def supervised(options, trace, step_once, step, hooks, config):
    supervisor = tf.train.Supervisor(is_chief=options.worker == 0, logdir=options.folder, global_step=step, summary_op=None,
                                     save_model_secs=2, recovery_wait_secs=options.wait, stop_grace_secs=1)
    while True:
        try:
            with supervisor.managed_session(options.target, config=config) as session:
                trace.opened()
                while not supervisor.should_stop():
                    step_once(session)
        except (tf.errors.AbortedError, tf.errors.UnavailableError) as e:
            trace.write(error=type(e).__name__, text=str(e)[:600])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--cluster", type=json.loads, required=True)
    p.add_argument("--worker", type=int, required=True)
    p.add_argument("--trace", required=True)
    p.add_argument("--folder", required=True, help="checkpoints")
    p.add_argument("--wait", type=float, default=1, help="seconds a non-chief sleeps between looks (TensorFlow's own: 30)")
    p.add_argument("--timeout", type=int, default=0, help="operation_timeout_in_ms")
    p.add_argument("--pause", type=float, default=0.02, help="seconds between steps")
    p.add_argument("--sync", action="store_true")
    p.add_argument("--supervisor", action="store_true")
    options = p.parse_args()
    options.target = "grpc://" + options.cluster["worker"][options.worker]
    trace = Trace(options.trace)
    tf.get_logger().addHandler(trace)
    usual = tf.train.SessionManager.__init__
    tf.train.SessionManager.__init__ = lambda self, *a, **k: usual(self, *a, **dict(k, recovery_wait_secs=options.wait))
    config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:%d" % options.worker],
                            operation_timeout_in_ms=options.timeout)
    while True:
        # A new one each time: it deals the ps out by turns, and must begin at the first.
        setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(options.cluster),
                                                worker_device="/job:worker/task:%d" % options.worker)
        with tf.Graph().as_default(), tf.device(setter):
            op, step, feed, hooks = build(options)

            def step_once(session):
                trace.write(step=int(session.run([op, step], feed_dict=feed())[1]))
                time.sleep(options.pause)
            try:
                (supervised if options.supervisor else monitored)(options, trace, step_once, step, hooks, config)
            except tf.errors.OpError as e:
                trace.write(error=type(e).__name__, text=str(e)[:600])


if __name__ == "__main__":
    main()
