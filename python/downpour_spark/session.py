"""How a cluster is started and told what to do: by a driver of Spark, or over Spark Connect.

A driver's coordinator runs in its own process, where all executors reach it. A client of Spark Connect may be out of reach:
there the coordinator runs in the first task of the barrier stage, and the client asks it by way of small Spark jobs.
"""
from __future__ import annotations

import json
import logging
import os
import threading
import time
import traceback
from typing import Any, Callable, Iterator

from . import TFSparkNode
from .coordinator import ClusterError, Coordinator, dial

logger = logging.getLogger(__name__)

#: Between two questions to a cluster of Spark Connect, each a small job.
ASK_EVERY = 1.0


def driver(sc: Any, meta: dict, map_fun: Callable, tf_args: Any) -> "Driver":
    """What drives clusters on this context or session."""
    from pyspark import cloudpickle

    payload = cloudpickle.dumps((map_fun, tf_args))
    if hasattr(sc, "parallelize"):
        return Classic(sc, meta, payload)
    if type(sc).__module__.startswith("pyspark.sql.connect"):
        return Connect(sc, meta, payload)
    return Classic(sc.sparkContext, meta, payload)


def specification(meta: dict, index: int, coordinator: tuple[str, int], is_connected: bool = False) -> dict:
    """What the keeper of a node is told."""
    job, task = meta["template"][index]
    is_worker = job not in ("ps", "evaluator")
    is_fed = meta["is_fed"] and is_worker
    is_local = index in meta["driver_nodes"]
    return {
        "index": index, "job_name": job, "task_index": task, "coordinator": list(coordinator), "token": meta["token"],
        "is_fed": is_fed, "hold": is_connected or is_local or not is_fed, "release_port": meta["release_port"],
        "serve": meta["serve"], "restarts": meta["restarts"], "tensorboard": index == meta["board"],
        "log_dir": meta["log_dir"], "default_fs": meta["default_fs"], "working_dir": meta["working_dir"],
        "queues": meta["queues"], "watch": not is_local, "info": info_path(meta) if is_connected else None}


def info_path(meta: dict) -> str:
    """Where nodes of a Connect cluster leave word of it on their hosts."""
    return f"/tmp/downpour-spark-{os.getuid()}/{meta['id']:x}.json"


class Driver:
    """One cluster, as the user's program sees it."""

    def start(self, timeout: float) -> list[dict]:
        """Starts the nodes; what is known of each."""
        raise NotImplementedError

    def end_feed(self) -> None:
        """Tells workers that no more rows come."""
        raise NotImplementedError

    def await_workers(self, timeout: float | None) -> bool:
        """Waits until their functions have returned; false when the time is over."""
        raise NotImplementedError

    def working(self) -> str:
        """Names of workers whose functions have not returned."""
        raise NotImplementedError

    def wants_no_more(self) -> bool:
        """Whether a worker has asked for the feed's end, or all have returned."""
        raise NotImplementedError

    def has_failed(self) -> bool:
        """Whether the cluster has failed."""
        raise NotImplementedError

    def abort(self, reason: str) -> None:
        """Fails the cluster."""
        raise NotImplementedError

    def explain(self, error: Exception) -> None:
        """Raises the cluster's own failure, if an error of Spark's comes from that."""
        raise NotImplementedError

    def finish(self, timeout: float) -> None:
        """Waits until no process is left; raises if the cluster has failed."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what is left, whatever it is."""
        raise NotImplementedError


class Stage(threading.Thread):
    """The barrier stage, which runs beside the user's program."""

    def __init__(self, run: Callable[[], Any]):
        super().__init__(name="downpour-stage", daemon=True)
        self._run_stage = run
        self.result: Any = None
        self.error: Exception | None = None

    def run(self) -> None:
        """Runs it to its end."""
        try:
            self.result = self._run_stage()
        except Exception as e:
            self.error = e


class Classic(Driver):
    """On a SparkContext."""

    def __init__(self, sc: Any, meta: dict, payload: bytes):
        self._sc, self._meta, self._payload = sc, meta, payload
        file_system = sc._jsc.hadoopConfiguration().get("fs.defaultFS")
        meta["default_fs"] = file_system[:-1] if file_system.endswith("/") else file_system
        self._group = f"downpour-{meta['id']:x}"
        # Where Spark's own driver listens.
        self._coordinator = Coordinator(meta["template"], meta["token"], sc.getConf().get("spark.driver.bindAddress", ""))
        self._stages: list[Stage] = []

    def start(self, timeout: float) -> list[dict]:
        meta, payload = self._meta, self._payload
        host = os.environ.get("TFOS_SERVER_HOST") or self._sc.getConf().get("spark.driver.host", "127.0.0.1")
        address = (host, self._coordinator.port)
        nodes = [i for i in range(meta["num_executors"]) if i not in meta["driver_nodes"]]

        def task(rows: Iterator[int]) -> Iterator[int]:
            for index in rows:
                TFSparkNode.keep(specification(meta, index, address), payload)
            return iter(())

        def stage() -> None:
            # For threads of the JVM's own, too, as pinned threads are.
            self._sc.setJobGroup(self._group, "a cluster of downpour_spark", True)
            self._sc.parallelize(nodes, len(nodes)).barrier().mapPartitions(task).collect()
        self._stages = [Stage(stage)]
        for index in meta["driver_nodes"]:
            spec = specification(meta, index, address)
            self._stages.append(Stage(lambda spec=spec: TFSparkNode.keep(spec, payload)))
        for thread in self._stages:
            thread.start()
            threading.Thread(target=self._watch, args=(thread,), daemon=True).start()
        coordinator = self._coordinator
        if not coordinator.wait(lambda: coordinator.state != "gathering", timeout):
            coordinator.abort(
                f"only {len(meta['template']) - len(coordinator.missing())} of {len(meta['template'])} nodes have started "
                f"within {timeout:g} s; missing: {coordinator.names(coordinator.missing())}. The nodes on executors need "
                f"{len(nodes)} free task slots at once, and Spark has about {self._sc.defaultParallelism} in all: "
                "spark.executor.instances × spark.executor.cores ÷ spark.task.cpus")
            raise ClusterError(coordinator.error)
        return coordinator.nodes()

    def _watch(self, stage: Stage) -> None:
        """A stage that ends with an error is the cluster's failure, if it has no other."""
        stage.join()
        if stage.error is not None:
            self._coordinator.abort(f"Spark does not run the nodes: {_last_line(stage.error)}")

    def end_feed(self) -> None:
        self._coordinator.end_feed()

    def await_workers(self, timeout: float | None) -> bool:
        try:
            return self._coordinator.wait(lambda: not self._coordinator.working(), timeout)
        except ClusterError:
            return True

    def working(self) -> str:
        return self._coordinator.names(self._coordinator.working())

    def wants_no_more(self) -> bool:
        return self._coordinator.is_stop_requested or not self._coordinator.working()

    def has_failed(self) -> bool:
        return self._coordinator.state == "failed"

    def abort(self, reason: str) -> None:
        self._coordinator.abort(reason)

    def explain(self, error: Exception) -> None:
        # What a worker says of its end, and what tasks that feed it do, may come in any order.
        deadline = time.monotonic() + 2
        while not self.has_failed() and time.monotonic() < deadline:
            time.sleep(0.05)
        if self.has_failed():
            raise ClusterError(self._coordinator.error) from error

    def finish(self, timeout: float) -> None:
        coordinator = self._coordinator
        with coordinator.changed:
            coordinator.changed.wait_for(lambda: not coordinator.unfinished(), timeout)
        if coordinator.state == "failed":
            raise ClusterError(coordinator.error)
        if coordinator.unfinished():
            raise ClusterError(f"{coordinator.names(coordinator.unfinished())} did not end within {timeout:g} s")

    def close(self) -> None:
        # Keepers that are still there end with their connections.
        self._coordinator.close()
        for stage in self._stages:
            stage.join(5)
        if any(stage.is_alive() for stage in self._stages):
            try:
                self._sc.cancelJobGroup(self._group)
            except Exception as e:
                logger.warning("the cluster's stage could not be cancelled: %s", e)
            for stage in self._stages:
                stage.join(10)


class Connect(Driver):
    """On a session of Spark Connect."""

    def __init__(self, spark: Any, meta: dict, payload: bytes):
        if meta["driver_nodes"]:
            raise ValueError("driver_ps_nodes: a client of Spark Connect is no driver")
        self._spark, self._meta, self._payload = spark, meta, payload
        meta["default_fs"] = spark.conf.get("spark.hadoop.fs.defaultFS", None) or "file://"
        self._stage: Stage | None = None
        self._nodes: list[dict] = []
        self._address: tuple[str, int] | None = None
        self._tag = f"downpour-{meta['id']:x}"

    def start(self, timeout: float) -> list[dict]:
        meta, payload = self._meta, self._payload
        count = meta["num_executors"]
        task = _connect_task(meta, payload)

        def stage() -> list:
            self._spark.addTag(self._tag)
            frame = self._spark.range(0, count, 1, count)
            return frame.mapInArrow(task, "node long, error string", barrier=True).collect()
        self._stage = Stage(stage)
        self._stage.start()
        if not meta["is_fed"]:
            # All slots may be taken: the stage itself tells how it ends.
            return []
        deadline = time.monotonic() + timeout
        while not self._nodes:
            self._check_stage()
            if time.monotonic() > deadline:
                self.close()
                raise ClusterError(f"the cluster's {count} nodes have not started within {timeout:g} s, or no slot is left for "
                                   f"tasks that feed: over Spark Connect a cluster that is fed needs {count + 1}")
            self._nodes = self._find_nodes()
            if not self._nodes:
                time.sleep(ASK_EVERY)
        return self._nodes

    def _check_stage(self) -> None:
        if self._stage is not None and not self._stage.is_alive():
            errors = [row[1] for row in self._stage.result or () if row[1]]
            if self._stage.error is not None:
                raise ClusterError(_last_line(self._stage.error)) from self._stage.error
            if errors:
                raise ClusterError(errors[0])

    def _find_nodes(self) -> list[dict]:
        meta = self._meta

        def look(batches: Iterator) -> Iterator:
            import pyarrow as pa
            for _ in batches:
                pass
            path, text = info_path(meta), ""
            if os.path.exists(path):
                with open(path, encoding="utf-8") as file:
                    text = file.read()
            yield pa.RecordBatch.from_pydict({"text": [text]})
        rows = self._spark.range(0, 1, 1, 1).mapInArrow(look, "text string").collect()
        found = [json.loads(row[0]) for row in rows if row[0]]
        if not found:
            return []
        self._address = (found[0]["coordinator"][0], found[0]["coordinator"][1])
        return found[0]["nodes"]

    def _ask(self, what: str, **more: Any) -> dict:
        """Asks the coordinator, from an executor."""
        address, token = self._address, self._meta["token"]

        def ask(batches: Iterator) -> Iterator:
            import pyarrow as pa
            for _ in batches:
                pass
            try:
                line = dial(address, token, "control")
                line.send({"do": what, **more})
                answer = line.receive()
                line.close()
            except (OSError, ClusterError) as e:
                answer = {"state": "gone", "error": str(e)}
            yield pa.RecordBatch.from_pydict({"text": [json.dumps(answer)]})
        rows = self._spark.range(0, 1, 1, 1).mapInArrow(ask, "text string").collect()
        return json.loads(rows[0][0])

    def end_feed(self) -> None:
        self._ask("end_feed")

    def await_workers(self, timeout: float | None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if not self._stage.is_alive():
                return True
            if self._meta["is_fed"] and self._is_over(self._ask("look")):
                return True
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._stage.join(ASK_EVERY)

    @staticmethod
    def _is_over(answer: dict) -> bool:
        return answer["state"] in ("failed", "ended", "gone") or not answer["working"]

    def working(self) -> str:
        return self._ask("look").get("working", "") if self._meta["is_fed"] else "a worker"

    def wants_no_more(self) -> bool:
        answer = self._ask("look")
        return self._is_over(answer) or answer["is_stop_requested"]

    def has_failed(self) -> bool:
        return not self._stage.is_alive() or self._ask("look")["state"] in ("failed", "gone")

    def abort(self, reason: str) -> None:
        if self._meta["is_fed"]:
            self._ask("abort", reason=reason)
            return
        self._interrupt()
        raise ClusterError(reason)

    def explain(self, error: Exception) -> None:
        self._check_stage()
        answer = self._ask("look")
        if answer["state"] in ("failed", "gone"):
            raise ClusterError(answer["error"]) from error

    def finish(self, timeout: float) -> None:
        failure = ""
        if self._meta["is_fed"] and self._stage.is_alive():
            deadline = time.monotonic() + timeout
            answer = self._ask("look")
            while answer["state"] not in ("failed", "ended", "gone") and time.monotonic() < deadline:
                time.sleep(ASK_EVERY)
                answer = self._ask("look")
            failure = answer["error"] if answer["state"] == "failed" else ""
            if answer["state"] != "gone":
                self._ask("close")
        self._stage.join(timeout)
        if failure:
            raise ClusterError(failure)
        if self._stage.is_alive():
            raise ClusterError(f"the cluster's stage did not end within {timeout:g} s")
        self._check_stage()

    def _interrupt(self) -> None:
        try:
            self._spark.interruptTag(self._tag)
        except Exception as e:
            logger.warning("the cluster's stage could not be interrupted: %s", e)

    def close(self) -> None:
        if self._stage is not None and self._stage.is_alive():
            self._interrupt()
            self._stage.join(10)


def _connect_task(meta: dict, payload: bytes) -> Callable[[Iterator], Iterator]:
    """What a task of the barrier stage does: its first one is the coordinator too."""
    def task(batches: Iterator) -> Iterator:
        import pyarrow as pa
        from pyspark import BarrierTaskContext

        for _ in batches:
            pass
        context = BarrierTaskContext.get()
        index = context.partitionId()
        host = context.getTaskInfos()[0].address.rsplit(":", 1)[0]
        coordinator = Coordinator(meta["template"], meta["token"]) if index == 0 else None
        said = context.allGather(f"{host} {coordinator.port}" if coordinator else "")
        host, port = said[0].split()
        error = ""
        try:
            TFSparkNode.keep(specification(meta, index, (host, int(port)), is_connected=True), payload)
        except Exception as e:
            error = str(e) or traceback.format_exc()
        if coordinator is not None:
            with coordinator.changed:
                if meta["is_fed"]:
                    # Tasks that still feed find workers that answer, until the client has seen the end.
                    coordinator.changed.wait_for(lambda: coordinator.is_closed)
                coordinator.changed.wait_for(lambda: not coordinator.unfinished(), 60)
            error = coordinator.error or error
            coordinator.close()
        yield pa.RecordBatch.from_pydict({"node": [index], "error": [error]})
    return task


def _last_line(error: Exception) -> str:
    """What Spark's errors are about, out of their many lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("RuntimeError:", "downpour_spark.")) or "Exception: [" in line:
            return line
    return lines[0] if lines else repr(error)
