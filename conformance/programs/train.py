"""One worker's client of the training programs: builds the model, trains it through its own task of a running
cluster and prints one JSON line of results per run.

  python train.py --cluster '{"ps": [...], "worker": [...]}' --worker 0 linreg linreg:sync,resource cnn:free

A run is PROGRAM[:WORD,...]. Words: `sync` (SyncReplicasOptimizer; all workers step together), `free` (asynchronous,
everyone at its own pace), `resource` (resource variables). Without `sync` and `free` training is asynchronous and the
workers take turns, so that its result does not depend on their speed. Each run has a container of its own on the ps.
Workers of the same cluster must be given the same runs in the same order.
"""
import argparse
import importlib
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

WORDS = ("sync", "free", "resource")
# The chief's thread of synchronous training waits for gradients that no longer come; the client gives it this long.
GRACE = 1


class Model:
    """What a program's `build(run)` returns. `feed(worker, i)` is the feed of a worker's i-th step; `grow`, if given,
    is trained instead of minimising `loss`; `measures` maps names to tensors evaluated with `test` at the end."""

    def __init__(self, loss=None, optimizer=None, feed=None, measures=None, test=None, grow=None, supervisor=False):
        self.loss, self.optimizer, self.feed, self.grow = loss, optimizer, feed, grow
        self.measures, self.test, self.supervisor = measures or {}, test or {}, supervisor


class Run:
    """One run of one program, as this worker sees it."""

    def __init__(self, text, options):
        self.text = text
        self.program, _, words = text.partition(":")
        self.words = [w for w in words.split(",") if w]
        unknown = [w for w in self.words if w not in WORDS]
        if unknown:
            raise SystemExit("%s: unknown word %s; there are %s" % (text, unknown[0], ", ".join(WORDS)))
        self.sync, self.free, self.resource = (w in self.words for w in WORDS)
        self.options, self.worker = options, options.worker
        self.workers, self.ps = len(options.cluster["worker"]), len(options.cluster["ps"])
        self.chief = self.worker == 0
        self.target = "grpc://" + options.cluster["worker"][self.worker]

    def container(self):
        """Letters, digits, dots, dashes and slashes are what TensorFlow allows."""
        return "".join(c if c.isalnum() else "-" for c in self.text)

    def steps(self, usual):
        """How many; at one's own pace as many as the program says it needs to come far enough."""
        at_most = self.options.at_most if self.options.at_most and not self.free else usual
        return self.options.steps or min(usual, at_most)

    def variable(self, name, shape=None, initializer=None, **more):
        return tf.get_variable(name, shape, initializer=initializer, use_resource=self.resource, **more)


class Turns:
    """Tokens that the workers hand one another through queues on the first ps."""

    def __init__(self, run):
        self.run = run
        with tf.device("/job:ps/task:0"):
            queues = [tf.FIFOQueue(64, [tf.int32], shapes=[[]], shared_name="turn%d" % w) for w in range(run.workers)]
        self.put = [q.enqueue(0) for q in queues]
        self.take = queues[run.worker].dequeue()

    def barrier(self, session):
        """Goes on when every worker has come here."""
        for other, put in enumerate(self.put):
            if other != self.run.worker:
                session.run(put)
        for _ in range(self.run.workers - 1):
            session.run(self.take)

    def begin(self, session):
        if self.run.chief:
            session.run(self.put[0])

    def mine(self, session):
        session.run(self.take)

    def next(self, session):
        session.run(self.put[(self.run.worker + 1) % self.run.workers])


def quicken():
    """MonitoredTrainingSession gives no way to set how long a non-chief sleeps between looks (30 s)."""
    usual = tf.train.SessionManager.__init__

    def init(self, *args, **kwargs):
        kwargs["recovery_wait_secs"] = 0.2
        usual(self, *args, **kwargs)
    tf.train.SessionManager.__init__ = init


def train_op(run, model, global_step):
    """The op of one step, the hooks it needs and, for synchronous training, the optimizer around the model's."""
    if model.grow is not None:
        with tf.control_dependencies([model.grow]):
            return tf.assign_add(global_step, 1).op, [], None
    if not run.sync:
        return model.optimizer.minimize(model.loss, global_step=global_step), [], None
    sync = tf.train.SyncReplicasOptimizer(model.optimizer, replicas_to_aggregate=run.workers, total_num_replicas=run.workers)
    op = sync.minimize(model.loss, global_step=global_step)
    # No tokens to begin with: every step waits for every worker.
    hooks = [] if model.supervisor else [sync.make_session_run_hook(run.chief, num_tokens=0)]
    return op, hooks, sync


def supervised(run, sync, global_step, config):
    """A session of tf.train.Supervisor."""
    more = {}
    if sync:
        more = dict(local_init_op=sync.chief_init_op if run.chief else sync.local_step_init_op,
                    ready_for_local_init_op=sync.ready_for_local_init_op)
    starters = [sync.get_chief_queue_runner()] if sync and run.chief else []
    tokens = sync.get_init_tokens_op(num_tokens=0) if sync and run.chief else None
    supervisor = tf.train.Supervisor(is_chief=run.chief, logdir=None, init_op=tf.global_variables_initializer(), summary_op=None,
                                     global_step=global_step, saver=None, recovery_wait_secs=0.2, **more)
    session = supervisor.prepare_or_wait_for_session(run.target, config=config)
    if starters:
        supervisor.start_queue_runners(session, starters)
        session.run(tokens)
    return supervisor, session


def step_all(run, model, session, turns, step, steps):
    """This worker's steps: `steps` of them in synchronous training, else its share. Ends when all workers' are done."""
    mine = steps if run.sync else steps // run.workers
    if run.sync or run.free:
        turns.barrier(session)
        for i in range(mine):
            session.run(step, feed_dict=model.feed(run.worker, i))
            if run.sync:
                turns.barrier(session)
        if run.free:
            turns.barrier(session)
        return
    turns.begin(session)
    for i in range(mine):
        turns.mine(session)
        session.run(step, feed_dict=model.feed(run.worker, i))
        turns.next(session)
    turns.mine(session)


def results(run, model, session, variables, global_step):
    """What both sides must agree on: measures, and norm, sum and a weighted sum of each variable."""
    measured = session.run(model.measures, feed_dict=model.test) if model.measures else {}
    out = {name: float(value) for name, value in measured.items()}
    sums = {}
    for name in sorted(variables):
        value = np.asarray(session.run(variables[name]), np.float64).ravel()
        mix, root = np.cos(np.arange(value.size) % 1013), max(1.0, value.size ** 0.5)
        # Each is at most the norm, which is the measure for how much they may differ.
        sums[name] = [float(np.sqrt((value * value).sum())), float(value.sum() / root), float((value * mix).sum() / root)]
    return dict(run=run.text, worker=run.worker, global_step=int(session.run(global_step)), measures=out, variables=sums)


def train(run):
    """Builds and trains one run; returns its results."""
    program = importlib.import_module(run.program.split("_")[0] if run.program.startswith(("bigvar", "embed")) else run.program)
    setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(run.options.cluster),
                                            worker_device="/job:worker/task:%d" % run.worker)
    with tf.Graph().as_default(), tf.container(run.container()), tf.device(setter):
        tf.set_random_seed(1234)
        model = program.build(run)
        # Not get_or_create_global_step, whose kind of variable cannot be chosen.
        global_step = run.variable("global_step", [], tf.zeros_initializer(), dtype=tf.int64, trainable=False,
                                   collections=[tf.GraphKeys.GLOBAL_VARIABLES, tf.GraphKeys.GLOBAL_STEP])
        op, hooks, sync = train_op(run, model, global_step)
        turns = Turns(run)
        variables = {v.op.name: v for v in tf.global_variables()}
        config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:%d" % run.worker])
        steps = run.steps(getattr(program, "STEPS", 40))
        step = [op, global_step]
        if model.supervisor:
            supervisor, session = supervised(run, sync, global_step, config)
            step_all(run, model, session, turns, step, steps)
            out = results(run, model, session, variables, global_step)
            if not (run.sync or run.free):
                turns.next(session)
            supervisor.request_stop()
            session.close()
            return out
        with tf.train.MonitoredTrainingSession(run.target, is_chief=run.chief, config=config, hooks=hooks,
                                               log_step_count_steps=None, stop_grace_period_secs=GRACE) as session:
            step_all(run, model, session, turns, step, steps)
            out = results(run, model, session, variables, global_step)
            if not (run.sync or run.free):
                turns.next(session)
        return out


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--cluster", type=json.loads, required=True, help="the addresses of all tasks")
    p.add_argument("--worker", type=int, required=True, help="which worker this is; 0 is the chief")
    p.add_argument("--steps", type=int, default=0, help="instead of each program's own number")
    p.add_argument("--at-most", type=int, default=0, help="no more steps than this where the result is exact")
    p.add_argument("--data", help="folder of the four MNIST files; without it the digits are synthetic")
    p.add_argument("--out", help="append the lines to this file instead of printing them")
    p.add_argument("runs", nargs="+")
    options = p.parse_args()
    quicken()
    for run in [Run(text, options) for text in options.runs]:
        start = time.time()
        out = train(run)
        out["seconds"] = round(time.time() - start, 2)
        line = json.dumps(out)
        if options.out:
            with open(options.out, "a") as f:
                f.write(line + "\n")
        else:
            print(line, flush=True)


if __name__ == "__main__":
    main()
