"""A Spark task's end of the feed: sends the rows of one partition to a training process.

A task feeds a worker on its own host through a Unix socket, and one elsewhere over TCP if its host has none. It waits
as long as the training makes progress, and fails with the training's own error when that has failed.
"""
from __future__ import annotations

import collections
import os
import pickle
import select
import socket
import threading
import time
import uuid
from typing import Any, Iterable

from . import frames
from .secret import prove

#: Bytes that may be under way to one worker and not yet acknowledged.
WINDOW = 16 << 20
#: Between two tries to reach a worker whose process is being started again.
RETRY_EVERY = 0.2
#: A worker whose keeper does not even accept a connection for so long is gone.
REACH_WITHIN = 20.0


class TrainingFailed(RuntimeError):
    """The worker that rows were for has failed; the text is its error."""


class FeedTimeout(TimeoutError):
    """The worker has taken nothing for as long as `feed_timeout` allows."""


def host_key() -> str:
    """What tells this host, or container, from others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"


def choose(nodes: list[dict], partition: int) -> dict:
    """The worker that a partition goes to: of this host if there are any, in turn."""
    workers = [n for n in nodes if n.get("feed")]
    if not workers:
        raise RuntimeError("the cluster has no worker that can be fed")
    here = host_key()
    near = [n for n in workers if n["host_key"] == here and os.path.exists(n["feed"]["path"])]
    return (near or workers)[partition % len(near or workers)]


class Feeder:
    """Feeds one partition to one worker."""

    def __init__(self, node: dict, token: str, timeout: float, queue: str, is_inference: bool):
        self._node, self._token, self._queue = node, token, queue
        self._timeout, self._is_inference = timeout, is_inference
        self._name = f"{node['job_name']}:{node['task_index']} on {node['host']}"
        self._stream = uuid.uuid4().hex
        self._changed = threading.Condition()
        self._unacknowledged: collections.deque = collections.deque()
        self._under_way = 0
        self._sent_rows = 0
        self._results: list = []
        self._state = "open"  # or broken, terminated, finished, or failed
        self._error = ""
        self._sock: socket.socket | None = None
        self._moved_at = time.monotonic()

    def feed(self, encoded: Iterable[tuple[int, dict, list, int]]) -> tuple[bool, list]:
        """Sends all chunks; whether the worker wants no more, and the results if it infers."""
        try:
            self._connect()
            number = 0
            for kind, head, body, rows in encoded:
                number += 1
                size = sum(memoryview(b).nbytes for b in body)
                with self._changed:
                    self._unacknowledged.append((number, kind, head, body, size))
                    self._under_way += size
                self._sent_rows += rows
                self._send(kind, number, head, body)
                self._wait(lambda: self._under_way < WINDOW)
                if self._is_over():
                    return self._end()
            self._send(frames.END, number + 1, None, ())
            self._wait(self._is_answered)
            return self._end()
        finally:
            sock, self._sock = self._sock, None
            if sock is not None:
                sock.close()

    def _is_answered(self) -> bool:
        if self._is_inference:
            return len(self._results) >= self._sent_rows
        return not self._unacknowledged

    def _is_over(self) -> bool:
        return self._state in ("terminated", "finished")

    def _end(self) -> tuple[bool, list]:
        if self._is_over() and self._is_inference and len(self._results) < self._sent_rows:
            raise RuntimeError(f"{self._name} has ended its feed with {len(self._results)} results for "
                               f"{self._sent_rows} rows of this partition")
        return self._is_over(), self._results

    def _wait(self, is_met: Any) -> None:
        while True:
            with self._changed:
                while not is_met() and self._state == "open":
                    left = self._moved_at + self._timeout - time.monotonic()
                    if left <= 0:
                        raise FeedTimeout(self._what_is_late())
                    self._changed.wait(min(left, 5))
                if is_met() and self._state != "failed" or self._is_over():
                    return
            self._recover()

    def _what_is_late(self) -> str:
        if self._is_inference:
            return (f"{self._name} has given {len(self._results)} results for {self._sent_rows} rows and none for "
                    f"{self._timeout:g} s: does it call batch_results() with one result for each row?")
        return (f"{self._name} has taken no row for {self._timeout:g} s: its training hangs, or a step takes longer; "
                "a larger feed_timeout waits longer")

    def _recover(self) -> None:
        """After a connection has ended: why, and whether what was not consumed can be sent again."""
        if self._state == "failed":
            raise TrainingFailed(f"{self._name} failed:\n{self._error}")
        if self._is_inference and self._sent_rows:
            raise TrainingFailed(f"{self._name} was lost with a part of this partition; Spark starts the task again")
        self._connect()
        with self._changed:
            again = list(self._unacknowledged)
        for number, kind, head, body, _ in again:
            if self._state != "open":
                return
            self._send(kind, number, head, body)

    def _send(self, kind: int, number: int, head: dict | None, body: Any) -> None:
        if self._state != "open":
            return
        try:
            frames.send_frame(self._sock, kind, number, head, body)
        except TimeoutError:
            raise FeedTimeout(self._what_is_late()) from None
        except OSError:
            # Why, the thread that reads finds out.
            self._wait_for_reason()

    def _wait_for_reason(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._state != "open", timeout=5)
            if self._state == "open":
                self._state = "broken"

    # --- the connection ---------------------------------------------------------------------------

    def _connect(self) -> None:
        deadline = time.monotonic() + self._timeout
        unreachable = time.monotonic() + min(REACH_WITHIN, self._timeout)
        if self._sock is not None:
            self._sock.close()
        while True:
            try:
                sock = self._open()
            except OSError as e:
                if time.monotonic() > unreachable:
                    raise TrainingFailed(f"{self._name} cannot be reached ({e}): its process has gone, look at the "
                                         "log of its executor") from None
                time.sleep(RETRY_EVERY)
                continue
            unreachable = time.monotonic() + REACH_WITHIN
            if self._greet(sock, deadline):
                return
            if time.monotonic() > deadline:
                raise FeedTimeout(f"{self._name} did not come back within {self._timeout:g} s")
            time.sleep(RETRY_EVERY)

    def _open(self) -> socket.socket:
        feed = self._node["feed"]
        if self._node["host_key"] == host_key() and os.path.exists(feed["path"]):
            sock = socket.socket(socket.AF_UNIX)
            address: Any = feed["path"]
        else:
            sock = socket.socket()
            address = (self._node["host"], feed["port"])
        sock.settimeout(min(self._timeout, REACH_WITHIN))
        try:
            sock.connect(address)
        except OSError:
            sock.close()
            raise
        sock.settimeout(self._timeout)
        return sock

    def _greet(self, sock: socket.socket, deadline: float) -> bool:
        try:
            sock.settimeout(max(deadline - time.monotonic(), 0.1))
            hello = frames.receive_frame(sock)
            if hello is not None and hello.kind in (frames.FINISHED, frames.FAILED):
                self._note(hello)
                sock.close()
                if self._state == "failed":
                    raise TrainingFailed(f"{self._name} failed:\n{self._error}")
                return True
            if hello is None:
                sock.close()
                return False
            nonce = uuid.uuid4().hex
            frames.send_frame(sock, frames.HELLO, head={
                "proof": prove(self._token, "feeder", hello.head["nonce"]), "nonce": nonce,
                "queue": self._queue, "stream": self._stream})
            answer = frames.receive_frame(sock)
            if answer is None or answer.head.get("proof") != prove(self._token, "trainer", nonce):
                sock.close()
                return False
        except TrainingFailed:
            raise
        except OSError:
            sock.close()
            return False
        sock.settimeout(self._timeout)
        with self._changed:
            self._sock, self._state, self._moved_at = sock, "open", time.monotonic()
        threading.Thread(target=self._read, args=(sock,), daemon=True).start()
        return True

    def _read(self, sock: socket.socket) -> None:
        try:
            while True:
                # A quiet worker is no fault; one that stops within a frame is.
                if not select.select([sock], [], [], 5)[0]:
                    continue
                frame = frames.receive_frame(sock)
                if frame is None:
                    break
                self._note(frame)
        except (OSError, ValueError, frames.FeedError):
            pass
        with self._changed:
            if self._sock is sock and self._state == "open":
                self._state = "broken"
            self._changed.notify_all()

    def _note(self, frame: frames.Frame) -> None:
        with self._changed:
            self._moved_at = time.monotonic()
            if frame.kind == frames.ACK and frame.number:
                while self._unacknowledged and self._unacknowledged[0][0] <= frame.number:
                    self._under_way -= self._unacknowledged.popleft()[4]
            elif frame.kind == frames.RESULTS:
                self._results += pickle.loads(frame.body)
            elif frame.kind == frames.TERMINATED:
                self._state = "terminated"
            elif frame.kind == frames.FINISHED:
                self._state = "finished"
            elif frame.kind == frames.FAILED:
                self._state, self._error = "failed", frame.head.get("error", "")
            self._changed.notify_all()
