"""The processes of a cluster: tasks of either side, and the clients that train on them.

Used by cluster.py, faults.py and run_programs.py. Every process is started here, writes its own log, and is
signalled by nobody else; leaving a `with Cluster(...)` ends them all.
"""
import json
import os
import shlex
import signal
import subprocess
import sys
import time

import servers

HERE = os.path.dirname(os.path.abspath(__file__))
SIDES = {"o": "downpour", "t": "TensorFlow"}


class Process:
    """One process that may be started again after it was killed."""

    def __init__(self, argv, log, env=None):
        self.argv, self.log, self.env, self.process = argv, log, env, None

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            env=dict(os.environ, **self.env) if self.env else None)
        return self

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self):
        """SIGKILL; returns when the process is gone."""
        self.process.kill()
        self.process.wait()

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)

    def stop(self, patience=2):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process = None

    def text(self):
        try:
            with open(self.log, errors="replace") as f:
                return f.read()
        except OSError:
            return ""


class Task(Process):
    """A server process of one side."""

    def __init__(self, argv, log, port):
        super().__init__(argv, log)
        self.port = port

    def wait(self, patience=60):
        servers.wait_port(self.port, self.process, patience)
        return self


class Cluster:
    """`ps` parameter servers, then workers; `o` in `sides` is ours, `t` TensorFlow's.

    `through` maps (job, task) to another address under which the other tasks reach it.
    """

    def __init__(self, server, work, name, sides="oooo", ps=2, through=(), flags=()):
        os.makedirs(work, exist_ok=True)
        ports = [servers.free_port() for _ in sides]
        hosts = ["127.0.0.1:%d" % p for p in ports]
        self.spec = {"ps": hosts[:ps], "worker": hosts[ps:]}
        self.server, self.work, self.name, self.flags = server, work, name, list(flags)
        self.tasks, self.clients, self.others = {}, {}, []
        through = dict(through)
        for i, side in enumerate(sides):
            key = ("ps", i) if i < ps else ("worker", i - ps)
            seen = {job: [through.get((job, n), a) if (job, n) != key else a for n, a in enumerate(addresses)]
                    for job, addresses in self.spec.items()}
            self.tasks[key] = self.task(side, key, seen, ports[i])

    def task(self, side, key, seen, port):
        flags = ["--job", key[0], "--task", str(key[1]), "--cluster", json.dumps(seen)]
        if side == "o":
            argv = [os.path.abspath(self.server), "serve"] + flags + self.flags
        else:
            argv = [sys.executable, os.path.join(HERE, "tf_server.py")] + flags
        return Task(argv, self.path("%s%d.log" % key), port)

    def path(self, leaf):
        return os.path.join(self.work, "%s_%s" % (self.name, leaf))

    def __enter__(self):
        for task in self.tasks.values():
            task.start()
        for task in self.tasks.values():
            task.wait()
        return self

    def __exit__(self, *_):
        for process in list(self.clients.values()) + list(self.tasks.values()) + self.others:
            process.stop()

    def start(self, job, task):
        self.tasks[job, task].start().wait()

    def kill(self, job, task):
        self.tasks[job, task].kill()

    def target(self, worker):
        return "grpc://" + self.spec["worker"][worker]

    def client(self, worker, script, *args):
        """A python process that trains through this worker's task."""
        argv = [sys.executable, os.path.join(HERE, script), "--cluster", json.dumps(self.spec), "--worker", str(worker)]
        self.clients[worker] = Process(argv + list(args), self.path("client%d.log" % worker)).start()
        return self.clients[worker]

    def beside(self, script, *args):
        """Another python process that belongs to the scene."""
        argv = [sys.executable, os.path.join(HERE, script)] + list(args)
        self.others.append(Process(argv, self.path(os.path.basename(script) + ".log")).start())
        return self.others[-1]


def wait_until(condition, patience, what, pause=0.05):
    """Returns the first true value of `condition`; raises when the time is over."""
    end = time.time() + patience
    while True:
        value = condition()
        if value:
            return value
        if time.time() > end:
            raise RuntimeError("%s: not within %d s" % (what, patience))
        time.sleep(pause)


def show(argv):
    return " ".join(shlex.quote(a) for a in argv)
