"""Training functions of the tests of clusters without Spark; the process that trains imports them."""
import os
import signal
import socket
import subprocess
import sys
import time


def note(args, text):
    """Leaves word for the test."""
    with open(os.path.join(args["dir"], text), "w", encoding="utf-8"):
        pass


def returns(args, ctx):
    note(args, f"{ctx.job_name}-{ctx.task_index}-of-{ctx.num_workers}")


def serves(args, ctx):
    """As a script of TensorFlowOnSpark's: ps join, workers end."""
    ctx.keeper.ask("serve", "serving")
    if ctx.job_name == "ps":
        ctx.keeper.wait("stop")
        note(args, f"ps-{ctx.task_index}-returned")
        return
    hosts = [host for job in ctx.cluster_spec.values() for host in job]
    for host in hosts:
        name, port = host.rsplit(":", 1)
        for _ in range(600):
            try:
                socket.create_connection((name, int(port)), timeout=5).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            raise RuntimeError(f"nobody listens at {host}")
    note(args, f"worker-{ctx.task_index}-saw-{len(hosts)}")


def never_returns(args, ctx):
    """A ps of a script that waits for ever, with a process of its own that does too."""
    if ctx.job_name == "ps":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        note(args, f"child-{child.pid}")
        note(args, "ps-waits")
        time.sleep(3600)
    while not os.path.exists(os.path.join(args["dir"], "ps-waits")):
        time.sleep(0.05)


def hangs(args, ctx):
    time.sleep(3600)


def fails(args, ctx):
    if ctx.job_name == "worker":
        raise ValueError("no such luck")
    time.sleep(3600)


def exits(args, ctx):
    os._exit(7)


def dies_once(args, ctx):
    note(args, f"start-{ctx.start}")
    if ctx.start == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def always_dies(args, ctx):
    os.kill(os.getpid(), signal.SIGKILL)


def sums(args, ctx):
    """Takes all rows; dies in the middle if it is told to."""
    feed, total, count = ctx.get_data_feed(), 0, 0
    while not feed.should_stop():
        for row in feed.next_batch(64):
            total, count = total + row[0], count + 1
        if ctx.start == 1 and args.get("dies") and count > 1000:
            os.kill(os.getpid(), signal.SIGKILL)
    note(args, f"sum-{total}-{count}-start-{ctx.start}")


def takes_a_few(args, ctx):
    """Has enough after ten rows, and returns without a word."""
    ctx.get_data_feed().next_batch(10)


def fails_in_feed(args, ctx):
    ctx.get_data_feed().next_batch(10)
    raise ValueError("bad row")


def ignores_the_end(args, ctx):
    feed = ctx.get_data_feed()
    while not feed.should_stop():
        feed.next_batch(10)
    time.sleep(3600)
