"""Rows arrive as they were sent, whatever they are."""
import json
import unittest

import numpy as np

from downpour_spark import frames


def there(rows):
    """What arrives, and how it travelled."""
    kind, head, body = frames.encode_rows(rows)
    data = memoryview(b"".join(bytes(b) for b in body))
    return kind, frames.decode_chunk(frames.Frame(kind, 1, json.loads(json.dumps(head)), data))


class Rows(unittest.TestCase):
    def check(self, rows, kind):
        travelled, chunk = there(rows)
        self.assertEqual(travelled, kind)
        self.assertEqual(chunk.count, len(rows))
        # Types too, at every depth.
        self.assertEqual(repr(chunk.rows(0, len(rows))), repr(rows))
        self.assertEqual(repr(chunk.rows(1, 2)), repr(rows[1:2]))

    def test_rows_of_numbers_travel_as_columns(self):
        self.check([(1, 2.5, True), (3, 4.5, False)], frames.COLUMNS)
        self.check([([1, 2], 1), ([3, 4], 2)], frames.COLUMNS)
        self.check([((1.5, 2.5), [[1], [2]])] * 2, frames.COLUMNS)
        self.check([1, 2, 3], frames.COLUMNS)
        self.check([[1.0] * 5] * 3, frames.COLUMNS)
        self.check([tuple(range(100))] * 2, frames.COLUMNS)
        self.check([([], 1), ([], 2)], frames.COLUMNS)

    def test_texts_and_bytes_travel_as_columns(self):
        self.check(["a", "", "süß"], frames.COLUMNS)
        self.check([("a", b"\0\1"), ("", b"")], frames.COLUMNS)
        self.check([[1, "a"], [2, "b"]], frames.COLUMNS)

    def test_arrays_keep_their_types_and_shapes(self):
        rows = [(np.arange(6, dtype=np.int16).reshape(2, 3), np.float32(0.5))] * 3
        self.check(rows, frames.COLUMNS)
        self.assertEqual(there(rows)[1].arrays(0, 3)[0].shape, (3, 2, 3))

    def test_all_else_is_pickled(self):
        for rows in ([(1, None), (2, 3)], [{"a": 1}, {}], [[1], [1, 2]], [(2**70,), (1,)], [([1, 2.5],)] * 2,
                     [(1,), (1, 2)], [([True, 2],)] * 2, [None, None], [(), ()]):
            self.check(rows, frames.PICKLED)

    def test_rows_of_a_data_frame_are_rows_again(self):
        try:
            from pyspark.sql import Row
        except ImportError:
            self.skipTest("pyspark is not there")
        rows = [Row(image=[1.0, 2.0], label=3), Row(image=[3.0, 4.0], label=5)]
        self.check(rows, frames.COLUMNS)
        self.assertEqual(there(rows)[1].rows(0, 2)[1].label, 5)

    def test_chunks_are_of_about_one_size(self):
        rows = [(np.zeros(784, np.float32), 1)] * 5000
        sizes = [sum(memoryview(b).nbytes for b in body) for _, _, body, _ in frames.chunks(rows)]
        self.assertEqual(sum(n for *_, n in frames.chunks(rows)), 5000)
        self.assertLess(max(sizes), 2 * frames.CHUNK_BYTES)
        self.assertLess(len(sizes), 40)


class Arrow(unittest.TestCase):
    def test_batches_travel_as_columns(self):
        try:
            import pyarrow as pa
        except ImportError:
            self.skipTest("pyarrow is not there")
        batch = pa.RecordBatch.from_pydict({
            "image": pa.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], pa.list_(pa.float32())),
            "label": [1, 2, 3], "name": ["a", "b", None], "ragged": [[1], [], [2, 3]]}).slice(1, 2)
        columns = frames.arrow_columns(batch)
        self.assertEqual(columns["image"].tolist(), [[3.0, 4.0], [5.0, 6.0]])
        kind, head, body = frames.encode_arrays(columns)
        data = memoryview(b"".join(bytes(b) for b in body))
        chunk = frames.decode_chunk(frames.Frame(kind, 1, head, data))
        self.assertEqual(chunk.rows(0, 2), [([3.0, 4.0], 2, "b", []), ([5.0, 6.0], 3, None, [2, 3])])


if __name__ == "__main__":
    unittest.main()
