"""Benchmarks: Downpour and TensorFlow 2.21, driven by the same client over gRPC in the same run, in turn.

Every row gives both medians, their spread, and a ratio that is above 1 when Downpour is better.
  python run.py --server target/release/downpour [--row NAME] [--json] [--rounds N] [--smoke]
"""
import argparse
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

import servers  # noqa: E402


class Bench:
    """Options of the run and the two ways to start a server."""

    def __init__(self, options):
        self.options = options
        self.rounds = 1 if options.smoke else options.rounds
        self.seconds = 0.2 if options.smoke else options.seconds
        self.warmup = 2 if options.smoke else 30
        os.makedirs(options.work, exist_ok=True)
        self.commands = {"ours": "%s serve --port {port}" % shlex.quote(os.path.abspath(options.server)), "theirs": servers.TF_SERVER}

    def start(self, side):
        return servers.Server(self.commands[side], os.path.join(self.options.work, side + ".log"))


def steps_per_second(build):
    """A row that trains: steps a second of one server process, the other idle meanwhile."""
    def row(bench):
        return throughput(bench, build), "steps/s", "more"
    return row


def step_time(build):
    """A row whose step is all overhead: microseconds a step."""
    def row(bench):
        rates = throughput(bench, build)
        return {side: [1e6 / r for r in values] for side, values in rates.items()}, "us/step", "less"
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


def start_to_first_step(bench):
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
    return samples, "ms", "less"


def idle_memory(bench):
    """Resident memory of one task that listens and has done nothing."""
    samples = {"ours": [], "theirs": []}
    for _ in range(1 if bench.options.smoke else 2):
        for side, values in samples.items():
            server = bench.start(side)
            try:
                time.sleep(0.2 if bench.options.smoke else 1.0)
                values.append(resident(server.process.pid))
            finally:
                server.stop()
    return samples, "MiB", "less"


def resident(pid):
    for line in open("/proc/%d/status" % pid):
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("process %d has no VmRSS" % pid)


def rows():
    import cluster_models
    import graphs
    return {"mlp_local": steps_per_second(graphs.mlp), "cnn_local": steps_per_second(graphs.cnn), "op_chain": step_time(graphs.op_chain),
            "start_to_first_step": start_to_first_step, "idle_memory": idle_memory,
            **cluster_models.rows()}


def measure(name, row, bench):
    samples, unit, better = row(bench)
    ours, theirs = statistics.median(samples["ours"]), statistics.median(samples["theirs"])
    return {"row": name, "ours": round(ours, 3), "theirs": round(theirs, 3), "unit": unit,
            "ratio": round(ours / theirs if better == "more" else theirs / ours, 3), "better": better,
            "ours_spread": [round(min(samples["ours"]), 3), round(max(samples["ours"]), 3)],
            "theirs_spread": [round(min(samples["theirs"]), 3), round(max(samples["theirs"]), 3)], "rounds": len(samples["ours"])}


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    try:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True, cwd=HERE).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "?"
    return "%d cores, %s, commit %s, load %.1f" % (os.cpu_count(), model, commit, os.getloadavg()[0])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour binary")
    p.add_argument("--work", default=os.path.join(HERE, "..", "..", "target", "bench"))
    p.add_argument("--row", action="append", default=[], help="only this row (may repeat)")
    p.add_argument("--rounds", type=int, default=5, help="alternating rounds per side")
    p.add_argument("--seconds", type=float, default=3.0, help="length of a round of the throughput rows")
    p.add_argument("--smoke", action="store_true", help="run every row once, briefly: proves that they run")
    p.add_argument("--json", action="store_true", help="one JSON object a row instead of the table")
    options = p.parse_args()
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    known = rows()
    for name in options.row:
        if name not in known:
            sys.exit("no such row: %s (there are: %s)" % (name, ", ".join(known)))
    bench = Bench(options)
    if not options.json:
        print("# TensorFlow %s, same client, same run; %s" % (tf.__version__, machine()))
        print("%-20s %12s %12s %-8s %7s   %s" % ("row", "ours", "theirs", "unit", "ratio", "spread ours / theirs"))
    for name in options.row or known:
        r = measure(name, known[name], bench)
        if options.json:
            print(json.dumps(r), flush=True)
        else:
            print("%-20s %12.2f %12.2f %-8s %6.2fx   %.4g..%.4g / %.4g..%.4g" % (
                r["row"], r["ours"], r["theirs"], r["unit"], r["ratio"], *r["ours_spread"], *r["theirs_spread"]), flush=True)
    sys.stdout.flush()
    os._exit(0)  # the client's channels may still point at servers that are gone


if __name__ == "__main__":
    main()
