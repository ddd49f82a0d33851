"""Feeding tasks and a training process, without Spark: order, results, acknowledgement, ends and deadlines."""
import os
import socket
import tempfile
import threading
import unittest

from downpour_spark import frames
from downpour_spark.TFNode import DataFeed
from downpour_spark.feeder import FeedTimeout, Feeder, TrainingFailed, choose, host_key
from downpour_spark.inbox import FeedServer

TOKEN = "of the tests"
LONG = 30.0


class Place:
    """Where one worker listens."""

    def __init__(self, test):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "feed")
        self.near, self.far = socket.socket(socket.AF_UNIX), socket.create_server(("127.0.0.1", 0))
        self.near.bind(path)
        self.near.listen()
        test.addCleanup(self.near.close)
        test.addCleanup(self.far.close)
        self.node = {"job_name": "worker", "task_index": 0, "host": "127.0.0.1", "host_key": host_key(),
                     "feed": {"path": path, "port": self.far.getsockname()[1]}}

    def server(self, **more):
        return FeedServer([self.near, self.far], TOKEN, ["input", "output", "error"], **more)

    def feed(self, rows, inference=False, timeout=LONG, token=TOKEN, node=None):
        """Feeds in a thread; what comes out of it is in its `result` or `error`."""
        thread = Feeding(Feeder(node or self.node, token, timeout, "input", inference), rows)
        thread.start()
        return thread


class Feeding(threading.Thread):
    def __init__(self, feeder, rows):
        super().__init__(daemon=True)
        self.feeder, self.rows, self.result, self.error = feeder, rows, None, None

    def run(self):
        try:
            self.result = self.feeder.feed(frames.chunks(self.rows))
        except Exception as e:
            self.error = e

    def end(self):
        self.join(LONG)
        if self.is_alive():
            raise AssertionError("feeding does not end")
        if self.error is not None:
            raise self.error
        return self.result


class Feed(unittest.TestCase):
    def setUp(self):
        self.place = Place(self)

    def test_training_gets_all_rows_and_batches_go_over_partitions(self):
        server = self.place.server()
        data = DataFeed(server)
        tasks = [self.place.feed([(i, float(i)) for i in range(part * 70, part * 70 + 70)]) for part in range(3)]
        rows = []
        while len(rows) < 200:
            batch = data.next_batch(100)
            self.assertEqual(len(batch), 100)
            rows += batch
        # The last rows are acknowledged though their batch is not full.
        last = threading.Thread(target=lambda: rows.extend(data.next_batch(100)), daemon=True)
        last.start()
        self.assertEqual([task.end() for task in tasks], [(False, [])] * 3)
        server.end()
        last.join(LONG)
        self.assertTrue(data.should_stop())
        self.assertEqual(sorted(r[0] for r in rows), list(range(210)))

    def test_a_mapping_gives_columns_by_tensor(self):
        server = self.place.server()
        data = DataFeed(server, input_mapping={"b": "second", "a": "first"})
        task = self.place.feed([([i, i], i) for i in range(30)])
        batch = data.next_batch(20)
        self.assertEqual(batch["first"].shape, (20, 2))
        self.assertEqual(batch["second"].tolist(), list(range(20)))
        server.end()
        self.assertEqual(len(data.next_batch(20)["first"]), 10)
        task.end()
        self.assertEqual(data.next_batch(20), {"first": [], "second": []})

    def test_results_go_to_the_partition_whose_rows_they_are_of(self):
        data = DataFeed(self.place.server(), train_mode=False)
        tasks = [self.place.feed(list(range(part * 1000, part * 1000 + 250)), inference=True) for part in range(4)]
        given = 0
        while given < 1000:
            batch = data.next_batch(100)
            self.assertEqual(len({value // 1000 for value in batch}), 1, "rows of two partitions in one batch")
            given += len(batch)
            data.batch_results([value * 2 for value in batch])
        for part, task in enumerate(tasks):
            _, results = task.end()
            self.assertEqual(results, [2 * v for v in range(part * 1000, part * 1000 + 250)])

    def test_more_results_than_rows_are_refused(self):
        data = DataFeed(self.place.server(), train_mode=False)
        task = self.place.feed([1, 2, 3], inference=True)
        batch = data.next_batch(10)
        with self.assertRaisesRegex(ValueError, "4 results for 3 rows"):
            data.batch_results([0] * 4)
        data.batch_results(batch)
        self.assertEqual(task.end()[1], [1, 2, 3])

    def test_missing_results_are_named_when_the_time_is_over(self):
        data = DataFeed(self.place.server(), train_mode=False)
        task = self.place.feed([1, 2, 3], inference=True, timeout=4)
        data.next_batch(10)
        data.batch_results([1])
        with self.assertRaisesRegex(FeedTimeout, "1 results for 3 rows"):
            task.end()

    def test_training_that_takes_nothing_is_a_timeout_with_its_name(self):
        self.place.server()
        with self.assertRaisesRegex(FeedTimeout, "worker:0 on 127.0.0.1 (has taken no row for|did not come back within) 2 s"):
            self.place.feed([1, 2, 3], timeout=2).end()

    def test_terminate_ends_feeding_at_once(self):
        told = []
        data = DataFeed(self.place.server(tell=told.append))
        endless = self.place.feed(iter(lambda: (1, [2.0] * 1000), None))
        data.next_batch(10)
        data.terminate()
        self.assertEqual(endless.end(), (True, []))
        self.assertTrue(data.should_stop())
        self.assertEqual(data.next_batch(1), [])
        # Whoever comes later is told, too.
        self.assertEqual(self.place.feed([1]).end(), (True, []))
        self.assertEqual(told, [{"terminating": "input"}])

    def test_a_broken_connection_loses_no_rows_and_doubles_none(self):
        server = self.place.server()
        data = DataFeed(server)
        rows = [(i, [float(i)] * 500) for i in range(4000)]
        task = self.place.feed(rows)
        used = [r[0] for r in data.next_batch(1000)]
        used += [r[0] for r in data.next_batch(1000)]
        again = []
        with server.inbox("input").changed:
            streams = list(server.inbox("input").streams.values())
        for stream in streams:
            stream.sock.shutdown(socket.SHUT_RDWR)
        while len(used) + len(again) < 4000:
            again += [r[0] for r in data.next_batch(1)]
        server.end()
        data.next_batch(1)
        self.assertEqual(task.end(), (False, []))
        self.assertEqual(sorted(used + again), list(range(4000)))

    def test_an_error_of_the_worker_is_the_error_of_the_task(self):
        def answer():
            sock, _ = self.place.near.accept()
            with sock:
                frames.send_frame(sock, frames.FAILED, 0, {"error": "ValueError: no such luck"})
        threading.Thread(target=answer, daemon=True).start()
        with self.assertRaisesRegex(TrainingFailed, "no such luck"):
            self.place.feed([1]).end()

    def test_a_stranger_feeds_nothing(self):
        server = self.place.server()
        with self.assertRaises((FeedTimeout, TrainingFailed)):
            self.place.feed([1], token="guessed", timeout=1.0).end()
        self.assertFalse(server.inbox("input").items)

    def test_a_worker_elsewhere_is_fed_over_tcp(self):
        server = self.place.server()
        data = DataFeed(server)
        node = dict(self.place.node, host_key="another host")
        task = self.place.feed([1, 2, 3], node=node)
        self.assertEqual(data.next_batch(3), [1, 2, 3])
        server.end()
        data.next_batch(1)
        task.end()

    def test_workers_of_the_own_host_are_chosen_in_turn(self):
        near = [dict(self.place.node, task_index=i) for i in range(2)]
        far = dict(self.place.node, host_key="another host", task_index=2)
        ps = {"job_name": "ps", "task_index": 0, "host_key": host_key()}
        chosen = [choose([ps, *near, far], p)["task_index"] for p in range(4)]
        self.assertEqual(chosen, [0, 1, 0, 1])
        self.assertEqual(choose([ps, far], 0)["task_index"], 2)
        with self.assertRaisesRegex(RuntimeError, "no worker that can be fed"):
            choose([ps], 0)


if __name__ == "__main__":
    unittest.main()
