"""Clusters of our tasks and TensorFlow's in every mixture, driven by the stock client.

Each program runs on every mixture and, without devices, in one TensorFlow session; the results must
agree. Then a ps is killed and restarted under MonitoredTrainingSession, which must go on by itself.

  python cluster.py --server target/release/downpour --work target/cluster [--only NAME]
"""
import argparse
import json
import os
import shlex
import signal
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import numpy as np
import servers

# Which side runs which task: two ps, two workers.
MIXTURES = {"ours": "oooo", "their_workers_our_ps": "oott", "our_workers_their_ps": "ttoo", "both_of_each": "otot"}


class Cluster:
    """Two ps and two workers; `o` in `sides` is ours, `t` TensorFlow's."""

    def __init__(self, options, sides, name):
        ports = [servers.free_port() for _ in sides]
        hosts = ["127.0.0.1:%d" % p for p in ports]
        self.spec = {"ps": hosts[:2], "worker": hosts[2:]}
        self.options, self.name, self.tasks = options, name, {}
        for i, side in enumerate(sides):
            self.tasks["ps" if i < 2 else "worker", i % 2] = [side, ports[i], None]
        for key in self.tasks:
            self.start(*key)

    def start(self, job, task):
        side, port, _ = self.tasks[job, task]
        flags = "--job %s --task %d --cluster %s" % (job, task, shlex.quote(json.dumps(self.spec)))
        if side == "o":
            command = "%s serve %s" % (shlex.quote(self.options.server), flags)
        else:
            command = "%s %s %s" % (shlex.quote(sys.executable), shlex.quote(os.path.join(HERE, "tf_server.py")), flags)
        log = os.path.join(self.options.work, "%s_%s%d.log" % (self.name, job, task))
        self.tasks[job, task][2] = servers.Server(command, log, port=port)

    def kill(self, job, task):
        self.tasks[job, task][2].process.send_signal(signal.SIGKILL)
        self.tasks[job, task][2].process.wait()

    def target(self, worker):
        return "grpc://" + self.spec["worker"][worker]

    def stop(self):
        for _, _, server in self.tasks.values():
            server.stop()


def train(tf, run):
    """Two workers take turns; variables of both kinds, dense and sparse updates, on both ps."""
    with run.graph() as graph:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        ids = tf.placeholder(tf.int32, [None], name="ids")
        w = tf.get_variable("w", initializer=tf.constant(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)))
        table = tf.get_variable("table", initializer=tf.constant(np.linspace(0, 2, 30, dtype=np.float32).reshape(10, 3)),
                                partitioner=tf.fixed_size_partitioner(2))
        b = tf.get_variable("b", initializer=tf.zeros([3]), use_resource=True)
        y = tf.matmul(x, w) + b + tf.nn.embedding_lookup(table, ids)
        loss = tf.reduce_mean(tf.square(y - 1.0))
        step = tf.train.get_or_create_global_step()
        apply = tf.train.AdagradOptimizer(0.3).minimize(loss, global_step=step)
        init = tf.global_variables_initializer()
        everything = [w, tf.convert_to_tensor(table), b, step]
    out = []
    with run.session(graph, 0) as first, run.session(graph, 1) as second:
        first.run(init)
        for i in range(10):
            feed = {x: np.arange(8, dtype=np.float32).reshape(2, 4) / (i + 1), ids: [i, (3 * i + 1) % 10]}
            out.append((first, second)[i % 2].run([loss, apply], feed)[0])
        out += second.run(everything)
    return out


def loops(tf, run):
    """A loop whose body crosses to both ps, and its gradient; a branch on another task."""
    with run.graph() as graph:
        x = tf.placeholder(tf.float32, [2], name="x")

        def body(i, a):
            with run.device("/job:ps/task:0"):
                a = a * x
            with run.device("/job:ps/task:1"):
                return i + 1, a + 0.5
        _, a = tf.while_loop(lambda i, a: i < 5, body, [0, x])
        with run.device("/job:ps/task:1"):
            z = tf.cond(tf.reduce_sum(a) > 3.0, lambda: a * 2.0, lambda: a - 1.0)
        grad = tf.gradients(z, x)[0]
    with run.session(graph, 0) as session:
        return [session.run([a, z, grad], {x: v}) for v in ([1.0, 2.0], [0.1, 0.2])]


def queues(tf, run):
    """One worker fills a queue on a ps, the other empties it."""
    with run.graph() as graph:
        x = tf.placeholder(tf.float32, [], name="x")
        with run.device("/job:ps/task:1"):
            queue = tf.FIFOQueue(10, [tf.float32], shapes=[[]], shared_name="between")
        put, take, close = queue.enqueue(x), queue.dequeue_many(3), queue.close()
    with run.session(graph, 0) as first, run.session(graph, 1) as second:
        for i in range(6):
            first.run(put, {x: float(i)})
        out = [second.run(take), second.run(take)]
        first.run(close)
        try:
            second.run(take)
        except tf.errors.OutOfRangeError:
            out.append("closed")
        return out


class Spread:
    """Runs a program on a cluster."""

    def __init__(self, tf, cluster):
        self.tf, self.cluster = tf, cluster

    def graph(self):
        import contextlib

        @contextlib.contextmanager
        def made():
            setter = self.tf.train.replica_device_setter(cluster=self.tf.train.ClusterSpec(self.cluster.spec))
            with self.tf.Graph().as_default() as graph, self.tf.device(setter):
                yield graph
        return made()

    def device(self, name):
        return self.tf.device(name)

    def session(self, graph, worker):
        return self.tf.Session(self.cluster.target(worker), graph=graph)


class Single:
    """Runs a program in one TensorFlow session."""

    def __init__(self, tf):
        self.tf, self.open = tf, None

    def graph(self):
        return self.tf.Graph().as_default()

    def device(self, _):
        return self.tf.device(None)

    def session(self, graph, worker):
        import contextlib
        if worker == 0:
            self.open = self.tf.Session(graph=graph)
            return self.open
        return contextlib.nullcontext(self.open)


def agree(want, got):
    if isinstance(want, (list, tuple)):
        return len(want) == len(got) and all(agree(w, g) for w, g in zip(want, got))
    if isinstance(want, str):
        return want == got
    return np.allclose(want, got, rtol=1e-5, atol=1e-6)


def recovery(tf, options):
    """A ps dies and comes back: the client restores the last checkpoint and trains on."""
    cluster = Cluster(options, "oooo", "recovery")
    folder = os.path.join(options.work, "recovery_%d" % os.getpid())
    try:
        with Spread(tf, cluster).graph():
            w = tf.get_variable("w", initializer=tf.zeros([2]))
            step = tf.train.get_or_create_global_step()
            apply = tf.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(tf.square(w - 3.0)), global_step=step)
            hooks = [tf.train.StopAtStepHook(last_step=400)]
            killed, seen, start = None, 0, time.time()
            with tf.train.MonitoredTrainingSession(cluster.target(0), is_chief=True, checkpoint_dir=folder, hooks=hooks,
                                                   save_checkpoint_steps=20, save_summaries_steps=None, log_step_count_steps=None) as session:
                while not session.should_stop():
                    if time.time() - start > 90:
                        raise RuntimeError("no end after 90 s; last step seen %s" % seen)
                    seen = session.run([step, apply])[0]
                    if seen >= 100 and killed is None:
                        killed = seen
                        cluster.kill("ps", 0)
                        cluster.start("ps", 0)
            if killed is None or seen < 390:
                raise RuntimeError("killed at %s, ended at %s" % (killed, seen))
            return "killed at step %d, ended at %d" % (killed, seen)
    finally:
        cluster.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs and checkpoints")
    p.add_argument("--only", help="one mixture, or recovery")
    options = p.parse_args()
    options.server = os.path.abspath(options.server)
    os.makedirs(options.work, exist_ok=True)
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    passed, failed = 0, 0

    def report(name, problem, note=""):
        nonlocal passed, failed
        passed, failed = (passed + 1, failed) if problem is None else (passed, failed + 1)
        print("%-4s %s %s" % ("ok" if problem is None else "FAIL", name, note if problem is None else problem), flush=True)

    programs = [train, loops, queues]
    tf.disable_control_flow_v2()
    want = {program.__name__: program(tf, Single(tf)) for program in programs}
    for name, sides in MIXTURES.items():
        if options.only not in (None, name):
            continue
        cluster = Cluster(options, sides, name)
        try:
            for program in programs:
                try:
                    got = program(tf, Spread(tf, cluster))
                    problem = None if agree(want[program.__name__], got) else "want %s\n got %s" % (want[program.__name__], got)
                except Exception as e:
                    problem = "%s: %s" % (type(e).__name__, e)
                report("%s/%s" % (name, program.__name__), problem)
        finally:
            cluster.stop()
    if options.only in (None, "recovery"):
        try:
            report("recovery", None, recovery(tf, options))
        except Exception as e:
            report("recovery", "%s: %s" % (type(e).__name__, e))
    print("cluster: %d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
