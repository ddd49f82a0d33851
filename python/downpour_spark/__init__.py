"""Distributed TensorFlow on Spark, with Downpour's parameter servers: the API of TensorFlowOnSpark.

A program written for TensorFlowOnSpark changes its import: `from downpour_spark import TFCluster, TFNode`, or
`import downpour_spark as tensorflowonspark`.
"""
from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

#: Loaded when they are asked for: processes on executors need few of them, and not pyspark.
_MODULES = ("TFCluster", "TFNode", "TFParallel", "TFSparkNode", "compat", "dfutil", "gpu_info", "pipeline", "util")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_MODULES])
