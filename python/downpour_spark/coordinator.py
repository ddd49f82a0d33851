"""The cluster's book: which nodes have come, whether they train, when all may end.

One coordinator runs in the driver, or with Spark Connect in the first task of the barrier stage. Each node's keeper
(keeper.py) holds one connection to it. A connection that ends, or is silent for `LEASE`, is a lost node on this side
and a lost cluster on the other, so no process outlives its cluster. Messages are lines of JSON.

    gathering --all nodes are in--> running --all workers are done--> ending --all nodes are done--> ended
        \\______________________________ |_______ a node fails or is lost, or abort() ____/--> failed
"""
from __future__ import annotations

import json
import socket
import threading
import time
import uuid
from typing import Any, Callable

from .secret import prove

#: A keeper speaks every few seconds; one that is silent for so long is gone.
LEASE = 60.0
BEAT = 5.0
#: Longer lines are not ours.
MAX_LINE = 16 << 20
#: Jobs that never return by themselves: they end when the others are done.
SERVING = ("ps", "evaluator")


class ClusterError(RuntimeError):
    """Why the cluster did not start, or failed; the first line is the cause."""


class Line:
    """Messages over one connection."""

    def __init__(self, sock: socket.socket):
        sock.settimeout(None)
        self._sock, self._file = sock, sock.makefile("rb")
        self._sending = threading.Lock()

    def send(self, message: dict) -> bool:
        """Sends; false if the other side has gone."""
        data = json.dumps(message).encode() + b"\n"
        try:
            with self._sending:
                self._sock.sendall(data)
            return True
        except OSError:
            return False

    def receive(self) -> dict | None:
        """The next message; nothing at the end."""
        try:
            text = self._file.readline(MAX_LINE)
            return json.loads(text) if text.endswith(b"\n") else None
        except (OSError, ValueError):
            return None

    def limit(self, seconds: float | None) -> None:
        """How long sending and receiving may take."""
        self._sock.settimeout(seconds)

    def keep_alive(self) -> None:
        """Lets the kernel find out when the other host has gone without a word."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 6)):
            if hasattr(socket, name):
                self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def own_host(self) -> str:
        """The address by which the other side sees this one."""
        return self._sock.getsockname()[0]

    def close(self) -> None:
        """Ends it."""
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._file.close()
        self._sock.close()


def dial(address: tuple[str, int], token: str, role: str, within: float = 20.0) -> Line:
    """Connects to a coordinator."""
    line = Line(socket.create_connection(tuple(address), timeout=within))
    line.limit(within)
    hello = line.receive()
    if hello is None or "nonce" not in hello:
        line.close()
        raise ClusterError(f"what listens at {address[0]}:{address[1]} is no coordinator")
    line.send({"proof": prove(token, role, hello["nonce"]), "role": role})
    line.limit(None)
    return line


class Coordinator:
    """Owns the state of one cluster; every method may be called from any thread."""

    def __init__(self, template: list[tuple[str, int]], token: str, host: str = ""):
        #: Job and index of each node, in their order.
        self.template, self._token = template, token
        self.state = "gathering"
        self.error = ""
        #: A worker has asked for the end of the feed.
        self.is_stop_requested = False
        self.is_closed = False
        self.changed = threading.Condition()
        self._nodes: dict[int, dict] = {}
        self._lines: dict[int, Line] = {}
        self._trained: set[int] = set()
        self._done: set[int] = set()
        self.events: list[dict] = []
        self._listener = socket.create_server((host, 0), backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, name="downpour-coordinator", daemon=True).start()

    # --- what the driver asks ----------------------------------------------------------------------

    def wait(self, is_met: Callable[[], bool], timeout: float | None) -> bool:
        """Waits until the state is such; false when the time is over. Raises if the cluster has failed."""
        deadline = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while not is_met():
                if self.state == "failed":
                    raise ClusterError(self.error)
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                # Signals reach the driver's main thread only between two waits.
                self.changed.wait(1.0 if left is None else min(left, 1.0))
            return True

    def names(self, indices: Any) -> str:
        """As in `ps:0, worker:1`."""
        return ", ".join("%s:%d" % self.template[i] for i in sorted(indices))

    def missing(self) -> set[int]:
        """Nodes that have not come."""
        return set(range(len(self.template))) - set(self._nodes)

    def working(self) -> set[int]:
        """Nodes that train and have not returned."""
        workers = {i for i, (job, _) in enumerate(self.template) if job not in SERVING}
        return workers - self._trained - self._done

    def unfinished(self) -> set[int]:
        """Nodes whose processes have not ended."""
        return set(range(len(self.template))) - self._done

    def nodes(self) -> list[dict]:
        """What is known of all nodes, in their order."""
        with self.changed:
            return [self._nodes[i] for i in sorted(self._nodes)]

    def end_feed(self) -> None:
        """Tells all workers that no more rows come."""
        self._tell({"end_of_feed": True})

    def stop(self) -> None:
        """Ends what serves, and what still works."""
        with self.changed:
            if self.state in ("gathering", "running"):
                self.state = "ending"
                self.changed.notify_all()
        self._tell({"stop": True})

    def abort(self, reason: str) -> None:
        """Fails the cluster; the first reason stays."""
        with self.changed:
            if self.state in ("failed", "ended"):
                return
            self.state, self.error = "failed", reason
            self.changed.notify_all()
        self._tell({"abort": reason})

    def close(self) -> None:
        """Lets go of all nodes; those that still run end by themselves."""
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        self._listener.close()
        for line in list(self._lines.values()):
            line.close()

    # --- what nodes say ----------------------------------------------------------------------------

    def _tell(self, message: dict) -> None:
        for line in list(self._lines.values()):
            line.send(message)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        line = Line(sock)
        line.limit(LEASE)
        nonce = uuid.uuid4().hex
        line.send({"nonce": nonce})
        hello = line.receive() or {}
        role = str(hello.get("role"))
        if hello.get("proof") != prove(self._token, role, nonce):
            line.close()
            return
        if role == "control":
            self._control(line)
        else:
            self._keeper(line)
        line.close()

    def _control(self, line: Line) -> None:
        """A driver elsewhere, by way of a Spark task."""
        message = line.receive() or {}
        what = message.get("do")
        if what == "end_feed":
            self.end_feed()
        elif what == "stop":
            self.stop()
        elif what == "abort":
            self.abort(str(message.get("reason")))
        elif what == "close":
            self.close()
        line.send({"state": self.state, "error": self.error, "nodes": self.nodes(),
                   "working": self.names(self.working()), "unfinished": self.names(self.unfinished()),
                   "is_stop_requested": self.is_stop_requested})

    def _keeper(self, line: Line) -> None:
        meta = (line.receive() or {}).get("register")
        if meta is None or not self._register(meta, line):
            return
        index = meta["executor_id"]
        while True:
            message = line.receive()
            if message is None:
                break
            self._note(index, message)
        with self.changed:
            if self._lines.get(index) is not line:
                return
            del self._lines[index]
            is_expected = index in self._done or self.state in ("failed", "ended")
            self._done.add(index)
            self.changed.notify_all()
        if not is_expected:
            self.abort(f"{self.names([index])} on {meta['host']} is lost: the process that keeps it has gone, with its "
                       "executor or by itself; look at the log of that executor")

    def _register(self, meta: dict, line: Line) -> bool:
        index = meta["executor_id"]
        with self.changed:
            if self.state != "gathering":
                line.send({"abort": f"a second {self.names([index])} came to a cluster that is {self.state} already: Spark "
                                    "has started its task again"})
                return False
            before = self._lines.pop(index, None)
            self._nodes[index], self._lines[index] = meta, line
            is_complete = not self.missing()
            if is_complete:
                self.state = "running"
            self.changed.notify_all()
        if before is not None:
            before.send({"abort": "another attempt of Spark's took this node's place"})
        if is_complete:
            self._tell({"cluster": self.nodes()})
        return True

    def _note(self, index: int, message: dict) -> None:
        if "failed" in message:
            name, host = self.names([index]), self._nodes[index]["host"]
            self.abort(f"{name} on {host} failed: {message['failed']}")
            with self.changed:
                self._done.add(index)
                self.changed.notify_all()
        elif "event" in message:
            with self.changed:
                self.events.append({"node": self.names([index]), **message["event"]})
                self.changed.notify_all()
        elif "update" in message:
            with self.changed:
                self._nodes[index].update(message["update"])
        elif message.get("terminating"):
            with self.changed:
                self.is_stop_requested = True
                self.changed.notify_all()
        elif message.get("trained") or message.get("done"):
            self._note_end(index, "done" in message)

    def _note_end(self, index: int, is_done: bool) -> None:
        with self.changed:
            (self._done if is_done else self._trained).add(index)
            # Servers, and what only serves, end with the last that works.
            is_last = self.state == "running" and not self.working()
            if is_last:
                self.state = "ending"
            if self.state == "ending" and not self.unfinished():
                self.state = "ended"
            self.changed.notify_all()
        if is_last:
            self._tell({"stop": True})
