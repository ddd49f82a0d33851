"""Clusters of our tasks and TensorFlow's in every mixture, driven by the stock client.

Each program runs on every mixture and, without devices, in one TensorFlow session; the results must
agree. What happens when tasks are lost is in faults.py.

  python cluster.py --server target/release/downpour --work target/cluster [--only NAME] [--transport grpc]
"""
import argparse
import contextlib
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import mixed
import numpy as np
import tasks

# Which side runs which task: two ps, two workers.
MIXTURES = {"ours": "oooo", "their_workers_our_ps": "oott", "our_workers_their_ps": "ttoo", "both_of_each": "otot"}


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


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs")
    p.add_argument("--only", help="one mixture")
    p.add_argument("--transport", choices=["auto", "grpc"], default="auto", help="how our tasks talk to each other")
    options = p.parse_args()
    os.environ["DOWNPOUR_TRANSPORT"] = options.transport
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    passed, failed = 0, 0

    def report(name, problem, note=""):
        nonlocal passed, failed
        passed, failed = (passed + 1, failed) if problem is None else (passed, failed + 1)
        print("%-4s %s %s" % ("ok" if problem is None else "FAIL", name, note if problem is None else problem), flush=True)

    programs = [train, loops, queues] + mixed.PROGRAMS
    tf.disable_control_flow_v2()
    want = {program.__name__: program(tf, Single(tf)) for program in programs}
    for name, sides in MIXTURES.items():
        if options.only not in (None, name):
            continue
        with tasks.Cluster(options.server, os.path.abspath(options.work), name, sides) as cluster:
            for program in programs:
                try:
                    got = program(tf, Spread(tf, cluster))
                    problem = None if agree(want[program.__name__], got) else "want %s\n got %s" % (want[program.__name__], got)
                except Exception as e:
                    problem = "%s: %s" % (type(e).__name__, e)
                report("%s/%s" % (name, program.__name__), problem)
    print("cluster: %d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
