"""How fast rows go from a feeding task to the training: `python -m tests.feed_speed [--tfos]`.

Two processes, as on an executor: one feeds rows, one calls `next_batch` to the end. With `--tfos` also TensorFlowOnSpark's
own queues (its TFManager and TFNode, as installed from PyPI), fed by its own loop. Bytes are those of the numbers in the rows.
"""
import argparse
import multiprocessing
import os
import socket
import sys
import tempfile
import time

import numpy as np

from downpour_spark import frames
from downpour_spark.feeder import Feeder, host_key
from downpour_spark.inbox import FeedServer
from downpour_spark.TFNode import DataFeed

WIDTH, BATCH = 784, 100


def rows_of(kind, count):
    """Rows as programs have them: lists of floats, or arrays."""
    values = np.random.default_rng(1).random((64, WIDTH), np.float32)
    rows = [(v if kind == "arrays" else v.tolist(), i) for i, v in enumerate(values)]
    return (rows[i % len(rows)] for i in range(count))


def size_of(kind, count):
    return count * (WIDTH * (4 if kind in ("arrays", "arrow") else 8) + 8)


def feed_ours(path, kind, count):
    node = {"job_name": "worker", "task_index": 0, "host": "127.0.0.1", "host_key": host_key(),
            "feed": {"path": path, "port": 0}}
    if kind == "arrow":
        import pyarrow as pa
        from downpour_spark.feeding import _encoded
        values = np.random.default_rng(1).random((10000, WIDTH), np.float32)
        images = pa.FixedSizeListArray.from_arrays(values.reshape(-1), WIDTH).cast(pa.list_(pa.float32()))
        batch = pa.RecordBatch.from_arrays([images, pa.array(np.arange(10000))], names=["image", "label"])
        encoded = _encoded(batch for _ in range(count // 10000))
    else:
        encoded = frames.chunks(rows_of(kind, count))
    Feeder(node, "token", 60, "input", False).feed(encoded)


def ours(kind, count, as_arrays):
    """Seconds for so many rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "feed")
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen()
        server = FeedServer([listener], "token", ["input", "output"])
        data = DataFeed(server)
        process = multiprocessing.get_context("spawn").Process(target=feed_ours, args=(path, kind, count))
        process.start()
        take = data.next_arrays if as_arrays else data.next_batch
        size = (lambda b: len(b[0])) if as_arrays else len
        # The other process's start is no part of it.
        got = size(take(BATCH))
        begin = time.perf_counter()
        while got < count:
            got += size(take(BATCH))
        seconds = time.perf_counter() - begin
        server.end()
        data.next_batch(1)
        process.join()
        return seconds


def feed_theirs(address, key, kind, count):
    from tensorflowonspark import TFManager
    queue = TFManager.connect(address, key).get_queue("input")
    for row in rows_of(kind, count):
        queue.put(row, block=True)


def theirs(kind, count):
    """The same by TensorFlowOnSpark."""
    from tensorflowonspark import TFManager, TFNode
    # Its manager is a process that is forked, as on Linux until Python 3.14.
    multiprocessing.set_start_method("fork", force=True)
    manager = TFManager.start(b"key", ["input", "output", "error"])
    process = multiprocessing.Process(target=feed_theirs, args=(manager.address, b"key", kind, count))
    process.start()
    data, got = TFNode.DataFeed(manager), 0
    got = len(data.next_batch(BATCH))
    begin = time.perf_counter()
    while got < count:
        got += len(data.next_batch(BATCH))
    seconds = time.perf_counter() - begin
    process.join()
    manager.shutdown()
    return seconds


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--tfos", action="store_true", help="also TensorFlowOnSpark's")
    p.add_argument("--rows", type=int, default=100000)
    p.add_argument("--tfos-rows", type=int, default=5000)
    options = p.parse_args()
    rates = {}
    for kind, as_arrays in (("arrow", True), ("arrays", True), ("lists", True), ("arrays", False), ("lists", False)):
        seconds = ours(kind, options.rows, as_arrays)
        rates[kind, as_arrays] = options.rows / seconds
        how = "next_arrays" if as_arrays else "next_batch"
        print(f"feed: {kind}, {how}: {options.rows / seconds:.0f} rows/s, "
              f"{size_of(kind, options.rows) / seconds / 1e6:.0f} MB/s", flush=True)
    if options.tfos:
        for kind in ("arrays", "lists"):
            seconds = theirs(kind, options.tfos_rows)
            rate = options.tfos_rows / seconds
            print(f"feed: TensorFlowOnSpark, {kind}, next_batch: {rate:.0f} rows/s, "
                  f"{size_of(kind, options.tfos_rows) / seconds / 1e6:.0f} MB/s; ours is "
                  f"{rates[kind, False] / rate:.1f} times as fast", flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
