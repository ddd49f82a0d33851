"""The whole graphs of the sweep: small models, training steps, loops and pipelines as programs have them.

A function builds one in the default graph and returns what a step runs, and its feeds if it has any.
"""
import os
import zlib

import numpy as np
import tensorflow.compat.v1 as tf

GRAPHS = {}
QUICK = ("mlp sgd", "seven minimize", "gaussian process", "string hash", "while 100")


class Row:
    """A graph that is built when it is first wanted."""
    kind, dtype, size = "graph", "", ""

    def __init__(self, name, build):
        self.name, self.build, self.made = name, build, None

    def make(self):
        if self.made is None:
            graph = tf.Graph()
            with graph.as_default():
                tf.set_random_seed(7)
                RANDOM.seed(zlib.crc32(self.name.encode()) & 0x7FFFFFFF)
                step = self.build()
                step, feeds = step if isinstance(step, tuple) and isinstance(step[1], dict) else (step, {})
                inits = [tf.global_variables_initializer(), tf.local_variables_initializer(), tf.tables_initializer()]
                inits += tf.get_collection("sweep init")
            self.made = graph, [(op, feeds) for op in inits], step, feeds
        return self.made

    @property
    def graph(self):
        return self.make()[0]

    @property
    def inits(self):
        return self.make()[1]

    def stepper(self, session):
        _, _, step, feeds = self.make()
        keys = list(feeds)
        call = session.make_callable(step, feed_list=keys)
        values = [feeds[k] for k in keys]
        return lambda: call(*values)

    def forget(self):
        self.made = None


RANDOM = np.random.RandomState(7)


def graph(name, *args, **more):
    def add(f):
        GRAPHS[name] = lambda: f(*args, **more)
        return f
    return add


def rows():
    return [Row(name, build) for name, build in GRAPHS.items()]


def noise(*shape):
    return RANDOM.uniform(-1, 1, shape).astype(np.float32)


def data(*shape):
    """Random numbers that the server keeps: a variable that is not trained, read anew by every step."""
    v = tf.Variable(tf.random_uniform(shape, -1, 1, seed=3), trainable=False, use_resource=True)
    return v.read_value()


def labels(n, classes):
    return tf.constant(RANDOM.randint(0, classes, n))


def var(*shape, scale=0.1):
    return tf.Variable(tf.random_uniform(shape, -scale, scale, seed=5), use_resource=True)


def dense(x, n, act=None):
    y = tf.nn.bias_add(tf.matmul(x, var(int(x.shape[-1]), n)), var(n))
    return act(y) if act else y


def conv(x, n, k=3, stride=1, act=tf.nn.relu):
    y = tf.nn.conv2d(x, var(k, k, int(x.shape[-1]), n), [1, stride, stride, 1], "SAME")
    return act(tf.nn.bias_add(y, var(n)))


def xent(logits, classes=10):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels(int(logits.shape[0]), classes), logits=logits))


OPTIMIZERS = dict(
    sgd=lambda: tf.train.GradientDescentOptimizer(1e-3), momentum=lambda: tf.train.MomentumOptimizer(1e-3, 0.9),
    adam=lambda: tf.train.AdamOptimizer(1e-3), adagrad=lambda: tf.train.AdagradOptimizer(1e-3), rmsprop=lambda: tf.train.RMSPropOptimizer(1e-3),
    adadelta=lambda: tf.train.AdadeltaOptimizer(1e-3), ftrl=lambda: tf.train.FtrlOptimizer(1e-3))


def mlp_loss(batch=64, width=256):
    return xent(dense(dense(dense(data(batch, 128), width, tf.nn.relu), width, tf.nn.relu), 10))


for _name in OPTIMIZERS:
    @graph("mlp " + _name, _name)
    def _(name):
        return OPTIMIZERS[name]().minimize(mlp_loss())


@graph("linear regression")
def _():
    loss = tf.reduce_mean(tf.square(tf.matmul(data(256, 32), var(32, 1)) - data(256, 1)))
    return OPTIMIZERS["sgd"]().minimize(loss)


@graph("seven minimize")
def _():
    loss = mlp_loss(128, 512)
    return [OPTIMIZERS["sgd"]().minimize(loss) for _ in range(7)]


@graph("gan")
def _():
    with tf.variable_scope("g"):
        fake = dense(dense(data(64, 32), 256, tf.nn.relu), 128, tf.tanh)
    w1, b1, w2, b2 = var(128, 256), var(256), var(256, 1), var(1)
    judge = lambda x: tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2) + b2
    real_score, fake_score = judge(data(64, 128)), judge(fake)
    ce = lambda x, y: tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=x, labels=y * tf.ones_like(x)))
    d_loss, g_loss = ce(real_score, 1.0) + ce(fake_score, 0.0), ce(fake_score, 1.0)
    mine = [w1, b1, w2, b2]
    others = [v for v in tf.trainable_variables() if not any(v is m for m in mine)]
    return [OPTIMIZERS["adam"]().minimize(d_loss, var_list=mine), OPTIMIZERS["adam"]().minimize(g_loss, var_list=others)]


@graph("actor critic")
def _():
    trunk = dense(dense(data(64, 32), 256, tf.nn.relu), 256, tf.nn.relu)
    policy, value = tf.nn.log_softmax(dense(trunk, 8)), dense(trunk, 1)
    advantage = data(64, 1) - value
    actor = -tf.reduce_mean(policy * tf.stop_gradient(advantage))
    critic = tf.reduce_mean(tf.square(advantage))
    return [OPTIMIZERS["adam"]().minimize(actor), OPTIMIZERS["adam"]().minimize(critic)]


@graph("autoencoder")
def _():
    x = data(64, 256)
    y = dense(dense(dense(x, 64, tf.nn.relu), 16, tf.nn.relu), 64, tf.nn.relu)
    return OPTIMIZERS["adam"]().minimize(tf.reduce_mean(tf.square(dense(y, 256) - x)))


@graph("mlp dropout")
def _():
    h = tf.nn.dropout(dense(data(128, 256), 512, tf.nn.relu), rate=0.5)
    return OPTIMIZERS["sgd"]().minimize(xent(dense(h, 10)))


@graph("mlp layer norm")
def _():
    h = dense(data(128, 128), 256)
    mean, variance = tf.nn.moments(h, [1], keep_dims=True)
    h = tf.nn.batch_normalization(h, mean, variance, var(256), var(256), 1e-3)
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.nn.relu(h), 10)))


@graph("mlp inference")
def _():
    return tf.argmax(dense(dense(data(256, 256), 512, tf.nn.relu), 10), 1).op


@graph("gradient clipping")
def _():
    opt = OPTIMIZERS["sgd"]()
    grads, variables = zip(*opt.compute_gradients(mlp_loss()))
    return opt.apply_gradients(zip(tf.clip_by_global_norm(grads, 1.0)[0], variables))


@graph("moving averages")
def _():
    train = OPTIMIZERS["sgd"]().minimize(mlp_loss())
    with tf.control_dependencies([train]):
        return tf.train.ExponentialMovingAverage(0.99).apply()


@graph("gradients of 4 losses summed")
def _():
    return OPTIMIZERS["sgd"]().minimize(tf.add_n([mlp_loss(32, 64) for _ in range(4)]))


@graph("cnn")
def _():
    h = conv(conv(data(16, 28, 28, 1), 16), 32, stride=2)
    return OPTIMIZERS["momentum"]().minimize(xent(dense(tf.reshape(h, [16, 14 * 14 * 32]), 10)))


@graph("cnn inference")
def _():
    h = conv(conv(data(16, 28, 28, 3), 32), 32, stride=2)
    return tf.reduce_mean(h, [1, 2]).op


@graph("cnn batch norm")
def _():
    h = conv(data(16, 28, 28, 3), 16)
    h = tf.nn.relu(tf.nn.fused_batch_norm(h, var(16) + 1.0, var(16))[0])
    h = tf.nn.max_pool(h, [1, 2, 2, 1], [1, 2, 2, 1], "SAME")
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.reshape(h, [16, 14 * 14 * 16]), 10)))


@graph("residual block")
def _():
    x = conv(data(8, 28, 28, 3), 32)
    x = tf.nn.relu(x + conv(conv(x, 32), 32, act=tf.identity))
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.reduce_mean(x, [1, 2]), 10)))


@graph("separable convolution")
def _():
    x = data(8, 28, 28, 16)
    h = tf.nn.separable_conv2d(x, var(3, 3, 16, 1), var(1, 1, 16, 32), [1, 1, 1, 1], "SAME")
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.reduce_mean(tf.nn.relu(h), [1, 2]), 10)))


@graph("convolution 3d")
def _():
    h = tf.nn.relu(tf.nn.conv3d(data(2, 8, 16, 16, 4), var(3, 3, 3, 4, 8), [1] * 5, "SAME"))
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.reduce_mean(h, [1, 2, 3]), 10)))


@graph("response normalisation")
def _():
    h = tf.nn.lrn(conv(data(8, 28, 28, 3), 32), 4, alpha=1e-3, beta=0.75)
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.reduce_mean(h, [1, 2]), 10)))


def lstm_step(x, c, h, w, b):
    i, j, f, o = tf.split(tf.matmul(tf.concat([x, h], 1), w) + b, 4, 1)
    c = c * tf.sigmoid(f + 1.0) + tf.sigmoid(i) * tf.tanh(j)
    return c, tf.tanh(c) * tf.sigmoid(o)


@graph("lstm unrolled")
def _():
    x, w, b = data(32, 10, 32), var(96, 256), var(256)
    c = h = tf.zeros([32, 64])
    for t in range(10):
        c, h = lstm_step(x[:, t], c, h, w, b)
    return OPTIMIZERS["sgd"]().minimize(xent(dense(h, 10)))


@graph("lstm loop")
def _():
    x, w, b = tf.transpose(data(32, 10, 32), [1, 0, 2]), var(96, 256), var(256)
    zero = tf.zeros([32, 64])
    loop = lambda t, c, h: (t + 1,) + lstm_step(tf.gather(x, t), c, h, w, b)
    _, _, h = tf.while_loop(lambda t, c, h: t < 10, loop, [0, zero, zero])
    return OPTIMIZERS["sgd"]().minimize(xent(dense(h, 10)))


@graph("gru unrolled")
def _():
    x, wz, wc = data(32, 10, 32), var(96, 128), var(96, 64)
    h = tf.zeros([32, 64])
    for t in range(10):
        z, r = tf.split(tf.sigmoid(tf.matmul(tf.concat([x[:, t], h], 1), wz)), 2, 1)
        h = z * h + (1 - z) * tf.tanh(tf.matmul(tf.concat([x[:, t], r * h], 1), wc))
    return OPTIMIZERS["adam"]().minimize(xent(dense(h, 10)))


def attention(x, heads=4):
    b, t, d = x.shape.as_list()
    split = lambda y: tf.transpose(tf.reshape(y, [b, t, heads, d // heads]), [0, 2, 1, 3])
    flat = tf.reshape(x, [b * t, d])
    q, k, v = (split(tf.matmul(flat, var(d, d))) for _ in range(3))
    y = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True) * (d // heads) ** -0.5), v)
    return x + tf.reshape(tf.matmul(tf.reshape(tf.transpose(y, [0, 2, 1, 3]), [b * t, d]), var(d, d)), [b, t, d])


@graph("transformer block")
def _():
    y = attention(data(8, 32, 64))
    h = dense(tf.nn.relu(dense(tf.reshape(y, [256, 64]), 256)), 64)
    return OPTIMIZERS["adam"]().minimize(xent(dense(h, 10)))


@graph("attention inference")
def _():
    return attention(data(8, 64, 128)).op


@graph("sequence attention")
def _():
    memory, query = data(32, 20, 64), data(32, 64)
    score = tf.nn.softmax(tf.reduce_sum(tf.tanh(memory + query[:, None]) * var(64), 2))
    read = tf.reduce_sum(memory * score[:, :, None], 1)
    return OPTIMIZERS["sgd"]().minimize(xent(dense(read, 10)))


@graph("word2vec nce")
def _():
    table, w, b = var(5000, 64), var(5000, 64), var(5000)
    x = tf.nn.embedding_lookup(table, labels(128, 5000))
    loss = tf.nn.nce_loss(w, b, labels(128, 5000)[:, None], x, 32, 5000)
    return OPTIMIZERS["sgd"]().minimize(tf.reduce_mean(loss))


@graph("sampled softmax")
def _():
    loss = tf.nn.sampled_softmax_loss(var(5000, 64), var(5000), labels(128, 5000)[:, None], data(128, 64), 64, 5000)
    return OPTIMIZERS["adagrad"]().minimize(tf.reduce_mean(loss))


for _name in ("sgd", "adagrad", "adam"):
    @graph("embedding " + _name, _name)
    def _(name):
        x = tf.reduce_mean(tf.nn.embedding_lookup(var(10000, 64), tf.reshape(labels(64 * 10, 10000), [64, 10])), 1)
        return OPTIMIZERS[name]().minimize(xent(dense(x, 10)))


@graph("wide and deep")
def _():
    deep = [tf.nn.embedding_lookup(var(1000, 16), labels(128, 1000)) for _ in range(4)]
    wide = tf.nn.embedding_lookup(var(5000, 1), labels(128, 5000))
    logit = dense(dense(tf.concat(deep, 1), 128, tf.nn.relu), 1) + wide
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=logit, labels=tf.ones_like(logit)))
    return OPTIMIZERS["ftrl"]().minimize(loss)


@graph("matrix factorisation")
def _():
    u, v = (tf.nn.embedding_lookup(var(2000, 32), labels(256, 2000)) for _ in range(2))
    return OPTIMIZERS["adagrad"]().minimize(tf.reduce_mean(tf.square(tf.reduce_sum(u * v, 1) - data(256))))


@graph("siamese")
def _():
    w = var(128, 64)
    a, b = tf.matmul(data(64, 128), w), tf.matmul(data(64, 128), w)
    gap = tf.sqrt(tf.reduce_sum(tf.square(a - b), 1) + 1e-6)
    return OPTIMIZERS["adam"]().minimize(tf.reduce_mean(tf.maximum(0.0, 1.0 - gap)))


@graph("sparse logistic regression")
def _():
    n = 64 * 20
    ids = tf.SparseTensor(np.stack([np.repeat(np.arange(64), 20), np.tile(np.arange(20), 64)], 1), tf.constant(RANDOM.randint(0, 5000, n)), [64, 20])
    logit = tf.nn.embedding_lookup_sparse(var(5000, 1), ids, None, combiner="sum")
    return OPTIMIZERS["ftrl"]().minimize(tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(logits=logit, labels=tf.ones_like(logit))))


@graph("k-means step")
def _():
    x, c = data(1000, 16), tf.Variable(noise(20, 16), use_resource=True)
    near = tf.argmin(tf.reduce_sum(tf.square(x[:, None] - c[None]), 2), 1)
    return c.assign(tf.math.unsorted_segment_mean(x, near, 20)).op


def kernel_matrix(n):
    x = data(n, 4)
    square = tf.reduce_sum(x * x, 1)
    return tf.exp(-(square[:, None] - 2 * tf.matmul(x, x, transpose_b=True) + square[None])) + 1.1 * tf.eye(n)


@graph("gaussian process")
def _():
    chol = tf.linalg.cholesky(kernel_matrix(128))
    return tf.reduce_sum(tf.square(tf.linalg.triangular_solve(chol, data(128, 1)))).op


@graph("gaussian process training")
def _():
    chol = tf.linalg.cholesky(kernel_matrix(64) * tf.exp(var(1)))
    fit = tf.reduce_sum(tf.square(tf.linalg.triangular_solve(chol, data(64, 1))))
    return OPTIMIZERS["sgd"]().minimize(fit + tf.reduce_sum(tf.log(tf.linalg.diag_part(chol))))


@graph("newton step")
def _():
    return tf.matmul(tf.linalg.inv(kernel_matrix(96)), data(96, 1)).op


@graph("ridge regression")
def _():
    return tf.linalg.lstsq(data(400, 40), data(400, 1), 0.1).op


@graph("principal components")
def _():
    x = data(200, 40)
    return tf.linalg.svd(x - tf.reduce_mean(x, 0))[0].op


@graph("kalman filter")
def _():
    a, x, p = tf.eye(8) * 0.99, tf.zeros([8, 1]), tf.eye(8)
    for _ in range(10):
        x, p = tf.matmul(a, x), tf.matmul(tf.matmul(a, p), a, transpose_b=True) + 0.1 * tf.eye(8)
        gain = tf.matmul(p, tf.linalg.inv(p + tf.eye(8)))
        x, p = x + tf.matmul(gain, data(8, 1) - x), tf.matmul(tf.eye(8) - gain, p)
    return p.op


@graph("spectrogram")
def _():
    return tf.abs(tf.signal.stft(data(4, 8000), 256, 128)).op


@graph("convolution by spectrum")
def _():
    spectrum = tf.signal.rfft2d(data(8, 64, 64)) * tf.signal.rfft2d(data(8, 64, 64))
    return tf.signal.irfft2d(spectrum).op


@graph("while 100")
def _():
    return tf.while_loop(lambda i, x: i < 100, lambda i, x: (i + 1, x * 0.99 + 1.0), [0, data()])[1].op


@graph("power iteration")
def _():
    a = data(64, 64)
    step = lambda i, v: (i + 1, tf.nn.l2_normalize(tf.matmul(a, v)))
    return tf.while_loop(lambda i, v: i < 20, step, [0, data(64, 1)])[1].op


@graph("map over rows")
def _():
    return tf.map_fn(lambda x: tf.reduce_sum(tf.tanh(x)), data(50, 100)).op


@graph("scan over rows")
def _():
    return tf.scan(lambda a, x: 0.9 * a + x, data(50, 100)).op


@graph("branches")
def _():
    x = data(100)
    for i in range(10):
        x = tf.cond(x[i] > 0, lambda x=x: x * 0.5, lambda x=x: x + 0.5)
    return x.op


@graph("chain of 500 scalars")
def _():
    x = y = data()
    for _ in range(500):
        y = tf.tanh(y + x)
    return y.op


@graph("200 branches summed")
def _():
    x = data(100)
    return tf.add_n([tf.reduce_sum(x * float(i)) for i in range(200)]).op


def words(n):
    bag = ["alpha", "be", "gamma", "x", "epsilon", "zeta", "theta", "12"]
    v = tf.Variable([" ".join(bag[j] for j in RANDOM.randint(0, 8, 5)) for _ in range(n)], trainable=False, use_resource=True)
    return v.read_value()


@graph("string hash")
def _():
    return tf.strings.to_hash_bucket_fast(tf.string_split(tf.strings.lower(words(500))).values, 1000).op


@graph("words to embedding")
def _():
    keys = ["alpha", "be", "gamma", "x", "epsilon", "zeta"]
    table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(keys, list(range(6)), tf.string, tf.int64), 7)
    ids = table.lookup(tf.string_split(words(500)).values)
    return tf.reduce_sum(tf.nn.embedding_lookup(var(8, 32), ids), 0).op


@graph("numbers to strings and back")
def _():
    return tf.reduce_sum(tf.strings.to_number(tf.strings.as_string(data(5000)))).op


@graph("string joins")
def _():
    w = words(500)
    return tf.strings.length(tf.strings.join([w, tf.strings.upper(w), tf.strings.substr(w, 0, 4)], "-")).op


@graph("regular expressions")
def _():
    return tf.strings.regex_full_match(tf.strings.regex_replace(words(500), "a+", "b"), ".*b.*").op


@graph("parse examples")
def _():
    def one(i):
        feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=list(RANDOM.rand(16)))), "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[i % 10]))}
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
    records = tf.Variable([one(i) for i in range(256)], trainable=False, use_resource=True).read_value()
    parsed = tf.io.parse_example(records, {"x": tf.FixedLenFeature([16], tf.float32), "y": tf.FixedLenFeature([], tf.int64)})
    return OPTIMIZERS["sgd"]().minimize(xent(dense(tf.reshape(parsed["x"], [256, 16]), 10)))


@graph("csv lines")
def _():
    lines = tf.Variable(["%d,%.3f,word" % (i, i / 7) for i in range(500)], trainable=False, use_resource=True).read_value()
    return tf.reduce_sum(tf.decode_csv(lines, [[0], [0.0], [""]])[1]).op


@graph("image distortions")
def _():
    x = tf.image.random_flip_left_right(tf.image.resize_bilinear(data(4, 48, 48, 3), [64, 64]))
    return tf.image.adjust_contrast(tf.random_crop(x, [4, 56, 56, 3]), 1.2).op


@graph("beam search step")
def _():
    score = tf.nn.log_softmax(data(8 * 4, 2000)) + data(32, 1)
    top, at = tf.nn.top_k(tf.reshape(score, [8, 8000]), 4)
    return tf.group(top, at % 2000)


@graph("segment pooling")
def _():
    ids = tf.constant(np.sort(RANDOM.randint(0, 200, 5000)))
    return tf.reduce_max(tf.math.segment_mean(data(5000, 32), ids), 1).op


@graph("gather and scatter")
def _():
    at = tf.constant(RANDOM.randint(0, 1000, [2000, 1]))
    return tf.scatter_nd(at, tf.gather_nd(data(1000, 32), at), [1000, 32]).op


@graph("fed 4 MB")
def _():
    x = tf.placeholder(tf.float32, [1000, 1000])
    return tf.reduce_sum(x).op, {x: noise(1000, 1000)}


@graph("fed 16 MB twice")
def _():
    x, y = (tf.placeholder(tf.float32, [2000, 2000]) for _ in range(2))
    return tf.reduce_sum(x + y).op, {x: noise(2000, 2000), y: noise(2000, 2000)}


@graph("fetched 4 MB")
def _():
    return data(1000, 1000) * 2.0


@graph("50 small feeds")
def _():
    xs = [tf.placeholder(tf.float32, [10]) for _ in range(50)]
    return tf.add_n(xs), {x: noise(10) for x in xs}


@graph("queue of records")
def _():
    q = tf.FIFOQueue(100, tf.float32, [[784]])
    with tf.control_dependencies([q.enqueue_many(data(32, 784))]):
        return tf.reduce_sum(q.dequeue_many(32)).op


@graph("one record a call")
def _():
    q = tf.FIFOQueue(100, [tf.float32, tf.int32], [[784], []])
    x, y = tf.placeholder(tf.float32, [784]), tf.placeholder(tf.int32, [])
    with tf.control_dependencies([q.enqueue([x, y])]):
        return [t.op for t in q.dequeue()], {x: noise(784), y: np.int32(3)}


@graph("dataset of batches")
def _():
    d = tf.data.Dataset.range(1000).repeat().map(lambda i: tf.cast(i, tf.float32) * 2.0).batch(64)
    return tf.reduce_sum(tf.data.make_one_shot_iterator(d).get_next()).op


@graph("summaries")
def _():
    x = data(10000)
    tf.summary.scalar("mean", tf.reduce_mean(x))
    tf.summary.histogram("all", x)
    return tf.summary.merge_all()


@graph("accuracy and auc")
def _():
    return tf.metrics.auc(labels(500, 2) > 0, tf.sigmoid(data(500)))[1].op


@graph("counter")
def _():
    return tf.Variable(0, use_resource=True, dtype=tf.int64).assign_add(1).op


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tf.disable_eager_execution()
    for row in rows():
        print(row.name)
        row.make()
        row.forget()
