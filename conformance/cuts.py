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


def one_way_to_one_worker(scene):
    """What one ps says to one worker does not arrive; everything else does."""
    scene.network.cut([scene.host["ps", 0]], [scene.host["worker", 1]])


def strike(scene, cut, seconds, patience):
    """Cuts, heals after so many seconds, waits until both train again; what each saw."""
    scene.trained(time.time(), 20, 60)
    t0 = time.time()
    cut(scene)
    time.sleep(seconds)
    scene.network.heal()
    t1 = time.time()
    scene.trained(t1, 10, patience)
    return seen_by(scene, t0, t1)


def seen_by(scene, t0, t1):
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


# ---- the scenes: each returns what went wrong, and what to print -------------------------------------------------------

# A blocked step hears of the loss within so many seconds; what comes on top is the client's own, on a busy machine.
TOLD, SLACK = 5.0, 1.0


def cuts(scene, options, cut, hit):
    """A cut of some seconds. `hit`: the workers whose steps must be told in time, if it lasts so long."""
    seen = strike(scene, cut, options.seconds, options.patience)
    wrong = []
    for worker in hit:
        error = seen[worker]["error"]
        if options.seconds > TOLD + SLACK and (error is None or error > TOLD + SLACK):
            wrong.append("worker %d heard of the loss after %s s, wanted %.1f" % (worker, error, TOLD))
    return wrong, figures(seen)


def killed(scene, options):
    """A ps is killed: its sockets are closed, and whoever waits for it hears of that at once."""
    scene.trained(time.time(), 20, 60)
    t0 = time.time()
    scene.tasks["ps", 1].kill()
    wait_until(lambda: all(scene.errors(w, t0) for w in (0, 1)), 15, "both to hear of a ps that was killed")
    told = [scene.errors(w, t0)[0]["t"] - t0 for w in (0, 1)]
    scene.tasks["ps", 1].start()
    t1 = time.time()
    scene.trained(t1, 10, options.patience)
    wrong = ["a worker heard of a closed socket after %.1f s, wanted 1" % max(told)] if max(told) > 1 + SLACK else []
    return wrong, "told after %.2f s and %.2f s" % tuple(told)


def bad_link(scene, options):
    """1 Mbit/s and every fifth packet lost, for a while: slow, but nobody counts as lost."""
    return calm(scene, options, lambda: scene.network.worsen(0.2, 1e6), lambda: scene.network.worsen(0, None), 2)


def busy_machine(scene, options):
    """More processes than cores want to run: nobody counts as lost."""
    hogs = []

    def worsen():
        hogs.extend(subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(15))

    def ease():
        for hog in hogs:
            hog.kill()
            hog.wait()
    return calm(scene, options, worsen, ease, 10)


def calm(scene, options, worsen, ease, least):
    """Nobody may hear of a loss while it lasts, and everybody must make some steps."""
    scene.trained(time.time(), 10, 60)
    t0 = time.time()
    try:
        worsen()
        time.sleep(options.calm)
    finally:
        ease()
    errors = [e for w in (0, 1) for e in scene.errors(w, t0)]
    steps = [len(scene.steps(w, t0)) for w in (0, 1)]
    wrong = ["%s: %s" % (e["error"], e["text"][:200]) for e in errors[:3]]
    wrong += ["worker %d made %d steps" % (w, n) for w, n in enumerate(steps) if n < least]
    scene.trained(time.time(), 10, options.patience)
    return wrong, "%d and %d steps in %d s" % (steps[0], steps[1], options.calm)


def cutting(cut, hit):
    def play(scene, options):
        return cuts(scene, options, cut, hit)
    play.__name__ = cut.__name__
    return play


SCENES = [cutting(both_ways, (0, 1)), cutting(to_ps, (0, 1)), cutting(to_workers, (0, 1)), cutting(one_ps, (0, 1)),
          cutting(one_way_to_one_worker, (1,)), killed, bad_link, busy_machine]
SHORT = [cutting(both_ways, (0, 1)), killed]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs and traces")
    p.add_argument("--short", action="store_true", help="one cluster, one cut and one ps that is killed, within a minute")
    p.add_argument("--only", help="scenes, by comma")
    p.add_argument("--rounds", type=int, help="how often each strikes (3; 1 if short)")
    p.add_argument("--seconds", type=float, help="how long a cut lasts (15; 8 if short)")
    p.add_argument("--calm", type=float, default=60, help="how long a bad link or a busy machine lasts")
    p.add_argument("--patience", type=float, help="seconds in which all must train again (30; 12 if short)")
    p.add_argument("--flag", action="append", default=[], help="more arguments of the tasks")
    p.add_argument("--client", action="append", default=[], help="more arguments of the clients")
    p.add_argument("--transport", choices=["auto", "grpc"], default="auto", help="how our tasks talk to each other")
    options = p.parse_args()
    options.work = os.path.abspath(options.work)
    usual = (1, 8, 12) if options.short else (3, 15, 30)
    options.rounds, options.seconds, options.patience = (
        a if a is not None else b for a, b in zip((options.rounds, options.seconds, options.patience), usual))
    counts = [0, 0]
    scenes = [s for s in (SHORT if options.short else SCENES) if not options.only or s.__name__ in options.only.split(",")]
    try:
        # Each in a cluster of its own, unless it must be quick.
        for together in [scenes] if options.short else [[s] for s in scenes]:
            play(options, together, counts)
    except wires.NoNamespaces as e:
        counts[1] += 1
        print("FAIL %s" % e)
    print("cuts: %d passed, %d failed" % tuple(counts))
    sys.exit(1 if counts[1] else 0)


def play(options, scenes, counts):
    """Plays scenes in one cluster, until one fails."""
    if not scenes:
        return
    with Scene(options, scenes[0].__name__, client=options.client) as scene:
        for one in scenes:
            for number in range(options.rounds):
                try:
                    wrong, said = one(scene, options)
                except RuntimeError as e:
                    wrong, said = [str(e)] + list(scene.where()), ""
                counts[bool(wrong)] += 1
                print("%-4s %s/%d %s" % ("FAIL" if wrong else "ok", one.__name__, number, said), flush=True)
                for line in wrong:
                    print("     " + re.sub(r"\n", "\n     ", line), flush=True)
                if not said:
                    return


if __name__ == "__main__":
    main()
