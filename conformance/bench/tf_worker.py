"""TensorFlow's side of a native row: one task as its users run it, told line by line what to do (benches/src/worker.rs
says which lines). A worker holds its server and a session on it in the same process, the way that costs TensorFlow least;
a parameter server joins.

  python tf_worker.py --row mnist_async --job worker --task 0 --cluster '{"ps": [...], "worker": [...]}'
"""
import argparse
import contextlib
import json
import os
import queue
import sys
import threading
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))


def cpu_seconds():
    t = os.times()
    return t.user + t.system


def say(line):
    print(line, flush=True)


class Worker:
    def __init__(self, tf, target, model, task):
        self.tf, self.model, self.next = tf, model, 0
        config = tf.ConfigProto(device_filters=["/job:ps", "/job:worker/task:%d" % task] if target else [])
        self.session = tf.Session(target, graph=model.graph, config=config)
        if task == 0:
            for op in model.chief_init:
                self.session.run(op)
        for op in model.worker_init:
            self.once_ready(op)
        if model.background is not None and task == 0:
            threading.Thread(target=self.repeat_for_ever, args=(self.session.make_callable(model.background),), daemon=True).start()
        self.call = self.session.make_callable(model.fetches, feed_list=model.feeds)

    def once_ready(self, op):
        """Runs what needs the chief's variables."""
        while True:
            try:
                return self.session.run(op)
            except self.tf.errors.FailedPreconditionError:
                time.sleep(0.01)

    def repeat_for_ever(self, call):
        """The chief's queue runner."""
        with contextlib.suppress(self.tf.errors.OpError, RuntimeError):
            while True:
                call()

    def step(self):
        self.call(*self.model.steps[self.next])
        self.next = (self.next + 1) % len(self.model.steps)

    def repeat(self, more):
        """Steps until it is enough, one at least; what that took."""
        cpu, begin, steps = cpu_seconds(), time.perf_counter(), 0
        while steps == 0 or more(begin, steps):
            self.step()
            steps += 1
        return json.dumps({"steps": steps, "seconds": time.perf_counter() - begin, "cpu_seconds": cpu_seconds() - cpu})

    def values(self):
        found = self.session.run(self.model.values, dict(zip(self.model.feeds, self.model.example)))
        return json.dumps({name: float(value) for name, value in found.items()})

    def trace(self, path):
        from tensorflow.python.client import timeline
        metadata = self.tf.RunMetadata()
        feeds = dict(zip(self.model.feeds, self.model.steps[self.next]))
        self.session.run(self.model.fetches, feeds, options=self.tf.RunOptions(trace_level=self.tf.RunOptions.FULL_TRACE), run_metadata=metadata)
        with open(path, "w") as f:
            f.write(timeline.Timeline(metadata.step_stats).generate_chrome_trace_format())


def serve(worker, lines):
    while True:
        words = lines.get().split()
        if words[:1] == ["run"]:
            seconds = float(words[1])
            say(worker.repeat(lambda begin, _: time.perf_counter() - begin < seconds))
            if worker.model.background is not None:
                while lines.empty() or lines.get() != "stop":
                    worker.step()
                say("stopped")
        elif words[:1] == ["steps"]:
            count = int(words[1])
            say(worker.repeat(lambda _, steps: steps < count))
        elif words == ["value"]:
            say(worker.values())
        elif words[:1] == ["trace"]:
            worker.trace(words[1])
            say("traced")
        elif words == ["quit"]:
            return
        else:
            raise SystemExit("unknown order: %s" % words)


def read_orders(lines):
    for line in sys.stdin:
        lines.put(line.strip())
    lines.put("quit")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--row", default="")
    p.add_argument("--cluster", type=json.loads, required=True)
    p.add_argument("--job", default="worker")
    p.add_argument("--task", type=int, required=True)
    options = p.parse_args()
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    ps = len(options.cluster.get("ps", []))
    server = None
    if ps:
        server = tf.train.Server(options.cluster, job_name=options.job, task_index=options.task)
    if options.job == "ps":
        server.join()
    import native_models
    model = native_models.build(tf, options.row, ps, options.task, len(options.cluster["worker"]))
    lines = queue.Queue()
    threading.Thread(target=read_orders, args=(lines,), daemon=True).start()
    worker = Worker(tf, server.target if server else "", model, options.task)
    say("ready")
    serve(worker, lines)
    sys.stdout.flush()
    os._exit(0)  # a close could wait for tasks that are gone


if __name__ == "__main__":
    main()
