"""The process that keeps one node of a cluster: `python -m downpour_spark.keeper`, started by the node's Spark task.

It reserves the node's port, joins the cluster (coordinator.py), starts `downpour serve` and the training process, starts them
again when they are killed, and ends them. It never runs a user's code itself. However it ends, nothing stays: its children die
with it, and it ends when its coordinator, its executor, or a Spark task that holds it goes away.
"""
from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from typing import Any

from . import binary, frames
from .coordinator import BEAT, SERVING, ClusterError, Line, dial
from .feeder import host_key

#: What is told to end has so long before it is killed.
STOP_GRACE = 10.0
KILL_GRACE = 3.0
#: Between the end of a process and its next start.
RESTART_AFTER = 0.3
PR_SET_PDEATHSIG = 1
#: Becomes another program that dies with this one.
LAUNCH = ("import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.getppid() == int(sys.argv[1]) or os._exit(1); "
          "os.execv(sys.argv[2], sys.argv[2:])")


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _log(text: str) -> None:
    print(f"downpour_spark: {text}", file=sys.stderr, flush=True)


class Child:
    """A process of a node."""

    def __init__(self, name: str, process: subprocess.Popen):
        self.name, self.process = name, process
        self.failure: str | None = None

    def signal(self, number: int) -> None:
        """To it and what it has started."""
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


class Keeper:
    """One node. Its methods run in the main thread, which handles one event after the other."""

    def __init__(self, spec: dict, payload: bytes):
        self._spec = spec
        self._name = f"{spec['job_name']}:{spec['task_index']}"
        self._dir = tempfile.mkdtemp(prefix="downpour-spark-")
        with open(os.path.join(self._dir, "payload"), "wb") as file:
            file.write(payload)
        self._events: queue.Queue = queue.Queue()
        self._line: Line | None = None
        self._reserved: socket.socket | None = None
        self._listeners: list[socket.socket] = []
        self._children: dict[str, Child] = {}
        self._starts: dict[str, int] = {}
        self._control: Line | None = None
        self._cluster: list[dict] = []
        self._is_trained = self._is_stopping = self._is_feed_ended = False
        self._deadline: float | None = None
        self._code: int | None = None
        self._outcome: tuple[int, dict] | None = None

    def run(self) -> int:
        """Keeps the node to its end; the exit code."""
        try:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.signal(number, lambda n, _: self._events.put(("signal", n)))
            self._watch("task", self._read_task)
            if self._spec.get("watch"):
                self._watch("executor", self._await_executor)
            self._join()
            self._watch("coordinator", self._read_coordinator)
            while self._code is None:
                self._handle()
            return self._code
        except (ClusterError, OSError) as e:
            self._fail(str(e))
            return 1
        finally:
            for child in list(self._children.values()):
                child.signal(signal.SIGKILL)
            shutil.rmtree(self._dir, ignore_errors=True)
            if self._spec.get("info"):
                try:
                    os.unlink(self._spec["info"])
                except OSError:
                    pass

    # --- joining -----------------------------------------------------------------------------------

    def _join(self) -> None:
        spec = self._spec
        try:
            self._line = dial(spec["coordinator"], spec["token"], "keeper")
        except OSError as e:
            host, port = spec["coordinator"]
            raise ClusterError(f"{self._name} does not reach its coordinator at {host}:{port}: {e}") from None
        self._line.keep_alive()
        host = self._line.own_host
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind((host, int(os.environ.get("TENSORFLOW_PORT", 0))))
        meta = {
            "executor_id": spec["index"], "host": host, "job_name": spec["job_name"],
            "task_index": spec["task_index"], "port": self._reserved.getsockname()[1], "tb_pid": 0, "tb_port": 0,
            "addr": self._dir, "host_key": host_key(), "pid": os.getpid()}
        if spec["is_fed"]:
            near = socket.socket(socket.AF_UNIX)
            path = os.path.join(self._dir, "feed")
            near.bind(path)
            far = socket.socket()
            far.bind((host, 0))
            self._listeners = [near, far]
            for listener in self._listeners:
                listener.listen(128)
            meta["feed"] = {"path": path, "port": far.getsockname()[1]}
        if spec["tensorboard"]:
            self._start_tensorboard(meta)
        self._line.send({"register": meta})

    def _start_tensorboard(self, meta: dict) -> None:
        if importlib.util.find_spec("tensorboard") is None:
            raise ClusterError(f"TensorBoard is asked for, and {sys.executable} on {meta['host']} has none: pip install tensorboard")
        port = int(os.environ.get("TENSORBOARD_PORT", 0))
        if not port:
            with socket.create_server((meta["host"], 0)) as free:
                port = free.getsockname()[1]
        directory = self._spec["log_dir"] or f"tensorboard_{self._spec['index']}"
        arguments = ["-m", "tensorboard.main", "--reload_multifile=True", f"--logdir={directory}",
                     f"--host={meta['host']}", f"--port={port}"]
        child = self._spawn("tensorboard", [sys.executable, *arguments])
        meta["tb_pid"], meta["tb_port"] = child.process.pid, port

    # --- what happens --------------------------------------------------------------------------------

    def _watch(self, name: str, read: Any) -> None:
        threading.Thread(target=read, name=name, daemon=True).start()

    def _read_task(self) -> None:
        while os.read(0, 4096):
            pass
        self._events.put(("task", None))

    def _await_executor(self) -> None:
        try:
            with open(os.pidfd_open(self._spec["watch"]), "rb", buffering=0) as handle:
                import select
                select.select([handle], [], [])
        except OSError:
            while os.path.exists(f"/proc/{self._spec['watch']}"):
                time.sleep(1)
        self._events.put(("executor", None))

    def _read_coordinator(self) -> None:
        while True:
            message = self._line.receive()
            self._events.put(("coordinator", message))
            if message is None:
                return

    def _handle(self) -> None:
        timeout = BEAT
        if self._deadline is not None:
            timeout = min(timeout, max(self._deadline - time.monotonic(), 0))
        try:
            kind, what = self._events.get(timeout=timeout)
        except queue.Empty:
            self._line.send({"beat": True})
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self._escalate()
            return
        handler = getattr(self, f"_on_{kind}")
        handler(what)

    def _on_task(self, _: None) -> None:
        if self._spec["hold"] or not self._cluster:
            _log(f"{self._name} ends: its Spark task has ended")
            self._code = 1

    def _on_executor(self, _: None) -> None:
        _log(f"{self._name} ends: its executor has ended")
        self._code = 1

    def _on_signal(self, number: int) -> None:
        self._fail(f"the process that keeps it got signal {number}")
        self._code = 1

    def _on_coordinator(self, message: dict | None) -> None:
        if message is None:
            if not self._is_stopping:
                _log(f"{self._name} ends: the cluster's driver has gone")
            self._code = 0 if self._is_stopping else 1
        elif "cluster" in message:
            self._start(message["cluster"])
        elif "end_of_feed" in message:
            self._is_feed_ended = True
            self._tell_trainer({"end_of_feed": True})
        elif "stop" in message:
            self._stop(0, {})
        elif "abort" in message:
            self._stop(1, {"error": message["abort"]})

    def _on_trainer(self, message: dict) -> None:
        if message.get("serve"):
            self._serve()
            self._tell_trainer({"serving": True})
        elif message.get("release_port"):
            self._release_port()
            self._tell_trainer({"released": True})
        elif "failed" in message and "trainer" in self._children:
            self._children["trainer"].failure = message["failed"]
        elif "terminating" in message:
            self._line.send(message)

    def _on_exit(self, child: Child) -> None:
        if self._children.get(child.name) is not child:
            return
        # What it has started does not outlive it.
        child.signal(signal.SIGKILL)
        del self._children[child.name]
        code = child.process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if self._is_stopping:
            self._finish_if_empty()
        elif child.name == "tensorboard":
            _log(f"TensorBoard {how}")
        elif child.name == "trainer" and code == 0 and child.failure is None:
            self._trained()
        elif child.name == "trainer" and child.failure is not None:
            self._fail(child.failure)
        elif child.name == "trainer" and code > 0:
            self._fail(f"its training process {how}, without an exception")
        elif self._starts[child.name] > self._spec["restarts"]:
            self._fail(f"its {child.name} {how}, after {self._starts[child.name]} starts")
        else:
            self._line.send({"event": {"what": f"{child.name} {how}; it is started again", "pid": child.process.pid}})
            _log(f"{self._name}: {child.name} (process {child.process.pid}) {how}; it is started again")
            time.sleep(RESTART_AFTER)
            self._start_trainer() if child.name == "trainer" else self._serve()

    # --- its processes -------------------------------------------------------------------------------

    def _spawn(self, name: str, command: list[str], **how: Any) -> Child:
        self._starts[name] = self._starts.get(name, 0) + 1
        how.setdefault("env", None)
        launched = [sys.executable, "-S", "-E", "-c", LAUNCH, str(os.getpid()), *command]
        process = subprocess.Popen(launched, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(),
                                   start_new_session=True, **how)
        child = Child(name, process)
        self._children[name] = child

        def wait() -> None:
            process.wait()
            self._events.put(("exit", child))
        self._watch(name, wait)
        self._tell_pids()
        return child

    def _tell_pids(self) -> None:
        if self._cluster:
            pids = {name: child.process.pid for name, child in self._children.items()}
            self._line.send({"update": {"pids": pids}})

    def _start(self, cluster: list[dict]) -> None:
        self._cluster = cluster
        if self._spec.get("info"):
            self._publish()
        if self._spec["serve"]:
            self._serve()
        elif self._spec["release_port"]:
            self._release_port()
        # A server of ours needs nobody's program.
        if not (self._spec["serve"] and self._spec["job_name"] == "ps"):
            self._start_trainer()
        print("ready", flush=True)

    def _publish(self) -> None:
        """Leaves word of the cluster on this host, for tasks that are not told where its nodes are."""
        folder = os.path.dirname(self._spec["info"])
        os.makedirs(folder, mode=0o700, exist_ok=True)
        if os.stat(folder).st_uid != os.getuid():
            raise ClusterError(f"{folder} belongs to another user")
        own = f"{self._spec['info']}.{self._spec['index']}"
        with open(own, "w", encoding="utf-8") as file:
            json.dump({"coordinator": self._spec["coordinator"], "nodes": self._cluster}, file)
        os.replace(own, self._spec["info"])

    def _release_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None

    def _hosts(self) -> dict[str, list[str]]:
        spec: dict[str, list[str]] = {}
        for node in self._cluster:
            spec.setdefault(node["job_name"], []).append(f"{node['host']}:{node['port']}")
        return spec

    def _serve(self) -> None:
        if "server" in self._children or self._is_stopping:
            return
        self._release_port()
        command = [binary.path(), "serve", "--job", self._spec["job_name"], "--task", str(self._spec["task_index"]),
                   "--cluster", json.dumps(self._hosts()), "--drain", "2s"]
        environment = {k: v for k, v in os.environ.items() if k not in ("TF_CONFIG", "DOWNPOUR_CONFIG", "DOWNPOUR_BINARY")}
        self._spawn("server", command, env=environment)

    def _start_trainer(self) -> None:
        if self._is_stopping:
            return
        here, there = socket.socketpair()
        spec = dict(self._spec, cluster=self._cluster, cluster_spec=self._hosts(), dir=self._dir, control=there.fileno(),
                    listeners=[s.fileno() for s in self._listeners], start=self._starts.get("trainer", 0) + 1,
                    is_feed_ended=self._is_feed_ended)
        path = os.path.join(self._dir, "trainer.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file)
        fds = (there.fileno(), *spec["listeners"])
        control = Line(here)
        self._control = control
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in self._spec["sys_path"] if p))
        self._spawn("trainer", [sys.executable, "-m", "downpour_spark.trainer", path], pass_fds=fds, env=environment)
        there.close()

        def read() -> None:
            while (message := control.receive()) is not None:
                self._events.put(("trainer", message))
        self._watch("control", read)

    def _tell_trainer(self, message: dict) -> None:
        if self._control is not None:
            self._control.send(message)

    # --- the end ---------------------------------------------------------------------------------------

    def _trained(self) -> None:
        self._is_trained = True
        self._answer_feeders(frames.FINISHED, {})
        self._line.send({"trained": True})
        if self._spec["job_name"] in SERVING and "server" not in self._children:
            self._stop(0, {})

    def _fail(self, reason: str) -> None:
        if self._line is not None:
            self._line.send({"failed": reason})
        _log(f"{self._name} failed: {reason}")
        self._stop(1, {"error": f"{self._name} failed: {reason}"})

    def _answer_feeders(self, kind: int, head: dict) -> None:
        """Tasks that feed a worker which has no training process any more are told so."""
        def answer(listener: socket.socket) -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                    with sock:
                        sock.settimeout(5)
                        frames.send_frame(sock, kind, 0, head)
                except OSError:
                    return
        for listener in self._listeners:
            threading.Thread(target=answer, args=(listener,), daemon=True).start()

    def _stop(self, code: int, head: dict) -> None:
        if self._is_stopping:
            return
        self._is_stopping, self._outcome = True, (code, head)
        if code or self._is_trained:
            for child in self._children.values():
                child.signal(signal.SIGTERM)
            self._deadline = time.monotonic() + KILL_GRACE
        else:
            self._tell_trainer({"stop": True})
            if "trainer" not in self._children:
                for child in self._children.values():
                    child.signal(signal.SIGTERM)
            self._deadline = time.monotonic() + STOP_GRACE
        self._finish_if_empty()

    def _escalate(self) -> None:
        """The time to end is over."""
        if self._deadline is not None:
            self._deadline = time.monotonic() + KILL_GRACE
            for child in self._children.values():
                child.signal(signal.SIGKILL)

    def _finish_if_empty(self) -> None:
        if "trainer" not in self._children:
            for child in self._children.values():
                child.signal(signal.SIGTERM)
        if self._children:
            return
        code, head = self._outcome
        self._deadline = None
        if self._line is None:
            self._code = code
            return
        if not self._is_trained:
            self._answer_feeders(frames.FAILED if code else frames.FINISHED, head)
        self._line.send({"done": True})
        if self._listeners:
            # Tasks that still feed are answered, until the driver closes the cluster.
            return
        self._code = code


def main() -> int:
    """Reads what to keep from stdin."""
    size = int(sys.stdin.buffer.readline())
    spec = json.loads(sys.stdin.buffer.read(size))
    payload = sys.stdin.buffer.read(spec["payload"])
    keeper = Keeper(spec, payload)
    code = keeper.run()
    if code and keeper._outcome is not None:
        try:
            print(json.dumps(keeper._outcome[1]), flush=True)
        except OSError:
            # The task has gone before.
            pass
    return code


if __name__ == "__main__":
    end = main()
    # Threads that still read hold nothing up.
    os._exit(end)
