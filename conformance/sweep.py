"""Times every op, and whole graphs, on TensorFlow's server and on ours in turn. See README.md.

A row is one graph on both servers: copies of one op whose inputs are variables there, or a whole model. Nothing is
subtracted and no value is compared; a step of each side is timed in many short rounds, one side after the other, and the
shortest round counts, because others' work on the machine only ever makes a round longer.

  cargo xtask sweep                       every op and graph, to docs/sweep.md
  cargo xtask sweep --op 'Matrix*'        some ops, to the screen
  cargo xtask sweep --graphs              the graphs alone
  cargo xtask sweep --refine              what the last run found slow, once more (when the machine was busy)
  cargo xtask sweep --quick               does it still run: a few rows, no judgement of time
"""
import argparse
import fnmatch
import json
import math
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

STEP_TIMEOUT_MS = 20_000
SIZES = ("small", "medium", "large")
# Copies of the op in a step: small ones would measure the call otherwise. Large ones run one after the other, so that
# what a server does to spread a single op over the cores is seen.
COPIES = (48, 12, 3)
QUICK = ("Add*", "MatMul", "Cholesky", "FFT", "AsString", "LookupTableFindV2", "Relu", "Sum", "GatherV2")


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour binary")
    p.add_argument("--work", default=os.path.join(HERE, "..", "target", "sweep"))
    p.add_argument("--op", action="append", default=[], metavar="GLOB", help="only these ops")
    p.add_argument("--size", choices=SIZES, help="only this size")
    p.add_argument("--graphs", action="store_true", help="only the graphs (with --op GLOB: graphs of that name)")
    p.add_argument("--ops", action="store_true", help="only the ops")
    p.add_argument("--quick", action="store_true", help="a sample, to see that the sweep works")
    p.add_argument("--seconds", type=float, default=0.3, help="time to measure each row, both sides together")
    p.add_argument("--page", metavar="FILE", help="write the table there (markdown)")
    p.add_argument("--again", type=float, default=0.9, help="measure rows below this ratio once more, three times as long")
    p.add_argument("--refine", action="store_true", help="measure the rows that the last run found below --again once more, keep the least of both")
    p.add_argument("--list", action="store_true", help="name the rows, run nothing")
    return p.parse_args()


class Failed(Exception):
    """One side cannot run a row."""

    def __init__(self, side, error):
        super().__init__("%s: %s" % (side, str(error).strip().split("\n")[0][:160]))
        self.side = side


class Side:
    """One server and the session of the row under way."""

    def __init__(self, name, command, work):
        import servers
        self.name = name
        self.server = servers.Server(command, os.path.join(work, name + ".log"))
        self.session = self.step = None

    def begin(self, row):
        import tensorflow.compat.v1 as tf
        try:
            if self.server.is_dead():
                self.server.restart()
            config = tf.ConfigProto(operation_timeout_in_ms=STEP_TIMEOUT_MS)
            self.session = tf.Session(self.server.target, graph=row.graph, config=config)
            for op, feeds in row.inits:
                self.session.run(op, feeds)
            self.step = row.stepper(self.session)
            self.step()
        except Exception as e:  # whatever it is, the sweep goes on
            raise Failed(self.name, e) from e

    def time(self, count):
        """Seconds of one of `count` steps."""
        step = self.step
        try:
            start = time.perf_counter()
            for _ in range(count):
                step()
            return (time.perf_counter() - start) / count
        except Exception as e:
            raise Failed(self.name, e) from e

    def end(self):
        """Leaves nothing of the row behind; a server that does not answer is started again."""
        import tensorflow.compat.v1 as tf
        self.step = None
        try:
            if self.session is not None:
                self.session.close()
            config = tf.ConfigProto(operation_timeout_in_ms=5000)
            tf.Session.reset(self.server.target, config=config)
        except Exception:
            self.server.restart()
        self.session = None
        if self.server.is_dead():
            self.server.restart()


def measure(row, sides, seconds):
    """The shortest mean step of either side, in seconds."""
    best = [math.inf, math.inf]
    try:
        for side in sides:
            side.begin(row)
        first = [side.time(1) for side in sides]
        # Rounds of some milliseconds, of which one or the other runs undisturbed.
        counts = [max(1, min(200, int(0.008 / max(t, 1e-6)))) for t in first]
        end = time.perf_counter() + seconds
        rounds = 0
        while rounds < 3 or time.perf_counter() < end:
            for i, side in enumerate(sides):
                best[i] = min(best[i], side.time(counts[i]))
            rounds += 1
            if rounds >= 3 and time.perf_counter() > end + 4 * seconds:
                break
    finally:
        for side in sides:
            side.end()
    return best


def key(row):
    return (row.kind, row.name, row.dtype, row.size)


def rows_of(options, probe):
    import sweep_graphs
    import sweep_ops
    patterns = options.op or (["*"] if not options.quick else list(QUICK))
    chosen = lambda name: any(fnmatch.fnmatch(name, p) for p in patterns)
    if not options.graphs:
        sizes = [options.size] if options.size else SIZES
        yield from sweep_ops.rows(chosen, sizes, COPIES, probe, quick=options.quick)
    if not options.ops and (options.refine or options.graphs or not options.op):
        named = sweep_graphs.rows()
        if options.quick:
            named = [r for r in named if r.name in sweep_graphs.QUICK]
        elif options.op:
            named = [r for r in named if chosen(r.name)]
        yield from named


def machine():
    model = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), "?")
    return "%d cores, %s" % (os.cpu_count(), model)


def mean(ratios):
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else float("nan")


def ratio(r):
    return r["tf"] / r["ours"]


def page(results, failures, busy):
    """The table of docs/sweep.md."""
    done = sorted(results, key=ratio)
    ops = [r for r in done if r["kind"] == "op"]
    graphs = [r for r in done if r["kind"] == "graph"]
    below = [r for r in done if ratio(r) < 1.0]
    out = ["# Every op beside TensorFlow's", ""]
    out += ["`cargo xtask sweep` times each op type and some sixty whole graphs through the stock TensorFlow client, on TensorFlow "
            "2.21's own server (`tf.train.Server`, its defaults, oneDNN included) and on `downpour serve`, in turn. A row is one "
            "step: copies of an op over variables (%d small, %d medium, %d large one after the other), nothing fetched. The shortest "
            "of many short rounds counts. A ratio above 1 says that ours is quicker; differences under 20 %% mean little." % COPIES, ""]
    out += ["Measured on %s%s. %d ops in %d rows, %d graphs." % (
        machine(), ", busy with other work meanwhile (load %.1f)" % busy if busy > 1.5 else "",
        len({r["name"] for r in ops}), len(ops), len(graphs)), ""]
    out += ["| | rows | geometric mean | below 1.0 | below 0.9 |", "|:--|--:|--:|--:|--:|"]
    for name, part in (("ops", ops), ("small", [r for r in ops if r["size"] == "small"]),
                       ("medium", [r for r in ops if r["size"] == "medium"]),
                       ("large", [r for r in ops if r["size"] == "large"]), ("graphs", graphs), ("all", done)):
        if part:
            out.append("| %s | %d | %.2f | %d | %d |" % (name, len(part), mean([ratio(r) for r in part]), sum(
                ratio(r) < 1 for r in part), sum(ratio(r) < 0.9 for r in part)))
    out += ["", "## Graphs", "", "| graph | TF µs | ours µs | ratio |", "|:--|--:|--:|--:|"]
    out += ["| %s | %s | %s | %.2f |" % (r["name"], micros(r["tf"]), micros(r["ours"]), ratio(r)) for r in graphs]
    out += ["", "## Ops below 1.0", "", "| op | dtype | size | TF µs | ours µs | ratio |", "|:--|:--|:--|--:|--:|--:|"]
    line = lambda r: "| %s | %s | %s | %s | %s | %.2f |" % (
        r["name"], r["dtype"], r["size"], micros(r["tf"]), micros(r["ours"]), ratio(r))
    out += [line(r) for r in below if r["kind"] == "op"]
    out += ["", "## All other ops", "", "| op | dtype | size | TF µs | ours µs | ratio |", "|:--|:--|:--|--:|--:|--:|"]
    out += [line(r) for r in ops if ratio(r) >= 1.0]
    ours = sorted({(f["name"], f["error"]) for f in failures if f["side"] == "ours"})
    if ours:
        out += ["", "## Not run by ours", ""] + ["- `%s`: %s" % f for f in ours]
    return "\n".join(out) + "\n"


def micros(seconds):
    us = seconds * 1e6
    return "%.0f" % us if us >= 100 else "%.1f" % us


def show(r):
    print("%-34s %-10s %-6s %10.1f %10.1f %6.2f" % (
        r["name"], r["dtype"], r["size"], r["tf"] * 1e6, r["ours"] * 1e6, ratio(r)), flush=True)


def main():
    options = arguments()
    import servers
    work = os.path.abspath(options.work)
    os.makedirs(work, exist_ok=True)
    if options.list:
        for row in rows_of(options, None):
            print(*key(row))
        return
    import tensorflow.compat.v1 as tf
    tf.disable_eager_execution()
    sides = [Side("tf", servers.TF_SERVER, work), Side("ours", "%s serve --port {port}" % options.server, work)]
    seconds = min(options.seconds, 0.05) if options.quick else options.seconds
    results, failures, refused = [], [], set()

    def probe(row):
        """Whether TensorFlow runs a row: how inputs are found for an op that the table does not name."""
        try:
            sides[0].begin(row)
            return True
        except Failed:
            return False
        finally:
            sides[0].end()

    def attempt(row, time_for):
        try:
            t, o = measure(row, sides, time_for)
            return dict(kind=row.kind, name=row.name, dtype=row.dtype, size=row.size, tf=t, ours=o)
        except Failed as e:
            if e.side == "ours":
                print("%-34s %-10s %-6s FAILED %s" % (row.name, row.dtype, row.size, e), flush=True)
            failures.append(dict(name=row.name, dtype=row.dtype, size=row.size, side=e.side, error=str(e)))
        except Exception as e:  # a row that does not build
            failures.append(dict(name=row.name, dtype=row.dtype, size=row.size, side="row", error=repr(e)[:300]))
        return None

    load, start = [], time.time()
    before = {}
    if options.refine:
        with open(os.path.join(work, "sweep.json")) as f:
            last = json.load(f)
        before = {(r["kind"], r["name"], r["dtype"], r["size"]): r for r in last["results"]}
        failures, load = last["failures"], last.get("load", [])
        slow = {r["name"] for r in before.values() if ratio(r) < options.again}
        # The patterns are names here: an op that is not slow is not even built.
        options.op = [n.replace("[", "[[]") for n in slow & set(options.op or slow)]
    try:
        for row in rows_of(options, probe) if not options.refine or options.op else ():
            if options.refine and (key(row) not in before or ratio(before[key(row)]) >= options.again):
                continue
            result = attempt(row, seconds)
            if result and ratio(result) < options.again and not options.quick:
                second = attempt(row, 3 * seconds)
                if second:
                    result.update(tf=min(result["tf"], second["tf"]), ours=min(result["ours"], second["ours"]))
            load.append(os.getloadavg()[0])
            if result:
                old = before.pop(key(row), result)
                result.update({side: min(result[side], old[side]) for side in ("tf", "ours")})
                results.append(result)
                show(result)
            row.forget()
            with open(os.path.join(work, "sweep.json.tmp"), "w") as f:
                json.dump(dict(results=results + list(before.values()), failures=failures, machine=machine(), load=load), f, indent=0)
            os.replace(os.path.join(work, "sweep.json.tmp"), os.path.join(work, "sweep.json"))
    finally:
        for side in sides:
            side.server.stop()
    results += before.values()
    refused = sorted({f["name"] for f in failures if f["side"] != "ours"} - {r["name"] for r in results})
    if refused:
        print("not measured (TensorFlow itself does not run them as asked): %s" % ", ".join(refused))
    if options.page:
        with open(options.page, "w") as f:
            f.write(page(results, failures, sum(load) / max(len(load), 1)))
    ratios = [ratio(r) for r in results]
    bad = [f for f in failures if f["side"] == "ours"]
    # A --quick run fails when rows do not run; how quick they are is for people to judge.
    print("sweep: %d rows in %.0f s, geometric mean %.2f, %d below 1.0, %d below 0.9; %d passed, %d failed" % (
        len(results), time.time() - start, mean(ratios), sum(r < 1 for r in ratios), sum(r < 0.9 for r in ratios),
        len(results), len(bad)))
    sys.exit(1 if options.quick and (bad or not results) else 0)


if __name__ == "__main__":
    main()
