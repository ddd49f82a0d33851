"""Trains the programs of conformance/programs on two ps and two workers: of ours, or of TensorFlow.

  python run_programs.py --server target/release/downpour --work target/programs NAME [--sync] [--tf]
  python run_programs.py --server ... --work ...            every program on both sides, compared

One NAME prints its results. Without a name every run must agree between the sides: to 1e-4 where the workers take turns or
step together; where everyone trains at its own pace, both sides must come as far as the program says (`FREE`).
"""
import argparse
import ast
import json
import math
import os
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import tasks

NAMES = ["linreg", "mnist_softmax", "mlp_adam", "cnn", "bigvar_pull", "bigvar_push", "bigvar", "embed_part", "embed_plain"]
SHORT = ["linreg:sync", "mnist_softmax:resource", "mnist_softmax:sync", "mlp_adam:sync,resource", "cnn", "bigvar",
         "embed_part", "embed_plain:sync", "mnist_softmax:free"]
SHORT_STEPS = 10
TOLERANCE = 1e-4


def constants(name):
    """The constants at the top of a program, read without TensorFlow."""
    leaf = name.split("_")[0] if name.startswith(("bigvar", "embed")) else name
    with open(os.path.join(HERE, "programs", leaf + ".py")) as f:
        tree = ast.parse(f.read())
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                pass
    return found


def all_runs():
    for name in NAMES:
        yield name
        yield name + ":resource"
        if constants(name).get("SYNC", True):
            yield name + ":sync"
            yield name + ":sync,resource"
        if constants(name).get("FREE"):
            yield name + ":free"


def train(options, side, runs, more=()):
    """Starts a cluster of one side and both clients; returns [{run, worker, ...}] in the order they ended."""
    cluster = tasks.Cluster(options.server, options.work, side, {"ours": "oooo", "tf": "tttt"}[side])
    out = cluster.path("results.jsonl")
    open(out, "w").close()

    def lines():
        with open(out) as f:
            return [json.loads(line) for line in f if line.endswith("\n")]
    with cluster:
        for worker in range(2):
            cluster.client(worker, os.path.join("programs", "train.py"), "--out", out, *more, *runs)
        seen, last = 0, time.time()
        while True:
            found = lines()
            if len(found) == 2 * len(runs):
                return found
            if len(found) > seen:
                seen, last = len(found), time.time()
            for worker, client in cluster.clients.items():
                if not client.alive() and (client.process.returncode or sum(1 for x in lines() if x["worker"] == worker) < len(runs)):
                    raise RuntimeError("the client of worker %d ended with code %s:\n%s" % (worker, client.process.returncode, client.text()[-2000:]))
            if time.time() - last > options.patience:
                logs = "\n".join("%s%d: %s" % (*key, task.text()[-500:]) for key, task in cluster.tasks.items())
                raise RuntimeError("nothing happened for %d s in %s\n%s" % (options.patience, runs[seen // 2], logs))
            time.sleep(0.05)


def close(a, b, scale=1.0):
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE * scale + 1e-6)


def differences(want, got):
    """What two results disagree on."""
    if want["global_step"] != got["global_step"]:
        yield "global_step %s / %s" % (want["global_step"], got["global_step"])
    for name, value in want["measures"].items():
        if not close(value, got["measures"][name]):
            yield "%s %.7g / %.7g" % (name, value, got["measures"][name])
    if want["variables"].keys() != got["variables"].keys():
        yield "variables %s / %s" % (sorted(want["variables"]), sorted(got["variables"]))
    for name, value in want["variables"].items():
        if name in got["variables"] and not all(close(a, b, value[0]) for a, b in zip(value, got["variables"][name])):
            yield "%s %s / %s" % (name, value, got["variables"][name])


def short_of(run, result):
    """What a run at everyone's own pace failed to reach."""
    for name, (low, high) in constants(run.partition(":")[0])["FREE"].items():
        value = result["measures"][name]
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            yield "%s is %.5g, wanted %s" % (name, value, "at least %s" % low if low is not None else "at most %s" % high)


def compare(runs, sides):
    """Prints a line per run; returns how many failed."""
    failed = 0
    for run in runs:
        rows = {(side, row["worker"]): row for side, rows in sides.items() for row in rows if row["run"] == run}
        first = rows["ours", 0]
        problems = []
        for key, row in rows.items():
            if ":" in run and "free" in run:
                problems += ["%s: %s" % (key[0], p) for p in short_of(run, row)]
            else:
                problems += ["%s worker %d: %s" % (*key, p) for p in differences(first, row)]
        problems += [] if len(rows) == 2 * len(sides) else ["only %s answered" % sorted(rows)]
        failed += bool(problems)
        times = ", ".join("%s %.1f s" % (side, rows[side, 0]["seconds"]) for side in sides)
        measures = " ".join("%s %.5g" % m for m in first["measures"].items())
        print("%-4s %-28s step %-4d %s (%s)" % ("FAIL" if problems else "ok", run, first["global_step"], measures, times), flush=True)
        for problem in problems:
            print("     " + problem)
    return failed


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs and results")
    p.add_argument("--sync", action="store_true", help="train synchronously")
    p.add_argument("--free", action="store_true", help="train asynchronously, without taking turns")
    p.add_argument("--resource", action="store_true", help="use resource variables")
    p.add_argument("--tf", action="store_true", help="on TensorFlow's servers instead of ours")
    p.add_argument("--compare", action="store_true", help="on both sides, and compare")
    p.add_argument("--data", help="folder of the four MNIST files instead of synthetic digits")
    p.add_argument("--steps", type=int, help="instead of each program's own number")
    p.add_argument("--short", action="store_true", help="a few steps of a few runs")
    p.add_argument("--patience", type=int, default=120, help="seconds without a result before giving up")
    p.add_argument("name", nargs="?", choices=NAMES)
    options = p.parse_args()
    options.work = os.path.abspath(options.work)
    more = ["--steps", str(options.steps)] if options.steps else []
    more += ["--data", os.path.abspath(options.data)] if options.data else []
    if options.name:
        words = ",".join(w for w in ("sync", "free", "resource") if getattr(options, w))
        runs = [options.name + (":" + words if words else "")]
    else:
        runs = SHORT if options.short else list(all_runs())
    if options.name and not options.compare:
        side = "tf" if options.tf else "ours"
        for row in train(options, side, runs, more):
            print(json.dumps(dict(row, side=side)), flush=True)
        return
    if options.short:
        more = ["--at-most", str(SHORT_STEPS)] + more
    sides = {side: train(options, side, runs, more) for side in ("ours", "tf")}
    failed = compare(runs, sides)
    print("programs: %d passed, %d failed" % (len(runs) - failed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
