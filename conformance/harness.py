"""Runs every case on real TensorFlow and through a server, and compares. See README.md.

Case files live in cases/<family>.py or cases/<family>/*.py. The oracle's answers are kept on disk,
keyed by the sources that made them, so a second run only asks the server.
"""
import argparse
import collections
import fnmatch
import glob
import hashlib
import importlib.util
import json
import os
import pickle
import re
import shutil
import sys
import tempfile
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
# oneDNN picks other kernels on other CPUs, and some of them crash TensorFlow 2.21 (bfloat16 products
# with a transposed left side on AMX): the oracle is TensorFlow's own kernels.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

OPERATION_TIMEOUT_MS = 60_000


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server-cmd", help="starts the server under test; {port} is replaced")
    p.add_argument("--target", help="a server that already runs, grpc://host:port")
    p.add_argument("--tf", action="store_true", help="TensorFlow's own server is the one under test")
    p.add_argument("--family", action="append", default=[], help="only this family (may repeat, or a,b)")
    p.add_argument("--case", action="append", default=[], metavar="GLOB", help="only cases whose name matches")
    p.add_argument("--failures", action="store_true", help="print every failure, not the first few")
    p.add_argument("--json", metavar="FILE", help="write results as JSON")
    p.add_argument("--list", action="store_true", help="print family and case names, run nothing")
    p.add_argument("--slow", type=int, default=0, metavar="N", help="print the N slowest cases")
    p.add_argument("--show", action="store_true", help="print what TensorFlow answers to each case")
    p.add_argument("--trace", action="store_true", help="print each case's name before it runs")
    p.add_argument("--no-cache", action="store_true", help="ask TensorFlow again")
    p.add_argument("--work", default=os.path.join(HERE, "..", "target", "conformance"))
    return p.parse_args()


def case_files():
    """(family, path) of every case file."""
    base = os.path.join(HERE, "cases")
    found = [(os.path.basename(p)[:-3], p) for p in glob.glob(os.path.join(base, "*.py"))]
    found += [(os.path.basename(os.path.dirname(p)), p) for p in glob.glob(os.path.join(base, "*", "*.py"))]
    return sorted(f for f in found if not os.path.basename(f[1]).startswith("_"))


def load(path):
    import registry
    name = "case_" + re.sub(r"\W", "_", os.path.relpath(path, HERE))
    spec = importlib.util.spec_from_file_location(name, path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    return registry.take_registered()


class Oracle:
    """TensorFlow's answers, computed once per version of a case file."""

    def __init__(self, work, path, version, use_cache):
        text = open(path, "rb").read()
        for name in ("registry.py", "compare.py", "harness.py"):
            text += open(os.path.join(HERE, name), "rb").read()
        for helper in sorted(glob.glob(os.path.join(HERE, "cases", "**", "_*.py"), recursive=True)):
            text += open(helper, "rb").read()
        key = hashlib.sha256(text + version.encode()).hexdigest()[:24]
        folder = os.path.join(work, "oracle")
        os.makedirs(folder, exist_ok=True)
        self.path = os.path.join(folder, "%s-%s.pickle" % (os.path.basename(path)[:-3], key))
        self.answers, self.is_new = {}, False
        if use_cache and os.path.exists(self.path):
            with open(self.path, "rb") as f:
                self.answers = pickle.load(f)

    def save(self):
        if self.is_new:
            with open(self.path + ".tmp", "wb") as f:
                pickle.dump(self.answers, f)
            os.replace(self.path + ".tmp", self.path)


class Env:
    """What a script case gets: sessions on one side, a folder, and a way to keep errors."""

    def __init__(self, target, folder, config):
        import tensorflow.compat.v1 as tf
        self.tf, self.target, self.tmp, self._config = tf, target, folder, config
        self._open = []

    def session(self, graph=None, config=None):
        config = config or self.tf.ConfigProto()
        if not config.operation_timeout_in_ms:
            config.operation_timeout_in_ms = OPERATION_TIMEOUT_MS
        sess = self.tf.Session(self.target, graph=graph, config=config)
        self._open.append(sess)
        return sess

    def error(self, body):
        """The value of body(), or the TensorFlow/python error it raised."""
        import compare
        try:
            return body()
        except Exception as e:  # the error is the result
            error = compare.error_of(e)
            error.message = error.message.replace(self.tmp, "<tmp>")
            return error

    def reset(self):
        """Forgets the server's variables, as a new in-process session would."""
        if self.target:
            self.tf.Session.reset(self.target)

    def close(self):
        for sess in self._open:
            sess.close()


class Side:
    """One side of the comparison: runs cases against a target ('' = in process)."""

    def __init__(self, target, work):
        self.target, self.work = target, work

    def run_graph(self, case, graph, fetches, context):
        import compare
        import registry
        import tensorflow.compat.v1 as tf
        config = case.config() if case.config else tf.ConfigProto()
        config.operation_timeout_in_ms = OPERATION_TIMEOUT_MS
        results = []
        with tf.Session(self.target, graph=graph, config=config) as sess:
            try:
                for op in context.inits:
                    sess.run(op, context.feeds)
            except Exception as e:  # the error is the result
                return compare.error_of(e)
            for step in (fetches if isinstance(fetches, registry.Steps) else [fetches]):
                feeds = dict(context.feeds)
                if isinstance(step, tuple) and len(step) == 2 and isinstance(step[1], dict):
                    step, more = step
                    feeds.update(more)
                try:
                    values = plain(sess.run(step, feeds))
                    results.append(plain(case.post(values)) if case.post else values)
                except Exception as e:  # the error is the result
                    results.append(compare.error_of(e))
        return results if isinstance(fetches, registry.Steps) else results[0]

    def run_script(self, case):
        folder = tempfile.mkdtemp(prefix="case-", dir=self.work)
        env = Env(self.target, folder, None)
        try:
            return plain(env.error(lambda: case.body(env)))
        finally:
            env.close()
            shutil.rmtree(folder, ignore_errors=True)

    def reset(self):
        import tensorflow.compat.v1 as tf
        if self.target:
            tf.Session.reset(self.target)


def plain(value):
    """Nested lists and dicts of arrays: what can be pickled and compared without TensorFlow."""
    import numpy as np
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return np.array(value, dtype=object)
    if isinstance(value, np.generic):
        return np.asarray(value)
    return value


def has_state(graph):
    """Does a graph leave anything behind in the server's default container?"""
    return any(op.op_def is not None and op.op_def.is_stateful and not op.type.startswith(("Random", "Trunc"))
               and op.type not in ("Placeholder", "Assert", "Print", "PrintV2", "Multinomial")
               for op in graph.get_operations()) or any(
                   op.type in ("Variable", "VariableV2") for op in graph.get_operations())


class Run:
    """State of one invocation: servers, counts, failures."""

    def __init__(self, options):
        import servers
        self.options, self.servers = options, servers
        self.work = os.path.abspath(options.work)
        os.makedirs(self.work, exist_ok=True)
        self.log = os.path.join(self.work, "server.log")
        open(self.log, "w").close()
        self.server = None
        self.tf_servers = {}
        if options.tf:
            options.server_cmd = servers.TF_SERVER
        if not (options.server_cmd or options.target):
            sys.exit("say which server to test: --server-cmd, --target or --tf")
        if options.target is None:
            self.server = servers.Server(options.server_cmd, self.log)
        self.local = Side("", self.work)
        self.results = []
        self.known = Known(os.path.join(HERE, "known.tsv"))

    def target(self):
        return self.options.target or self.server.target

    def oracle_side(self, case):
        if case.oracle == "local":
            return self.local
        if case.oracle not in self.tf_servers:
            command = self.servers.TF_SERVER
            if case.oracle == "onednn":
                command = "env TF_ENABLE_ONEDNN_OPTS=1 " + command
            self.tf_servers[case.oracle] = self.servers.Server(command, os.path.join(self.work, "tf_%s.log" % case.oracle))
        return Side(self.tf_servers[case.oracle].target, self.work)

    def close(self):
        for server in (self.server, *self.tf_servers.values()):
            if server is not None:
                server.stop()

    def one(self, case, oracle):
        """Differences of one case (empty = pass)."""
        import registry
        import tensorflow.compat.v1 as tf
        server = Side(self.target(), self.work)
        graph = tf.Graph()
        if case.build is not None:
            context = registry.begin(case.name)
            with graph.as_default():
                fetches = case.build()
            graph.finalize()

        def run(side):
            stateful = case.build is None or has_state(graph)
            if case.build is None:
                tf.reset_default_graph()
                registry.begin(case.name)
                answer = side.run_script(case)
            else:
                answer = side.run_graph(case, graph, fetches, context)
            if stateful:
                side.reset()
            return answer

        if case.name not in oracle.answers:
            oracle.answers[case.name] = run(self.oracle_side(case))
            oracle.is_new = True
        want = oracle.answers[case.name]
        if case.body is not None and isinstance(want, registry.Error):
            raise RuntimeError("the script fails on TensorFlow: %r" % want)
        import compare
        try:
            got = run(server)
        except Exception as e:  # Reset or session creation failed
            got = compare.error_of(e)
        if self.server is not None and self.server.is_dead():
            code = self.server.process.returncode
            self.server.restart()
            return ["the server died (code %s); see %s" % (code, self.log)], want, got
        return compare.differences(case, want, got), want, got

    def family(self, name, paths, version):
        passed, failures, start = 0, [], time.time()
        for path in paths:
            cases = [c for c in load(path) if selected(self.options.case, name, c.name)]
            names = collections.Counter(c.name for c in cases)
            twice = [n for n, k in names.items() if k > 1]
            if twice:
                sys.exit("%s: case names used twice: %s" % (path, twice[:5]))
            oracle = Oracle(self.work, path, version, not self.options.no_cache)
            for case in cases:
                case.family = name
                t = time.time()
                if self.options.trace:
                    print("  run %s/%s" % (name, case.name), flush=True)
                try:
                    found, want, got = self.one(case, oracle)
                except Exception as e:  # a case that does not build is a failure of the case
                    where = [f for f in traceback.extract_tb(e.__traceback__) if f.filename == path]
                    found, want, got = ["the case itself failed%s: %s: %s" % (
                        " at line %d" % where[-1].lineno if where else "", type(e).__name__, e)], None, None
                if self.options.show:
                    show(name, case.name, want)
                self.results.append(dict(family=name, case=case.name, passed=not found,
                                         seconds=round(time.time() - t, 4), differences=found))
                excuse = self.known.excuse(name + "/" + case.name, bool(found))
                if found and excuse is None:
                    failures.append((case.name, found, got))
                elif not found:
                    passed += 1
            oracle.save()
        print("%-10s %5d passed %5d failed %7.1f s" % (name, passed, len(failures), time.time() - start), flush=True)
        for case_name, found, _ in failures if self.options.failures else failures[:5]:
            print("  FAIL %s/%s" % (name, case_name))
            for text in found[:4] if self.options.failures else found[:1]:
                print("     " + text)
        if len(failures) > 5 and not self.options.failures:
            print("  … and %d more (--failures prints all)" % (len(failures) - 5))
        sys.stdout.flush()
        return passed, failures


class Known:
    """Differences that are known and why (`known.tsv`: a glob over family/case, a tab, the reason).

    They do not fail the run; a line none of whose cases differs any more does, so the list only shrinks.
    """

    def __init__(self, path):
        self.lines = []
        for line in open(path) if os.path.exists(path) else []:
            if line.strip() and not line.startswith("#"):
                glob, reason = line.rstrip("\n").split("\t")
                self.lines.append(dict(glob=glob, reason=reason, met=0, differ=0))

    def excuse(self, name, differs):
        for line in self.lines:
            if fnmatch.fnmatchcase(name, line["glob"]):
                line["met"] += 1
                line["differ"] += differs
                return line["reason"]
        return None

    def count(self):
        return sum(line["differ"] for line in self.lines)

    def stale(self):
        return [line["glob"] for line in self.lines if line["met"] and not line["differ"]]


def show(family, name, want):
    """TensorFlow's answer, leaf by leaf."""
    import compare
    print("  %s/%s" % (family, name))
    for path, leaf in compare.leaves(want):
        if not path.endswith(".len"):
            kind = " %s%s" % (leaf.dtype, list(leaf.shape)) if hasattr(leaf, "dtype") else ""
            print("     %s%s %s" % (path, kind, compare.show(leaf)))


def selected(globs, family, name):
    return not globs or any(fnmatch.fnmatchcase(name, g) or fnmatch.fnmatchcase(family + "/" + name, g) for g in globs)


def missing_kernels(failures):
    """Ops the server has no kernel for, from its own error texts, most wanted first."""
    from registry import Error
    import compare
    count = collections.Counter()
    for _, _, got in failures:
        ops = set()
        for _, leaf in compare.leaves(got):
            if isinstance(leaf, Error):
                ops.update(re.findall(r"No OpKernel was registered to support Op '(\w+)'|"
                                      r"Op type not registered '(\w+)'", leaf.message))
        count.update(a or b for a, b in ops)
    return count.most_common()


def main():
    options = arguments()
    wanted = [f for item in options.family for f in item.split(",")]
    families = collections.OrderedDict()
    for family, path in case_files():
        if not wanted or family in wanted:
            families.setdefault(family, []).append(path)
    unknown = set(wanted) - set(families)
    if unknown:
        sys.exit("no such family: %s (there are: %s)" % (", ".join(sorted(unknown)), ", ".join(
            sorted({f for f, _ in case_files()}))))
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    import warnings
    warnings.filterwarnings("ignore")
    if options.list:
        for family, paths in families.items():
            for path in paths:
                for case in load(path):
                    if selected(options.case, family, case.name):
                        print("%s/%s" % (family, case.name))
        return 0
    run, passed, failures = Run(options), 0, []
    start = time.time()
    try:
        for family, paths in families.items():
            p, f = run.family(family, paths, tf.__version__)
            passed += p
            failures += f
    finally:
        run.close()
    if options.slow:
        for r in sorted(run.results, key=lambda r: -r["seconds"])[:options.slow]:
            print("  %6.2f s  %s/%s" % (r["seconds"], r["family"], r["case"]))
    missing = missing_kernels(failures)
    if missing:
        print("missing kernels: " + ", ".join("%s (%d)" % m for m in missing))
    if options.json:
        with open(options.json, "w") as f:
            json.dump(dict(passed=passed, failed=len(failures), seconds=time.time() - start,
                           results=run.results), f, indent=1)
    stale = run.known.stale() if not options.case else []
    for glob in stale:
        print("known.tsv: nothing differs any more for %s: take the line out" % glob)
    if run.known.count():
        print("known differences (known.tsv says why): %d" % run.known.count())
    print("conformance: %d passed, %d failed" % (passed, len(failures) + len(stale)))
    return 1 if failures or stale or not passed else 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # TensorFlow's threads may outlive their server; nothing is left to clean up.
    os._exit(code)
