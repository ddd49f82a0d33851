"""TensorFlow's side of the native rows: the graphs of benches/src/models.rs, built as its users build them."""
import native_data

LOOKED_UP, WIDTH = 4096 * 10, 32
# Name: (usual size, parameter servers, workers).
ROWS = {
    "null_step": (1, 1, 1),
    "null_step_100": (100, 1, 1),
    "null_step_1000": (1000, 1, 1),
    "mnist_async": (40, 2, 2),
    "mnist_sync": (40, 2, 2),
    "dense_pull_push": (64 << 20, 1, 1),
    "one_variable": (64 << 20, 1, 1),
    "sparse_rows": (1_000_000, 2, 1),
    "mlp_local": (40, 0, 1),
    "cnn_local": (40, 0, 1),
}


def parse(row):
    """NAME or NAME:SIZE."""
    name, _, size = row.partition(":")
    return name, int(size) if size else ROWS[name][0]


class Model:
    """What a worker runs. `steps` are the values of `feeds`, taken in turn; `values` tell whether both sides computed the same."""

    def __init__(self, graph, fetches, values, feeds=(), steps=((),), example=()):
        self.graph, self.fetches, self.values = graph, fetches, values
        self.feeds, self.steps, self.example = list(feeds), list(steps), example
        self.chief_init, self.worker_init, self.background = [], [], None


def build(tf, row, ps, worker, workers):
    name, size = parse(row)
    setter = tf.train.replica_device_setter(ps_tasks=ps, worker_device="/job:worker/task:%d" % worker) if ps else None
    with tf.Graph().as_default() as graph, tf.device(setter):
        model = {"null_step": null_step, "null_step_100": null_step, "null_step_1000": null_step, "mnist_async": softmax, "mnist_sync": sync, "dense_pull_push": four_variables,
                 "one_variable": one_variable, "sparse_rows": sparse_rows, "mlp_local": mlp, "cnn_local": cnn}[name](
                     tf, graph, size, ps, worker, workers)
        model.chief_init.insert(0, tf.global_variables_initializer())
        return model


def null_step(tf, graph, count, *_):
    variables = [tf.get_variable("v%d" % i, [], initializer=tf.zeros_initializer()) for i in range(count)]
    push = [tf.assign(v, v + 1.0).op for v in variables]
    return Model(graph, [tf.group(*push)], {"first": variables[0], "last": variables[-1]})


def dense(tf, graph, count, size):
    variables = [tf.get_variable("v%d" % i, [size // 4], initializer=tf.ones_initializer()) for i in range(count)]
    push = [tf.assign(v, -v).op for v in variables]

    def total(v):
        with tf.colocate_with(v):
            return tf.reduce_sum(v)
    return Model(graph, [tf.group(*push)], {"first": total(variables[0]), "last": total(variables[-1])})


def four_variables(tf, graph, size, *_):
    return dense(tf, graph, 4, size)


def one_variable(tf, graph, size, *_):
    return dense(tf, graph, 1, size)


def inputs(tf):
    return tf.placeholder(tf.float32, [None, 784], name="x"), tf.placeholder(tf.float32, [None, 10], name="y")


def cross_entropy(tf, labels, logits):
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits_v2(labels=tf.stop_gradient(labels), logits=logits))


def regression(tf):
    x, y = inputs(tf)
    w = tf.get_variable("w", [784, 10], initializer=tf.zeros_initializer())
    b = tf.get_variable("b", [10], initializer=tf.zeros_initializer())
    return (x, y), w, cross_entropy(tf, y, tf.matmul(x, w) + b)


def trained(tf, graph, feeds, loss, train, values, batches, worker=0):
    """A model that takes batches of digits in turn; workers go through the same ones, each from somewhere else."""
    begin = worker * 20 % len(batches)
    return Model(graph, [train, loss], dict(values, loss=loss), feeds, batches[begin:] + batches[:begin], batches[0])


def softmax(tf, graph, size, ps, worker, workers):
    feeds, w, loss = regression(tf)
    step = tf.train.get_or_create_global_step()
    train = tf.train.AdagradOptimizer(0.01).minimize(loss, global_step=step)
    values = {"weights": tf.reduce_sum(tf.square(w)), "steps": step}
    return trained(tf, graph, feeds, loss, train, values, native_data.digits(size, 100), worker)


def sync(tf, graph, size, ps, worker, workers):
    feeds, w, loss = regression(tf)
    step = tf.train.get_or_create_global_step()
    opt = tf.train.SyncReplicasOptimizer(tf.train.AdagradOptimizer(0.01), replicas_to_aggregate=workers, total_num_replicas=workers)
    train = opt.minimize(loss, global_step=step)
    values = {"weights": tf.reduce_sum(tf.square(w)), "steps": step}
    model = trained(tf, graph, feeds, loss, train, values, native_data.digits(size, 100), worker)
    # No tokens before the first step: with the usual ones a worker may push twice for a step, and gradients are dropped.
    model.chief_init = [opt.chief_init_op, opt.get_init_tokens_op(num_tokens=0)]
    model.worker_init = [opt.local_step_init_op]
    model.background = opt.get_chief_queue_runner().enqueue_ops[0]
    return model


def sparse_rows(tf, graph, rows, ps, *_):
    ids = tf.placeholder(tf.int64, [None], name="ids")
    table = tf.get_variable("table", [rows, WIDTH], initializer=tf.ones_initializer(), partitioner=tf.fixed_size_partitioner(ps))
    loss = tf.reduce_sum(tf.square(tf.nn.embedding_lookup(table, ids, partition_strategy="div")))
    train = tf.train.AdagradOptimizer(0.01).minimize(loss)
    batches = [(b,) for b in native_data.row_numbers(16, LOOKED_UP, rows)]
    return Model(graph, [train], {"loss": loss}, [ids], batches, batches[0])


def weights(tf, name, shape, scale):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=scale, seed=5))


def mlp(tf, graph, size, *_):
    """784-1024-1024-10, ReLU, Adam, batch 100."""
    feeds = inputs(tf)
    h = feeds[0]
    for name, n_in, n_out in (("l1", 784, 1024), ("l2", 1024, 1024), ("out", 1024, 10)):
        h = tf.nn.bias_add(tf.matmul(h, weights(tf, name + "_w", [n_in, n_out], n_in ** -0.5)), tf.get_variable(
            name + "_b", [n_out], initializer=tf.zeros_initializer()))
        h = h if name == "out" else tf.nn.relu(h)
    loss = cross_entropy(tf, feeds[1], h)
    train = tf.train.AdamOptimizer(1e-3).minimize(loss)
    return trained(tf, graph, feeds, loss, train, {}, native_data.digits(size, 100))


def cnn(tf, graph, size, *_):
    """conv5x5x32, pool, conv5x5x64, pool, dense 512, 10; Momentum, batch 64, NHWC."""
    feeds = inputs(tf)

    def conv(h, name, shape):
        h = tf.nn.conv2d(h, weights(tf, name + "_w", shape, 0.1), [1, 1, 1, 1], "SAME")
        h = tf.nn.relu(tf.nn.bias_add(h, weights(tf, name + "_b", shape[-1:], 0.1)))
        return tf.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    h = conv(tf.reshape(feeds[0], [-1, 28, 28, 1]), "c1", [5, 5, 1, 32])
    h = tf.reshape(conv(h, "c2", [5, 5, 32, 64]), [-1, 7 * 7 * 64])
    h = tf.nn.relu(tf.nn.bias_add(tf.matmul(h, weights(tf, "f1_w", [3136, 512], 0.02)), weights(tf, "f1_b", [512], 0.1)))
    logits = tf.nn.bias_add(tf.matmul(h, weights(tf, "f2_w", [512, 10], 0.05)), weights(tf, "f2_b", [10], 0.1))
    loss = cross_entropy(tf, feeds[1], logits)
    train = tf.train.MomentumOptimizer(0.01, 0.9).minimize(loss)
    return trained(tf, graph, feeds, loss, train, {}, native_data.digits(size, 64))
