"""The programs of the cluster rows that TensorFlow's client drives: variables on the ps, the rest on the worker, data from a seed."""
import numpy as np

import graphs
from clusters import Program, cluster_row

DENSE = 4, 64 << 20  # variables, bytes each
ROWS, WIDTH, IDS = 1_000_000, 32, 4096 * 10


def placed(tf, spec, worker):
    return tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(spec), worker_device="/job:worker/task:%d" % worker))


def nothing():
    return {}


def softmax():
    """Loss of a 784x10 softmax regression on batches of 100."""
    import tensorflow.compat.v1 as tf
    x, y, feed = graphs.inputs(100)
    w = tf.get_variable("w", [784, 10], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [10], initializer=tf.zeros_initializer())
    return graphs.cross_entropy(y, tf.matmul(x, w) + b), feed


def mnist_async(tf, spec, worker):
    """Each worker applies its own gradients with Adagrad."""
    with tf.Graph().as_default() as graph, placed(tf, spec, worker):
        loss, feed = softmax()
        train = tf.train.AdagradOptimizer(0.01).minimize(loss, global_step=tf.train.get_or_create_global_step())
        return Program(graph, [train, loss], feed, [tf.global_variables_initializer()])


def mnist_sync(tf, spec, worker):
    """The same, both workers' gradients averaged by SyncReplicasOptimizer; the first worker's client is the chief."""
    workers = len(spec["worker"])
    with tf.Graph().as_default() as graph, placed(tf, spec, worker):
        loss, feed = softmax()
        opt = tf.train.SyncReplicasOptimizer(tf.train.AdagradOptimizer(0.01), replicas_to_aggregate=workers, total_num_replicas=workers)
        train = opt.minimize(loss, global_step=tf.train.get_or_create_global_step())
        chief = [tf.global_variables_initializer(), opt.chief_init_op, opt.get_init_tokens_op()]
        return Program(graph, [train, loss], feed, chief, [opt.local_step_init_op], opt.get_chief_queue_runner().enqueue_ops[0])


def null_step(tf, spec, worker):
    """A 4-byte variable travels to the worker and back: the cost of a step that spans two tasks."""
    with tf.Graph().as_default() as graph, placed(tf, spec, worker):
        v = tf.get_variable("v", [], initializer=tf.zeros_initializer())
        push = tf.assign_add(v, v + 1.0)
        return Program(graph, [push.op], nothing, [v.initializer])


def dense_pull_push(tf, spec, worker):
    """Four 64 MiB variables travel to the worker and, changed, back."""
    count, size = DENSE
    with tf.Graph().as_default() as graph, placed(tf, spec, worker):
        variables = [tf.get_variable("v%d" % i, [size // 4], initializer=tf.ones_initializer()) for i in range(count)]
        push = [tf.assign(v, -v) for v in variables]
        return Program(graph, [tf.group(*push)], nothing, [tf.global_variables_initializer()])


def sparse_rows(tf, spec, worker):
    """4096x10 rows of a 1M x 32 table on both ps: gathered, and their gradients applied with Adagrad."""
    r = np.random.RandomState(11)
    batches = [r.randint(0, ROWS, IDS) for _ in range(16)]
    with tf.Graph().as_default() as graph, placed(tf, spec, worker):
        ids = tf.placeholder(tf.int64, [None], name="ids")
        table = tf.get_variable("table", [ROWS, WIDTH], initializer=tf.ones_initializer(),
                                partitioner=tf.fixed_size_partitioner(len(spec["ps"])))
        rows = tf.nn.embedding_lookup(table, ids, partition_strategy="div")
        train = tf.train.AdagradOptimizer(0.01).minimize(tf.reduce_mean(tf.square(rows)))
        return Program(graph, [train], lambda: {ids: batches[r.randint(len(batches))]}, [tf.global_variables_initializer()])


def rows(smoke):
    global DENSE, ROWS
    if smoke:  # that they run, not how fast
        DENSE, ROWS = (4, 1 << 20), 50_000
    count, size = DENSE
    return {
        "mnist_async": cluster_row(mnist_async, "steps/s"),
        "mnist_sync": cluster_row(mnist_sync, "steps/s"),
        "null_step": cluster_row(null_step, "us/step", ps=1, workers=1),
        "dense_pull_push": cluster_row(dense_pull_push, "GB/s", per_step=2 * count * size / 1e9, ps=1, workers=1),
        "sparse_rows": cluster_row(sparse_rows, "rows/s", per_step=IDS, ps=2, workers=1),
    }
