"""Training from files through queues: names, readers, parsers, batches, runners."""
import os

import numpy as np

from cases.models._common import STEPS, TOLERANCE, var
from registry import script, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def rows(seed, n):
    r = np.random.RandomState(seed)
    return r.randn(n, 4).astype(np.float32), r.randint(0, 3, n), [("w%d" % k).encode() for k in r.randint(0, 5, n)]


def write_records(folder, compression=""):
    x, y, words = rows(1, 30)
    options = tf.python_io.TFRecordOptions(getattr(tf.python_io.TFRecordCompressionType, compression or "NONE"))
    names = []
    for part in range(3):
        names.append(os.path.join(folder, "part-%d.tfrecord" % part))
        with tf.python_io.TFRecordWriter(names[-1], options) as w:
            for i in range(part * 10, part * 10 + 10):
                feature = dict(x=tf.train.Feature(float_list=tf.train.FloatList(value=x[i])), y=tf.train.Feature(int64_list=tf.train.Int64List(value=[y[i]])),
                               words=tf.train.Feature(bytes_list=tf.train.BytesList(value=words[i:i + 1] * (i % 3))))
                w.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return names


def write_csv(folder):
    x, y, words = rows(2, 20)
    names = []
    for part in range(2):
        names.append(os.path.join(folder, "part-%d.csv" % part))
        with open(names[-1], "w") as f:
            f.write("a,b,c,d,label,word\n")
            for i in range(part * 10, part * 10 + 10):
                f.write(",".join(["%.5f" % v for v in x[i]] + [str(y[i]), '"%s, or so"' % words[i].decode()]) + "\n")
    return names


def model(x, y, extra=None):
    logits = tf.matmul(x, var("w", [4, 3], False)) + var("b", [3], False)
    if extra is not None:
        logits += extra
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))


def run(env, g, loss, fetches=()):
    """Trains with queue runners, until the input ends or for ten steps."""
    step = tf.train.GradientDescentOptimizer(0.2).minimize(loss)
    with env.session(g) as sess:
        sess.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
        sess.run(tf.tables_initializer())
        coord = tf.train.Coordinator()
        threads = tf.train.start_queue_runners(sess, coord)
        out = []
        try:
            while not coord.should_stop() and len(out) < STEPS:
                out.append(sess.run([loss] + list(fetches) + [step])[:-1])
        except tf.errors.OutOfRangeError:
            out.append("the end")
        finally:
            coord.request_stop()
            coord.join(threads, stop_grace_period_secs=20, ignore_live_threads=True)
        return out + [{v.op.name: sess.run(v) for v in tf.trainable_variables()}]


def records(compression=""):
    def body(env):
        names = write_records(env.tmp, compression)
        with tf.Graph().as_default() as g:
            files = tf.train.string_input_producer(names, shuffle=False, num_epochs=2)
            options = tf.python_io.TFRecordOptions(getattr(tf.python_io.TFRecordCompressionType, compression or "NONE"))
            _, serialized = tf.TFRecordReader(options=options).read(files)
            parsed = tf.parse_single_example(serialized, dict(x=tf.FixedLenFeature([4], F), y=tf.FixedLenFeature([], L), words=tf.VarLenFeature(S)))
            x, y = tf.train.batch([parsed["x"], parsed["y"]], 7, capacity=32, allow_smaller_final_batch=True)
            return run(env, g, model(x, y), [y])
    return body


script("records", **TOLERANCE)(records())
script("records_gzip", **TOLERANCE)(records("GZIP"))


@script("records_in_batches", **TOLERANCE)
def _(env):
    """Batches of serialized examples, parsed together, with words looked up in a table."""
    names = write_records(env.tmp)
    with tf.Graph().as_default() as g:
        files = tf.train.string_input_producer(names, shuffle=False)
        _, serialized = tf.TFRecordReader().read_up_to(files, 5)
        batch = tf.train.batch([serialized], 6, capacity=64, enqueue_many=True)
        parsed = tf.parse_example(batch, dict(x=tf.FixedLenFeature([4], F), y=tf.FixedLenFeature([], L), words=tf.VarLenFeature(S)))
        table = tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(["w%d" % i for i in range(4)], list(range(4)), key_dtype=S, value_dtype=L), 4)
        ids = tf.SparseTensor(parsed["words"].indices, table.lookup(parsed["words"].values), parsed["words"].dense_shape)
        words = tf.nn.safe_embedding_lookup_sparse([var("words", [5, 3], False)], ids, combiner="mean")
        return run(env, g, model(parsed["x"], parsed["y"], words), [parsed["y"]])


@script("csv", **TOLERANCE)
def _(env):
    names = write_csv(env.tmp)
    with tf.Graph().as_default() as g:
        files = tf.train.string_input_producer(names, shuffle=False, num_epochs=1)
        key, line = tf.TextLineReader(skip_header_lines=1).read(files)
        *x, y, word = tf.decode_csv(line, [[0.0]] * 4 + [[0], [""]])
        x, y, word, key = tf.train.batch([tf.stack(x), y, word, tf.strings.length(key)], 4)
        return run(env, g, model(x, y), [word])


@script("shuffled", **TOLERANCE)
def _(env):
    """Order depends on timing; that an epoch holds everything once does not."""
    names = write_csv(env.tmp)
    with tf.Graph().as_default() as g:
        files = tf.train.string_input_producer(names, shuffle=True, num_epochs=2, seed=3)
        _, line = tf.TextLineReader(skip_header_lines=1).read(files)
        lines = tf.train.shuffle_batch([line], 8, capacity=50, min_after_dequeue=10, num_threads=2, seed=4, allow_smaller_final_batch=True)
        with env.session(g) as sess:
            sess.run(tf.local_variables_initializer())
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess, coord)
            seen = []
            try:
                while not coord.should_stop():
                    seen.extend(sess.run(lines))
            except tf.errors.OutOfRangeError:
                pass
            finally:
                coord.request_stop()
                coord.join(threads, stop_grace_period_secs=20, ignore_live_threads=True)
            return sorted(seen)


@script("bucketed", **TOLERANCE)
def _(env):
    """Lengths sorted into padded batches of their own; slices of a tensor as the source."""
    with tf.Graph().as_default() as g:
        n = tf.train.range_input_producer(12, num_epochs=1, shuffle=False).dequeue()
        x = tf.range(n)
        padded, lengths = tf.train.batch([x, n], 5, dynamic_pad=True, allow_smaller_final_batch=True)
        with env.session(g) as sess:
            sess.run(tf.local_variables_initializer())
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(sess, coord)
            out = []
            try:
                while not coord.should_stop():
                    out.append(sess.run([padded, lengths]))
            except tf.errors.OutOfRangeError:
                pass
            finally:
                coord.request_stop()
                coord.join(threads, stop_grace_period_secs=20, ignore_live_threads=True)
            return out


@script("monitored", **TOLERANCE)
def _(env):
    """MonitoredTrainingSession starts the runners, saves, and ends with the input."""
    names = write_records(env.tmp)
    folder = os.path.join(env.tmp, "run")
    with tf.Graph().as_default():
        files = tf.train.string_input_producer(names, shuffle=False, num_epochs=1)
        _, serialized = tf.TFRecordReader().read(files)
        parsed = tf.parse_single_example(serialized, dict(x=tf.FixedLenFeature([4], F), y=tf.FixedLenFeature([], L)))
        x, y = tf.train.batch([parsed["x"], parsed["y"]], 5)
        loss = model(x, y)
        gs = tf.train.get_or_create_global_step()
        step = tf.train.AdamOptimizer(0.1).minimize(loss, global_step=gs)
        out = []
        with tf.train.MonitoredTrainingSession(master=env.target, checkpoint_dir=folder, save_checkpoint_steps=3, save_summaries_steps=None, log_step_count_steps=None) as sess:
            while not sess.should_stop():
                out.append(sess.run([loss, gs, step])[:2])
        out.append(tf.train.load_checkpoint(folder).get_tensor("global_step"))
        return out
