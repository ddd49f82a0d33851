"""How soon training goes on after a loss: a Rust program on Downpour beside TensorFlow's client on TensorFlow's servers.

  python recovery.py --trial target/debug/downpour-trial --work target/recovery [--only ps,chief] [--rounds 3] [--wait 30]

Two ps and two workers train the same model, 20 ms between steps, a checkpoint every 2 s. On our side a task is one process, on
TensorFlow's a worker is a server and a client. A scenario kills processes and starts them again a second later; what is
measured begins when they are started again, so it holds the start of the programs too. The table is markdown.
"""
import argparse
import os
import shutil
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import faults
import servers
import tasks
from tasks import wait_until


class Ours:
    """Every task a process of the Rust program."""
    title = "Rust program on Downpour"

    def __init__(self, options):
        self.folder = os.path.join(options.work, "ours")
        shutil.rmtree(self.folder, ignore_errors=True)
        os.makedirs(self.folder)
        hosts = ["127.0.0.1:%d" % servers.free_port() for _ in range(4)]
        flags = ["--ps_hosts=" + ",".join(hosts[:2]), "--worker_hosts=" + ",".join(hosts[2:]), "--steps=1000000000",
                 "--save-seconds=2", "--dir=" + self.checkpoints()]
        self.processes = {}
        for key in ALL:
            argv = [os.path.abspath(options.trial), "train", self.path(key[1] if key[0] == "worker" else "-ps")] + flags
            argv += ["--job_name=" + key[0], "--task_index=%d" % key[1]]
            self.processes[key] = tasks.Process(argv, os.path.join(self.folder, "%s%d.log" % key))

    def __enter__(self):
        self.start(ALL)
        return self

    def __exit__(self, *_):
        for process in self.processes.values():
            if process.process:
                process.kill()

    def checkpoints(self):
        return os.path.join(self.folder, "checkpoints")

    def path(self, worker):
        return os.path.join(self.folder, "trace%s.jsonl" % worker)

    # The traces have the same form.
    rows, steps, trained = faults.Scene.rows, faults.Scene.steps, faults.Scene.trained
    name = "recovery"

    def kill(self, keys):
        for key in keys:
            self.processes[key].kill()

    def start(self, keys):
        for key in keys:
            self.processes[key].start()


class Theirs(faults.Scene):
    """TensorFlow's servers, and a client of each worker's."""
    title = "TensorFlow client on TensorFlow"

    def __init__(self, options):
        super().__init__(options, "tf", "recovery")

    def checkpoints(self):
        return os.path.join(self.folder, "checkpoints")

    def kill(self, keys):
        for job, task in keys:
            if job == "worker":
                self.cluster.clients[task].kill()
            self.cluster.kill(job, task)

    def start(self, keys):
        for key in keys:
            self.cluster.tasks[key].start()
        for job, task in keys:
            if job == "worker":
                self.start_client(task)


ALL = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)]
# Who is killed, whose return is measured, and who should not notice.
SCENARIOS = {
    "worker": ("a worker that is not the chief", [("worker", 1)], [1], 0),
    "ps": ("a ps", [("ps", 0)], [0, 1], None),
    "chief": ("the chief", [("worker", 0)], [0], 1),
    "all": ("every process at once", ALL, [0, 1], None),
}


def strike(side, name):
    """(seconds from the restart until those hit train again, the longest pause of who was not)."""
    _, keys, hit, spared = SCENARIOS[name]
    # Not before there is something to come back to.
    wait_until(lambda: os.path.exists(os.path.join(side.checkpoints(), "checkpoint")), 60, "a checkpoint")
    side.trained(time.time(), 50, 120)
    t0 = time.time()
    side.kill(keys)
    time.sleep(1)
    t1 = time.time()
    side.start(keys)
    side.trained(t1, 3, 180, hit)
    again = max(side.steps(w, t1)[0]["t"] for w in hit) - t1
    pause = None
    if spared is not None:
        pause, _ = faults.pause_of(side, spared, t0, time.time())
    side.trained(time.time(), 10, 180)
    return again, pause


def show(figures):
    again = statistics.median(a for a, _ in figures)
    pauses = [p for _, p in figures if p is not None]
    text = "%.2f s" % again
    return text + ("; the other pauses %.2f s" % statistics.median(pauses) if pauses else "")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--trial", required=True, help="the Rust program")
    p.add_argument("--server", default="", help=argparse.SUPPRESS)
    p.add_argument("--work", required=True)
    p.add_argument("--only", help="scenarios, by comma")
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--wait", type=float, default=1, help="seconds a non-chief of TensorFlow's sleeps between looks (its own: 30)")
    options = p.parse_args()
    options.work = os.path.abspath(options.work)
    names = options.only.split(",") if options.only else list(SCENARIOS)
    figures = {}
    for make in (Ours, Theirs):
        with make(options) as side:
            for name in names:
                figures[make, name] = [strike(side, name) for _ in range(options.rounds)]
                print("%s, %s: %s" % (make.title, name, show(figures[make, name])), flush=True)
    print("\n| killed, and started again after 1 s | %s | %s |\n| --- | --- | --- |" % (Ours.title, Theirs.title))
    for name in names:
        print("| %s | %s | %s |" % (SCENARIOS[name][0], show(figures[Ours, name]), show(figures[Theirs, name])))
    print("recovery: %d scenarios, %d rounds" % (len(names), options.rounds))


if __name__ == "__main__":
    main()
