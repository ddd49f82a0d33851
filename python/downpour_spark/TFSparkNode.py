"""One node of a cluster, as its Spark task starts it, and `TFNodeContext`, which training functions get as `ctx`."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from . import TFNode

#: Jobs that count as workers.
WORKERS = ("master", "chief", "worker")


class TFNodeContext:
    """What a training function knows of its node. The fields and methods of TensorFlowOnSpark's, and `target`."""

    def __init__(self, executor_id: int = 0, job_name: str = "", task_index: int = 0,
                 cluster_spec: dict[str, list[str]] | None = None, defaultFS: str = "file://", working_dir: str = ".",
                 mgr: Any = None, tmp_socket: Any = None):
        self.worker_num = executor_id
        self.executor_id = executor_id
        self.job_name = job_name
        self.task_index = task_index
        self.cluster_spec = cluster_spec or {}
        self.num_workers = sum(len(hosts) for job, hosts in self.cluster_spec.items() if job in WORKERS)
        self.defaultFS = defaultFS
        self.working_dir = working_dir
        self.mgr = mgr
        self.tmp_socket = tmp_socket
        #: How often this node's training was started; more than 1 after it was killed.
        self.start = 1
        self.keeper: Any = None
        self.is_port_held = False

    @property
    def target(self) -> str:
        """This node's server, for sessions."""
        return "grpc://" + self.cluster_spec[self.job_name][self.task_index]

    def absolute_path(self, path: str) -> str:
        """See `TFNode.hdfs_path`."""
        return TFNode.hdfs_path(self, path)

    def start_cluster_server(self, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, TFNode.Server]:
        """See `TFNode.start_cluster_server`."""
        return TFNode.start_cluster_server(self, num_gpus, rdma)

    def export_saved_model(self, sess: Any, export_dir: str, tag_set: str, signatures: dict) -> None:
        """See `TFNode.export_saved_model`."""
        TFNode.export_saved_model(sess, export_dir, tag_set, signatures)

    def get_data_feed(self, train_mode: bool = True, qname_in: str = "input", qname_out: str = "output",
                      input_mapping: dict[str, str] | None = None) -> TFNode.DataFeed:
        """See `TFNode.DataFeed`."""
        return TFNode.DataFeed(self.mgr, train_mode, qname_in, qname_out, input_mapping)

    def release_port(self) -> None:
        """See `TFNode.release_port`."""
        TFNode.release_port(self)


def keep(spec: dict, payload: bytes) -> None:
    """Starts a node's keeper and waits until the node is ready, or for a held one until it has ended. Raises if it fails."""
    spec = dict(spec, sys_path=list(sys.path), payload=len(payload), env=_gpus())
    if spec["watch"]:
        spec["watch"] = _executor()
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p))
    process = subprocess.Popen(
        [sys.executable, "-m", "downpour_spark.keeper"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        start_new_session=True, env=environment)
    name = f"{spec['job_name']}:{spec['task_index']}"
    try:
        text = json.dumps(spec).encode()
        process.stdin.write(b"%d\n" % len(text) + text + payload)
        process.stdin.flush()
    except BrokenPipeError:
        raise RuntimeError(f"{name} did not start; the executor's log has its error") from None
    said = b""
    try:
        for line in process.stdout:
            if line == b"ready\n":
                if not spec["hold"]:
                    return
            else:
                said = line
        code = process.wait()
    finally:
        # The keeper of a node that nobody holds goes on.
        process.stdin.close()
        process.stdout.close()
    if code:
        why = json.loads(said).get("error") if said.startswith(b"{") else None
        raise RuntimeError(why or f"{name} ended with exit code {code}; the executor's log has its last words")


def _executor() -> int:
    """The process id of the JVM that runs this task's executor, or 0."""
    process = os.getppid()
    while process > 1:
        try:
            with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition(" (")[2].rpartition(") ")
        except OSError:
            return 0
        if name == "java":
            return process
        process = int(rest.split()[1])
    return 0


def _gpus() -> dict[str, str]:
    """The cards that Spark has given to this task."""
    try:
        from pyspark import TaskContext
        context = TaskContext.get()
        resources = context.resources() if context is not None else {}
    except Exception:
        return {}
    gpus = resources["gpu"].addresses if resources and "gpu" in resources else []
    return {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
