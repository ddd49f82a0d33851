"""The functions that Spark's tasks run to feed a cluster: on partitions of an RDD, and on Arrow batches of a DataFrame."""
from __future__ import annotations

from typing import Any, Callable, Iterable, Iterator

from . import frames
from .feeder import Feeder, choose

#: Schema of what a task that trains answers: whether its worker wants no more.
ENDS = "is_over boolean"


class Feed:
    """One way of feeding a cluster; goes to executors with Spark's tasks."""

    def __init__(self, nodes: list[dict], token: str, timeout: float, queue: str):
        self._nodes, self._token, self._timeout, self._queue = nodes, token, timeout, queue

    def _feed(self, encoded: Iterable, is_inference: bool) -> tuple[bool, list]:
        from pyspark import TaskContext

        context = TaskContext.get()
        node = choose(self._nodes, context.partitionId() if context is not None else 0)
        return Feeder(node, self._token, self._timeout, self._queue, is_inference).feed(encoded)

    def train_rows(self, rows: Iterable[Any]) -> list[bool]:
        """Feeds a partition of an RDD."""
        return [self._feed(frames.chunks(rows), False)[0]]

    def train_batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Feeds a partition of a DataFrame."""
        import pyarrow as pa

        is_over, _ = self._feed(_encoded(batches), False)
        yield pa.RecordBatch.from_pydict({"is_over": [is_over]})

    def infer_rows(self, rows: Iterable[Any]) -> list:
        """Feeds a partition of an RDD and returns its results."""
        return self._feed(frames.chunks(rows), True)[1]

    def infer_batches(self, schema: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        """A function that feeds a partition of a DataFrame and returns batches of its results."""
        def infer(batches: Iterable[Any]) -> Iterator[Any]:
            import pyarrow as pa
            from pyspark.sql.pandas.types import to_arrow_schema

            _, results = self._feed(_encoded(batches), True)
            arrow = to_arrow_schema(schema)
            if not results:
                return
            if len(arrow) == 1 and not isinstance(results[0], (tuple, dict)):
                results = [(value,) for value in results]
            columns = [[r[n] for r in results] if isinstance(results[0], dict) else [r[i] for r in results]
                       for i, n in enumerate(arrow.names)]
            arrays = [pa.array(_plain(c), type=f.type) for c, f in zip(columns, arrow)]
            yield pa.RecordBatch.from_arrays(arrays, schema=arrow)
        return infer


def _plain(values: list) -> list:
    return [v.tolist() if hasattr(v, "tolist") else v for v in values]


def _encoded(batches: Iterable[Any]) -> Iterator[tuple[int, dict, list, int]]:
    """Chunks of Arrow batches; a large one is cut, so that it is sent and used in parts."""
    for batch in batches:
        if not batch.num_rows:
            continue
        step = max(1, batch.num_rows * frames.CHUNK_BYTES // max(batch.nbytes, 1))
        for at in range(0, batch.num_rows, step):
            part = batch.slice(at, step)
            kind, head, body = frames.encode_arrays(frames.arrow_columns(part))
            yield kind, head, body, part.num_rows
