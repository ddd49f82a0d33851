"""Where a row's time goes (`--profile ROW`: a flame graph and one step's timeline) and what a step asks of the system
(`--counts ROW`: system calls, wake-ups, switches, packets and bytes of a step, ours and TensorFlow's)."""
import os
import shutil
import signal
import subprocess
import time

import flame
import native
import native_models

CALLS = ("sendto", "sendmsg", "sendmmsg", "write", "writev", "recvfrom", "recvmsg", "read", "readv", "epoll_wait", "epoll_pwait", "epoll_pwait2",
         "poll", "futex", "sched_yield", "madvise", "mmap", "munmap", "clock_nanosleep")
EVENTS = ["raw_syscalls:sys_enter", "sched:sched_wakeup", "context-switches", "page-faults"] + ["syscalls:sys_enter_" + c for c in CALLS]
NO_PERF = "there is no `perf` (Debian: apt-get install linux-perf, as root)"


def cluster(bench, side, row):
    _, ps, workers = native_models.ROWS[native_models.parse(row)[0]]
    made = native.Cluster(bench, side, row, ps, workers)
    made.round(0.5)
    return made


def profile(bench, row):
    """Writes ROW.json, the timeline of one step, and with perf ROW.svg, the flame graph of all tasks."""
    running = cluster(bench, "ours", row)
    base = os.path.join(bench.options.work, row.replace(":", "_"))
    try:
        running.timeline(base + ".json")
        print("timeline of one step: %s.json (open in chrome://tracing or ui.perfetto.dev)" % base)
        if not shutil.which("perf"):
            print(NO_PERF + ": no flame graph")
            return
        tasks = running.ps + running.workers
        data = base + ".perf"
        record = subprocess.Popen(["perf", "record", "-q", "-F", "997", "--call-graph", "dwarf,16384", "-o", data, "-p", pids(tasks)])
        time.sleep(0.5)
        running.round(bench.seconds)
        record.send_signal(signal.SIGINT)
        record.wait()
    finally:
        running.stop_all()
    script = subprocess.run(["perf", "script", "-i", data, "--no-inline", "-F", "comm,pid,tid,ip,sym"], capture_output=True, text=True, errors="replace").stdout
    tree = flame.read(script, {t.process.pid: t.name.split()[-1] for t in tasks})
    with open(base + ".svg", "w") as f:
        f.write(flame.svg(tree, row))
    os.remove(data)
    print("flame graph: %s.svg" % base)
    for samples, name in flame.hottest(tree):
        print("%6.2f %%  %s" % (100 * samples / tree.samples, name))


def pids(tasks):
    return ",".join(str(t.process.pid) for t in tasks)


class Watch:
    """Counts the system calls and switches of some processes until told to stop."""

    def __init__(self, tasks, path):
        self.path = path
        self.process = subprocess.Popen(["perf", "stat", "-x", ",", "-o", path, "-e", ",".join(EVENTS), "-p", pids(tasks)])

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait()
        counted = {}
        for line in open(self.path):
            fields = line.strip().split(",")
            if len(fields) > 2 and fields[0].isdigit():
                counted[fields[2].split(":")[-1].replace("sys_enter_", "")] = int(fields[0])
        return counted


def loopback():
    """Packets and bytes of the loopback interface so far."""
    for line in open("/proc/net/dev"):
        if line.strip().startswith("lo:"):
            fields = line.split(":")[1].split()
            return int(fields[1]), int(fields[0])
    return 0, 0


def counts(bench, row):
    """What a step asks of the system: {side: {"rate", "packets", "bytes", role: {event: times a step}}}."""
    if not shutil.which("perf"):
        raise native.Failed(NO_PERF)
    return {side: count_side(bench, side, row) for side in native.SIDES}


def count_side(bench, side, row):
    running = cluster(bench, side, row)
    try:
        watches = [(role, Watch(tasks, os.path.join(bench.options.work, role + ".stat"))) for role, tasks in
                   (("ps", running.ps), ("worker", running.workers)) if tasks]
        time.sleep(0.5)
        packets, before = loopback(), running.total_steps
        rate, cpu = running.round(bench.seconds)
        steps = running.total_steps - before
        packets = [(b - a) / steps for a, b in zip(packets, loopback())]
        found = {"rate": rate, "packets": packets[0], "bytes": packets[1], "disturbance": running.disturbance}
        for role, watch in watches:
            found[role] = {"cpu_us": 1e3 * cpu[role], **{name: n / steps for name, n in watch.stop().items()}}
        return found
    finally:
        running.stop_all()


def calls(counted, least=0.05):
    """The system calls of a step by name, most frequent first."""
    order = sorted(CALLS, key=lambda n: -counted.get(n, 0))
    return ", ".join("%s %.2g" % (name, counted[name]) for name in order if counted.get(name, 0) >= least)


def show(row, found):
    print("%-10s %-7s %9s %9s %9s %9s %9s %10s  %s" % (row, "", "CPU us", "calls", "wake-ups", "switches", "packets", "bytes", "system calls of a step"))
    for side, of in found.items():
        for role in ("ps", "worker"):
            if role in of:
                c = of[role]
                print("%-10s %-7s %9.1f %9.2f %9.2f %9.2f %9.2f %10.0f  %s" % (
                    side, role, c["cpu_us"], c.get("sys_enter", 0), c.get("sched_wakeup", 0), c.get("context-switches", 0),
                    of["packets"], of["bytes"], calls(c)), flush=True)
