"""Clusters that end: our ps and workers under the stock client, with --exit-when-done and with SIGTERM.

  python ending.py --server target/release/downpour --work target/ending [--only NAME]
"""
import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import servers

# How long nothing must be used before tasks exit. Clients here never pause for as long.
GRACE = 3
# Everything takes seconds; this is for a machine that does much else.
PATIENCE = 120


class Tasks:
    """Our tasks of a cluster, `{job: count}`; `ours` says which are started."""

    def __init__(self, options, name, jobs, ours, flags):
        self.options, self.name, self.flags = options, name, flags
        self.spec = {job: ["127.0.0.1:%d" % servers.free_port() for _ in range(n)] for job, n in jobs.items()}
        self.tasks = {}
        for job in ours:
            for task in range(len(self.spec[job])):
                self.start(job, task)

    def log(self, job, task):
        return os.path.join(self.options.work, "%s_%s%d.log" % (self.name, job, task))

    def start(self, job, task):
        command = "%s serve --job %s --task %d --cluster %s %s" % (
            shlex.quote(self.options.server), job, task, shlex.quote(json.dumps(self.spec)), self.flags)
        port = int(self.spec[job][task].rsplit(":", 1)[1])
        self.tasks[job, task] = servers.Server(command, self.log(job, task), port=port)

    def target(self, job, task):
        return "grpc://" + self.spec[job][task]

    def all_exit(self, last_line):
        """Fails unless every task ends by itself, with code 0 and this line."""
        for (job, task), server in self.tasks.items():
            try:
                code = server.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                raise RuntimeError("%s %d still runs" % (job, task))
            with open(self.log(job, task)) as log:
                lines = log.read().splitlines()
            if code != 0 or lines[-1] != last_line:
                raise RuntimeError("%s %d ended with %s and %r" % (job, task, code, lines[-3:]))

    def stop(self):
        for server in self.tasks.values():
            server.stop()


def model(tf, spec, worker_device):
    """A variable that two workers train, and the count of those that have joined."""
    setter = tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(spec), worker_device=worker_device)
    with tf.device(setter):
        w = tf.get_variable("w", initializer=tf.zeros([4]))
        joined = tf.get_variable("joined", initializer=0, dtype=tf.int32, trainable=False)
        step = tf.train.get_or_create_global_step()
        loss = tf.reduce_sum(tf.square(w - 3.0))
        apply = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
        return joined, tf.assign_add(joined, 1), step, apply


def work(tf, spec, target, job, task, is_chief, filters, workers=2, initialised=None):
    """One worker's client: joins, trains until all have joined, then 50 steps more."""
    config = tf.ConfigProto()
    if filters:
        config.device_filters.extend(["/job:ps", "/job:%s/task:%d" % (job, task)])
    with tf.Graph().as_default():
        joined, join, step, apply = model(tf, spec, "/job:%s/task:%d" % (job, task))
        with tf.train.MonitoredTrainingSession(target, is_chief=is_chief, config=config) as session:
            session.run(join)
            if initialised is not None:
                initialised()
            end = time.time() + PATIENCE
            while session.run([joined, apply])[0] < workers:
                if time.time() > end:
                    raise RuntimeError("the other worker never came")
            for _ in range(50):
                session.run(apply)
            return session.run(step)


def our_workers(tf, options, filters):
    """The clients are outside; ps and workers are ours and exit when the clients are done."""
    tasks = Tasks(options, "filtered" if filters else "ours", {"ps": 2, "worker": 2}, ["ps", "worker"],
                  "--exit-when-done --done-after %ds" % GRACE)
    try:
        ready, failed = threading.Event(), []

        def client(task):
            try:
                if task > 0:
                    # Otherwise it would find no variables and look again after 30 s.
                    ready.wait(PATIENCE)
                work(tf, tasks.spec, tasks.target("worker", task), "worker", task, task == 0, filters, initialised=ready.set)
            except Exception as e:
                failed.append("worker %d: %s: %s" % (task, type(e).__name__, e))
        threads = [threading.Thread(target=client, args=(task,)) for task in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise RuntimeError("; ".join(failed))
        start = time.time()
        tasks.all_exit("the training is done")
        return "all exited %.1f s after the last session" % (time.time() - start)
    finally:
        tasks.stop()


def their_workers(tf, options):
    """Chief and worker are TensorFlow's own, clients inside; our ps exit when those have ended."""
    tasks = Tasks(options, "theirs", {"ps": 2, "chief": 1, "worker": 1}, ["ps"],
                  "--exit-when-done --done-after %ds" % GRACE)
    clients = []
    try:
        for job in ("chief", "worker"):
            argv = [sys.executable, os.path.abspath(__file__), "--client", job, "--spec", json.dumps(tasks.spec)]
            with open(tasks.log("client_" + job, 0), "ab") as log:
                clients.append(subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True))
            if job == "chief" and clients[0].stdout.readline() != "initialised\n":
                raise RuntimeError("the chief did not begin")
        for client in clients:
            client.stdout.read()
            if client.wait(PATIENCE) != 0:
                raise RuntimeError("a client ended with code %s" % client.returncode)
        start = time.time()
        tasks.all_exit("the training is done")
        return "all exited %.1f s after the last worker" % (time.time() - start)
    finally:
        for client in clients:
            if client.poll() is None:
                client.kill()
            client.wait()
        tasks.stop()


def killed_client(tf, options):
    """A client is killed and another takes its place: the session that nobody closed keeps no task."""
    tasks = Tasks(options, "killed", {"ps": 1, "worker": 1}, ["ps", "worker"], "--exit-when-done --done-after %ds" % GRACE)
    argv = [sys.executable, os.path.abspath(__file__), "--client", "worker", "--spec", json.dumps(tasks.spec),
            "--target", tasks.target("worker", 0)]
    client = None
    try:
        with open(tasks.log("client_worker", 0), "ab") as log:
            client = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True)
        if client.stdout.readline() != "initialised\n":
            raise RuntimeError("the client did not begin")
        client.kill()
        client.wait()
        work(tf, tasks.spec, tasks.target("worker", 0), "worker", 0, True, False, workers=1)
        start = time.time()
        tasks.all_exit("the training is done")
        return "all exited %.1f s after the second client" % (time.time() - start)
    finally:
        if client is not None and client.poll() is None:
            client.kill()
            client.wait()
        tasks.stop()


def client_main(options):
    """A TensorFlow task with its client inside, as TF1 programs are; with --target only the client."""
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    spec = json.loads(options.spec)
    if options.target:
        work(tf, spec, options.target, options.client, 0, True, False, initialised=lambda: print("initialised", flush=True))
        return
    server = tf.train.Server(tf.train.ClusterSpec(spec), job_name=options.client, task_index=0)
    work(tf, spec, server.target, options.client, 0, options.client == "chief", True,
         initialised=lambda: print("initialised", flush=True))
    # The server has no way to end but with its process.
    os._exit(0)


def drained(tf, options):
    """A ps is told to end and is started again: it exits 0, and the client trains on by itself."""
    tasks = Tasks(options, "drained", {"ps": 2, "worker": 1}, ["ps", "worker"], "")
    folder = os.path.join(options.work, "drained_%d" % os.getpid())
    try:
        with tf.Graph().as_default():
            _, _, step, apply = model(tf, tasks.spec, "/job:worker/task:0")
            hooks = [tf.train.StopAtStepHook(last_step=400)]
            ended, seen, start = None, 0, time.time()
            with tf.train.MonitoredTrainingSession(tasks.target("worker", 0), is_chief=True, checkpoint_dir=folder, hooks=hooks,
                                                   save_checkpoint_steps=20, save_summaries_steps=None, log_step_count_steps=None) as session:
                while not session.should_stop():
                    if time.time() - start > PATIENCE:
                        raise RuntimeError("no end; last step seen %s" % seen)
                    seen = session.run([step, apply])[0]
                    if seen >= 100 and ended is None:
                        process = tasks.tasks["ps", 0].process
                        process.send_signal(signal.SIGTERM)
                        ended = process.wait(PATIENCE)
                        tasks.start("ps", 0)
        if ended != 0 or seen < 390:
            raise RuntimeError("the ps ended with %s, the training at step %s" % (ended, seen))
        return "the ps exited 0, the training went on to step %d" % seen
    finally:
        tasks.stop()


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", help="the downpour program")
    p.add_argument("--work", help="folder for logs and checkpoints")
    p.add_argument("--only", help="one case")
    p.add_argument("--client", help=argparse.SUPPRESS)
    p.add_argument("--spec", help=argparse.SUPPRESS)
    p.add_argument("--target", help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.client:
        return client_main(options)
    options.server = os.path.abspath(options.server)
    options.work = os.path.join(options.work, str(os.getpid()))
    os.makedirs(options.work, exist_ok=True)
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    cases = {
        "our_workers": lambda: our_workers(tf, options, False),
        "our_workers_filtered": lambda: our_workers(tf, options, True),
        "their_workers": lambda: their_workers(tf, options),
        "killed_client": lambda: killed_client(tf, options),
        "drained": lambda: drained(tf, options),
    }
    passed, failed = 0, 0
    for name, case in cases.items():
        if options.only not in (None, name):
            continue
        try:
            note, passed = case(), passed + 1
            print("ok   ending/%s: %s" % (name, note), flush=True)
        except Exception as e:
            failed += 1
            print("FAIL ending/%s: %s: %s" % (name, type(e).__name__, e), flush=True)
    print("ending: %d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
