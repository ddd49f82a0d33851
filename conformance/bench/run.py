"""Benchmarks: Downpour and TensorFlow 2.21 in the same run, in turn.

In most rows each side drives itself (native.py); in those called NAME_tf_client TensorFlow's python client drives both
over gRPC. Every row gives both medians, their spread, and a ratio that is above 1 when Downpour is better.
  python run.py --server target/release/downpour --native target/release/downpour-bench [--row PATTERN] [--json] [--rounds N] [--smoke]
"""
import argparse
import datetime
import fnmatch
import json
import os
import shlex
import statistics
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE)]

import hosts  # noqa: E402
import native  # noqa: E402
import native_models  # noqa: E402
import servers  # noqa: E402

# design's "first" and "goal", as ratios.
TARGETS = {"mnist_async": (12, 30), "mnist_sync": (12, 30), "null_step": (15, 40), "null_step_100": (15, 35), "null_step_1000": (15, 35), "dense_pull_push": (2, 4), "sparse_rows": (5, 10),
           "mlp_local": (1.2, 1.5), "cnn_local": (0.9, 1.2), "start_to_first_step": (30, 50), "idle_memory": (25, 50),
           # Between hosts there is one aim.
           "null_step_hosts": (12, 12), "mnist_async_hosts": (10, 10), "mnist_sync_hosts": (10, 10), "sparse_rows_hosts": (4, 4)}
STREAM = 0.8  # of a raw TCP stream, what dense_pull_push_hosts is to come to


class Bench:
    """Options of the run and the two ways to start a server."""

    def __init__(self, options):
        self.options = options
        self.rounds = 1 if options.smoke else options.rounds
        self.seconds = 0.2 if options.smoke else options.seconds
        self.warmup = 2 if options.smoke else 30
        self.python_ps = False  # whether TensorFlow's parameter servers are pythons that join
        self.median = statistics.median
        self.hosts = None
        os.makedirs(options.work, exist_ok=True)
        self.commands = {"ours": "%s serve --port {port}" % shlex.quote(os.path.abspath(options.server)), "theirs": servers.TF_SERVER}

    def start(self, side):
        return servers.Server(self.commands[side], os.path.join(self.options.work, side + ".log"))


def steps_per_second(build):
    """A row that trains: steps a second of one server process, the other idle meanwhile."""
    def row(bench):
        return throughput(bench, build), "steps/s", "more", {}
    return row


def step_time(build):
    """A row whose step is all overhead: microseconds a step."""
    def row(bench):
        rates = throughput(bench, build)
        return {side: [1e6 / r for r in values] for side, values in rates.items()}, "us/step", "less", {}
    return row


def throughput(bench, build):
    import tensorflow.compat.v1 as tf
    running, sessions, steps, samples = {}, {}, {}, {"ours": [], "theirs": []}
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1234)
        fetches, feed = build()
        init = tf.global_variables_initializer()
    try:
        for side in samples:
            running[side] = bench.start(side)
            sessions[side] = tf.Session(running[side].target, graph=graph)
            sessions[side].run(init)
            # The client's cheapest way to a step: what is left of its own time is the same for both.
            steps[side] = sessions[side].make_callable(fetches, feed_list=list(feed()))
            for _ in range(bench.warmup):
                steps[side](*feed().values())
        for _ in range(bench.rounds):
            for side, values in samples.items():
                values.append(rate(steps[side], feed, bench.seconds))
    finally:
        for session in sessions.values():
            session.close()  # while its server answers: a close without one waits for ever
        for server in running.values():
            server.stop()
    return samples


def rate(step, feed, seconds):
    """Steps a second over `seconds`; making the batch is not counted as the server's time."""
    spent, steps = 0.0, 0
    while spent < seconds:
        feeds = feed().values()
        start = time.perf_counter()
        step(*feeds)
        spent += time.perf_counter() - start
        steps += 1
    return steps / spent


def server_start(bench):
    """From exec of one server process to the first completed step of a client that is already up."""
    import tensorflow.compat.v1 as tf
    samples = {"ours": [], "theirs": []}
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, name="x")
        y = x * 2.0
    with tf.Session(graph=graph) as sess:
        sess.run(y, {x: 1.0})  # the client's own first-use costs
    for _ in range(bench.rounds):
        for side, values in samples.items():
            start = time.perf_counter()
            server = bench.start(side)
            try:
                with tf.Session(server.target, graph=graph) as sess:
                    sess.run(y, {x: 1.0})
                    values.append((time.perf_counter() - start) * 1e3)
            finally:
                server.stop()
    return samples, "ms", "less", {}


def rows(smoke):
    import cluster_models
    import graphs
    by_client = {"mlp_local": steps_per_second(graphs.mlp), "cnn_local": steps_per_second(graphs.cnn), "op_chain": step_time(graphs.op_chain),
                 "start_to_first_step": server_start, **cluster_models.rows(smoke)}
    return {**native.rows(), **{name + "_tf_client": row for name, row in by_client.items()}}


def measure(name, row, bench):
    load = os.getloadavg()[0]
    samples, unit, better, extra = row(bench)
    ours, theirs = statistics.median(samples["ours"]), statistics.median(samples["theirs"])
    spread = {side: [round(min(samples[side]), 3), round(max(samples[side]), 3)] for side in samples}
    return {"row": name, "ours": round(ours, 3), "theirs": round(theirs, 3), "unit": unit,
            "ratio": round(ours / theirs if better == "more" else theirs / ours, 3), "better": better,
            "ours_spread": spread["ours"], "theirs_spread": spread["theirs"], "rounds": len(samples["ours"]), "load_before": round(load, 2), **extra}


def machine(built_from=None):
    def git(*args):
        try:
            return subprocess.run(("git",) + args, capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return "?"
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    memory = next(int(l.split()[1]) for l in open("/proc/meminfo") if l.startswith("MemTotal:"))
    # A run writes results.jsonl itself.
    changed = [l for l in git("status", "--porcelain").splitlines() if not l.endswith("results.jsonl")]
    return {"cores": os.cpu_count(), "cpu": model, "kernel": os.uname().release, "memory_gib": round(memory / (1 << 20), 1),
            "commit": built_from or git("rev-parse", "--short", "HEAD") + ("+changes" if changed else "")}


def show(r):
    """A line of the table."""
    target = TARGETS.get(r["row"])
    goals = "%gx / %gx" % target if target else ""
    cpu = r.get("cpu_ms")
    cpu = " / ".join("%.3g" % sum(cpu[side].values()) for side in native.SIDES) if cpu else ""
    noisy = "  (others took %.0f %% of the machine)" % (100 * r["disturbance"]) if r.get("disturbance", 0) >= 0.1 else ""
    stream = ""
    if "stream" in r:
        stream = "\n%-28s %.2f of a raw TCP stream between the same hosts, %.2f GB/s (%.4g..%.4g); aim %g" % (
            "", r["stream"]["part"], r["stream"]["GB/s"], *r["stream"]["spread"], STREAM)
    return "%-28s %12.2f %12.2f %-8s %6.2fx  %-11s  %-16s %.4g..%.4g / %.4g..%.4g" % (
        r["row"], r["ours"], r["theirs"], r["unit"], r["ratio"], goals, cpu, *r["ours_spread"], *r["theirs_spread"]) + noisy + stream


def chosen(patterns, known):
    names = []
    for pattern in patterns:
        found = [n for n in known if fnmatch.fnmatch(n, pattern)]
        if not found:
            sys.exit("no such row: %s (there are: %s)" % (pattern, ", ".join(known)))
        names += [n for n in found if n not in names]
    return names


def their_fault(error):
    """Whether it was TensorFlow that failed: its tasks now and then call a request a repetition that was none, or end before they have begun."""
    return getattr(error, "side", None) == "theirs" or str(error).startswith("theirs ")


def attempt(name, row, bench):
    """A row's figures; if TensorFlow fails, by a second attempt."""
    try:
        return measure(name, row, bench)
    except Exception as e:
        if not their_fault(e):
            raise
        print("%-28s again, for TensorFlow failed: %s: %s" % (name, type(e).__name__, str(e).strip()), flush=True)
    return measure(name, row, bench)


def run_rows(bench, names, known, note):
    """Measures and prints rows; the names of those that failed."""
    failed = []
    for name in names:
        try:
            r = attempt(name, known[name], bench)
        except Exception as e:  # also TensorFlow's own errors: python would wait for its client's threads at its end
            print("%-28s FAILED: %s: %s" % (name, type(e).__name__, e), flush=True)
            failed.append(name)
            continue
        print(json.dumps(r) if bench.options.json else show(r), flush=True)
        if bench.options.save and not bench.options.smoke:
            with open(bench.options.save, "a") as f:
                f.write(json.dumps({"time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"), **r, **note}) + "\n")
    return failed


def look_into(bench):
    import page
    import profile_row
    import scaling
    try:
        for row in filter(None, (bench.options.profile, bench.options.counts)):
            if row.partition(":")[0] not in native_models.ROWS and row != "all":
                raise native.Failed("no such native row: %s (there are: %s)" % (row, ", ".join(native_models.ROWS)))
        if bench.options.profile:
            profile_row.profile(bench, bench.options.profile)
        if bench.options.counts:
            page.count(bench, bench.options.counts)
        if bench.options.scaling:
            bench.machine = machine(bench.options.built_from)
            scaling.run(bench, bench.options.scaling)
        if bench.options.page:
            page.write(bench, TARGETS)
    except native.Failed as e:
        sys.exit(str(e))


def main():
    root = os.path.join(HERE, "..", "..")
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour binary")
    p.add_argument("--native", required=True, help="the downpour-bench binary")
    p.add_argument("--work", default=os.path.join(root, "target", "bench"))
    p.add_argument("--row", action="append", default=[], help="only rows of this name or pattern (may repeat)")
    p.add_argument("--rounds", type=int, default=5, help="alternating rounds per side")
    p.add_argument("--seconds", type=float, default=3.0, help="length of a round of the throughput rows")
    p.add_argument("--smoke", action="store_true", help="run every row once, briefly: proves that they run and compute the same")
    p.add_argument("--json", action="store_true", help="one JSON object a row instead of the table")
    p.add_argument("--no-save", dest="save", action="store_const", const=None, default=os.path.join(root, "benches", "results.jsonl"),
                   help="do not append the rows to benches/results.jsonl")
    p.add_argument("--profile", metavar="ROW", help="write where a native row's time goes: target/bench/ROW.svg and ROW.json")
    p.add_argument("--counts", metavar="ROW", help="print what a step of a native row (or of all) asks of the system: calls, wake-ups, packets")
    p.add_argument("--built-from", metavar="COMMIT", help="what the binaries were built from, if not from the tree as it is")
    p.add_argument("--page", action="store_true", help="renew the tables of docs/performance.md from what was measured")
    p.add_argument("--hosts", action="store_true", help="the rows of clusters, each task in a network namespace of its own: nothing shared, TCP over veth")
    p.add_argument("--scaling", metavar="PART", nargs="?", const="all", help="measure how a step's cost grows (workers, variables, size, table) and write docs/scaling.md")
    options = p.parse_args()
    options.server, options.native = os.path.abspath(options.server), os.path.abspath(options.native)
    if options.profile or options.counts or options.scaling or options.page:
        return look_into(Bench(options))
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    known = native.host_rows() if options.hosts else rows(options.smoke)
    names = chosen(options.row, known) or list(known)
    bench = Bench(options)
    if options.hosts:
        # One thread so far: what is started on a host enters it between fork and exec.
        bench.hosts = hosts.Hosts(4)
    note = {"tensorflow": tf.__version__, "machine": machine(options.built_from)}
    if not options.json:
        print("# TensorFlow %s, same run; %s; load %.1f" % (tf.__version__, ", ".join("%s %s" % kv for kv in note["machine"].items()), os.getloadavg()[0]))
        print("%-28s %12s %12s %-8s %7s  %-11s  %-16s %s" % ("row", "ours", "theirs", "unit", "ratio", "first/goal", "CPU ms/step", "spread ours / theirs"))
    failed = run_rows(bench, names, known, note)
    if failed:
        print("failed: " + ", ".join(failed))
    sys.stdout.flush()
    os._exit(1 if failed else 0)  # the client's channels may still point at servers that are gone


if __name__ == "__main__":
    main()
