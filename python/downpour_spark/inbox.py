"""The training process's end of the feed: accepts feeding tasks, keeps what they send, acknowledges it.

Rows count as consumed, and are acknowledged, when the training asks for the batch after theirs, or when it waits
for more. What was not acknowledged is sent again to a training process that was started in place of
one that died. Rows of one partition go with results to the task that sent them, whatever other tasks feed.
"""
from __future__ import annotations

import collections
import pickle
import socket
import threading
import time
import uuid
from typing import Any, Callable

from . import frames
from .secret import prove

#: How often feeding tasks are told that rows are taken from a chunk that is not used up.
PROGRESS_EVERY = 1.0
#: So many partitions are remembered after their connections, for those that come again.
KNOWN = 1024


class Stream:
    """One partition on its way from a feeding task."""

    def __init__(self, name: str):
        self.name = name
        self.sock: socket.socket | None = None
        #: The newest chunk that training has begun with, and the newest that it has used up.
        self.handed = self.used = 0
        self.told_at = 0.0
        self._sending = threading.Lock()

    def acknowledge(self, number: int) -> None:
        """Says that rows up to this chunk are used."""
        self.used = max(self.used, number)
        self.send(frames.ACK, number)

    def send(self, kind: int, number: int = 0, head: dict | None = None, body: Any = ()) -> None:
        """Tells the feeding task; one that has gone will come again, or fails by itself."""
        sock = self.sock
        if sock is None:
            return
        try:
            with self._sending:
                frames.send_frame(sock, kind, number, head, body)
        except OSError:
            pass


class Inbox:
    """What arrived for one queue, in order."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.items: collections.deque = collections.deque()
        self.streams: dict[str, Stream] = {}
        self.is_ended = False
        self.is_terminated = False

    def next(self, only: Stream | None, before_waiting: Callable[[], None]) -> tuple | None:
        """The next `(stream, number, chunk)`, of one stream if that is asked for; a partition's end has no
        chunk. Nothing when no more will come."""
        with self.changed:
            is_told = False
            while True:
                if self.is_terminated:
                    return None
                for i, item in enumerate(self.items):
                    if only is None or item[0] is only:
                        del self.items[i]
                        if item[2] is not None:
                            item[0].handed = item[1]
                        return item
                if only is not None and self.streams.get(only.name) is not only:
                    # Its task has gone: Spark starts it again, from the beginning.
                    return only, 0, None
                if self.is_ended:
                    return None
                if not is_told:
                    is_told = True
                    before_waiting()
                    continue
                self.changed.wait()


class FeedServer:
    """Accepts feeding tasks on sockets that listen already. In TensorFlowOnSpark's terms, `ctx.mgr`."""

    def __init__(self, listeners: list[socket.socket], token: str, names: list[str],
                 tell: Callable[[dict], None] = lambda message: None):
        self._token, self._tell = token, tell
        self.inboxes = {name: Inbox() for name in names if name != "error"}
        self._values: dict[str, Any] = {"state": "running"}
        #: Partitions by name, also of connections that have ended.
        self._known: dict[str, Stream] = {}
        for listener in listeners:
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def inbox(self, name: str) -> Inbox:
        """A queue by its name."""
        try:
            return self.inboxes[name]
        except KeyError:
            known = ", ".join(sorted(self.inboxes))
            raise ValueError(f"there is no queue '{name}', only {known}") from None

    def get(self, key: str) -> Any:
        """A value that was set in this process; `state` is running, terminating or stopped."""
        return self._values[key]

    def set(self, key: str, value: Any) -> None:
        """Keeps a value."""
        self._values[key] = value

    def end(self) -> None:
        """No more rows will come."""
        for inbox in self.inboxes.values():
            with inbox.changed:
                inbox.is_ended = True
                inbox.changed.notify_all()

    def terminate(self, name: str) -> None:
        """No more rows are wanted: feeding tasks are told, and what has arrived is dropped."""
        inbox = self.inbox(name)
        self.set("state", "terminating")
        with inbox.changed:
            inbox.is_terminated = True
            inbox.items.clear()
            streams = list(inbox.streams.values())
            inbox.changed.notify_all()
        for stream in streams:
            stream.send(frames.TERMINATED)
        self._tell({"terminating": name})

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        stream = inbox = None
        try:
            stream, inbox = self._greet(sock)
            if stream is None:
                return
            while True:
                frame = frames.receive_frame(sock)
                if frame is None:
                    return
                if frame.kind not in (frames.COLUMNS, frames.PICKLED, frames.END):
                    raise frames.FeedError(f"a frame of kind {frame.kind} from a feeding task")
                # What training has begun with comes again after a broken connection.
                if frame.kind != frames.END and frame.number <= stream.handed:
                    if frame.number <= stream.used:
                        stream.acknowledge(stream.used)
                    continue
                chunk = None if frame.kind == frames.END else frames.decode_chunk(frame)
                with inbox.changed:
                    if not inbox.is_terminated:
                        inbox.items.append((stream, frame.number, chunk))
                        inbox.changed.notify_all()
        except (OSError, ConnectionError, frames.FeedError):
            pass
        finally:
            sock.close()
            if stream is not None and stream.sock is sock:
                with inbox.changed:
                    stream.sock = None
                    inbox.streams.pop(stream.name, None)
                    inbox.items = collections.deque(i for i in inbox.items if i[0] is not stream)
                    inbox.changed.notify_all()

    def _greet(self, sock: socket.socket) -> tuple[Stream | None, Inbox | None]:
        nonce = uuid.uuid4().hex
        frames.send_frame(sock, frames.HELLO, head={"nonce": nonce})
        hello = frames.receive_frame(sock)
        if hello is None or hello.head.get("proof") != prove(self._token, "feeder", nonce):
            return None, None
        inbox = self.inbox(hello.head["queue"])
        name = hello.head["stream"]
        with inbox.changed:
            stream = self._known.pop(name, None) or Stream(name)
            self._known[name] = stream
            while len(self._known) > KNOWN:
                del self._known[next(iter(self._known))]
            stream.sock = sock
            inbox.streams[stream.name] = stream
            is_terminated = inbox.is_terminated
        stream.send(frames.HELLO, head={"proof": prove(self._token, "trainer", hello.head["nonce"])})
        if is_terminated:
            stream.send(frames.TERMINATED)
        return stream, inbox


class Taker:
    """Takes batches from a queue and gives results back; what `DataFeed` is made of. For one thread."""

    def __init__(self, server: FeedServer, name: str, is_training: bool):
        self._server, self._inbox, self._is_training = server, server.inbox(name), is_training
        self._name = name
        self._chunk: frames.Chunk | None = None
        self._stream: Stream | None = None
        self._number = self._at = 0
        self._used: list[tuple[Stream, int]] = []
        #: Rows that were handed out and have no results yet, in order.
        self._owed: collections.deque = collections.deque()
        self.is_done = False

    def take(self, count: int) -> list[tuple[frames.Chunk, int, int]]:
        """Up to so many rows, as parts of chunks. Fewer at the end of the feed; without training, at
        the end of a partition too."""
        self._acknowledge()
        parts, have = [], 0
        while have < count and not self.is_done:
            if self._chunk is None and not self._next_chunk(have):
                break
            if self._chunk is None:
                continue
            end = min(self._at + count - have, self._chunk.count)
            parts.append((self._chunk, self._at, end))
            if not self._is_training:
                self._owed.append([self._stream, end - self._at])
            have += end - self._at
            self._at = end
            self._progress()
            if end == self._chunk.count:
                self._used.append((self._stream, self._number))
                self._chunk = None
        return parts

    def _next_chunk(self, have: int) -> bool:
        """Gets a chunk, if one comes; false when the batch ends here."""
        only = None if self._is_training else self._stream
        item = self._inbox.next(only, self._acknowledge)
        if item is None:
            self._acknowledge()
            self.is_done = True
            return False
        stream, number, chunk = item
        if chunk is None:
            self._stream = None
            return self._is_training or have == 0
        self._stream, self._number, self._chunk, self._at = stream, number, chunk, 0
        if chunk.count == 0:
            self._chunk = None
        return True

    def _acknowledge(self) -> None:
        for stream, number in self._used:
            stream.acknowledge(number)
        self._used.clear()

    def _progress(self) -> None:
        now, stream = time.monotonic(), self._stream
        if now - stream.told_at > PROGRESS_EVERY:
            stream.told_at = now
            stream.send(frames.ACK, 0)

    def give(self, results: list) -> None:
        """Gives results for the rows that were taken first and have none."""
        results = list(results)
        owed = sum(count for _, count in self._owed)
        if self._is_training:
            raise RuntimeError("results are only for a feed of inference: DataFeed(…, train_mode=False)")
        if len(results) > owed:
            raise ValueError(f"there are {len(results)} results for {owed} rows; each row has one")
        at = 0
        while at < len(results):
            stream, count = self._owed[0]
            part = results[at:at + count]
            at += len(part)
            if len(part) == count:
                self._owed.popleft()
            else:
                self._owed[0][1] -= len(part)
            stream.send(frames.RESULTS, 0, {"rows": len(part)}, [pickle.dumps(part, protocol=5)])

    def terminate(self) -> None:
        """Ends the feed from this side."""
        self._acknowledge()
        self._chunk = None
        self.is_done = True
        self._server.terminate(self._name)
