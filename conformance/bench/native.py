"""The native rows: each side drives itself, in worker processes that hold a task and a session on it.

Ours are `downpour-bench worker` (Rust) with `downpour serve` as parameter servers, theirs `tf_worker.py` (python) with
TensorFlow's own. Both clusters are up for the whole row and rounds take turns. Before them both sides run the same number
of steps on the same data, and a row whose values then differ fails.
"""
import json
import os
import queue
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time

import hosts
import native_models
import servers

SIDES = ("ours", "theirs")
HOST_PORTS = {"ours": 2222, "theirs": 2223}  # where tasks listen that have a host of their own
HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 240  # seconds for an answer: first steps fill tables of gigabytes


class Failed(Exception):
    """A row that did not come to a figure, or whose values differ from TensorFlow's."""


def busy():
    """Processor seconds of the whole machine so far."""
    user, nice, system = open("/proc/stat").readline().split()[1:4]
    return (int(user) + int(nice) + int(system)) / os.sysconf("SC_CLK_TCK")


class Task:
    """One process; told and asked by lines."""

    def __init__(self, name, argv, log, enter=None):
        self.name = name
        with open(log, "ab") as err:
            self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True, preexec_fn=enter)
        self.lines = queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def tell(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self, timeout=PATIENCE):
        try:
            line = self.lines.get(timeout=timeout)
        except queue.Empty:
            raise Failed("%s has not answered for %d s" % (self.name, timeout)) from None
        if line is None:
            raise Failed("%s ended with code %s; see its log" % (self.name, self.process.wait()))
        return line

    def ask(self, line):
        self.tell(line)
        return json.loads(self.hear())

    def cpu(self):
        """Processor seconds so far."""
        fields = open("/proc/%d/stat" % self.process.pid).read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class Cluster:
    """One side's tasks of a row."""

    def __init__(self, bench, side, row, ps, workers, wait=True):
        self.row, self.is_sync = row, row.startswith("mnist_sync")
        self.hosts = bench.hosts.all if bench.hosts else []
        if self.hosts:
            hosts = ["%s:%d" % (host.address, HOST_PORTS[side]) for host in self.hosts[:ps + workers]]
        else:
            hosts = ["127.0.0.1:%d" % servers.free_port() for _ in range(ps + workers)]
        spec = {"ps": hosts[:ps], "worker": hosts[ps:]} if ps else {"worker": hosts}
        self.ps, self.workers, self.total_steps = [], [], 0
        self.disturbance = self.worst_disturbance = 0.0
        try:
            for i in range(ps):
                self.ps.append(self.start(bench, side, "ps", i, spec))
            for i in range(workers):
                self.workers.append(self.start(bench, side, "worker", i, spec))
            if wait:
                for worker in self.workers:
                    worker.hear()
        except BaseException:
            self.stop_all()
            raise

    def start(self, bench, side, job, task, spec):
        cluster = ["--task", str(task), "--cluster", json.dumps(spec)]
        if side == "theirs":
            argv = [sys.executable, os.path.join(HERE, "tf_worker.py"), "--job", job, "--row", self.row] + cluster
            if job == "ps" and not bench.python_ps:
                argv = shlex.split(servers.TF_TASK) + ["--job", "ps"] + cluster  # the same server without the import
        elif job == "ps":
            argv = [bench.options.server, "serve", "--job", "ps"] + cluster
        else:
            argv = [bench.options.native, "worker", "--row", self.row] + cluster
        log = os.path.join(bench.options.work, "%s_%s%d.log" % (side, job, task))
        host = self.hosts[task + (len(spec.get("ps", [])) if job == "worker" else 0)] if self.hosts else None
        return Task("%s %s%d" % (side, job, task), argv, log, host and host.enter)

    def cpu(self):
        return {role: sum(t.cpu() for t in tasks) for role, tasks in (("ps", self.ps), ("worker", self.workers))}

    def round(self, seconds):
        """Steps a second of all workers together, and CPU milliseconds of a step, by role. `disturbance` tells which part of the machine others took."""
        begin, whole, before = time.perf_counter(), busy(), self.cpu()
        for worker in self.workers:
            worker.tell("run %s" % seconds)
        done = [json.loads(worker.hear()) for worker in self.workers]
        after = self.cpu()
        others = busy() - whole - sum(after.values()) + sum(before.values())
        self.disturbance = max(0.0, others / (time.perf_counter() - begin) / os.cpu_count())
        if self.is_sync:
            self.settle()
        steps = sum(d["steps"] for d in done)
        self.total_steps += steps
        return sum(d["steps"] / d["seconds"] for d in done), {role: 1e3 * (after[role] - before[role]) / steps for role in after}

    def quiet_round(self, seconds):
        """A round in which others took little of the machine, if there is one among the next few; else the least disturbed."""
        best = None
        for _ in range(4):
            done = self.round(seconds)
            if best is None or self.disturbance < best[1]:
                best = done, self.disturbance
            if self.disturbance < 0.05:
                break
        self.worst_disturbance = max(self.worst_disturbance, best[1])
        return best[0]

    def settle(self):
        """Lets workers that train together come to rest: one that waits for another that has stopped is given its step."""
        for worker in self.workers:
            worker.tell("stop")
        moving = list(self.workers)
        while moving:
            left = []
            for worker in moving:
                try:
                    worker.hear(0.1)
                except Failed:
                    if worker.process.poll() is not None:
                        raise
                    left.append(worker)
            helpers = [w for w in self.workers if w not in left]
            if left and helpers:
                helpers[0].tell("steps 1")
                left.append(helpers[0])
            moving = left

    def steps(self, count):
        """So many steps of each worker, in an order that is always the same; the first worker's values after them."""
        if self.is_sync:
            for worker in self.workers:
                worker.tell("steps %d" % count)
            for worker in self.workers:
                worker.hear()
        else:
            for worker in self.workers:
                worker.ask("steps %d" % count)
        return self.workers[0].ask("value")

    def timeline(self, path):
        """Writes what each operation of one step did, and when."""
        first, others = self.workers[0], self.workers[1:] if self.is_sync else []
        for worker in others:  # whom the first one waits for
            worker.tell("steps 1")
        first.tell("trace " + path)
        for worker in [first] + others:
            worker.hear()

    def stop_all(self):
        for task in self.ps + self.workers:
            task.stop()


def compare(values, tolerance):
    """The largest difference of both sides' values, relative to theirs."""
    ours, theirs = values["ours"], values["theirs"]
    if sorted(ours) != sorted(theirs):
        raise Failed("ours computes %s, theirs %s" % (sorted(ours), sorted(theirs)))
    worst = max(abs(ours[k] - theirs[k]) / max(abs(theirs[k]), 1e-6) for k in ours)
    if not worst <= tolerance:
        raise Failed("values differ by %.2g, more than %.2g: ours %s, theirs %s" % (worst, tolerance, ours, theirs))
    return worst


def native_row(name, unit="steps/s", per_step=1.0, check=100, tolerance=1e-4, smoke_size=None):
    """A row. The figure is steps/s times `per_step` (of a size, if it depends on that); of microseconds, their number. Values are compared after `check` steps of each worker."""
    def run(bench):
        _, ps, workers = native_models.ROWS[name]
        row = "%s:%d" % (name, smoke_size) if smoke_size and bench.options.smoke else name
        worth = per_step(native_models.parse(row)[1]) if callable(per_step) else per_step
        return compete(bench, row, ps, workers, unit, worth, check, tolerance)
    return run


def compete(bench, row, ps, workers, unit, per_step, check, tolerance, sides=SIDES):
    clusters, values = {}, {}
    samples, cpu = {side: [] for side in sides}, {side: [] for side in sides}
    count = min(check, 5) if bench.options.smoke else check
    try:
        for side in sides:
            clusters[side] = Cluster(bench, side, row, ps, workers)
            values[side] = clusters[side].steps(count)
        worst = compare(values, tolerance) if len(sides) == 2 else None
        for _ in range(bench.rounds):
            for side in sides:
                # The other side had the caches: what a round begins with is not counted.
                clusters[side].round(0 if bench.options.smoke else min(0.3, bench.seconds / 5))
                rate, used = clusters[side].round(bench.seconds) if bench.options.smoke else clusters[side].quiet_round(bench.seconds)
                samples[side].append(1e6 * workers / rate if unit == "us/step" else rate * per_step)
                cpu[side].append(used)
        if bench.options.smoke:
            clusters["ours"].timeline(os.path.join(bench.options.work, "smoke.json"))
    finally:
        for cluster in clusters.values():
            cluster.stop_all()
    extra = {"disturbance": round(max(c.worst_disturbance for c in clusters.values()), 3), "cpu_ms": {side: {role: bench.median([c[role] for c in cpu[side]]) for role in cpu[side][0]} for side in sides}}
    if worst is not None:
        extra["values"] = {"steps": count, "ours": values["ours"], "theirs": values["theirs"], "difference": worst, "tolerance": tolerance}
    return samples, unit, "less" if unit == "us/step" else "more", extra


def start_to_first_step(bench):
    """From exec of the first of 2 ps + 2 workers to the end of the first step, each side by itself."""
    samples = {side: [] for side in SIDES}
    bench.python_ps = True  # as users start it
    try:
        for _ in range(min(bench.rounds, 5)):
            for side in SIDES:
                begin = time.perf_counter()
                cluster = Cluster(bench, side, "mnist_async:1", 2, 2, wait=False)
                try:
                    first = cluster.workers[0]
                    first.hear()
                    first.ask("steps 1")
                    samples[side].append((time.perf_counter() - begin) * 1e3)
                finally:
                    cluster.stop_all()
    finally:
        bench.python_ps = False
    return samples, "ms", "less", {}


def idle_memory(python_ps):
    """Resident memory of one task that listens and has done nothing: a python that joins, or TensorFlow's server without python."""
    def run(bench):
        samples = {side: [] for side in SIDES}
        bench.python_ps = python_ps
        try:
            for _ in range(1 if bench.options.smoke else 2):
                for side in SIDES:
                    port = servers.free_port()
                    task = Cluster.start(Idle, bench, side, "ps", 0, {"ps": ["127.0.0.1:%d" % port]})
                    try:
                        servers.wait_port(port, task.process, 60)
                        time.sleep(0.2 if bench.options.smoke else 1.0)
                        samples[side].append(resident(task.process.pid))
                    finally:
                        task.stop()
        finally:
            bench.python_ps = False
        return samples, "MiB", "less", {}
    return run


class Idle:
    """What a task needs to know of its row when there is none."""
    row, hosts = "null_step", ()


def resident(pid):
    for line in open("/proc/%d/status" % pid):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise Failed("process %d has no VmRSS" % pid)


def rows():
    return {
        "null_step": native_row("null_step", "us/step", check=500, tolerance=0),
        "null_step_100": native_row("null_step_100", "us/step", check=50, tolerance=0),
        "null_step_1000": native_row("null_step_1000", "us/step", check=10, tolerance=0),
        "mnist_async": native_row("mnist_async", check=200),
        "mnist_sync": native_row("mnist_sync", check=200),
        "dense_pull_push": native_row("dense_pull_push", "GB/s", per_step=lambda size: 8 * size / 1e9, check=3, tolerance=0, smoke_size=1 << 20),
        "sparse_rows": native_row("sparse_rows", "rows/s", per_step=native_models.LOOKED_UP, check=20, smoke_size=50_000),
        # With the first batch one unit of the second layer is at 0 to the last bit for one image: whether it is on is a matter
        # of the order of additions, and Adam makes of a gradient, however small, a step of full length.
        "mlp_local": native_row("mlp_local", check=5, tolerance=5e-3),
        "cnn_local": native_row("cnn_local", check=20, tolerance=1e-3),
        "start_to_first_step": start_to_first_step,
        "idle_memory": idle_memory(True),
        "idle_memory_bare": idle_memory(False),
    }


def host_rows():
    """The rows of clusters, each task on a host of its own (hosts.py)."""
    def row(name):
        def run(bench):
            samples, unit, better, extra = rows()[name](bench)
            if name == "dense_pull_push":
                extra["stream"] = raw_stream(bench, statistics.median(samples["ours"]))
            return samples, unit, better, extra
        return run
    names = ("null_step", "null_step_100", "null_step_1000", "mnist_async", "mnist_sync", "dense_pull_push", "sparse_rows")
    return {name + "_hosts": row(name) for name in names}


def raw_stream(bench, ours):
    """What a TCP connection between the row's two hosts carries, and which part of it the row came to."""
    a, b = bench.hosts.all[:2]
    seconds = min(1.0, bench.seconds)
    rates = [hosts.stream(*ends, seconds) / 1e9 for _ in range(bench.rounds) for ends in ((a, b), (b, a))]
    median = statistics.median(rates)
    return {"GB/s": round(median, 3), "spread": [round(min(rates), 3), round(max(rates), 3)], "part": round(ours / median, 3)}
