"""Cut networks under TensorFlow's own clients: hosts in network namespaces, packets dropped without a word.

  python cuts.py --server target/release/downpour --work target/cuts [--short] [--only NAME,...] [--rounds N] [--transport grpc]

Two ps and two workers, each on a host of its own (wires.py), each worker with a client that trains with plain sessions and opens
another whenever one fails, in the middle of a cut too (cut_client.py). Asked of every scene: blocked steps hear of the loss
in time, and after the cut everyone trains again. A client that does not is a hang: its last words, what each task
says of itself, and the ends of their logs are printed.
"""
import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import wires
from tasks import Process, wait_until

PORT = 2222
KEYS = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]


class On(Process):
    """A process on a host."""

    def __init__(self, host, argv, log):
        super().__init__(argv, log)
        self.host = host

    def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(self.argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            preexec_fn=self.host.enter)
        return self

    def listens(self):
        code = "import socket; socket.create_connection((%r, %d), 1)" % (self.host.address, PORT)
        done = subprocess.run([sys.executable, "-c", code], preexec_fn=self.host.enter, stderr=subprocess.DEVNULL)
        return done.returncode == 0


class Scene:
    """The cluster on its network, and the clients that train on it."""

    def __init__(self, options, name, flags=(), client=()):
        self.folder = os.path.join(options.work, name)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        self.server, self.client_flags = os.path.abspath(options.server), list(client)
        self.network = wires.Network(len(KEYS))
        self.host = dict(zip(KEYS, self.network.hosts))
        self.spec = {job: ["%s:%d" % (self.host[key].address, PORT) for key in KEYS if key[0] == job]
                     for job in ("ps", "worker")}
        self.tasks, self.clients = {}, {}
        for key in KEYS:
            argv = [self.server, "serve", "--job", key[0], "--task", str(key[1]), "--cluster", json.dumps(self.spec)]
            argv += ["--allow-remote-inspect", "--transport", options.transport] + options.flag + list(flags)
            self.tasks[key] = On(self.host[key], argv, self.path("%s%d.log" % key))

    def path(self, leaf):
        return os.path.join(self.folder, leaf)

    def __enter__(self):
        try:
            for task in self.tasks.values():
                task.start()
            for key, task in self.tasks.items():
                wait_until(task.listens, 60, "%s %d to listen" % key)
            for worker in (0, 1):
                self.start_client(worker)
            self.trained(time.time(), 5, 120)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in list(self.clients.values()) + list(self.tasks.values()):
            process.stop(1)
        self.network.__exit__()

    def start_client(self, worker):
        argv = [sys.executable, os.path.join(HERE, "cut_client.py"), "--cluster", json.dumps(self.spec), "--worker",
                str(worker), "--trace", self.trace(worker)] + self.client_flags
        self.clients[worker] = On(self.host["worker", worker], argv, self.path("client%d.log" % worker)).start()

    def trace(self, worker):
        return self.path("trace%d.jsonl" % worker)

    def rows(self, worker, since=0):
        try:
            with open(self.trace(worker)) as f:
                lines = [json.loads(line) for line in f if line.endswith("\n")]
        except OSError:
            lines = []
        return [r for r in lines if r["t"] >= since]

    def steps(self, worker, since=0):
        return [r for r in self.rows(worker, since) if "step" in r]

    def errors(self, worker, since=0):
        return [r for r in self.rows(worker, since) if "error" in r]

    def trained(self, since, count, patience, workers=(0, 1)):
        for worker in workers:
            wait_until(lambda: len(self.steps(worker, since)) >= count, patience,
                       "worker %d to make %d steps" % (worker, count))

    def hosts(self, job):
        return [self.host[key] for key in KEYS if key[0] == job]

    def where(self):
        """What everyone waits for, for whoever has to find a hang."""
        for worker in (0, 1):
            rows = self.rows(worker)
            last = rows[-1] if rows else {"t": time.time()}
            yield "worker %d: %.1f s ago %s" % (worker, time.time() - last["t"], json.dumps(last)[:300])
        argv = [self.server, "inspect", "cluster", "--cluster", json.dumps(self.spec)]
        try:
            done = subprocess.run(argv, preexec_fn=self.host["worker", 0].enter, capture_output=True, text=True, timeout=10)
            yield done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            yield "inspect does not end"
        for key, task in self.tasks.items():
            yield "%s %d: %s" % (key + (" | ".join(task.text().splitlines()[-4:])[-900:],))


# ---- what can happen to a network -------------------------------------------------------------------------------------

def both_ways(scene):
    """Nothing passes between the workers and the ps."""
    scene.network.cut(scene.hosts("worker"), scene.hosts("ps"))
    scene.network.cut(scene.hosts("ps"), scene.hosts("worker"))


def to_ps(scene):
    """What workers say does not arrive."""
    scene.network.cut(scene.hosts("worker"), scene.hosts("ps"))


def to_workers(scene):
    """What the ps say does not arrive."""
    scene.network.cut(scene.hosts("ps"), scene.hosts("worker"))


def one_ps(scene):
    """One ps is cut off from everybody, the other ps too."""
    one, others = [scene.host["ps", 1]], [h for k, h in scene.host.items() if k != ("ps", 1)]
    scene.network.cut(one, others)
    scene.network.cut(others, one)


def strike(scene, cut, seconds, patience):
    """Cuts, heals after so many seconds, waits until both train again; what each saw."""
    scene.trained(time.time(), 20, 60)
    t0 = time.time()
    cut(scene)
    time.sleep(seconds)
    scene.network.heal()
    t1 = time.time()
    scene.trained(t1, 10, patience)
    seen = {}
    for worker in (0, 1):
        error = [e for e in scene.errors(worker, t0)]
        first = scene.steps(worker, t1)[0]["t"]
        seen[worker] = {"error": error[0]["t"] - t0 if error else None, "again": first - t1,
                        "texts": sorted({e["error"] for e in error})}
    return seen


def figures(seen):
    parts = []
    for worker, w in seen.items():
        told = "%s after %.1f s, " % ("/".join(w["texts"]), w["error"]) if w["error"] is not None else ""
        parts.append("worker %d: %strained %.1f s after the cut" % (worker, told, w["again"]))
    return "; ".join(parts)


CUTS = [both_ways, to_ps, to_workers, one_ps]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs and traces")
    p.add_argument("--short", action="store_true", help="one cluster, two cuts, within a minute")
    p.add_argument("--only", help="cuts, by comma")
    p.add_argument("--rounds", type=int, default=2, help="how often each cut strikes")
    p.add_argument("--seconds", type=float, default=15, help="how long a cut lasts")
    p.add_argument("--patience", type=float, default=30, help="seconds in which all must train again")
    p.add_argument("--flag", action="append", default=[], help="more arguments of the tasks")
    p.add_argument("--client", action="append", default=[], help="more arguments of the clients")
    p.add_argument("--transport", choices=["auto", "grpc"], default="auto", help="how our tasks talk to each other")
    options = p.parse_args()
    options.work = os.path.abspath(options.work)
    counts = [0, 0]
    for cut in CUTS:
        if options.only and cut.__name__ not in options.only.split(","):
            continue
        with Scene(options, cut.__name__, client=options.client) as scene:
            for number in range(options.rounds):
                try:
                    seen = strike(scene, cut, options.seconds, options.patience)
                except RuntimeError as e:
                    counts[1] += 1
                    print("FAIL %s/%d: %s" % (cut.__name__, number, e), flush=True)
                    for line in scene.where():
                        print("     " + re.sub(r"\n", "\n     ", line))
                    break
                counts[0] += 1
                print("ok   %s/%d: %s" % (cut.__name__, number, figures(seen)), flush=True)
    print("cuts: %d passed, %d failed" % tuple(counts))
    sys.exit(1 if counts[1] else 0)


if __name__ == "__main__":
    main()
