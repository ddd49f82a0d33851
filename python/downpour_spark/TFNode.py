"""What a training function uses: `DataFeed`, `start_cluster_server`, `hdfs_path`, `export_saved_model`.

Names and arguments are those of TensorFlowOnSpark's module of this name.
"""
from __future__ import annotations

import getpass
import logging
import socket
import time
from typing import Any

import numpy as np

from .inbox import FeedServer, Taker

logger = logging.getLogger(__name__)

#: What TensorFlow and Hadoop take as the beginning of a whole URL.
SCHEMES = ("adl://", "file://", "hdfs://", "oss://", "s3://", "s3a://", "s3n://", "swift://", "viewfs://", "wasb://",
           "abfs://", "abfss://", "gs://")
#: A server that does not listen by then does not listen at all.
SERVER_WITHIN = 60.0


def hdfs_path(ctx: Any, path: str) -> str:
    """A path as a URL: relative ones are of the user's folder on the cluster's file system."""
    if path.startswith(SCHEMES):
        return path
    if path.startswith("/"):
        return ctx.defaultFS + path
    if ctx.defaultFS.startswith(("hdfs://", "viewfs://")):
        return f"{ctx.defaultFS}/user/{getpass.getuser()}/{path}"
    if ctx.defaultFS.startswith("file://"):
        return f"{ctx.defaultFS}/{ctx.working_dir[1:]}/{path}"
    logger.warning("the path %s is relative, on a file system of an unknown kind: %s", path, ctx.defaultFS)
    return f"{ctx.defaultFS}/{path}"


class Server:
    """A task of the cluster, served by `downpour serve`; what scripts use of `tf.train.Server`."""

    def __init__(self, ctx: Any):
        self._ctx = ctx
        #: What sessions connect to.
        self.target = ctx.target

    def join(self) -> None:
        """Waits until the cluster's training is done, and returns: what follows in the script runs."""
        self._ctx.keeper.wait("stop")


def start_cluster_server(ctx: Any, num_gpus: int = 1, rdma: bool = False) -> tuple[Any, Server]:
    """Starts this node's server, `downpour serve`; TensorFlow's `ClusterSpec` and a server with `target` and `join()`.

    `num_gpus` and `rdma` are taken for compatibility: servers compute on CPUs and talk TCP.
    """
    if rdma:
        logger.warning("rdma is not there: servers talk to each other over TCP")
    ctx.keeper.ask("serve", "serving")
    host, port = ctx.cluster_spec[ctx.job_name][ctx.task_index].rsplit(":", 1)
    deadline = time.monotonic() + SERVER_WITHIN
    while True:
        try:
            socket.create_connection((host, int(port)), timeout=5).close()
            break
        except OSError as e:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the server of {ctx.job_name}:{ctx.task_index} does not listen at {host}:{port} after "
                                   f"{SERVER_WITHIN:g} s ({e}); the executor's log has what it says") from None
            time.sleep(0.05)
    import tensorflow.compat.v1 as tf

    return tf.train.ClusterSpec(ctx.cluster_spec), Server(ctx)


def release_port(ctx: Any) -> None:
    """Lets go of the node's port, for a server that the script starts by itself (`run(…, release_port=False)`)."""
    if ctx.is_port_held:
        ctx.is_port_held = False
        ctx.keeper.ask("release_port", "released")
    else:
        logger.warning("the port was released already")


def export_saved_model(sess: Any, export_dir: str, tag_set: str, signatures: dict) -> None:
    """Saves the session's graph and variables as a SavedModel.

    `signatures` is `{key: {"inputs": {alias: tensor}, "outputs": {alias: tensor}, "method_name": name}}`.
    """
    import tensorflow.compat.v1 as tf

    graph = sess.graph
    is_final = graph.finalized
    if is_final:
        graph._unsafe_unfinalize()
    try:
        builder = tf.saved_model.Builder(export_dir)

        def infos(tensors: dict) -> dict:
            return {alias: tf.saved_model.build_tensor_info(tensor) for alias, tensor in tensors.items()}
        definitions = {
            key: tf.saved_model.build_signature_def(
                inputs=infos(s["inputs"]), outputs=infos(s["outputs"]), method_name=s.get("method_name", key))
            for key, s in signatures.items()}
        with graph.as_default():
            builder.add_meta_graph_and_variables(
                sess, tag_set.split(","), signature_def_map=definitions, clear_devices=True)
        builder.save()
    finally:
        if is_final:
            graph.finalize()


class DataFeed:
    """The rows that Spark feeds to this node.

    With `train_mode`, batches go on over the ends of partitions. Without, rows of one partition come together,
    and `batch_results` gives one result for each, which `TFCluster.inference` returns.
    """

    def __init__(self, mgr: FeedServer, train_mode: bool = True, qname_in: str = "input", qname_out: str = "output",
                 input_mapping: dict[str, str] | None = None):
        if mgr is None:
            raise RuntimeError("this node is not fed: DataFeed is for workers of InputMode.SPARK")
        self.mgr = mgr
        self.train_mode, self.qname_in, self.qname_out = train_mode, qname_in, qname_out
        # The order of columns is that of their names.
        self.input_tensors = None if input_mapping is None else [t for _, t in sorted(input_mapping.items())]
        self._taker = Taker(mgr, qname_in, train_mode)

    @property
    def done_feeding(self) -> bool:
        """No more rows will come."""
        return self._taker.is_done

    def next_batch(self, batch_size: int) -> Any:
        """Up to `batch_size` rows, fewer at the end of the data: a list of rows as they were in Spark, or with an
        `input_mapping` a dictionary from tensors' names to columns."""
        parts = self._taker.take(batch_size)
        if self.input_tensors is not None:
            return dict(zip(self.input_tensors, self._columns(parts)))
        if len(parts) == 1:
            chunk, begin, end = parts[0]
            return chunk.rows(begin, end)
        return [row for chunk, begin, end in parts for row in chunk.rows(begin, end)]

    def next_arrays(self, batch_size: int) -> list:
        """The same rows as one array (or list, where values are no numbers) for each column, without making python
        objects of them. Not in TensorFlowOnSpark."""
        return self._columns(self._taker.take(batch_size))

    def _columns(self, parts: list) -> list:
        pieces = [chunk.arrays(begin, end) for chunk, begin, end in parts]
        if not pieces:
            return [[] for _ in self.input_tensors or ()]
        if len(pieces) == 1:
            return pieces[0]
        return [_join(column) for column in zip(*pieces)]

    def should_stop(self) -> bool:
        """Whether the feed has ended, by its end or by `terminate`."""
        return self._taker.is_done

    def batch_results(self, results: Any) -> None:
        """Gives one result for each row of the last batches, in their order."""
        self._taker.give(results)

    def terminate(self) -> None:
        """Ends the feed from this side: tasks that feed end at once, and their rows are not used."""
        self._taker.terminate()

    def enqueue(self, session: Any, enqueue: Any, placeholders: list, batch_size: int) -> int:
        """Runs an operation that enqueues, batch by batch, to the feed's end; how many rows. Not in TensorFlowOnSpark."""
        count = 0
        while not self.should_stop():
            columns = self.next_arrays(batch_size)
            if columns and len(columns[0]):
                session.run(enqueue, dict(zip(placeholders, columns)))
                count += len(columns[0])
        return count


def _join(pieces: tuple) -> Any:
    if all(isinstance(p, np.ndarray) for p in pieces) and len({p.shape[1:] for p in pieces}) == 1:
        return np.concatenate(pieces)
    return [value for piece in pieces for value in piece]
