"""Nodes of a cluster without Spark: they start together, survive kills, fail with their cause, and leave nothing.

The names in brackets are issues of TensorFlowOnSpark's users of which a test is about.
"""
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from downpour_spark import TFSparkNode, binary, frames, session
from downpour_spark.TFCluster import plan
from downpour_spark.coordinator import ClusterError, Coordinator, dial
from downpour_spark.feeder import Feeder, TrainingFailed, choose

from . import functions

LONG = 60.0


def program() -> str | None:
    try:
        return binary.path()
    except FileNotFoundError:
        return None


def is_there(process: int) -> bool:
    """A zombie does not count."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


class Cluster:
    """A cluster whose Spark tasks are threads of the test."""

    def __init__(self, test, function, ps=1, workers=2, fed=False, serve=False, restarts=3, keepers=None, **args):
        folder = tempfile.TemporaryDirectory()
        test.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.meta = {
            "id": 1, "token": "of the tests", "template": plan(ps + workers, ps), "release_port": True, "serve": serve,
            "queues": ["input", "output", "error"], "log_dir": None, "restarts": restarts, "board": -1,
            "is_fed": fed, "driver_nodes": [], "default_fs": "file://", "working_dir": "/", "num_executors": ps + workers}
        self.coordinator = Coordinator(self.meta["template"], "of the tests", "127.0.0.1")
        test.addCleanup(self.coordinator.close)
        self.payload = pickle.dumps((function, {"dir": self.dir, **args}))
        self.errors = {}
        self.threads = [threading.Thread(target=self._task, args=(i,), daemon=True)
                        for i in range(ps + workers) if keepers is None or i in keepers]
        for thread in self.threads:
            thread.start()

    def spec(self, index):
        spec = session.specification(self.meta, index, ("127.0.0.1", self.coordinator.port))
        spec["watch"] = False
        return spec

    def _task(self, index):
        try:
            TFSparkNode.keep(self.spec(index), self.payload)
        except RuntimeError as e:
            self.errors[index] = str(e)

    def wait(self, is_met):
        if not self.coordinator.wait(is_met, LONG):
            raise AssertionError(f"{self.coordinator.state}, working: {self.coordinator.names(self.coordinator.working())}, "
                                 f"notes: {self.notes()}")

    def start(self):
        self.wait(lambda: self.coordinator.state != "gathering")
        return self.coordinator.nodes()

    def end(self):
        self.wait(lambda: self.coordinator.state == "ended")

    def failure(self):
        try:
            self.wait(lambda: False)
        except ClusterError as e:
            return str(e)
        raise AssertionError("it does not fail")

    def notes(self):
        return sorted(os.listdir(self.dir))

    def gone(self, nodes):
        """Waits until no process of these nodes is there."""
        for node in nodes:
            for process in [node["pid"], *node.get("pids", {}).values()]:
                deadline = time.monotonic() + LONG
                while is_there(process):
                    if time.monotonic() > deadline:
                        raise AssertionError(f"process {process} of {node['job_name']} is left")
                    time.sleep(0.05)
            if os.path.exists(node["addr"]):
                raise AssertionError(f"{node['addr']} is left")

    def feed(self, rows, partition=0, timeout=LONG):
        node = choose(self.coordinator.nodes(), partition)
        return Feeder(node, "of the tests", timeout, "input", False).feed(frames.chunks(rows))


class Nodes(unittest.TestCase):
    def test_all_start_together_and_end_when_the_workers_do(self):
        cluster = Cluster(self, functions.returns)
        nodes = cluster.start()
        cluster.end()
        self.assertEqual(cluster.notes(), ["ps-0-of-2", "worker-0-of-2", "worker-1-of-2"])
        for thread in cluster.threads:
            thread.join(LONG)
        self.assertEqual(cluster.errors, {})
        cluster.gone(nodes)

    @unittest.skipUnless(program(), "there is no program `downpour`")
    def test_servers_of_ps_end_by_themselves(self):  # tfos 120, 319
        cluster = Cluster(self, functions.serves, ps=2)
        nodes = cluster.start()
        cluster.end()
        self.assertEqual(cluster.notes(), ["ps-0-returned", "ps-1-returned", "worker-0-saw-4", "worker-1-saw-4"])
        cluster.gone(nodes)

    @unittest.skipUnless(program(), "there is no program `downpour`")
    def test_a_server_that_is_killed_comes_back_where_it_was(self):
        cluster = Cluster(self, functions.hangs, ps=1, workers=1, serve=True)
        cluster.start()
        cluster.wait(lambda: "server" in cluster.coordinator.nodes()[0].get("pids", {}))
        first = cluster.coordinator.nodes()[0]["pids"]["server"]
        os.kill(first, signal.SIGKILL)
        cluster.wait(lambda: cluster.coordinator.nodes()[0]["pids"].get("server", first) != first)
        self.assertIn("was killed by signal 9", cluster.coordinator.events[0]["what"])
        cluster.coordinator.abort("enough")
        cluster.gone(cluster.coordinator.nodes())

    def test_a_ps_that_never_returns_is_ended_with_what_it_started(self):  # tfos 120
        cluster = Cluster(self, functions.never_returns, ps=1, workers=1)
        nodes = cluster.start()
        cluster.end()
        cluster.gone(nodes)
        child = int(next(n for n in cluster.notes() if n.startswith("child-")).split("-")[1])
        deadline = time.monotonic() + LONG
        while is_there(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(is_there(child))

    def test_a_node_that_does_not_come_is_named(self):  # tfos 208, 359, 478
        cluster = Cluster(self, functions.returns, ps=1, workers=2, keepers=[0, 2])
        self.assertFalse(cluster.coordinator.wait(lambda: cluster.coordinator.state != "gathering", 3))
        self.assertEqual(cluster.coordinator.names(cluster.coordinator.missing() - {0, 2}), "worker:0")
        cluster.coordinator.abort("enough")
        for thread in cluster.threads:
            thread.join(LONG)
            self.assertFalse(thread.is_alive())

    def test_an_exception_is_the_clusters_error_and_ends_all(self):  # tfos 195, 305
        cluster = Cluster(self, functions.fails)
        nodes = cluster.start()
        self.assertRegex(cluster.failure(), r"worker:\d on 127.0.0.1 failed: ValueError: no such luck")
        cluster.gone(nodes)
        for thread in cluster.threads:
            thread.join(LONG)
        self.assertIn("no such luck", cluster.errors[1])

    def test_an_exit_without_exception_is_an_error(self):
        cluster = Cluster(self, functions.exits, ps=0, workers=1)
        self.assertIn("ended with exit code 7", cluster.failure())

    def test_a_training_process_that_is_killed_comes_back(self):
        cluster = Cluster(self, functions.dies_once, ps=0, workers=1)
        cluster.end()
        self.assertEqual(cluster.notes(), ["start-1", "start-2"])

    def test_one_that_is_always_killed_is_given_up(self):
        cluster = Cluster(self, functions.always_dies, ps=0, workers=1, restarts=1)
        self.assertIn("was killed by signal 9, after 2 starts", cluster.failure())

    def test_a_task_that_spark_starts_again_does_not_double_its_node(self):  # tfos 41, 42
        cluster = Cluster(self, functions.hangs, ps=0, workers=1)
        nodes = cluster.start()
        with self.assertRaisesRegex(RuntimeError, "a second worker:0 came to a cluster that is running"):
            TFSparkNode.keep(cluster.spec(0), cluster.payload)
        self.assertEqual(cluster.coordinator.state, "running")
        cluster.coordinator.abort("enough")
        cluster.gone(nodes)

    def test_a_keeper_that_is_killed_is_a_lost_node_and_its_processes_go(self):
        cluster = Cluster(self, functions.hangs, ps=0, workers=2)
        cluster.start()
        cluster.wait(lambda: all("trainer" in n.get("pids", {}) for n in cluster.coordinator.nodes()))
        nodes = cluster.coordinator.nodes()
        os.kill(nodes[0]["pid"], signal.SIGKILL)
        self.assertIn("worker:0 on 127.0.0.1 is lost", cluster.failure())
        deadline = time.monotonic() + LONG
        while is_there(nodes[0]["pids"]["trainer"]) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertFalse(is_there(nodes[0]["pids"]["trainer"]))
        cluster.gone(nodes[1:])

    def test_nothing_outlives_the_driver(self):  # tfos 120
        cluster = Cluster(self, functions.hangs, ps=0, workers=2)
        cluster.start()
        cluster.wait(lambda: all("trainer" in n.get("pids", {}) for n in cluster.coordinator.nodes()))
        nodes = cluster.coordinator.nodes()
        cluster.coordinator.close()
        cluster.gone(nodes)

    def test_nothing_outlives_the_executor(self):
        executor = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
        cluster = Cluster(self, functions.hangs, ps=0, workers=1, keepers=[])
        spec = dict(cluster.spec(0), watch=executor.pid)
        finder, TFSparkNode._executor = TFSparkNode._executor, lambda: executor.pid
        try:
            thread = threading.Thread(target=lambda: self.assertRaises(RuntimeError, TFSparkNode.keep, spec, cluster.payload),
                                      daemon=True)
            thread.start()
            nodes = cluster.start()
        finally:
            TFSparkNode._executor = finder
        executor.kill()
        executor.wait()
        self.assertIn("is lost", cluster.failure())
        cluster.gone(nodes)
        thread.join(LONG)

    def test_a_stranger_is_not_let_in(self):
        cluster = Cluster(self, functions.hangs, ps=0, workers=1, keepers=[])
        line = dial(("127.0.0.1", cluster.coordinator.port), "guessed", "control")
        line.send({"do": "stop"})
        self.assertIsNone(line.receive())
        self.assertEqual(cluster.coordinator.state, "gathering")
        line.close()


class Fed(unittest.TestCase):
    def test_workers_take_all_and_return_at_the_end(self):
        cluster = Cluster(self, functions.sums, ps=0, workers=2, fed=True)
        nodes = cluster.start()
        for part in range(4):
            self.assertEqual(cluster.feed([(i,) for i in range(1000)], part), (False, []))
        cluster.coordinator.end_feed()
        cluster.end()
        self.assertEqual(cluster.notes(), ["sum-999000-2000-start-1"])
        cluster.coordinator.close()
        cluster.gone(nodes)

    def test_a_worker_that_is_killed_gets_what_it_had_not_used(self):
        cluster = Cluster(self, functions.sums, ps=0, workers=1, fed=True, dies=True)
        cluster.start()
        self.assertEqual(cluster.feed([(i, [0.0] * 200) for i in range(20000)]), (False, []))
        cluster.coordinator.end_feed()
        cluster.end()
        total, count, _, start = cluster.notes()[0].split("-")[1:]
        self.assertEqual(start, "2")
        # All but what the first process had used up.
        self.assertGreaterEqual(int(count), 20000 - 5000)

    def test_rows_for_a_worker_that_has_returned_are_not_waited_for(self):  # tfos 103
        cluster = Cluster(self, functions.takes_a_few, ps=0, workers=1, fed=True)
        cluster.start()
        self.assertTrue(cluster.feed(iter(lambda: (1, [0.0] * 1000), None))[0])
        self.assertTrue(cluster.feed([1])[0])
        cluster.end()

    def test_an_error_ends_feeding_at_once_with_its_text(self):  # tfos 480, 508
        cluster = Cluster(self, functions.fails_in_feed, ps=0, workers=1, fed=True)
        cluster.start()
        with self.assertRaisesRegex(TrainingFailed, "ValueError: bad row"):
            cluster.feed(iter(lambda: (1, [0.0] * 1000), None))
        self.assertIn("bad row", cluster.failure())

    def test_the_end_is_told_to_a_process_that_comes_back_after_it(self):
        cluster = Cluster(self, functions.ignores_the_end, ps=0, workers=1, fed=True)
        cluster.start()
        cluster.coordinator.end_feed()
        self.assertFalse(cluster.coordinator.wait(lambda: not cluster.coordinator.working(), 2))
        self.assertEqual(cluster.coordinator.names(cluster.coordinator.working()), "worker:0")
        cluster.coordinator.abort("worker:0 did not return")
        nodes = cluster.coordinator.nodes()
        cluster.coordinator.close()
        cluster.gone(nodes)


class Plans(unittest.TestCase):
    def test_nodes_are_in_order(self):
        self.assertEqual(plan(4, 2), [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)])
        self.assertEqual(plan(5, 1, "chief", True),
                         [("ps", 0), ("chief", 0), ("evaluator", 0), ("worker", 0), ("worker", 1)])
        self.assertEqual(plan(1, 0, "chief"), [("chief", 0)])

    def test_impossible_numbers_are_refused(self):
        for numbers in ((1, 2), (2, 2), (1, 0, "chief", True)):
            with self.assertRaises(AssertionError):
                plan(*numbers)


if __name__ == "__main__":
    unittest.main()
