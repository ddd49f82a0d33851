"""The package on a real Spark: a master with two workers, driven by `cargo xtask engines spark`.

  spark-submit --master … python/tests/on_spark.py [TEST…]         with DOWNPOUR_TEST_DIR, DOWNPOUR_TEST_MNIST
  python3 python/tests/on_spark.py Connect --connect sc://…        over Spark Connect

Four task slots for a cluster, and some for tasks that feed it.
"""
import json
import os
import shutil
import signal
import sys
import threading
import time
import types
import unittest

sys.path[:0] = [os.path.join(os.path.dirname(os.path.abspath(__file__)), *up) for up in
                (("..",), ("..", "..", "examples"))]

import mnist_spark
from pyspark.sql import SparkSession

from downpour_spark import TFCluster, TFParallel, dfutil, pipeline
from downpour_spark.coordinator import ClusterError
from tests import spark_functions as functions

LONG = 180.0
DIR = os.environ.get("DOWNPOUR_TEST_DIR", "/tmp/downpour-on-spark")
MNIST = os.environ.get("DOWNPOUR_TEST_MNIST", "data/mnist")
MIN_ACCURACY = 0.915
CONNECT = None
SPARK, TENSORFLOW = TFCluster.InputMode.SPARK, TFCluster.InputMode.TENSORFLOW


def processes():
    """Processes of the tests' clusters: their keepers, training processes and servers."""
    found, ours = {}, f"DOWNPOUR_TEST_DIR={DIR}".encode()
    for name in os.listdir("/proc"):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"/proc/{name}/environ", "rb") as file:
                if ours not in file.read().split(b"\0"):
                    continue
        except (OSError, ValueError):
            continue
        if b"downpour_spark.keeper" in words or b"downpour_spark.trainer" in words or (
                b"serve" in words and b"--cluster" in words):
            found[int(name)] = b" ".join(words[:6]).decode(errors="replace")
    return found


def wait(what, is_met, seconds=LONG):
    deadline = time.monotonic() + seconds
    while not is_met():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:g} s: {what}")
        time.sleep(0.1)


class OnSpark(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        builder = SparkSession.builder.appName("downpour_spark")
        cls.spark = (builder.remote(CONNECT) if CONNECT else builder).getOrCreate()
        cls.before = set(processes())

    def setUp(self):
        self.dir = os.path.join(DIR, self._testMethodName)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)
        print(f"--- {self._testMethodName}", flush=True)
        # After what a test that fails has to end.
        self.addCleanup(self.check_left)

    def check_left(self):
        wait(f"nothing is left: {self.left()}", lambda: not self.left(), 60)

    def left(self):
        return {p: words for p, words in processes().items() if p not in self.before}

    def run_cluster(self, function, args, size, ps, **more):
        cluster = TFCluster.run(self.spark, function, args, size, ps, reservation_timeout=LONG, **more)
        self.addCleanup(cluster._driver.close)
        return cluster

    def mnist(self, how, kills=True, steps=2500, **more):
        """Trains with 2 ps and 2 workers; a server and a training process are killed on the way."""
        args = types.SimpleNamespace(input=how, data=MNIST, dir=self.dir, steps=steps, save_secs=2)
        cluster = self.run_cluster(mnist_spark.map_fun, args, 4, 2, input_mode=TENSORFLOW if how == "tensorflow" else SPARK,
                                   **more)
        killer = threading.Thread(target=self.kill, daemon=True)
        if kills:
            killer.start()
        if how != "tensorflow":
            parts, folder = mnist_spark.PARTS, MNIST
            if how == "spark":
                data = self.spark.sparkContext.parallelize(range(parts), parts).flatMap(
                    lambda part: mnist_spark.rows(folder, part))
            else:
                data = self.spark.range(0, parts, 1, parts).mapInArrow(
                    lambda batches: mnist_spark.batches(folder, batches), "image array<float>, label long")
            cluster.train(data, 30, feed_timeout=LONG)
        cluster.shutdown(timeout=LONG * 2)
        if kills:
            killer.join(1)
            self.assertFalse(killer.is_alive(), "nothing was killed")
        with open(os.path.join(self.dir, "accuracy"), encoding="utf-8") as file:
            said = file.read()
        print(f"MNIST by {how}: test accuracy {said}", flush=True)
        self.assertGreaterEqual(float(said.split()[0]), MIN_ACCURACY)

    def kill(self):
        """A server of a ps and a training process of a worker, when there is a checkpoint to go on from."""
        def checkpoints():
            return [n for n in os.listdir(self.dir) if n.endswith(".index")]
        wait("a checkpoint", lambda: len(checkpoints()) > 1)
        def a_worker(process):
            """Its last argument is the file that says what it is."""
            try:
                with open(f"/proc/{process}/cmdline", encoding="utf-8") as file:
                    path = file.read().rstrip("\0").split("\0")[-1]
                with open(path, encoding="utf-8") as file:
                    spec = json.load(file)
            except (OSError, ValueError):
                return False
            return (spec["job_name"], spec["task_index"]) == ("worker", 1)
        for which, is_meant, of in (("serve --job ps --task 1", lambda process: True, "a ps"),
                                    ("downpour_spark.trainer", a_worker, "a worker")):
            victim = next(p for p, words in self.left().items() if which in words and is_meant(p))
            os.kill(victim, signal.SIGKILL)
            print(f"killed {of}: process {victim}", flush=True)
            wait("its next start", lambda: any(p != victim and which in words and is_meant(p)
                                               for p, words in self.left().items()))


class Training(OnSpark):
    def test_mnist_fed_by_an_rdd_survives_kills(self):
        self.mnist("spark")

    def test_mnist_fed_by_a_data_frame(self):
        self.mnist("dataframe", kills=False)

    def test_mnist_that_reads_files_survives_kills(self):
        # Without a feed, steps are quick: so many that the kills come before the end.
        self.mnist("tensorflow", steps=6000)

    def test_ps_beside_the_driver(self):
        self.mnist("tensorflow", kills=False, driver_ps_nodes=True)


class Manners(OnSpark):
    def test_inference_gives_results_of_each_partition_in_order(self):
        cluster = self.run_cluster(functions.doubles, {}, 3, 1, input_mode=SPARK)
        rdd = self.spark.sparkContext.parallelize(range(1000), 10)
        self.assertEqual(cluster.inference(rdd, feed_timeout=LONG).collect(), [2 * i for i in range(1000)])
        frame = cluster.inference(self.spark.range(100), feed_timeout=LONG, schema="twice long")
        self.assertEqual(sorted(r.twice for r in frame.collect()), [2 * i for i in range(100)])
        cluster.shutdown(timeout=LONG)

    def test_one_cluster_after_the_other_on_the_same_executors(self):  # tfos 41, 42
        for _ in range(2):
            cluster = self.run_cluster(functions.doubles, {}, 2, 0, input_mode=SPARK)
            rdd = self.spark.sparkContext.parallelize(range(10), 2)
            self.assertEqual(cluster.inference(rdd).sum(), 90)
            cluster.shutdown(timeout=LONG)

    def test_an_exception_is_raised_by_shutdown(self):
        cluster = self.run_cluster(functions.fails, {}, 3, 1)
        with self.assertRaisesRegex(ClusterError, "worker:0 on .* failed: ValueError: no such luck"):
            cluster.shutdown(timeout=LONG)

    def test_an_exception_is_raised_by_train(self):
        cluster = self.run_cluster(functions.fails_when_fed, {}, 1, 0, input_mode=SPARK)
        with self.assertRaisesRegex(ClusterError, "bad row"):
            cluster.train(self.spark.sparkContext.parallelize(range(10000), 2), 1, feed_timeout=LONG)
        with self.assertRaisesRegex(ClusterError, "bad row"):
            cluster.shutdown(timeout=LONG)

    def test_too_few_slots_end_with_the_numbers(self):  # tfos 208, 359, 478, 540
        with self.assertRaisesRegex(ClusterError, "only 0 of 99 nodes have started within 5 s; missing: ps:0"):
            TFCluster.run(self.spark, functions.hangs, {}, 99, 1, reservation_timeout=5)

    def test_training_that_hangs_ends_at_the_deadline(self):  # tfos 195, 309
        cluster = self.run_cluster(functions.hangs, {}, 2, 1)
        with self.assertRaisesRegex(ClusterError, "worker:0 did not return within 3 s"):
            cluster.shutdown(timeout=3)

    def test_tensorboard_runs_beside_the_first_worker(self):
        cluster = self.run_cluster(functions.board, {"dir": self.dir}, 1, 0, tensorboard=True, log_dir=self.dir)
        with open(os.path.join(self.dir, "url~"), "w", encoding="utf-8") as file:
            file.write(cluster.tensorboard_url())
        os.rename(os.path.join(self.dir, "url~"), os.path.join(self.dir, "url"))
        cluster.shutdown(timeout=LONG)
        with open(os.path.join(self.dir, "page"), encoding="utf-8") as file:
            self.assertIn("TensorBoard", file.read())

    def test_independent_runs(self):
        folder = self.dir

        def note(args, ctx):
            with open(os.path.join(folder, f"{ctx.worker_num}-of-{ctx.num_workers}"), "w", encoding="utf-8"):
                pass
        TFParallel.run(self.spark.sparkContext, note, {}, 2)
        self.assertEqual(sorted(os.listdir(self.dir)), ["0-of-2", "1-of-2"])


class Pipeline(OnSpark):
    def test_records_come_back_as_they_were(self):
        rows = [(i, float(i) / 2, [1.0, 2.0, i + 0.5], f"text {i}", bytes([i]), i % 2 == 0) for i in range(20)]
        schema = "id long, half double, list array<float>, text string, data binary, even boolean"
        frame = self.spark.createDataFrame(rows, schema).repartition(3)
        path = os.path.join(self.dir, "records")
        dfutil.saveAsTFRecords(frame, path)
        loaded = dfutil.loadTFRecords(self.spark if CONNECT else self.spark.sparkContext, path, ["data"])
        self.assertTrue(dfutil.isLoadedDF(loaded))
        got = sorted((r.id, r.half, r.list, r.text, bytes(r.data), r.even) for r in loaded.collect())
        self.assertEqual(got, [(i, h, l, t, d, int(e)) for i, h, l, t, d, e in rows])

    def test_an_estimator_trains_and_its_model_scores_frames_and_streams(self):
        export = os.path.join(self.dir, "export")
        args = types.SimpleNamespace(batch_size=50, export_dir=export)
        frame = self.spark.range(2000).selectExpr("cast(id % 100 / 50.0 as float) feature",
                                                  "cast(3 * (id % 100 / 50.0) + 1 as float) target")
        estimator = (pipeline.TFEstimator(functions.line, vars(args)).setInputMapping({"feature": "x", "target": "y"})
                     .setClusterSize(2).setNumPS(1).setEpochs(10).setBatchSize(50).setExportDir(export).setGraceSecs(60))
        model = estimator.fit(frame)
        model = (model.setInputMapping({"feature": "feature"}).setOutputMapping({"fit": "answer"})
                 .setSignatureDefKey("score").setExportDir(export))
        answers = model.transform(frame.limit(10)).collect()
        self.assertEqual(len(answers), 10)
        answers = sorted(r.answer for r in answers)
        self.assertAlmostEqual(answers[0], 1.0, delta=0.2)
        source = os.path.join(self.dir, "source")
        frame.limit(10).write.parquet(source)
        stream = self.spark.readStream.schema("feature float, target float").parquet(source)
        query = model.transform(stream).writeStream.format("memory").queryName("answers").trigger(availableNow=True).start()
        self.assertTrue(query.awaitTermination(int(LONG)))
        self.assertEqual(self.spark.table("answers").count(), 10)


class Connect(OnSpark):
    """Over Spark Connect."""

    def test_mnist_that_reads_files(self):
        self.mnist("tensorflow", kills=False)

    def test_mnist_fed_by_a_data_frame(self):
        self.mnist("dataframe", kills=False)

    def test_an_exception_is_raised_by_shutdown(self):
        cluster = self.run_cluster(functions.fails, {}, 3, 1)
        with self.assertRaisesRegex(ClusterError, "no such luck"):
            cluster.shutdown(timeout=LONG)

    def test_records_come_back_as_they_were(self):
        Pipeline.test_records_come_back_as_they_were(self)


if __name__ == "__main__":
    if "--connect" in sys.argv:
        at = sys.argv.index("--connect")
        CONNECT = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    elif len(sys.argv) == 1:
        sys.argv += ["Training", "Manners", "Pipeline"]
    program = unittest.main(verbosity=2, exit=False)
    outcome = os.environ.get("DOWNPOUR_TEST_OUTCOME")
    if outcome:
        with open(outcome, "w", encoding="utf-8") as file:
            file.write(f"Ran {program.result.testsRun} tests\n")
    sys.exit(not program.result.wasSuccessful())
