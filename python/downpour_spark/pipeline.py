"""Spark ML: `TFEstimator` trains a cluster on a DataFrame, `TFModel` scores DataFrames, streaming ones too.

The model that trains is spread over the cluster; one that scores runs whole in every executor, and is loaded once
by each of its python processes.
"""
from __future__ import annotations

import argparse
import copy
import json
import sys
from typing import Any, Callable, Iterable, Iterator

from pyspark.ml import Estimator, Model
from pyspark.ml.param.shared import Param, Params, TypeConverters

from . import TFCluster, frames, util


class TFTypeConverters:
    """Checks of what Spark has none for."""

    @staticmethod
    def toDict(value: Any) -> dict:
        """A dictionary, as it is."""
        if isinstance(value, dict):
            return value
        raise TypeError(f"{value!r} is no dictionary")


def _has(name: str, title: str, doc: str, convert: Callable, *, more: dict | None = None) -> type:
    """A mix-in with one parameter, its setter and its getter."""
    def set_value(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    def get_value(self: Any) -> Any:
        return self.getOrDefault(getattr(self, name))
    set_value.__doc__, get_value.__doc__ = f"Sets: {doc}.", f"{doc[0].upper()}{doc[1:]}."
    members = {name: Param(Params._dummy(), name, doc, typeConverter=convert), f"set{title}": set_value,
               f"get{title}": get_value, "__doc__": f"{doc[0].upper()}{doc[1:]}.", "__module__": __name__, **(more or {})}
    return type(f"Has{title}", (Params,), members)


def _set_input_mode(self: Any, value: int) -> Any:
    if value == TFCluster.InputMode.TENSORFLOW:
        raise Exception("an estimator trains on a DataFrame: InputMode.TENSORFLOW is not for it")
    return self._set(input_mode=value)


_to = TypeConverters
HasBatchSize = _has("batch_size", "BatchSize", "rows of a batch", _to.toInt)
HasClusterSize = _has("cluster_size", "ClusterSize", "nodes of the cluster", _to.toInt)
HasEpochs = _has("epochs", "Epochs", "how often the DataFrame is fed", _to.toInt)
HasGraceSecs = _has("grace_secs", "GraceSecs", "seconds that training functions have to return after the end of the feed",
                    _to.toInt)
HasInputMapping = _has("input_mapping", "InputMapping", "columns and the tensors that they go to", TFTypeConverters.toDict)
HasInputMode = _has("input_mode", "InputMode", "who reads the data", _to.toInt, more={"setInputMode": _set_input_mode})
HasMasterNode = _has("master_node", "MasterNode", "the chief's job", _to.toString)
HasModelDir = _has("model_dir", "ModelDir", "where checkpoints are", _to.toString)
HasOutputMapping = _has("output_mapping", "OutputMapping", "tensors and the columns that they go to", TFTypeConverters.toDict)
HasProtocol = _has("protocol", "Protocol", "how nodes talk: grpc", _to.toString)
HasReaders = _has("readers", "Readers", "threads that read", _to.toInt)
HasSteps = _has("steps", "Steps", "steps of training, at most", _to.toInt)
HasTensorboard = _has("tensorboard", "Tensorboard", "whether TensorBoard runs beside the training", _to.toBoolean)
HasTFRecordDir = _has("tfrecord_dir", "TFRecordDir", "where TFRecords are", _to.toString)
HasExportDir = _has("export_dir", "ExportDir", "where the SavedModel is", _to.toString)
HasSignatureDefKey = _has("signature_def_key", "SignatureDefKey", "the signature of the SavedModel", _to.toString)
HasTagSet = _has("tag_set", "TagSet", "tags of the SavedModel, with commas between them", _to.toString)
HasFeedTimeout = _has("feed_timeout", "FeedTimeout", "seconds for which a worker may take no row", _to.toInt)


class HasNumPS(Params):
    """Parameter servers."""

    num_ps = Param(Params._dummy(), "num_ps", "parameter servers", typeConverter=_to.toInt)
    driver_ps_nodes = Param(Params._dummy(), "driver_ps_nodes", "run them beside the driver", typeConverter=_to.toBoolean)

    def setNumPS(self, value: int) -> Any:
        """Sets: how many."""
        return self._set(num_ps=value)

    def getNumPS(self) -> int:
        """How many."""
        return self.getOrDefault(self.num_ps)

    def setDriverPSNodes(self, value: bool) -> Any:
        """Sets: whether they run beside the driver."""
        return self._set(driver_ps_nodes=value)

    def getDriverPSNodes(self) -> bool:
        """Whether they run beside the driver."""
        return self.getOrDefault(self.driver_ps_nodes)


class Namespace:
    """Arguments out of a dictionary, an `argparse.Namespace`, or a list as in `sys.argv` (then `argv`)."""

    argv: list | None = None

    def __init__(self, d: Any):
        if isinstance(d, list):
            self.argv = d
        elif isinstance(d, dict):
            self.__dict__.update(d)
        elif isinstance(d, (argparse.Namespace, Namespace)):
            self.__dict__.update(vars(d))
        else:
            raise Exception(f"arguments are a dictionary, an argparse.Namespace or a list, not {type(d).__name__}")

    def __iter__(self) -> Iterator:
        return iter(self.argv or list(self.__dict__))

    def __repr__(self) -> str:
        if self.argv:
            return repr(self.argv)
        return f"Namespace({', '.join(f'{k}={self.__dict__[k]!r}' for k in sorted(self.__dict__))})"

    def __eq__(self, other: object) -> bool:
        return self.argv == other if self.argv else self.__dict__ == getattr(other, "__dict__", None)


class TFParams(Params):
    """Arguments of the user's beside parameters of Spark ML."""

    args: Any = None

    def merge_args_params(self) -> Namespace:
        """The arguments, with what the parameters say."""
        merged = copy.copy(self.args)
        for param in self.params:
            setattr(merged, param.name, self.getOrDefault(param.name))
        return merged

    def _arguments(self) -> Any:
        return self.args.argv if self.args.argv else self.merge_args_params()


class TFEstimator(Estimator, TFParams, HasInputMapping, HasClusterSize, HasNumPS, HasInputMode, HasMasterNode, HasProtocol,
                  HasGraceSecs, HasTensorboard, HasModelDir, HasExportDir, HasTFRecordDir, HasBatchSize, HasEpochs,
                  HasReaders, HasSteps, HasFeedTimeout):
    """Trains by `train_fn(args, ctx)`, to which the columns of `input_mapping` are fed in the order of their names.

    `export_fn(args)` runs afterwards, on one executor.
    """

    def __init__(self, train_fn: Callable, tf_args: Any, export_fn: Callable | None = None):
        super().__init__()
        self.train_fn, self.export_fn = train_fn, export_fn
        self.args = Namespace(tf_args)
        self._setDefault(
            input_mapping={}, cluster_size=1, num_ps=0, driver_ps_nodes=False, input_mode=TFCluster.InputMode.SPARK,
            master_node="chief", protocol="grpc", tensorboard=False, model_dir=None, export_dir=None, tfrecord_dir=None,
            batch_size=100, epochs=1, readers=1, steps=1000, grace_secs=30, feed_timeout=600)

    def _fit(self, dataset: Any) -> "TFModel":
        arguments, merged = self._arguments(), self.merge_args_params()
        columns = sorted(self.getInputMapping())
        if not columns:
            raise ValueError("the estimator has no input_mapping: setInputMapping({'column': 'tensor'})")
        spark = dataset.sparkSession
        cluster = TFCluster.run(
            spark, self.train_fn, arguments, merged.cluster_size, merged.num_ps, merged.tensorboard,
            TFCluster.InputMode.SPARK, log_dir=merged.model_dir, driver_ps_nodes=merged.driver_ps_nodes,
            master_node=merged.master_node or None)
        try:
            cluster.train(dataset.select(columns), merged.epochs, feed_timeout=merged.feed_timeout)
        finally:
            cluster.shutdown(grace_secs=merged.grace_secs)
        if self.export_fn is not None:
            _run_once(spark, self.export_fn, arguments)
        return self._copyValues(TFModel(self.args))


def _run_once(spark: Any, function: Callable, arguments: Any) -> None:
    def task(batches: Iterable) -> Iterator:
        for _ in batches:
            pass
        single_node_env(arguments)
        function(arguments)
        return iter(())
    spark.range(0, 1, 1, 1).mapInArrow(task, "done boolean").collect()


class TFModel(Model, TFParams, HasInputMapping, HasOutputMapping, HasBatchSize, HasModelDir, HasExportDir, HasSignatureDefKey,
              HasTagSet):
    """Scores with a SavedModel (`export_dir`) or a checkpoint with its graph (`model_dir`).

    Columns go to tensors by `input_mapping`, tensors to columns by `output_mapping`; with a `signature_def_key` their names are the
    signature's, else the graph's.
    """

    def __init__(self, tf_args: Any):
        super().__init__()
        self.args = Namespace(tf_args)
        self._setDefault(input_mapping={}, output_mapping={}, batch_size=100, model_dir=None, export_dir=None,
                         signature_def_key=None, tag_set=None)

    def _transform(self, dataset: Any) -> Any:
        inputs, outputs = sorted(self.getInputMapping().items()), sorted(self.getOutputMapping().items())
        if not inputs or not outputs:
            raise ValueError("a model needs an input_mapping and an output_mapping")
        arguments, merged = self._arguments(), self.merge_args_params()
        scorer = Scorer(merged.export_dir, merged.model_dir, merged.tag_set, merged.signature_def_key,
                        [tensor for _, tensor in inputs], [tensor for tensor, _ in outputs], merged.batch_size)
        types = self._types(dataset.sparkSession, scorer, arguments)
        schema = ", ".join(f"`{column}` {kind}" for (_, column), kind in zip(outputs, types))

        def score(batches: Iterable) -> Iterator:
            single_node_env(arguments)
            yield from scorer.score(batches, [column for _, column in outputs])
        return dataset.select([column for column, _ in inputs]).mapInArrow(score, schema)

    @staticmethod
    def _types(spark: Any, scorer: "Scorer", arguments: Any) -> list[str]:
        """The types of the results, as an executor knows them: where this runs there may be no TensorFlow."""
        def look(batches: Iterable) -> Iterator:
            import pyarrow as pa

            for _ in batches:
                pass
            single_node_env(arguments)
            yield pa.RecordBatch.from_pydict({"types": [json.dumps(scorer.types())]})
        return json.loads(spark.range(0, 1, 1, 1).mapInArrow(look, "types string").collect()[0][0])


#: The model that this process has loaded, and what it was loaded for.
_loaded: dict[str, Any] = {}


class Scorer:
    """A model that scores Arrow batches; goes to executors with Spark's tasks."""

    def __init__(self, export_dir: str | None, model_dir: str | None, tag_set: str | None, signature: str | None,
                 inputs: list[str], outputs: list[str], batch_size: int):
        if not export_dir and not model_dir:
            raise ValueError("a model needs an export_dir or a model_dir")
        self._export_dir, self._model_dir, self._signature = export_dir, model_dir, signature
        self._tags = (tag_set or "serve").split(",")
        self._inputs, self._outputs, self._batch_size = inputs, outputs, batch_size

    def _load(self) -> tuple[Any, list, list]:
        """A session, and the tensors that go in and come out. Loaded once by a process."""
        key = repr(sorted(vars(self).items(), key=str))
        if _loaded.get("key") == key:
            return _loaded["model"]
        import tensorflow.compat.v1 as tf

        graph = tf.Graph()
        with graph.as_default():
            session = tf.Session(graph=graph)
            names = {}
            if self._export_dir:
                meta = tf.saved_model.load(session, self._tags, self._export_dir)
                if self._signature:
                    if self._signature not in meta.signature_def:
                        raise ValueError(f"{self._export_dir} has no signature '{self._signature}', only "
                                         f"{', '.join(sorted(meta.signature_def))}")
                    signature = meta.signature_def[self._signature]
                    names = {**{k: v.name for k, v in signature.inputs.items()},
                             **{f"out {k}": v.name for k, v in signature.outputs.items()}}
            else:
                checkpoint = tf.train.latest_checkpoint(self._model_dir)
                if checkpoint is None:
                    raise FileNotFoundError(f"{self._model_dir} has no checkpoint")
                tf.train.import_meta_graph(checkpoint + ".meta", clear_devices=True).restore(session, checkpoint)
        model = (session, [self._tensor(graph, names, n, "") for n in self._inputs],
                 [self._tensor(graph, names, n, "out ") for n in self._outputs])
        _loaded.update(key=key, model=model)
        return model

    @staticmethod
    def _tensor(graph: Any, names: dict[str, str], name: str, role: str) -> Any:
        if names and role + name not in names:
            known = [n.removeprefix("out ") for n in names if n.startswith("out ") == bool(role)]
            raise ValueError(f"the signature has no tensor '{name}', only {', '.join(sorted(known))}")
        found = names.get(role + name, name)
        return graph.get_tensor_by_name(found if ":" in found else found + ":0")

    def types(self) -> list[str]:
        """Spark's types of the results."""
        _, _, outputs = self._load()
        kinds = []
        for tensor in outputs:
            base = tensor.dtype.base_dtype
            kind = ("double" if base.is_floating else "bigint" if base.is_integer else
                    "boolean" if base.is_bool else "binary" if base.name == "string" else None)
            if kind is None or tensor.shape.rank is None or tensor.shape.rank < 1:
                raise TypeError(f"{tensor.name} is {base.name} of shape {tensor.shape}: results are numbers or bytes, one for "
                                "each row")
            for _ in range(tensor.shape.rank - 1):
                kind = f"array<{kind}>"
            kinds.append(kind)
        return kinds

    def score(self, batches: Iterable, columns: list[str]) -> Iterator:
        """Results of Arrow batches, as Arrow batches."""
        import numpy as np
        import pyarrow as pa

        session, inputs, outputs = self._load()
        for batch in batches:
            for at in range(0, batch.num_rows, self._batch_size):
                part = batch.slice(at, self._batch_size)
                values = list(frames.arrow_columns(part).values())
                feed = {t: _shaped(np.asarray(v), t) for t, v in zip(inputs, values)}
                results = session.run(outputs, feed)
                for tensor, result in zip(outputs, results):
                    if len(result) != part.num_rows:
                        raise ValueError(f"{tensor.name} has {len(result)} results for {part.num_rows} rows")
                arrays = [pa.array(r.astype(np.float64).tolist() if r.dtype.kind == "f" else r.tolist()) for r in results]
                yield pa.RecordBatch.from_arrays(arrays, names=columns)


def _shaped(values: Any, tensor: Any) -> Any:
    """Values in the tensor's type and shape: Spark's lists are flat."""
    dims = tensor.shape.as_list() if tensor.shape.rank is not None else None
    array = values.astype(tensor.dtype.as_numpy_dtype) if tensor.dtype.name != "string" else values
    if dims is None or array.ndim == len(dims):
        return array
    unknown = sum(d is None for d in dims[1:])
    return array.reshape([len(array), *(-1 if d is None else d for d in dims[1:])]) if unknown < 2 else array


def single_node_env(args: Any) -> None:
    """Arguments and cards of a process that computes alone."""
    argv = args if isinstance(args, list) else getattr(args, "argv", None)
    if argv:
        sys.argv = argv
    util.single_node_env(getattr(args, "num_gpus", 1))


def yield_batch(iterable: Iterable, batch_size: int, num_tensors: int = 1) -> Iterator[list[list]]:
    """Rows as lists of columns, so many rows at a time."""
    columns: list[list] = [[] for _ in range(num_tensors)]
    for row in iterable:
        for column, value in zip(columns, row if row is not None else ()):
            column.append(value)
        if len(columns[0]) >= batch_size:
            yield columns
            columns = [[] for _ in range(num_tensors)]
    if columns[0]:
        yield columns
