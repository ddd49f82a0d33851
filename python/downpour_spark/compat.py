"""What differs between versions of TensorFlow, for training functions."""
from __future__ import annotations

from typing import Any


def export_saved_model(model: object, export_dir: str, is_chief: bool = False) -> None:
    """Saves a Keras model; all but the chief to a place of no importance, since all must take part."""
    import tensorflow as tf

    tf.saved_model.save(model, export_dir if is_chief else "worker_model")


def disable_auto_shard(options: Any) -> None:
    """Lets every worker read all of a dataset, as one that is fed must."""
    import tensorflow as tf

    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF


def is_gpu_available() -> bool:
    """Whether TensorFlow sees a card."""
    import tensorflow as tf

    return bool(tf.config.list_physical_devices("GPU"))
