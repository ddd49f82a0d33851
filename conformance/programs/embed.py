"""A sparse embedding of 50,000 rows with Adagrad, its table on one ps (embed_plain) or split over all (embed_part)."""
import numpy as np
from train import Model, tf

STEPS = 30
FREE = {"loss": (None, 0.6)}
ROWS, WIDTH, BATCH, EACH = 50_000, 16, 256, 10


def batch(worker, i):
    ids = np.random.RandomState(1000 * worker + i).zipf(1.3, (BATCH, EACH)) % ROWS
    return ids.astype(np.int64), (ids[:, 0] % 2).astype(np.float32)


def build(run):
    ids = tf.placeholder(tf.int64, [BATCH, EACH], name="ids")
    label = tf.placeholder(tf.float32, [BATCH], name="label")
    parts = tf.fixed_size_partitioner(run.ps) if run.program == "embed_part" else None
    table = run.variable("table", [ROWS, WIDTH], tf.random_uniform_initializer(-0.5, 0.5, seed=2), partitioner=parts)
    w = run.variable("w", [WIDTH, 1], tf.ones_initializer())
    rows = tf.nn.embedding_lookup(table, ids, partition_strategy="div")
    logits = tf.squeeze(tf.matmul(rows[:, 0] + tf.reduce_mean(rows, 1), w), 1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
    return Model(loss, tf.train.AdagradOptimizer(0.3), lambda worker, i: dict(zip((ids, label), batch(worker, i))),
                 {"loss": loss}, dict(zip((ids, label), batch(7, 7))))
