"""Frames between the tasks that feed rows and the process that trains on them.

A frame is a header, a small JSON head and a body of raw bytes. Rows travel as columns: a chunk of
rows becomes one array for each column, so that neither side touches single values. What has no
such form (objects, rows of different shapes) travels as one pickle for the whole chunk.
`decode_chunk(encode_rows(rows))` gives back rows that are equal to the ones that went in, of the same
python types; only integers and floats mixed in one list become floats.
"""
from __future__ import annotations

import itertools
import json
import pickle
import socket
import struct
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import numpy as np

HEADER = struct.Struct("<4sBxxxIIQ")
MAGIC = b"dwnF"
#: Heads are small; a larger one is not ours.
MAX_HEAD = 16 << 20
#: A chunk is cut at about this many bytes.
CHUNK_BYTES = 1 << 20
#: Rows of the first chunk, before it is known how large rows are.
FIRST_ROWS = 16
MAX_ROWS = 65536

# From the feeding task.
HELLO, COLUMNS, PICKLED, END = 1, 2, 3, 4
# To the feeding task.
ACK, RESULTS, TERMINATED, FAILED, FINISHED = 11, 12, 13, 14, 15

#: Columns start at multiples of this, so that arrays over them are aligned.
ALIGN = 64
#: Wider tuples are taken as one column when all their values are numbers.
WIDE = 64


class Frame(NamedTuple):
    """A frame as it was received."""

    kind: int
    number: int
    head: dict
    body: memoryview


class FeedError(RuntimeError):
    """What arrived is no frame of ours."""


def send_frame(sock: socket.socket, kind: int, number: int = 0, head: dict | None = None,
               body: Sequence[Any] = ()) -> None:
    """Sends one frame; `body` is a sequence of buffers that are sent one after the other."""
    text = json.dumps(head).encode() if head else b""
    parts = [memoryview(b).cast("B") for b in body]
    size = sum(len(p) for p in parts)
    _send_all(sock, [memoryview(HEADER.pack(MAGIC, kind, number, len(text), size) + text), *parts])


def _send_all(sock: socket.socket, parts: list[memoryview]) -> None:
    parts = [p for p in parts if len(p)]
    while parts:
        sent = sock.sendmsg(parts[:64])
        while parts and sent >= len(parts[0]):
            sent -= len(parts[0])
            parts.pop(0)
        if sent:
            parts[0] = parts[0][sent:]


def receive_frame(sock: socket.socket) -> Frame | None:
    """Receives one frame; nothing if the other side has closed the connection between two."""
    header = _receive(sock, HEADER.size, may_end=True)
    if header is None:
        return None
    magic, kind, number, head_size, size = HEADER.unpack(header)
    if magic != MAGIC or head_size > MAX_HEAD:
        raise FeedError("what arrived on the feed's socket is no frame of downpour_spark")
    head = json.loads(bytes(_receive(sock, head_size))) if head_size else {}
    return Frame(kind, number, head, _receive(sock, size) if size else memoryview(b""))


def _receive(sock: socket.socket, size: int, may_end: bool = False) -> memoryview | None:
    # An array of numpy's is not cleared first, and is aligned.
    buffer = memoryview(np.empty(size, np.uint8)).cast("B")
    at = 0
    while at < size:
        got = sock.recv_into(buffer[at:])
        if got == 0:
            if may_end and at == 0:
                return None
            raise ConnectionError("the connection ended within a frame")
        at += got
    return buffer


# --- rows to columns -----------------------------------------------------------------------------

def chunks(rows: Iterable[Any]) -> Iterator[tuple[int, dict, list, int]]:
    """Cuts rows into chunks of about `CHUNK_BYTES`: kind of frame, head, buffers, number of rows."""
    iterator, count = iter(rows), FIRST_ROWS
    while True:
        part = list(itertools.islice(iterator, count))
        if not part:
            return
        kind, head, body = encode_rows(part)
        yield kind, head, body, len(part)
        size = sum(memoryview(b).nbytes for b in body)
        fitting = max(1, len(part) * CHUNK_BYTES // max(size, 1))
        count = max(1, min(fitting, count * 4, MAX_ROWS))


def encode_rows(rows: list) -> tuple[int, dict, list]:
    """Makes columns of rows, or one pickle where there are none."""
    try:
        head, body = _encode_columns(rows)
    except (ValueError, TypeError, OverflowError):
        return PICKLED, {"rows": len(rows)}, [pickle.dumps(rows, protocol=5)]
    return COLUMNS, head, body


def _encode_columns(rows: list) -> tuple[dict, list]:
    kinds = set(map(type, rows))
    if len(kinds) != 1:
        raise ValueError("rows of several types")
    kind = kinds.pop()
    names = None
    if kind is list or (kind is tuple and len(rows[0]) > WIDE):
        shape, columns = "bare", [rows]
        try:
            return _pack(rows, shape, names, columns)
        except (ValueError, TypeError, OverflowError):
            pass
    if kind in (tuple, list) or kind.__name__ == "Row":
        width = len(rows[0])
        if any(len(r) != width for r in rows) or width == 0:
            raise ValueError("rows of several widths")
        shape, columns = kind.__name__.lower(), list(zip(*rows))
        if shape == "row":
            names = list(getattr(rows[0], "__fields__", ())) or None
            if names is None or any(getattr(r, "__fields__", None) != rows[0].__fields__ for r in rows):
                raise ValueError("rows with different fields")
    else:
        shape, columns = "bare", [rows]
    return _pack(rows, shape, names, columns)


def _pack(rows: list, shape: str, names: list | None, columns: list) -> tuple[dict, list]:
    heads, body, at = [], [], 0
    for column in columns:
        head, buffers = _encode_column(column)
        for buffer in buffers:
            view = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
            gap = -at % ALIGN
            if gap:
                body.append(bytes(gap))
            head.setdefault("at", []).append([at + gap, len(view)])
            body.append(view)
            at += gap + len(view)
        heads.append(head)
    return {"rows": len(rows), "shape": shape, "names": names, "columns": heads}, body


#: Python's numbers and the types of arrays that hold them exactly.
_SCALARS = {int: np.dtype(np.int64), float: np.dtype(np.float64), bool: np.dtype(np.bool_)}


def _encode_column(values: Sequence) -> tuple[dict, list]:
    kinds = set(map(type, values))
    if len(kinds) != 1:
        raise ValueError("a column of several types")
    kind = kinds.pop()
    if kind in _SCALARS:
        return _array("scalar", np.array(values, dtype=_SCALARS[kind]))
    if kind is np.ndarray:
        first = values[0]
        if first.dtype.kind not in "biufc" or any(
                v.shape != first.shape or v.dtype != first.dtype for v in values):
            raise ValueError("arrays of several shapes or types")
        return _array("array", np.stack(values))
    if issubclass(kind, np.generic) and np.dtype(kind).kind in "biuf":
        return _array("generic", np.array(values, dtype=kind))
    if kind in (list, tuple):
        array = np.array(values)
        inner = values[0]
        while isinstance(inner, (list, tuple)):
            inner = inner[0] if inner else 0.0
        if array.dtype != _SCALARS.get(type(inner)):
            raise ValueError("lists that are no array of numbers")
        return _array(kind.__name__, array)
    if kind in (bytes, bytearray, str):
        parts = [v.encode() for v in values] if kind is str else values
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        return {"kind": kind.__name__}, [sizes, b"".join(parts)]
    raise ValueError(f"a column of {kind}")


def _array(kind: str, array: np.ndarray) -> tuple[dict, list]:
    array = np.ascontiguousarray(array)
    head = {"kind": kind, "dtype": array.dtype.str, "dims": list(array.shape)}
    return head, [array.reshape(-1).view(np.uint8)]


def encode_arrays(columns: dict[str, np.ndarray | list]) -> tuple[int, dict, list]:
    """Makes a chunk of columns that exist already, as of an Arrow batch. A list is a column of objects."""
    heads, body, at = [], [], 0
    count = len(next(iter(columns.values())))
    for values in columns.values():
        if isinstance(values, np.ndarray):
            head, buffers = _array("scalar" if values.ndim == 1 else "list", values)
        else:
            try:
                head, buffers = _encode_column(values)
            except (ValueError, TypeError, OverflowError):
                head, buffers = {"kind": "pickle"}, [pickle.dumps(values, protocol=5)]
        for buffer in buffers:
            view = memoryview(buffer).cast("B") if memoryview(buffer).nbytes else memoryview(b"")
            gap = -at % ALIGN
            body += [bytes(gap)] if gap else []
            head.setdefault("at", []).append([at + gap, len(view)])
            body.append(view)
            at += gap + len(view)
        heads.append(head)
    return COLUMNS, {"rows": count, "shape": "tuple", "names": list(columns), "columns": heads}, body


def arrow_columns(batch: Any) -> dict[str, np.ndarray | list]:
    """The columns of an Arrow batch: arrays that share its memory where its form allows, else lists."""
    return {name: _arrow_column(batch.column(i)) for i, name in enumerate(batch.schema.names)}


def _arrow_column(column: Any) -> np.ndarray | list:
    import pyarrow as pa

    kind = column.type
    if column.null_count:
        return column.to_pylist()
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return column.to_numpy(zero_copy_only=False)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = column.flatten()
        width = len(values) // max(len(column), 1)
        is_even = pa.types.is_fixed_size_list(kind) or _is_even(column, width)
        if is_even and width and not values.null_count and (
                pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
            return values.to_numpy(zero_copy_only=False).reshape(len(column), width)
    return column.to_pylist()


def _is_even(column: Any, width: int) -> bool:
    offsets = column.offsets.to_numpy()
    return bool((np.diff(offsets) == width).all())


# --- columns to rows -----------------------------------------------------------------------------

class Chunk:
    """Rows that arrived together; any part of them as python rows or as arrays."""

    def __init__(self, count: int, rows: list | None, shape: str, names: list | None,
                 columns: list, kinds: list[str], size: int):
        self.count = count
        #: Bytes that it holds, for the bound of the queue.
        self.size = size
        self._rows, self._shape, self._names = rows, shape, names
        self._columns, self._kinds = columns, kinds
        self._row_type: Any = None

    def rows(self, begin: int, end: int) -> list:
        """Rows as they were in Spark."""
        if self._rows is not None:
            return self._rows[begin:end]
        columns = [_objects(c[begin:end], k) for c, k in zip(self._columns, self._kinds)]
        if self._shape == "bare":
            return columns[0]
        if self._shape == "list":
            return [list(row) for row in zip(*columns)]
        if self._shape == "row":
            if self._row_type is None:
                from pyspark.sql import Row
                self._row_type = Row(*self._names)
            return [self._row_type(*row) for row in zip(*columns)]
        return list(zip(*columns))

    def arrays(self, begin: int, end: int) -> list:
        """Columns of these rows: arrays where values are numbers, else lists."""
        if self._rows is not None:
            rows = self._rows[begin:end]
            first = rows[0] if rows else ()
            return [list(c) for c in zip(*rows)] if isinstance(first, (list, tuple)) else [rows]
        if self._shape == "bare" and isinstance(self._columns[0], np.ndarray) and self._columns[0].ndim > 1 \
                and self._kinds[0] in ("list", "tuple"):
            # Rows that are lists of numbers have as many columns.
            return list(self._columns[0][begin:end].T)
        return [c[begin:end] for c in self._columns]


def _objects(part: Any, kind: str) -> list:
    if kind in ("scalar", "list"):
        return part.tolist() if isinstance(part, np.ndarray) else list(part)
    if kind == "tuple":
        return [_tuples(v) for v in part.tolist()]
    return list(part)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value


def decode_chunk(frame: Frame) -> Chunk:
    """The rows of a frame of kind `COLUMNS` or `PICKLED`."""
    size = len(frame.body)
    if frame.kind == PICKLED:
        # The peer has shown the cluster's secret; Spark itself moves rows so.
        rows = pickle.loads(frame.body)
        return Chunk(len(rows), rows, "bare", None, [], [], size)
    head = frame.head
    columns, kinds = [], []
    for column in head["columns"]:
        spans = [frame.body[at:at + length] for at, length in column["at"]]
        kind = column["kind"]
        kinds.append(kind)
        if "dtype" in column:
            array = np.frombuffer(spans[0], dtype=np.dtype(column["dtype"]))
            columns.append(array.reshape(column["dims"]))
        elif kind == "pickle":
            columns.append(pickle.loads(spans[0]))
        else:
            ends = np.cumsum(np.frombuffer(spans[0], np.int64))
            data, make = bytes(spans[1]), {"str": _text, "bytes": bytes, "bytearray": bytearray}[kind]
            columns.append([make(data[b:e]) for b, e in zip([0, *ends[:-1].tolist()], ends.tolist())])
    return Chunk(head["rows"], None, head["shape"], head["names"], columns, kinds, size)


def _text(data: bytes) -> str:
    return data.decode()
