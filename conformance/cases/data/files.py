"""Datasets of files: lines, records, CSV, caches; whole pipelines that feed a model."""
import gzip
import os
import struct
import zlib

import numpy as np

from registry import raw, script, tf
from tensorflow.python.data.experimental.ops import readers

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string
D = tf.data.Dataset


def drain(env, dataset, n=30):
    """Initialises an iterator and takes elements until the end or n."""
    it = tf.data.make_initializable_iterator(dataset)
    element = it.get_next()
    out = []
    with env.session() as sess:
        out.append(env.error(lambda: sess.run(it.initializer)))
        for _ in range(n):
            got = env.error(lambda: sess.run(tf.nest.flatten(element)))
            out.append(got)
            if getattr(got, "kind", "") in ("OutOfRangeError", "FailedPreconditionError"):
                break
    return out


def write(env, name, data, how=""):
    path = os.path.join(env.tmp, name)
    data = {"": lambda d: d, "GZIP": gzip.compress, "ZLIB": zlib.compress}[how](data)
    with open(path, "wb") as f:
        f.write(data)
    return path


for how in ("", "GZIP", "ZLIB"):
    @script("TextLineDataset/%s" % (how or "plain"))
    def lines(env, how=how):
        files = [write(env, "a", b"one\r\ntwo\n\nlast", how), write(env, "b", b"", how), write(env, "c", b"x\n", how)]
        return drain(env, tf.data.TextLineDataset(files, compression_type=how, buffer_size=3 if not how else 64))

    @script("TFRecordDataset/%s" % (how or "plain"))
    def records(env, how=how):
        paths = []
        for i in range(2):
            paths.append(os.path.join(env.tmp, "r%d" % i))
            with tf.io.TFRecordWriter(paths[-1], options=how) as w:
                for j in range(3):
                    w.write(b"%d-%d" % (i, j) * (j + 1))
        return drain(env, tf.data.TFRecordDataset(paths, compression_type=how, buffer_size=100))

    @script("FixedLengthRecordDatasetV2/%s" % (how or "plain"))
    def fixed(env, how=how):
        files = [write(env, "a", b"HHaabbccF", how), write(env, "b", b"HHF", how), write(env, "c", b"HHddeF", how)]
        return drain(env, tf.data.FixedLengthRecordDataset(files, 2, header_bytes=2, footer_bytes=1, compression_type=how))


@script("TextLineDataset/missing")
def missing(env):
    return drain(env, tf.data.TextLineDataset([write(env, "a", b"one\n"), env.tmp + "/nothing"]), 3)


@script("TFRecordDataset/broken")
def broken(env):
    good = os.path.join(env.tmp, "good")
    with tf.io.TFRecordWriter(good) as w:
        w.write(b"fine")
    data = open(good, "rb").read()
    files = [write(env, "junk", b"this is no record file at all"), good, write(env, "cut", data + data[:-2]), good,
             write(env, "flipped", data[:13] + b"\0" + data[14:]), good]
    return drain(env, tf.data.TFRecordDataset(files), 12)


@script("TFRecordDataset/ignore_errors")
def ignored(env):
    good = os.path.join(env.tmp, "good")
    with tf.io.TFRecordWriter(good) as w:
        w.write(b"fine")
    return drain(env, tf.data.TFRecordDataset([good, write(env, "junk", b"this is no record file at all"), good]).apply(tf.data.experimental.ignore_errors()))


for name, make in dict(
        filenames=lambda: raw.TextLineDataset(filenames=tf.placeholder_with_default([["x"]], None), compression_type="", buffer_size=0),
        compression=lambda: raw.TextLineDataset(filenames="x", compression_type="SNAPPY", buffer_size=0),
        buffer=lambda: raw.TextLineDataset(filenames="x", compression_type="", buffer_size=-1),
        record_buffer=lambda: raw.TFRecordDataset(filenames="x", compression_type="", buffer_size=-2),
        record_bytes=lambda: raw.FixedLengthRecordDataset(filenames="x", header_bytes=0, record_bytes=0, footer_bytes=0, buffer_size=0),
        header_bytes=lambda: raw.FixedLengthRecordDataset(filenames="x", header_bytes=-1, record_bytes=1, footer_bytes=0, buffer_size=0),
        footer_bytes=lambda: raw.FixedLengthRecordDataset(filenames="x", header_bytes=0, record_bytes=1, footer_bytes=-1, buffer_size=0)).items():
    @script("FileDatasets/%s" % name)
    def refused(env, make=make):
        d = make()
        it = raw.IteratorV2(shared_name="", container="", output_types=[S], output_shapes=[[]])
        with env.session() as sess:
            return [env.error(lambda: sess.run(raw.MakeIterator(dataset=d, iterator=it)))]


CSV = b'a,b,c,d\n1,2.5,"x, ""y""",7\r\n,,,\n3,oops,z,8\n4,1,"un"quoted",9\n5,2,"multi\nline",10\n6,3\n7,4,w,11,12\nNA,5,v,13'


def csv(env, **options):
    defaults = [tf.constant([0], I), tf.constant([1.5], F), tf.constant(["d"], S), L]
    return drain(env, tf.data.experimental.CsvDataset(write(env, "t.csv", CSV, options.get("compression_type") or ""), defaults, header=True, **options))


for name, options in dict(plain={}, na=dict(na_value="NA"), noquote=dict(use_quote_delim=False), small=dict(buffer_size=2),
                          gzip=dict(compression_type="GZIP")).items():
    script("CSVDataset/%s" % name)(lambda env, options=options: csv(env, **options))


@script("CSVDataset/columns")
def csv_columns(env):
    path = write(env, "t.csv", b"1;2;3;4\n5;6;7;8\n9\n")
    return [drain(env, readers.CsvDatasetV2(path, [I, S], field_delim=";", select_cols=[1, 3])),
            drain(env, readers.CsvDatasetV2(path, [I, S], field_delim=";", exclude_cols=[0, 2]))]


@script("CacheDataset/file")
def cache_file(env):
    """The second walk reads what the first wrote, also in another session; TensorFlow's reader agrees about the format."""
    path = os.path.join(env.tmp, "sub", "cache")
    os.mkdir(os.path.dirname(path))
    source = tf.placeholder_with_default(tf.constant(5, L), [])
    d = D.range(source).map(lambda x: (x * x, tf.strings.as_string(x))).cache(path)
    it = tf.data.make_initializable_iterator(d)
    n = it.get_next()
    out = []
    for limit in (5, 50):
        with env.session() as sess:
            sess.run(it.initializer, {source: limit})
            while True:
                got = env.error(lambda: sess.run(n))
                out.append(got)
                if getattr(got, "kind", "") == "OutOfRangeError":
                    break
    out.append(sorted(os.listdir(os.path.dirname(path))))
    reader = tf.train.load_checkpoint(path)
    out.append(sorted((k, np.asarray(reader.get_tensor(k)).tolist()) for k in reader.get_variable_to_shape_map()))
    return out


@script("CacheDataset/locked")
def cache_locked(env):
    path = os.path.join(env.tmp, "cache")
    open(path + "_0.lockfile", "w").write("somebody")
    out = drain(env, D.range(3).cache(path), 2)
    if os.path.exists(path + "_0.lockfile"):
        os.remove(path + "_0.lockfile")
    return out + drain(env, D.range(3).cache(path))


@script("MatchingFilesDataset/glob")
def glob(env):
    for name in ("b.txt", "a.txt", "c.dat"):
        write(env, name, b"")
    names = [os.path.basename(x[0]) for x in drain(env, D.list_files(env.tmp + "/*.txt", shuffle=False))[1:-1]]
    it = raw.IteratorV2(shared_name="", container="", output_types=[S], output_shapes=[[]])
    n = raw.IteratorGetNext(iterator=it, output_types=[S], output_shapes=[[]])
    with env.session() as sess:
        sess.run(raw.MakeIterator(dataset=raw.MatchingFilesDataset(patterns=[env.tmp + "/c*", env.tmp + "/a*"]), iterator=it))
        return names, [os.path.basename(sess.run(list(n))[0]) for _ in range(2)], env.error(lambda: sess.run(list(n)))


@script("DatasetToTFRecord/records")
def to_records(env):
    out = []
    for how in ("", "GZIP"):
        path = os.path.join(env.tmp, "out" + how)
        with env.session() as sess:
            sess.run(raw.DatasetToTFRecord(input_dataset=D.from_tensor_slices([b"a", b"bc", b""])._variant_tensor, filename=path, compression_type=how))
        out.append(list(tf.python_io.tf_record_iterator(path, tf.python_io.TFRecordOptions({"": 0, "GZIP": 2}[how]))))
    with env.session() as sess:
        out.append(env.error(lambda: sess.run(raw.DatasetToTFRecord(input_dataset=D.range(2)._variant_tensor, filename=env.tmp + "/no", compression_type=""))))
    return out


def example(x, y):
    return tf.train.Example(features=tf.train.Features(feature=dict(
        x=tf.train.Feature(float_list=tf.train.FloatList(value=x)), y=tf.train.Feature(int64_list=tf.train.Int64List(value=[y])),
        s=tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"w%d" % i for i in range(y)]))))).SerializeToString()


def train(env, batch):
    """Ten steps of a small model on what an iterator gives; losses and weights."""
    x, y = batch
    w = tf.get_variable("w", initializer=tf.zeros([4, 3]), use_resource=True)
    b = tf.get_variable("b", initializer=tf.zeros([3]), use_resource=True)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=tf.matmul(x, w) + b))
    step = tf.train.MomentumOptimizer(0.3, 0.9).minimize(loss)
    with env.session() as sess:
        sess.run([tf.global_variables_initializer()] + tf.get_collection("init"))
        losses = [sess.run([loss, step])[0] for _ in range(10)]
        return losses, sess.run([w, b])


def numbers(n=64):
    rng = np.random.RandomState(3)
    return rng.randn(n, 4).astype(np.float32), rng.randint(0, 3, n)


@script("Pipeline/records_to_model")
def pipeline_records(env):
    xs, ys = numbers()
    files = []
    for i in range(4):
        files.append(os.path.join(env.tmp, "part%d" % i))
        with tf.io.TFRecordWriter(files[-1]) as w:
            for x, y in zip(xs[i::4], ys[i::4]):
                w.write(example(x, int(y)))
    spec = dict(x=tf.io.FixedLenFeature([4], F), y=tf.io.FixedLenFeature([], L))

    def parse(s):
        p = tf.io.parse_single_example(s, spec)
        return p["x"], p["y"]
    d = D.from_tensor_slices(files).interleave(tf.data.TFRecordDataset, cycle_length=2, block_length=3, num_parallel_calls=2)
    d = d.map(parse, num_parallel_calls=2).shuffle(20, seed=5).repeat().batch(8).prefetch(2)
    it = tf.data.make_initializable_iterator(d)
    tf.add_to_collection("init", it.initializer)
    return train(env, it.get_next())


@script("Pipeline/csv_to_model")
def pipeline_csv(env):
    xs, ys = numbers()
    text = "".join("%s,%d\n" % (",".join("%r" % float(v) for v in x), y) for x, y in zip(xs, ys))
    path = write(env, "data.csv", text.encode())

    def parse(line):
        *x, y = tf.io.decode_csv(line, [[0.0]] * 4 + [[0]])
        return tf.stack(x), y
    d = tf.data.TextLineDataset(path).map(parse).cache().shuffle(64, seed=9).repeat().batch(16, drop_remainder=True)
    return train(env, tf.data.make_one_shot_iterator(d).get_next())


@script("ParseExampleDataset/features")
def parse_examples(env):
    examples = [example([1.0 + i] * 4, i % 3) for i in range(7)]
    d = D.from_tensor_slices(examples).batch(3).apply(tf.data.experimental.parse_example_dataset(dict(
        x=tf.io.FixedLenFeature([4], F), y=tf.io.FixedLenFeature([1], L), s=tf.io.VarLenFeature(S), z=tf.io.FixedLenFeature([2], F, [7.0, 8.0])), num_parallel_calls=2))
    return drain(env, d)


@script("ParseExampleDataset/ragged")
def parse_ragged(env):
    examples = [example([1.0] * i, i % 3) for i in range(5)]
    d = D.from_tensor_slices(examples).batch(3).apply(tf.data.experimental.parse_example_dataset(dict(
        x=tf.io.RaggedFeature(F), s=tf.io.RaggedFeature(S, row_splits_dtype=L))))
    return drain(env, d.map(lambda p: (p["x"].values, p["x"].row_splits, p["s"].values, p["s"].row_splits)))


@script("ParseExampleDataset/error")
def parse_error(env):
    d = D.from_tensor_slices([b"junk", example([1.0] * 4, 1), example([1.0] * 3, 1)]).batch(1).apply(
        tf.data.experimental.parse_example_dataset(dict(x=tf.io.FixedLenFeature([4], F))))
    return drain(env, d, 4)


@script("RaggedTensors/through_datasets")
def ragged(env):
    rt = tf.ragged.constant([[1, 2], [], [3], [4, 5, 6]])
    rt2 = tf.ragged.constant([[[1], [2, 3]], [], [[4]], [[], [5]]])
    flat = lambda t: (t.flat_values, *t.nested_row_splits)
    return [drain(env, D.from_tensor_slices(rt)), drain(env, D.from_tensor_slices(rt2).map(flat)), drain(env, D.from_tensors(rt2).map(flat)),
            drain(env, D.from_tensor_slices(rt2).batch(3).map(flat)), drain(env, D.range(5).map(lambda x: tf.ragged.range(x)).batch(2).map(flat)),
            drain(env, D.from_tensors(rt).unbatch())]
