"""TFRecord files and `tf.train.Example`, read and written without TensorFlow.

Lengths, checksums and wire types that are wrong are errors; nothing is taken on trust.
"""
from __future__ import annotations

import struct
from typing import Any, BinaryIO, Iterable, Iterator

import numpy as np

_HEAD = struct.Struct("<Q")
_SUM = struct.Struct("<I")
#: CRC-32C's polynomial, its bits in reverse.
_POLYNOMIAL = 0x82F63B78


class RecordError(ValueError):
    """The bytes are no such file or message."""


def _tables() -> np.ndarray:
    """For eight bytes at once: `tables[k][b]` is byte `b` followed by `k` zeros."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        tables[0, byte] = value
    for k in range(1, 8):
        tables[k] = (tables[k - 1] >> np.uint32(8)) ^ tables[0][tables[k - 1] & np.uint32(0xFF)]
    return tables


_TABLES = _tables()
_LISTS = _TABLES.tolist()


def crc32c(data: bytes) -> int:
    """The checksum of one piece."""
    value, at, end = 0xFFFFFFFF, 0, len(data)
    t0, t1, t2, t3, t4, t5, t6, t7 = _LISTS
    for low, high in struct.iter_unpack("<II", data[:end - end % 8]):
        low ^= value
        value = (t7[low & 255] ^ t6[low >> 8 & 255] ^ t5[low >> 16 & 255] ^ t4[low >> 24]
                 ^ t3[high & 255] ^ t2[high >> 8 & 255] ^ t1[high >> 16 & 255] ^ t0[high >> 24])
        at += 8
    for byte in data[end - end % 8:]:
        value = t0[(value ^ byte) & 255] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """The checksum as TFRecord files have it."""
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def write_records(file: BinaryIO, records: Iterable[bytes]) -> int:
    """Writes records; how many."""
    count = 0
    for record in records:
        head = _HEAD.pack(len(record))
        file.write(head + _SUM.pack(masked(head)) + record + _SUM.pack(masked(record)))
        count += 1
    return count


def read_records(data: bytes | memoryview, name: str = "") -> Iterator[bytes]:
    """The records of a whole file."""
    view, at = memoryview(data), 0
    while at < len(view):
        head = bytes(view[at:at + 12])
        if len(head) < 12:
            raise RecordError(f"{name}: the file ends within the head of a record, at byte {at}")
        if _SUM.unpack(head[8:])[0] != masked(head[:8]):
            raise RecordError(f"{name}: the head of the record at byte {at} is damaged, or this is no TFRecord file")
        size = _HEAD.unpack(head[:8])[0]
        if size > len(view) - at - 16:
            raise RecordError(f"{name}: the file ends within the record at byte {at}, which has {size} bytes")
        record = bytes(view[at + 12:at + 12 + size])
        if _SUM.unpack(view[at + 12 + size:at + 16 + size])[0] != masked(record):
            raise RecordError(f"{name}: the record at byte {at} is damaged")
        yield record
        at += 16 + size


# --- tf.train.Example ------------------------------------------------------------------------------

def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, data: bytes) -> bytes:
    return bytes((number << 3 | 2,)) + _varint(len(data)) + data


def encode_example(features: dict[str, tuple[str, Any]]) -> bytes:
    """An Example of `{name: (kind, values)}`; the kinds are float, int64 and bytes."""
    entries = b""
    for name, (kind, values) in sorted(features.items()):
        if kind == "float":
            feature = _field(2, _field(1, np.asarray(values, "<f4").tobytes()) if len(values) else b"")
        elif kind == "int64":
            feature = _field(3, _field(1, b"".join(_varint(int(v)) for v in values)) if len(values) else b"")
        elif kind == "bytes":
            feature = _field(1, b"".join(_field(1, bytes(v)) for v in values))
        else:
            raise RecordError(f"feature '{name}' is of kind '{kind}', not float, int64 or bytes")
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise RecordError("a number in an Example does not end")
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value & (1 << 64) - 1, at


def _fields(data: bytes) -> Iterator[tuple[int, int, Any]]:
    at = 0
    while at < len(data):
        key, at = _take_varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _take_varint(data, at)
        elif kind in (1, 2, 5):
            size, at = _take_varint(data, at) if kind == 2 else (8 if kind == 1 else 4, at)
            if size > len(data) - at:
                raise RecordError("an Example ends within a field")
            value = data[at:at + size]
            at += size
        else:
            raise RecordError(f"a field of an Example has the wire type {kind}")
        yield key >> 3, kind, value


def decode_example(data: bytes) -> dict[str, tuple[str, list]]:
    """`{name: (kind, values)}` of an Example; a feature without values is of the kind "" if it has none."""
    features: dict[str, tuple[str, list]] = {}
    for number, kind, body in _fields(data):
        if (number, kind) != (1, 2):
            continue
        for number, kind, entry in _fields(body):
            if (number, kind) != (1, 2):
                continue
            name, feature = "", b""
            for number, kind, value in _fields(entry):
                if (number, kind) == (1, 2):
                    name = value.decode()
                elif (number, kind) == (2, 2):
                    feature = value
            features[name] = _decode_feature(feature)
    return features


def _decode_feature(data: bytes) -> tuple[str, list]:
    kind, values = "", []
    for number, wire, body in _fields(data):
        if wire != 2 or number not in (1, 2, 3):
            continue
        kind = {1: "bytes", 2: "float", 3: "int64"}[number]
        for inner, form, value in _fields(body):
            if inner != 1:
                continue
            if kind == "bytes":
                values.append(value)
            elif kind == "float":
                if len(value) % 4:
                    raise RecordError("a list of floats of an Example has a part of one")
                values += np.frombuffer(value, "<f4").tolist()
            elif form == 0:
                values.append(_signed(value))
            else:
                at = 0
                while at < len(value):
                    number_, at = _take_varint(value, at)
                    values.append(_signed(number_))
    return kind, values


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
