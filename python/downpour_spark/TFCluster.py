"""Clusters on Spark: `run` starts one on the executors, `TFCluster` feeds it and ends it.

Nodes start in one barrier stage, so all do or none does. Each has a keeper (keeper.py) that starts `downpour serve` and the training
function's process. With `InputMode.SPARK` the tasks of workers end when their keepers run, so that tasks that feed
have their place; all others hold theirs to the cluster's end.

Names and arguments are those of TensorFlowOnSpark's module of this name; what only this package has comes after `*`.
"""
from __future__ import annotations

import logging
import os
import random
import secrets
import threading
import time
from typing import Any, Callable, Sequence

from . import feeding, session
from .coordinator import ClusterError, Coordinator

logger = logging.getLogger(__name__)

#: After the end of the feed, and what the caller grants, functions that do not return are at fault.
RETURN_WITHIN = 120.0
#: Processes that were told to end have ended by then.
END_WITHIN = 60.0
DEFAULT_QUEUES = ("input", "output", "error")


class InputMode:
    """Who reads the data."""

    TENSORFLOW = 0  #: The training function.
    SPARK = 1  #: Spark, which feeds it to workers.


class TFCluster:
    """A cluster that was started. Made by `run`."""

    def __init__(self) -> None:
        self.sc: Any = None
        self.meta: dict = {}
        self.cluster_meta: dict = {}
        self.cluster_info: list[dict] = []
        self.input_mode = InputMode.TENSORFLOW
        self.queues: Sequence[str] = DEFAULT_QUEUES
        self._driver: session.Driver = None  # type: ignore[assignment]
        self._is_shut = False

    def train(self, dataRDD: Any, num_epochs: int = 0, feed_timeout: float = 600, qname: str = "input") -> Any:
        """Feeds an RDD or DataFrame to the workers, `num_epochs` times (0: ten times), until they want no more.

        A `DStream` and a streaming DataFrame are fed as their data comes; of the latter the query is returned.
        `feed_timeout` is how long a worker may take no row.
        """
        self._check_fed(qname)
        if num_epochs < 0:
            raise ValueError(f"num_epochs is {num_epochs}, less than 0")
        feed = feeding.Feed(self.cluster_info, self.meta["token"], feed_timeout, qname)
        # A DataFrame has whatever it is asked for, as a column.
        if not hasattr(dataRDD, "mapInArrow") and hasattr(dataRDD, "foreachRDD"):
            return dataRDD.foreachRDD(lambda rdd: rdd.foreachPartition(feed.train_rows))
        if getattr(dataRDD, "isStreaming", False):
            return dataRDD.writeStream.foreachBatch(lambda batch, _: self._feed(feed, batch)).start()
        for _ in range(num_epochs or 10):
            if self._feed(feed, dataRDD):
                logger.info("all workers have ended their feed")
                break
        return None

    def _feed(self, feed: feeding.Feed, data: Any) -> bool:
        """Feeds data once; whether no worker wants more."""
        try:
            if hasattr(data, "mapInArrow"):
                answers = data.mapInArrow(feed.train_batches, feeding.ENDS).collect()
                ends = [row[0] for row in answers]
            else:
                ends = data.mapPartitions(feed.train_rows).collect()
        except Exception as e:
            self._driver.explain(e)
            raise
        return bool(ends) and all(ends) and self._driver.wants_no_more()

    def inference(self, dataRDD: Any, feed_timeout: float = 600, qname: str = "input", *, schema: Any = None) -> Any:
        """An RDD of what the workers' functions answer to the rows of one; computed when an action asks for it.

        A DataFrame gives a DataFrame of this `schema`, which may be a streaming one.
        """
        self._check_fed(qname)
        feed = feeding.Feed(self.cluster_info, self.meta["token"], feed_timeout, qname)
        if hasattr(dataRDD, "mapInArrow"):
            if schema is None:
                raise ValueError("inference of a DataFrame needs the schema of its results, as in schema='label long'")
            if isinstance(schema, str):
                # Tasks have nobody who could read it.
                schema = dataRDD.sparkSession.createDataFrame([], schema).schema
            return dataRDD.mapInArrow(feed.infer_batches(schema), schema)
        return dataRDD.mapPartitions(feed.infer_rows)

    def _check_fed(self, qname: str) -> None:
        if self.input_mode != InputMode.SPARK:
            raise AssertionError("rows are fed only to clusters of InputMode.SPARK")
        if qname not in self.queues:
            raise AssertionError(f"there is no queue '{qname}', only {', '.join(self.queues)}")

    def shutdown(self, ssc: Any = None, grace_secs: float = 0, timeout: float = 259200) -> None:
        """Waits until the training functions have returned, ends all processes, and raises if one has failed.

        With `InputMode.SPARK` the functions are told that no more rows come; then they have `grace_secs`, and two minutes in any
        case, to return. `timeout` is for the whole; -1 is none. `ssc` is a stream that feeds, a StreamingContext or a query:
        it ends before.
        """
        if self._is_shut:
            return
        self._is_shut = True
        deadline = None if timeout <= 0 else time.monotonic() + timeout
        try:
            if ssc is not None:
                self._await_stream(ssc, deadline)
            if self.input_mode == InputMode.SPARK:
                self._driver.end_feed()
                granted = max(float(grace_secs), RETURN_WITHIN)
                limit = granted if deadline is None else min(granted, deadline - time.monotonic())
                late = "did not return within {:.0f} s after the end of the feed; a larger grace_secs waits longer"
            else:
                limit = None if deadline is None else deadline - time.monotonic()
                late = "did not return within {:.0f} s"
            if not self._driver.await_workers(limit):
                names = self._driver.working()
                self._driver.abort(f"{names} {late.format(limit)}")
            self._driver.finish(END_WITHIN)
        finally:
            self._driver.close()

    def _await_stream(self, stream: Any, deadline: float | None) -> None:
        """Until it ends by itself, or workers want no more."""
        is_query = hasattr(stream, "awaitTermination") and not hasattr(stream, "awaitTerminationOrTimeout")
        wait = stream.awaitTermination if is_query else stream.awaitTerminationOrTimeout
        while not wait(1):
            is_late = deadline is not None and time.monotonic() > deadline
            if is_late or self._driver.wants_no_more() or self._driver.has_failed():
                if is_query:
                    stream.stop()
                else:
                    stream.stop(stopSparkContext=False, stopGraceFully=not is_late)
                return

    def tensorboard_url(self) -> str | None:
        """Where TensorBoard is, if it was asked for."""
        for node in self.cluster_info:
            if node["tb_port"]:
                return f"http://{node['host']}:{node['tb_port']}"
        return None


def run(sc: Any, map_fun: Callable, tf_args: Any, num_executors: int, num_ps: int, tensorboard: bool = False,
        input_mode: int = InputMode.TENSORFLOW, log_dir: str | None = None, driver_ps_nodes: bool = False,
        master_node: str | None = None, reservation_timeout: float = 600, queues: Sequence[str] = DEFAULT_QUEUES,
        eval_node: bool = False, release_port: bool = True, *, serve: bool = False, restarts: int = 5) -> TFCluster:
    """Starts a cluster of `num_executors` nodes and runs `map_fun(tf_args, ctx)` on each; returns when all have started.

    `sc` is a SparkContext, or a SparkSession, of Spark Connect too. All nodes have started within `reservation_timeout` seconds, or the
    error says which have not. With `driver_ps_nodes` the first `num_ps` nodes run beside the driver. `master_node` names the job of a chief.
    With `serve`, `downpour serve` runs beside every node from the beginning (`ctx.target`), and ps nodes run no `map_fun`;
    without, where `map_fun` calls `ctx.start_cluster_server()`. A process that is killed is started again, up to `restarts` times.
    """
    if eval_node and input_mode != InputMode.TENSORFLOW:
        raise Exception("eval_node is only supported in InputMode.TENSORFLOW: nobody feeds an evaluator")
    template = plan(num_executors, num_ps, master_node, eval_node)
    board = _board(template) if tensorboard else -1
    meta = {
        "id": random.getrandbits(64), "token": secrets.token_hex(32), "working_dir": os.getcwd(),
        "template": template, "num_executors": num_executors, "release_port": release_port,
        "cluster_template": {job: [i for i, (j, _) in enumerate(template) if j == job] for job, _ in template},
        "queues": list(queues), "log_dir": log_dir, "serve": serve, "restarts": restarts, "board": board,
        "is_fed": input_mode == InputMode.SPARK, "driver_nodes": list(range(num_ps)) if driver_ps_nodes else []}
    cluster = TFCluster()
    cluster.sc, cluster.meta, cluster.cluster_meta = sc, meta, meta
    cluster.input_mode, cluster.queues = input_mode, queues
    cluster._driver = session.driver(sc, meta, map_fun, tf_args)
    try:
        cluster.cluster_info = cluster._driver.start(reservation_timeout)
    except BaseException:
        cluster._driver.close()
        raise
    url = cluster.tensorboard_url()
    if url is not None:
        logger.info("TensorBoard is at %s", url)
    return cluster


def plan(num_executors: int, num_ps: int, master_node: str | None = None,
         eval_node: bool = False) -> list[tuple[str, int]]:
    """The job and index of each node: parameter servers, the chief, the evaluator, workers."""
    workers = num_executors - num_ps - (1 if master_node else 0) - (1 if eval_node else 0)
    if num_ps < 0 or workers < 0:
        raise AssertionError(f"{num_executors} executors are too few for {num_ps} ps"
                             f"{', a ' + master_node if master_node else ''}{' and an evaluator' if eval_node else ''}")
    if workers == 0 and not master_node:
        raise AssertionError("a cluster needs a worker, or a chief: num_executors counts the ps too")
    nodes = [("ps", i) for i in range(num_ps)]
    nodes += [(master_node, 0)] if master_node else []
    nodes += [("evaluator", 0)] if eval_node else []
    return nodes + [("worker", i) for i in range(workers)]


def _board(template: list[tuple[str, int]]) -> int:
    """The node beside which TensorBoard runs."""
    jobs = [node for node in template if node[1] == 0 and node[0] not in ("ps", "evaluator")]
    return template.index(("worker", 0) if ("worker", 0) in jobs else jobs[0])
