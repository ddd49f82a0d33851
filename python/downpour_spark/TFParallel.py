"""Independent runs of one function on all executors, without a cluster between them."""
from __future__ import annotations

import argparse
from typing import Any, Callable, Iterator

from . import util
from .TFSparkNode import TFNodeContext


def run(sc: Any, map_fn: Callable, tf_args: Any, num_executors: int, use_barrier: bool = True) -> None:
    """Runs `map_fn(tf_args, ctx)` in `num_executors` tasks, all at once with `use_barrier`."""
    sc = sc if hasattr(sc, "parallelize") else sc.sparkContext
    file_system = sc._jsc.hadoopConfiguration().get("fs.defaultFS")
    file_system = file_system[:-1] if file_system.endswith("/") else file_system

    def task(rows: Iterator[int]) -> Iterator[int]:
        nodes: list[str] = []
        if use_barrier:
            from pyspark import BarrierTaskContext
            nodes = [info.address for info in BarrierTaskContext.get().getTaskInfos()]
        for index in rows:
            gpus = getattr(tf_args, "num_gpus", 1) if isinstance(tf_args, argparse.Namespace) else 1
            util.single_node_env(gpus, index, nodes)
            ctx = TFNodeContext(executor_id=index, defaultFS=file_system)
            ctx.num_workers = num_executors
            map_fn(tf_args, ctx)
        return iter(())
    rows = sc.parallelize(range(num_executors), num_executors)
    (rows.barrier() if use_barrier else rows).mapPartitions(task).collect()
