"""The rows that need a cluster: ps and worker tasks as processes, one client session per worker, one RunStep per step.

Both sides' clusters are up for the whole row; rounds take turns, so one is idle while the other is measured. The
client's threads, one per worker, share this process: their own time is small and the same for both sides.
"""
import contextlib
import json
import os
import shlex
import threading
import time

import servers

SIDES = ("ours", "theirs")
PATIENCE = 120  # seconds beyond its time after which a round is called stuck
CLIENTS = []  # never forgotten: python would close the sessions of a row that failed, and wait for servers that are gone


def started(body, *args):
    thread = threading.Thread(target=body, args=args, daemon=True)
    thread.start()
    return thread


def settle(threads, help_out, is_over, failed, deadline):
    """Waits until the workers' threads end. In synchronous training one may wait for the gradient of another that has stopped, which then makes a step
    more; that step may itself have come too late and want one of the first. So whoever is still at it is helped by whoever is not, until nobody is."""
    while not failed and any(t.is_alive() for t in threads):
        for t in threads:
            t.join(0.1)
        busy = [i for i, t in enumerate(threads) if t.is_alive()]
        idle = [i for i, t in enumerate(threads) if not t.is_alive()]
        if busy and time.perf_counter() > deadline:
            failed.append(RuntimeError("the steps of workers %s have not ended" % busy))
        elif busy and idle and is_over():
            threads[idle[0]] = help_out(idle[0])


class Cluster:
    """`ps` + `workers` tasks of one side."""

    def __init__(self, bench, side, ps, workers):
        hosts = ["127.0.0.1:%d" % servers.free_port() for _ in range(ps + workers)]
        self.spec = {"ps": hosts[:ps], "worker": hosts[ps:]}
        self.tasks = []
        for job, addresses in self.spec.items():
            for task, address in enumerate(addresses):
                flags = "--job %s --task %d --cluster %s" % (job, task, shlex.quote(json.dumps(self.spec)))
                command = {"ours": "%s serve %s" % (shlex.quote(os.path.abspath(bench.options.server)), flags),
                           "theirs": servers.TF_TASK + " " + flags}[side]
                log = os.path.join(bench.options.work, "%s_%s%d.log" % (side, job, task))
                self.tasks.append(servers.Server(command, log, port=int(address.rsplit(":", 1)[1])))

    def target(self, worker):
        return "grpc://" + self.spec["worker"][worker]

    def stop(self):
        for task in self.tasks:
            task.stop()


class Program:
    """What one worker's client runs, as in between-graph replication: each worker has a graph of its own, the variables are shared."""

    def __init__(self, graph, fetches, feed, chief_init=(), init=(), background=None):
        self.graph, self.fetches, self.feed = graph, fetches, feed
        self.chief_init, self.init, self.background = chief_init, init, background


class Client:
    """A session on each worker of a cluster, and the steps they run."""

    def __init__(self, tf, cluster, programs):
        CLIENTS.append(self)
        self.sessions = [tf.Session(cluster.target(i), graph=p.graph) for i, p in enumerate(programs)]
        chief = programs[0]
        for op in chief.chief_init:
            self.sessions[0].run(op)
        for session, program in zip(self.sessions, programs):
            for op in program.init:
                session.run(op)
        if chief.background is not None:
            threading.Thread(target=self.repeat, args=(tf, chief.background), daemon=True).start()
        self.steps = []
        for session, program in zip(self.sessions, programs):
            # The client's cheapest way to a step: what is left of its own time is the same for both.
            call = session.make_callable(program.fetches, feed_list=list(program.feed()))
            self.steps.append(lambda call=call, feed=program.feed: call(*feed().values()))

    def repeat(self, tf, op):
        """The chief's queue runner: ends with its session."""
        with contextlib.suppress(tf.errors.OpError, RuntimeError):
            while True:
                self.sessions[0].run(op)

    def run(self, seconds, least):
        """Steps a second of all workers together, over `seconds` and at least `least` steps each."""
        over, counts = [False] * len(self.steps), [0] * len(self.steps)
        begin = time.perf_counter()
        took, failed = [0.0] * len(self.steps), []

        def work(i):
            try:
                while not over[i]:
                    self.steps[i]()
                    counts[i] += 1
                    took[i] = time.perf_counter() - begin
                    over[i] = took[i] >= seconds and counts[i] >= least
                while not all(over):  # in synchronous training the others still need this one
                    self.steps[i]()
            except Exception as e:  # reported below: a thread's own exception is lost
                failed.append(e)
                over[:] = [True] * len(over)

        def help_out(i):
            try:
                self.steps[i]()
            except Exception as e:
                failed.append(e)
        threads = [started(work, i) for i in range(len(self.steps))]
        settle(threads, lambda i: started(help_out, i), lambda: all(over), failed, begin + seconds + PATIENCE)
        if failed:
            raise failed[0]
        return sum(n / t for n, t in zip(counts, took))

    def close(self):
        for session in self.sessions:
            session.close()  # while its server answers: a close without one waits for ever


def cluster_row(build, unit, per_step=1.0, ps=2, workers=2):
    """A row: `build(tf, spec, worker)` gives a worker's program. The figure is steps/s times `per_step`; of microseconds, their number."""
    def row(bench):
        import tensorflow.compat.v1 as tf
        samples, clusters, clients, side = {side: [] for side in SIDES}, {}, {}, None
        try:
            for side in SIDES:
                cluster = clusters[side] = Cluster(bench, side, ps, workers)
                clients[side] = Client(tf, cluster, [build(tf, cluster.spec, i) for i in range(workers)])
                clients[side].run(0 if bench.options.smoke else bench.seconds / 3, least=2)
            for _ in range(bench.rounds):
                for side in SIDES:
                    rate = clients[side].run(bench.seconds, least=2)
                    samples[side].append(1e6 / rate if unit == "us/step" else rate * per_step)
            for client in clients.values():
                client.close()
        except Exception as e:
            e.side = side
            raise
        finally:
            for cluster in clusters.values():
                cluster.stop()
        return samples, unit, "less" if unit == "us/step" else "more", {}
    return row
