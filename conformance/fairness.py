"""How long others wait while one client runs something huge: clients do null steps one after the other, another
runs one long kernel at a time, on our server and on TensorFlow's in the same run. Prints a table of the others' step times.

  $PYTHON conformance/fairness.py --server target/release/downpour
  $PYTHON conformance/fairness.py --server target/release/downpour --only Fill --seconds 5
"""
import argparse
import os
import subprocess
import sys
import tempfile
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import servers

CLIENTS = 8
# What a step of another client may take at most beside a long kernel, in seconds, and how much slower than TensorFlow's
# worst: both figures depend on what else the machine does, so only being worse in both ways is a failure.
WORST, TIMES = 0.5, 2.0


def scenes(tf):
    """Name to a function that makes the huge op; each writes about 1.2 GB, given by values that are fed."""
    v1 = tf.compat.v1

    def fed(value):
        node = v1.placeholder(value.dtype, value.shape)
        return node, value

    import numpy as np
    size = np.array([10000, 10000], np.int32)
    image = np.ones([1, 2, 2, 3], np.float32)

    def nothing():
        x, v = fed(np.float32(1))
        return x + 1, {x: v}

    def fill():
        d, v = fed(size * 17 // 10)
        x, w = fed(np.float32(3))
        return tf.raw_ops.Fill(dims=d, value=x), {d: v, x: w}

    def resize():
        i, v = fed(image)
        s, w = fed(size)
        return tf.raw_ops.ResizeNearestNeighbor(images=i, size=s), {i: v, s: w}

    def tile():
        i, v = fed(np.ones([1000], np.float32))
        m, w = fed(np.array([300000], np.int32))
        return tf.raw_ops.Tile(input=i, multiples=m), {i: v, m: w}

    def linspace():
        n, v = fed(np.int32(300000000))
        x, w = fed(np.float32(1))
        return tf.raw_ops.LinSpace(start=x, stop=x + 1, num=n), {n: v, x: w}

    def broadcast():
        a, v = fed(np.ones([15000, 1], np.float32))
        b, w = fed(np.ones([1, 20000], np.float32))
        return a + b, {a: v, b: w}

    return {"nothing": nothing, "Fill": fill, "ResizeNearestNeighbor": resize, "Tile": tile, "LinSpace": linspace,
            "AddV2": broadcast}


def run_huge(target, name, seconds):
    """The one with the long kernels: says when it is ready, runs for a while, says how often and how long."""
    import tensorflow as tf
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    with tf.Graph().as_default():
        op, feeds = scenes(tf)[name]()
        with v1.Session(target) as session:
            print("ready", flush=True)
            sys.stdin.readline()
            end, times = time.time() + seconds, []
            while time.time() < end:
                start = time.time()
                session.run(op.op, feeds)
                times.append(time.time() - start)
            print("%d %.6f" % (len(times), sum(times) / len(times)), flush=True)


def run_nulls(target, seconds):
    """The others, a thread each: how many steps, and their times' median, 99th percentile and worst."""
    import tensorflow as tf
    v1 = tf.compat.v1
    v1.disable_eager_execution()
    go, ready, times = threading.Event(), threading.Barrier(CLIENTS + 1), []

    def client():
        with tf.Graph().as_default():
            x = v1.placeholder(tf.float32, [])
            y = x + 1.0
            with v1.Session(target) as session:
                for _ in range(20):
                    session.run(y, {x: 1.0})
                ready.wait()
                go.wait()
                end, own = time.time() + seconds, []
                while time.time() < end:
                    start = time.time()
                    session.run(y, {x: 1.0})
                    own.append(time.time() - start)
                    time.sleep(0.002)
                times.extend(own)

    threads = [threading.Thread(target=client) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    ready.wait()
    print("ready", flush=True)
    sys.stdin.readline()
    go.set()
    for thread in threads:
        thread.join()
    times.sort()
    print("%d %.6f %.6f %.6f" % (len(times), times[len(times) // 2], times[len(times) * 99 // 100], times[-1]), flush=True)


def measure(command, name, seconds, work):
    """(long steps, seconds of one, others' steps, median, 99th percentile, worst) on a fresh server."""
    with tempfile.TemporaryDirectory(dir=work) as log:
        server = servers.Server(command, os.path.join(log, "server.log"))
        children = []
        try:
            for role in ["huge", "others"]:
                argv = [sys.executable, os.path.abspath(__file__), "--role", role, "--target", server.target,
                        "--only", name, "--seconds", str(seconds)]
                children.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                                 stderr=subprocess.DEVNULL, text=True))
            for child in children:
                if child.stdout.readline().strip() != "ready":
                    raise RuntimeError("a client did not start")
            for child in children:
                child.stdin.write("go\n")
                child.stdin.flush()
            answers = [[float(n) for n in child.stdout.readline().split()] for child in children]
            if server.is_dead():
                raise RuntimeError("the server ended")
        finally:
            for child in children:
                child.stdin.close()
                try:
                    child.wait(30)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
            server.stop()
    return answers[0] + answers[1]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", default="target/release/downpour")
    parser.add_argument("--work", help="where logs go")
    parser.add_argument("--only")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--ours", action="store_true", help="leave TensorFlow's server out")
    parser.add_argument("--role")
    parser.add_argument("--target")
    args = parser.parse_args()
    if args.role == "huge":
        return run_huge(args.target, args.only, args.seconds)
    if args.role == "others":
        return run_nulls(args.target, args.seconds)
    names = [args.only] if args.only else ["nothing", "Fill", "ResizeNearestNeighbor", "Tile", "LinSpace", "AddV2"]
    print("%d clients with null steps while one runs a kernel of 1.2 GB" % CLIENTS)
    print("%-22s %-11s %6s %9s %7s %10s %8s %9s" % ("kernel", "server", "long", "s each", "others", "median ms", "99% ms",
                                                    "worst ms"), flush=True)
    if args.work:
        os.makedirs(args.work, exist_ok=True)
    failed = 0
    for name in names:
        worst = {}
        for side, command in [("ours", args.server + " serve --port {port}")] + ([] if args.ours else [("TensorFlow", servers.TF_SERVER)]):
            count, each, others, median, late, last = measure(command, name, args.seconds, args.work)
            worst[side] = last
            print("%-22s %-11s %6d %9.3f %7d %10.2f %8.1f %9.1f" % (name, side, count, each, others, median * 1e3,
                                                                   late * 1e3, last * 1e3), flush=True)
        if worst["ours"] > WORST and worst["ours"] > TIMES * worst.get("TensorFlow", 0):
            print("%s: the others waited %.1f s" % (name, worst["ours"]))
            failed += 1
    print("fairness: %d passed, %d failed" % (len(names) - failed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
