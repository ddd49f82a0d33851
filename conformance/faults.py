"""Tasks that are lost and come back under TensorFlow's own clients: killed, stopped, cut off, one or all.

  python faults.py --server target/release/downpour --work target/faults [--tf] [--short] [--only NAME,...] [--wait 30]

Two ps, two workers, each worker with a client of its own that trains with MonitoredTrainingSession (or Supervisor), saves
every 2 s and writes down each step (fault_client.py). A fault strikes while both train; the traces say how long each
stood still and how soon it trained again. `--tf` does the same to TensorFlow's servers and prints its figures beside ours.
"""
import argparse
import json
import os
import re
import shutil
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import servers
import tasks
from tasks import wait_until


class Scene:
    """A cluster with two clients that train on it."""

    def __init__(self, options, side, name, client=(), flags=()):
        self.side, self.name = side, name
        self.folder = os.path.join(options.work, "%s_%s" % (side, name))
        shutil.rmtree(self.folder, ignore_errors=True)
        port = servers.free_port()
        self.cluster = tasks.Cluster(options.server, self.folder, name, {"ours": "oooo", "tf": "tttt"}[side],
                                     through={("ps", 1): "127.0.0.1:%d" % port}, flags=flags)
        self.cable = self.cluster.beside("proxy.py", "--listen", str(port), "--to", self.cluster.spec["ps"][1])
        self.client = list(client) + ["--wait", str(options.wait), "--folder", os.path.join(self.folder, "checkpoints")]

    def __enter__(self):
        self.cluster.__enter__()
        for worker in range(2):
            self.start_client(worker)
        self.trained(time.time(), 5, 120)
        return self

    def __exit__(self, *what):
        self.cluster.__exit__(*what)

    def start_client(self, worker):
        self.cluster.client(worker, "fault_client.py", "--trace", self.path(worker), *self.client)

    def path(self, worker):
        return self.cluster.path("trace%d.jsonl" % worker)

    def rows(self, worker, since=0):
        try:
            with open(self.path(worker)) as f:
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
                       "%s: worker %d to make %d steps" % (self.name, worker, count))

    def log(self, job, task):
        return self.cluster.tasks[job, task].text()


def pause_of(scene, worker, since, until):
    """The longest time without a step, and when training went on after it."""
    times = [r["t"] for r in scene.steps(worker)]
    before = [t for t in times if t <= since][-1:] or [since]
    inside = before + [t for t in times if since < t <= until] + [until]
    gap, start = max((b - a, a) for a, b in zip(inside, inside[1:]))
    return gap, start + gap


def strike(scene, hit, heal, down=1.0, patience=90, lasting=None):
    """Strikes, waits `down` seconds (or for `lasting`), heals, and waits until both train again."""
    scene.trained(time.time(), 20, 60)
    t0 = time.time()
    hit()
    if lasting:
        lasting(t0)
    else:
        time.sleep(down)
    heal()
    t1 = time.time()
    scene.trained(t1, 10, patience)
    return measure(scene, t0, t1, time.time())


def measure(scene, t0, t1, t2):
    """What each worker did between the fault, its end and the end of the watch."""
    out = {"down": t1 - t0}
    for worker in (0, 1):
        pause, resumed = pause_of(scene, worker, t0, t2)
        first = [r["t"] for r in scene.steps(worker, t1)][:1]
        error = [e for e in scene.errors(worker, t0) if e["t"] <= t2]
        out[worker] = {"pause": pause, "again": first[0] - t1 if first else None, "resumed": resumed - t1,
                       "error": error[0]["t"] - t0 if error else None,
                       "texts": sorted({e["error"] for e in error}), "first": error[0]["text"] if error else ""}
    return out


# ---- what can happen to a cluster -----------------------------------------------------------------------------------

def ps_killed(scene):
    """A ps dies and comes back empty: the chief restores the last checkpoint, both train on."""
    return strike(scene, lambda: scene.cluster.kill("ps", 0), lambda: scene.cluster.start("ps", 0))


def worker_task_killed(scene):
    """The task of worker 1 dies and comes back; its client does not. The chief never stops."""
    return strike(scene, lambda: scene.cluster.kill("worker", 1), lambda: scene.cluster.start("worker", 1))


def worker_killed(scene):
    """Worker 1 dies, task and client, and comes back. The chief never stops."""
    def hit():
        scene.cluster.clients[1].kill()
        scene.cluster.kill("worker", 1)

    def heal():
        scene.cluster.start("worker", 1)
        scene.start_client(1)
    return strike(scene, hit, heal)


def chief_task_killed(scene):
    """The task of the chief dies and comes back; its client does not. Worker 1 never stops."""
    return strike(scene, lambda: scene.cluster.kill("worker", 0), lambda: scene.cluster.start("worker", 0))


def chief_killed(scene):
    """The chief dies, task and client, and comes back. Worker 1 never stops."""
    def hit():
        scene.cluster.clients[0].kill()
        scene.cluster.kill("worker", 0)

    def heal():
        scene.cluster.start("worker", 0)
        scene.start_client(0)
    return strike(scene, hit, heal)


def until_error(scene, patience):
    def lasting(t0):
        for worker in (0, 1):
            try:
                wait_until(lambda: scene.errors(worker, t0), patience, "an error")
            except RuntimeError:
                return
    return lasting


def ps_stopped(scene):
    """A ps hangs (SIGSTOP): blocked steps hear of it in bounded time, and go on when it does."""
    ps = scene.cluster.tasks["ps", 0]
    return strike(scene, ps.pause, ps.resume, lasting=until_error(scene, 30))


def cut_off(scene):
    """The network to a ps is cut without a word: as with a ps that hangs."""
    return strike(scene, scene.cable.pause, scene.cable.resume, lasting=until_error(scene, 30))


def worker_stopped(scene):
    """The task of worker 1 hangs for a while. The chief never stops."""
    task = scene.cluster.tasks["worker", 1]
    return strike(scene, task.pause, task.resume, down=3)


def all_killed(scene):
    """Every task dies at once and comes back; the clients go on from the last checkpoint."""
    def heal():
        for task in scene.cluster.tasks.values():
            task.start()
        for task in scene.cluster.tasks.values():
            task.wait()

    def hit():
        for key in scene.cluster.tasks:
            scene.cluster.kill(*key)
    return strike(scene, hit, heal)


def sync_worker_returns(scene):
    """A worker of synchronous training dies. All wait for it, but the log says so by name, and they go on when it returns."""
    def hit():
        scene.cluster.clients[1].kill()
        scene.cluster.kill("worker", 1)

    def named():
        return scene.side == "ours" and re.search("no answer from /job:worker/replica:0/task:1 at", scene.log("worker", 0))

    def lasting(t0):
        try:
            wait_until(named, 25, "a line in the log")
        except RuntimeError:
            pass

    def heal():
        scene.cluster.start("worker", 1)
        scene.start_client(1)
    out = strike(scene, hit, heal, lasting=lasting)
    out["named"] = bool(named())
    return out


def sync_worker_lost(scene):
    """A worker of synchronous training dies, and the other has set a deadline: its step ends with that error."""
    scene.trained(time.time(), 20, 60)
    t0 = time.time()
    scene.cluster.clients[1].kill()
    scene.cluster.kill("worker", 1)
    try:
        wait_until(lambda: scene.errors(0, t0), 40, "an error")
    except RuntimeError:
        pass
    t1 = time.time()
    out = measure(scene, t0, t1, t1)
    return out


# ---- which scenes there are, and what must hold in them --------------------------------------------------------------

# Seconds, several times what an idle machine needs. `again`: until both train again after the fault is healed; `steady`: the
# longest pause of the worker that must not stop; `error`: until a blocked step is told.
EXPECT = {
    ps_killed: dict(again=10),
    worker_task_killed: dict(again=15, steady=(0, 3)),
    worker_killed: dict(again=60, steady=(0, 3)),
    chief_task_killed: dict(again=15, steady=(1, 3)),
    chief_killed: dict(again=60, steady=(1, 3)),
    ps_stopped: dict(again=15, error=25),
    cut_off: dict(again=15, error=25),
    worker_stopped: dict(again=15, steady=(0, 3)),
    all_killed: dict(again=20),
    sync_worker_returns: dict(again=60, named=True),
    sync_worker_lost: dict(error_of=(0, 25)),
}
SCENES = {
    "monitored": ([], [ps_killed, worker_task_killed, ps_stopped, cut_off, worker_stopped, chief_task_killed, all_killed,
                       worker_killed, chief_killed]),
    "supervisor": (["--supervisor"], [ps_killed, ps_stopped, worker_task_killed, all_killed]),
    "sync": (["--sync"], [sync_worker_returns]),
    "sync_deadline": (["--sync", "--timeout", "5000"], [sync_worker_lost]),
}
SHORT = {"monitored": [ps_killed, worker_task_killed, cut_off, all_killed], "sync_deadline": [sync_worker_lost]}


def problems(fault, seen):
    want = EXPECT[fault]
    for worker in (0, 1):
        again = seen[worker]["again"]
        if "again" in want and (again is None or again > want["again"]):
            yield "worker %d trained again after %s s, wanted %d" % (worker, again, want["again"])
        if "error" in want and (seen[worker]["error"] or 99) > want["error"]:
            yield "worker %d heard of it after %s s, wanted %d" % (worker, seen[worker]["error"], want["error"])
    if "steady" in want:
        worker, limit = want["steady"]
        if seen[worker]["pause"] > limit:
            yield "worker %d stood still for %.1f s, wanted %d" % (worker, seen[worker]["pause"], limit)
    if "error_of" in want:
        worker, limit = want["error_of"]
        if (seen[worker]["error"] or 99) > limit:
            yield "worker %d heard of it after %s s, wanted %d" % (worker, seen[worker]["error"], limit)
    if want.get("named") and not seen["named"]:
        yield "no log names the missing task"


def figures(seen):
    parts = []
    for worker in (0, 1):
        w = seen[worker]
        part = "worker %d paused %.1f s" % (worker, w["pause"])
        if w["pause"] > 0.5 and w["again"] is not None:
            part += ", trained %.1f s after the return" % w["again"]
        if w["error"] is not None:
            part += ", %s after %.1f s" % ("/".join(w["texts"]), w["error"])
        parts.append(part)
    return "down %.1f s; %s" % (seen["down"], "; ".join(parts))


def play(options, side, name, faults, report):
    client, _ = SCENES[name]
    flags = ["--lost-after", "2"] if options.short and side == "ours" else []
    try:
        with Scene(options, side, name, client, flags) as scene:
            for fault in faults:
                label = "%s/%s" % (name, fault.__name__)
                try:
                    seen = fault(scene)
                except RuntimeError as e:
                    report(side, label, [str(e)], "")
                    return
                report(side, label, list(problems(fault, seen)) if side == "ours" else [], figures(seen))
                if options.texts:
                    for worker in (0, 1):
                        print("     worker %d: %s" % (worker, seen[worker]["first"].replace("\n", " ")[:300]))
    except RuntimeError as e:
        report(side, name, [str(e)], "")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs, traces and checkpoints")
    p.add_argument("--tf", action="store_true", help="TensorFlow's figures too")
    p.add_argument("--short", action="store_true", help="the most telling faults, and a task counts as lost after 2 s")
    p.add_argument("--only", help="scenes or scene/fault, by comma")
    p.add_argument("--wait", type=float, default=1, help="seconds a non-chief sleeps between looks (TensorFlow's own: 30)")
    p.add_argument("--texts", action="store_true", help="print the first error of each")
    p.add_argument("--transport", choices=["auto", "grpc"], default="auto", help="how our tasks talk to each other")
    options = p.parse_args()
    os.environ["DOWNPOUR_TRANSPORT"] = options.transport
    options.work = os.path.abspath(options.work)
    counts = [0, 0]

    def report(side, label, wrong, note):
        if side == "ours":
            counts[bool(wrong)] += 1
        mark = "FAIL" if wrong else "ok" if side == "ours" else ""
        print("%-4s %-6s %-32s %s" % (mark, {"ours": "", "tf": "TF"}[side], label, note), flush=True)
        for problem in wrong:
            print("     " + re.sub(r"\n", "\n     ", problem))
    only = options.only.split(",") if options.only else None
    for name, (_, faults) in SCENES.items():
        if options.short:
            faults = SHORT.get(name, [])
        if only and name not in only:
            faults = [f for f in faults if "%s/%s" % (name, f.__name__) in only]
        for side in ("ours", "tf") if options.tf else ("ours",):
            if faults:
                play(options, side, name, faults, report)
    print("faults: %d passed, %d failed" % tuple(counts))
    sys.exit(1 if counts[1] else 0)


if __name__ == "__main__":
    main()
