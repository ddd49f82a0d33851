"""Reads and updates keep their order wherever they run: random programs over variables of both kinds, updates, reads,
control edges, branches, loops and queues, each statement on a random task.

Every statement waits for the one before it, so a program has one right outcome, and a few lines of python compute it. The
same program runs in one TensorFlow session, on TensorFlow's own cluster, on one task of ours, and on clusters of ours over
both transports and mixed with TensorFlow's; all must give that outcome in each of several steps.

  python order.py --server target/release/downpour --work target/order [--seed S] [--count N] [--only MIXTURE]
"""
import argparse
import os
import random
import sys
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import tasks

TASKS = ["/job:ps/task:0", "/job:ps/task:1", "/job:worker/task:0", "/job:worker/task:1"]
STEPS = 3
# Which side runs which task (two ps, two workers), and over which transport. TensorFlow's own come first: its partitioner
# makes some programs with loops inside branches wait for ever, and those are left out where it is the master.
CLUSTERS = {
    "theirs": ("tttt", "auto"),
    "lanes": ("oooo", "auto"),
    "grpc": ("oooo", "grpc"),
    "their_workers": ("oott", "auto"),
    "their_ps": ("ttoo", "auto"),
}


# ---- programs: nested tuples, made from a seed ----

def make(seed):
    """A program: its variables and its statements."""
    draw = random.Random(seed)
    kind = draw.choice(["ref", "resource", "both", "ref"])
    variables = []
    for i in range(draw.randint(1, 3)):
        is_ref = kind == "ref" or kind == "both" and i % 2 == 0
        variables.append((is_ref, draw.choice(TASKS), float(draw.randint(-3, 3))))
    return variables, block(draw, len(variables), draw.randint(3, 9), 0)


def block(draw, variables, length, depth):
    out = []
    for _ in range(length):
        where, v = draw.choice(TASKS), draw.randrange(variables)
        kind = draw.choices(["add", "sub", "copy", "read", "read_late", "if", "loop", "queue"],
                            [4, 2, 3, 5, 3, 2 if depth < 2 else 0, 2 if depth < 2 else 0, 1 if depth == 0 else 0])[0]
        if kind in ("add", "sub"):
            out.append((kind, where, v, float(draw.randint(1, 5))))
        elif kind == "copy":
            out.append((kind, where, v, draw.randrange(variables)))
        elif kind == "if":
            out.append((kind, where, v, block(draw, variables, draw.randint(1, 3), depth + 1),
                        block(draw, variables, draw.randint(1, 3), depth + 1)))
        elif kind == "loop":
            out.append((kind, where, draw.randint(0, 3), block(draw, variables, draw.randint(1, 3), depth + 1)))
        else:
            out.append((kind, where, v))
    return out


def expect(program, steps):
    """What the program gives in each of `steps` steps: the sum of what is read, and the variables at the end."""
    state = [value for _, _, value in program[0]]
    return [(wrapped(interpret(program[1], state, 0.0)), [wrapped(s) for s in state]) for _ in range(steps)]


# Sums stay small integers, which every side computes exactly.
WRAP = 1024.0


def wrapped(x):
    return x % WRAP


def interpret(statements, state, total):
    for s in statements:
        kind, v = s[0], s[2]
        if kind == "add":
            state[v] += s[3]
        elif kind == "sub":
            state[v] -= s[3]
        elif kind == "copy":
            state[v] += wrapped(state[s[3]])
        elif kind == "if":
            total = interpret(s[3] if wrapped(state[v]) % 2.0 < 1.0 else s[4], state, total)
        elif kind == "loop":
            for _ in range(v):
                total = interpret(s[3], state, total)
        else:
            total = wrapped(total * 2.0 + wrapped(state[v]))
    return total


# ---- the same as a graph ----

class Builder:
    """Adds a program's statements to the default graph, each after the one before it."""

    def __init__(self, tf, variables, device, name):
        self.tf, self.device, self.name, self.queues = tf, device, name, 0
        self.variables = []
        for i, (is_ref, where, value) in enumerate(variables):
            with device(where):
                self.variables.append(tf.Variable(value, name="%s_v%d" % (name, i), use_resource=not is_ref, dtype=tf.float32))

    def value(self, v):
        """The variable as it is when the reader runs: of a ref variable the reference itself."""
        variable = self.variables[v]
        is_ref = not hasattr(variable, "handle")
        return variable._ref() if is_ref else variable.read_value()

    def wrap(self, x):
        return self.tf.math.floormod(x, WRAP)

    def block(self, statements, total, last):
        for s in statements:
            total, last = self.statement(s, total, last)
        return total, last

    def statement(self, s, total, last):
        """Returns the sum of readings so far and what the next statement must wait for."""
        tf, (kind, where) = self.tf, s[:2]
        with self.device(where), tf.control_dependencies([last]):
            if kind in ("add", "sub"):
                change = tf.identity(s[3])
                variable = self.variables[s[2]]
                made = (variable.assign_add if kind == "add" else variable.assign_sub)(change, read_value=False)
                return total, made
            if kind == "copy":
                source = self.wrap(self.value(s[3]))
                # In place after the reading, whose value may still be the variable's own memory.
                with tf.control_dependencies([source]):
                    return total, self.variables[s[2]].assign_add(source, read_value=False)
            if kind in ("read", "read_late"):
                value = self.value(s[2]) if kind == "read" else self.variables[s[2]].read_value()
                total = self.wrap(total * 2.0 + self.wrap(value))
                return total, total
            if kind == "queue":
                self.queues += 1
                queue = tf.FIFOQueue(4, [tf.float32], shapes=[[]], shared_name="%s_q%d" % (self.name, self.queues))
                put = queue.enqueue(self.wrap(self.value(s[2])))
                with tf.control_dependencies([put]):
                    total = self.wrap(total * 2.0 + queue.dequeue())
                return total, total
            if kind == "if":
                even = tf.math.floormod(self.wrap(self.value(s[2])), 2.0) < 1.0
            else:
                start, zero = tf.identity(total), tf.constant(0)
        if kind == "if":
            total = tf.cond(even, lambda: self.branch(s[3], total), lambda: self.branch(s[4], total))
            return total, total

        def body(i, t):
            with self.device(where):
                first = tf.identity(t)
            t, last = self.block(s[3], first, first)
            with tf.control_dependencies([last]):
                return i + 1, tf.identity(t)
        _, total = tf.while_loop(lambda i, t: i < s[2], body, [zero, start], parallel_iterations=4)
        return total, total

    def branch(self, statements, total):
        tf = self.tf
        first = tf.identity(total)
        total, last = self.block(statements, first, first)
        with tf.control_dependencies([last]):
            return tf.identity(total)


def build(tf, program, device, name):
    """Returns a graph, its fetch, its variables and its initializer."""
    with tf.Graph().as_default() as graph:
        builder = Builder(tf, program[0], device, name)
        start = tf.constant(0.0)
        total, last = builder.block(program[1], start, start)
        with tf.control_dependencies([last]):
            fetch = tf.identity(total)
        state = [builder.wrap(v.read_value()) for v in builder.variables]
        return graph, fetch, state, tf.global_variables_initializer()


def outcomes(tf, program, target, device, name, patience):
    graph, fetch, state, init = build(tf, program, device, name)
    config = tf.ConfigProto(operation_timeout_in_ms=1000 * patience)
    with tf.Session(target, graph=graph, config=config) as session:
        session.run(init)
        return [(float(session.run(fetch)), [float(x) for x in session.run(state)]) for _ in range(STEPS)]


# ---- scenes with two clients ----

def barrier(tf, cluster, rounds=4):
    """Two workers count up variables on both ps, wait for each other through queues and read them: nothing read may be old."""
    found, problems = [[], []], []
    names = ["/job:worker/task:%d" % i for i in range(2)]

    def work(me):
        try:
            with tf.Graph().as_default() as graph:
                seen = []
                variables = []
                for i, where in enumerate(TASKS[:2]):
                    with tf.device(where):
                        variables.append(tf.Variable(0.0, name="b%d" % i, use_resource=False))
                with tf.device(TASKS[0]):
                    queues = [tf.FIFOQueue(8, [tf.float32], shapes=[[]], shared_name="barrier%d" % i) for i in range(2)]
                with tf.device(names[me]):
                    counted = tf.group(*[v.assign_add(1.0, use_locking=True) for v in variables])
                    with tf.control_dependencies([counted]):
                        told = queues[1 - me].enqueue(1.0)
                    with tf.control_dependencies([told]):
                        came = queues[me].dequeue()
                    with tf.control_dependencies([came]):
                        seen = [v.read_value() for v in variables]
                        seen = [tf.identity(s) * 1.0 for s in seen]
                init = tf.global_variables_initializer()
            with tf.Session(cluster.target(me), graph=graph, config=tf.ConfigProto(operation_timeout_in_ms=60_000)) as session:
                if me == 0:
                    session.run(init)
                    ready.set()
                ready.wait(60)
                for _ in range(rounds):
                    found[me].append([float(x) for x in session.run(seen)])
        except Exception as e:
            problems.append("worker %d: %s: %s" % (me, type(e).__name__, str(e)[:300]))
            ready.set()

    ready = threading.Event()
    threads = [threading.Thread(target=work, args=[i]) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120)
    if problems:
        return "; ".join(problems)
    for me in range(2):
        for r, values in enumerate(found[me]):
            # Both have counted in this round; the other may be one round ahead.
            if any(v < 2 * (r + 1) or v > 2 * (r + 1) + 1 for v in values):
                return "worker %d read %s in round %d, where both had counted to %d" % (me, values, r, 2 * (r + 1))
    return None if all(len(f) == rounds for f in found) else "a worker did not end: %s" % found


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for logs")
    p.add_argument("--seed", type=int, default=1, help="the first program; the others follow")
    p.add_argument("--count", type=int, default=60, help="how many programs")
    p.add_argument("--only", help="one of: one, %s" % ", ".join(CLUSTERS))
    p.add_argument("--show", action="store_true", help="print each program")
    options = p.parse_args()
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    tf.disable_control_flow_v2()
    programs = [(seed, make(seed)) for seed in range(options.seed, options.seed + options.count)]
    passed, failed = 0, 0

    def report(name, problem):
        nonlocal passed, failed
        passed, failed = (passed + 1, failed) if problem is None else (passed, failed + 1)
        if problem is not None:
            print("FAIL %s: %s" % (name, problem), flush=True)

    hung = set()

    def check(where, target, device):
        for seed, program in programs:
            if where == "their_workers" and seed in hung:
                continue
            if options.show:
                print(seed, program)
            want = expect(program, STEPS)
            try:
                got = outcomes(tf, program, target, device, "p%d" % seed, 5 if where == "theirs" else 60)
                problem = None if got == want else "want %s\n got %s" % (want, got)
            except tf.errors.DeadlineExceededError as e:
                problem = "it hangs"
                if where == "theirs":
                    print("TensorFlow's own cluster hangs in the program of seed %d" % seed)
                    hung.add(seed)
                    continue
            except Exception as e:
                problem = "%s: %s" % (type(e).__name__, getattr(e, "message", str(e)).strip()[-500:])
            report("%s seed %d" % (where, seed), problem)

    work = os.path.abspath(options.work)
    nowhere = lambda _: tf.device(None)
    if options.only in (None, "one"):
        check("one TensorFlow session", "", nowhere)
        os.environ["DOWNPOUR_TRANSPORT"] = "auto"
        with tasks.Cluster(options.server, work, "one", "o", ps=0) as cluster:
            check("one task", cluster.target(0), nowhere)
    for name, (sides, transport) in CLUSTERS.items():
        if options.only not in (None, name):
            continue
        os.environ["DOWNPOUR_TRANSPORT"] = transport
        with tasks.Cluster(options.server, work, name, sides) as cluster:
            check(name, cluster.target(0), tf.device)
            report("%s barrier" % name, barrier(tf, cluster))
    print("order: %d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
