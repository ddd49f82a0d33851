"""Summary writers that live in the server: what their event files hold, record by record, apart from wall times."""
import glob
import os
import re

import numpy as np
from google.protobuf import text_format
from tensorflow.python.ops import summary_ops_v2

from registry import NUMBERS, raw, script, short, tf

I64, STRING = tf.int64, tf.string


def fed(value, dtype=None):
    """A value whose shape the client does not know."""
    if dtype == STRING or isinstance(value, (str, bytes)):
        return tf.placeholder_with_default(np.array(value, object), None)
    return tf.placeholder_with_default(tf.constant(value, dtype), None)


def images(event):
    """Pixels in place of PNG files: two encoders may differ."""
    pixels = []
    for value in event.summary.value:
        if value.WhichOneof("value") == "image":
            with tf.Graph().as_default(), tf.Session() as sess:
                pixels.append(sess.run(tf.image.decode_png(value.image.encoded_image_string)))
            value.image.encoded_image_string = b""
    return pixels


def records(folder):
    """Every event file under a folder: its name without the time and the machine, and its events."""
    out = []
    for path in sorted(glob.glob(os.path.join(folder, "**", "*tfevents*"), recursive=True)):
        name = os.path.relpath(path, folder)
        out.append(re.sub(r"tfevents\.\d{10}\.[^/]*?\.\d+\.\d+", "tfevents.T.HOST.PID.N", name))
        for record in tf.python_io.tf_record_iterator(path):
            event = tf.Event.FromString(record)
            assert event.wall_time > 1e9 or event.wall_time == 12.5, event.wall_time
            event.wall_time = 0
            pixels = images(event)
            if event.graph_def:  # maps inside have no order
                pixels.append(text_format.MessageToString(tf.GraphDef.FromString(event.graph_def)))
                event.graph_def = b"..."
            out.append(text_format.MessageToString(event))
            out.extend(pixels)
    return out


def writer(env, folder="logs", queue=100, millis=100000, suffix=".v2", name="w"):
    """A writer's handle and the op that opens it."""
    handle = raw.SummaryWriter(shared_name=name)
    return handle, raw.CreateSummaryFileWriter(writer=handle, logdir=os.path.join(env.tmp, folder), max_queue=queue, flush_millis=millis, filename_suffix=suffix)


def written(name, build, **options):
    """Runs each op that `build(handle)` gives after the writer is open, then closes it."""
    @script(name, **options)
    def _(env):
        out = []
        with tf.Graph().as_default() as g:
            handle, create = writer(env)
            ops = build(handle)
            close = raw.CloseSummaryWriter(writer=handle)
            sess = env.session(g)
            sess.run(create)
            for op in ops if isinstance(ops, list) else [ops]:
                out.append(env.error(lambda op=op: sess.run(op)))
            out.append(env.error(lambda: sess.run(close)))
        return out + records(env.tmp)


for t in NUMBERS + [tf.bool]:
    written("WriteScalarSummary/" + short(t), lambda h, t=t: raw.WriteScalarSummary(writer=h, step=fed(3, I64), tag=fed("a"), value=fed(np.array(2), t)) if t.is_floating or (
        t.is_integer) else tf.no_op())
    written("WriteHistogramSummary/" + short(t), lambda h, t=t: raw.WriteHistogramSummary(
        writer=h, step=fed(3, I64), tag=fed("h"), values=fed(np.arange(12).reshape(3, 4) % 5, t)) if t.is_floating or t.is_integer or t == tf.bool else tf.no_op())
    written("WriteSummary/" + short(t), lambda h, t=t: raw.WriteSummary(
        writer=h, step=fed(4, I64), tensor=fed(np.array([[1, 0], [1, 1]]), t), tag=fed("t"), summary_metadata=fed(b"")))
written("WriteSummary/strings", lambda h: raw.WriteSummary(writer=h, step=fed(1, I64), tensor=fed(["a", b"\xff"], STRING), tag=fed("t"), summary_metadata=fed(
    tf.SummaryMetadata(display_name="shown", plugin_data=tf.SummaryMetadata.PluginData(plugin_name="text", content=b"x")).SerializeToString())))
written("WriteSummary/bad_metadata", lambda h: raw.WriteSummary(writer=h, step=fed(1, I64), tensor=fed(1.0), tag=fed("t"), summary_metadata=fed(b"\xff\xff")))
written("WriteSummary/negative_step", lambda h: raw.WriteSummary(writer=h, step=fed(-1, I64), tensor=fed(1.0), tag=fed("t"), summary_metadata=fed(b"")))
written("WriteScalarSummary/special", lambda h: [raw.WriteScalarSummary(writer=h, step=fed(i, I64), tag=fed("a"), value=fed(v)) for i, v in enumerate([np.nan, np.inf, 0.0])])
written("WriteHistogramSummary/bad", lambda h: [raw.WriteHistogramSummary(writer=h, step=fed(1, I64), tag=fed("h"), values=fed(v))
                                                for v in ([np.nan], [1.0, np.inf], [-1e10, -1.0, 0.0, 1e-13, 7.0])])
for t in (tf.uint8, tf.float32, tf.float16):
    for channels in (1, 3, 4):
        written("WriteImageSummary/%s_%d" % (short(t), channels), lambda h, t=t, c=channels: raw.WriteImageSummary(
            writer=h, step=fed(1, I64), tag=fed("i"), tensor=fed(np.arange(3 * 2 * 2 * c).reshape(3, 2, 2, c), t), bad_color=fed([255, 0, 0, 255], tf.uint8), max_images=2))
written("WriteImageSummary/one", lambda h: raw.WriteImageSummary(
    writer=h, step=fed(1, I64), tag=fed("i"), tensor=fed(np.array([1, np.nan, -3, 2], np.float32).reshape(1, 2, 2, 1)), bad_color=fed([9], tf.uint8), max_images=1))
written("WriteImageSummary/refused", lambda h: [
    raw.WriteImageSummary(writer=h, step=fed(1, I64), tag=fed("i"), tensor=fed(np.ones(shape, np.float32)), bad_color=fed(bad, tf.uint8))
    for shape, bad in (((2, 2, 1), [1]), ((1, 2, 2, 2), [1]), ((1, 2, 2, 3), [1]), ((1, 2, 2, 1), 1), ((1, 2, 2, 1), []))])
for n in (1, 2):
    written("WriteAudioSummary/%d" % n, lambda h, n=n: raw.WriteAudioSummary(
        writer=h, step=fed(1, I64), tag=fed("s"), tensor=fed(np.sin(np.arange(24)).reshape(2, 6, 2).astype(np.float32)), sample_rate=fed(8000.0), max_outputs=n))
written("WriteAudioSummary/flat", lambda h: raw.WriteAudioSummary(writer=h, step=fed(1, I64), tag=fed("s"), tensor=fed([[0.5, -2.0, 1.0]]), sample_rate=fed(0.25)))
written("WriteAudioSummary/rate", lambda h: raw.WriteAudioSummary(writer=h, step=fed(1, I64), tag=fed("s"), tensor=fed([[0.5]]), sample_rate=fed(0.0)))


def a_graph():
    with tf.Graph().as_default() as g:
        tf.constant(1.0, name="one") + 2
    return g.as_graph_def()


def a_summary(tag, value):
    return tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=value)]).SerializeToString()


written("WriteGraphSummary/graph", lambda h: [raw.WriteGraphSummary(writer=h, step=fed(7, I64), tensor=fed(v)) for v in (a_graph().SerializeToString(), b"", b"\xff\xff")])
written("WriteRawProtoSummary/several", lambda h: [raw.WriteRawProtoSummary(writer=h, step=fed(s, I64), tensor=fed(v, STRING)) for s, v in (
    (1, [a_summary("a", 1.0), a_summary("b", 2.0)]), (2, a_summary("c", 3.0)), (3, [a_summary("a", 1.0), b"\xff\xff"]), ([4], a_summary("d", 1.0)), (5, [b""]), (6, []))])
written("ImportEvent/events", lambda h: [raw.ImportEvent(writer=h, event=fed(v)) for v in (
    tf.Event(wall_time=12.5, step=9, summary=tf.Summary(value=[tf.Summary.Value(tag="x", simple_value=1.0)])).SerializeToString(),
    tf.Event(wall_time=12.5, session_log=tf.SessionLog(status=tf.SessionLog.START)).SerializeToString(),
    tf.Event(wall_time=12.5, log_message=tf.LogMessage(message="m")).SerializeToString(), b"\xff\xff")])


@script("handles_that_name_no_writer")
def _(env):
    out = []
    with tf.Graph().as_default() as g:
        h = raw.SummaryWriter(shared_name="none")
        ops = [raw.FlushSummaryWriter(writer=h), raw.CloseSummaryWriter(writer=h), raw.ImportEvent(writer=h, event=fed(b"")),
               raw.WriteScalarSummary(writer=h, step=fed(1, I64), tag=fed("a"), value=fed(1.0)),
               raw.WriteSummary(writer=h, step=fed(1, I64), tensor=fed(1.0), tag=fed("t"), summary_metadata=fed(b""))]
        v = tf.Variable(1.0, use_resource=True)
        ops.append(raw.FlushSummaryWriter(writer=v.handle))
        sess = env.session(g)
        for op in ops:
            out.append(env.error(lambda op=op: sess.run(op)))
    return out


@script("arguments_of_a_file_writer")
def _(env):
    out = []
    open(os.path.join(env.tmp, "file"), "w").close()
    with tf.Graph().as_default() as g:
        def made(n, logdir="x", queue=1, millis=1, suffix=""):
            h = raw.SummaryWriter(shared_name="args%d" % n)
            return raw.CreateSummaryFileWriter(writer=h, logdir=fed(logdir, STRING), max_queue=fed(queue, tf.int32), flush_millis=fed(millis, tf.int32), filename_suffix=fed(suffix, STRING))
        ops = [made(0, logdir=["a"]), made(1, queue=[1]), made(2, millis=[1]), made(3, suffix=["a"]), made(4, logdir=os.path.join(env.tmp, "file")),
               made(5, logdir=os.path.join(env.tmp, "file/in")), made(6, logdir=os.path.join(env.tmp, "deep/er/folder"), suffix="suffix"), made(7, logdir=os.path.join(env.tmp, "dot"), suffix=".v2")]
        sess = env.session(g)
        for op in ops:
            out.append(env.error(lambda op=op: sess.run(op)))
    return out + records(env.tmp)


@script("a_queue_is_written_when_it_is_full_or_told")
def _(env):
    out = []
    with tf.Graph().as_default() as g:
        h, create = writer(env, queue=2)
        step = tf.placeholder(I64, [])
        write, flush, close = raw.WriteScalarSummary(writer=h, step=step, tag="a", value=1.5), raw.FlushSummaryWriter(writer=h), raw.CloseSummaryWriter(writer=h)
        sess = env.session(g)
        sess.run(create)
        out.append(len(records(env.tmp)))
        for i in range(4):
            sess.run(write, {step: i})
            out.append(len(records(env.tmp)))
        sess.run(flush)
        out.append(len(records(env.tmp)))
        sess.run(write, {step: 9})
        out.append(len(records(env.tmp)))
        sess.run(close)
        out.append(records(env.tmp))
        out.append(env.error(lambda: sess.run(write, {step: 10})))
        out.append(env.error(lambda: sess.run(flush)))
        out.append(env.error(lambda: sess.run(close)))
        sess.run(create)
        sess.run(write, {step: 11})
        sess.run(close)
    return out + records(env.tmp)


@script("no_wait_between_writes")
def _(env):
    with tf.Graph().as_default() as g:
        h, create = writer(env, queue=100, millis=0)
        write = raw.WriteScalarSummary(writer=h, step=tf.constant(1, I64), tag="a", value=1.5)
        sess = env.session(g)
        sess.run(create)
        sess.run(write)
        return records(env.tmp)


@script("writers_are_shared_by_name")
def _(env):
    out = []
    with tf.Graph().as_default() as g:
        a, create = writer(env, name="both")
        b, again = writer(env, folder="other", name="both")
        c, third = writer(env, folder="third", name="third")
        ops = [create, again, third] + [raw.WriteScalarSummary(writer=h, step=tf.constant(i, I64), tag="a", value=float(i)) for i, h in enumerate((a, b, c))]
        ops += [raw.FlushSummaryWriter(writer=b), raw.CloseSummaryWriter(writer=c)]
        sess = env.session(g)
        for op in ops:
            out.append(env.error(lambda op=op: sess.run(op)))
        out.append(records(env.tmp))
        out.append(env.error(lambda: sess.run(raw.SummaryWriter(shared_name="x", container="c"))).__class__.__name__)
    return out


@script("file_writer_of_a_session")
def _(env):
    with tf.Graph().as_default() as g:
        tf.summary.scalar("loss", tf.constant(2.5))
        merged = tf.summary.merge_all()
        sess = env.session(g)
        out = tf.summary.FileWriter(os.path.join(env.tmp, "fw"), session=sess, filename_suffix=".mine")
        for i in range(3):
            out.add_summary(sess.run(merged), i)
        out.add_session_log(tf.SessionLog(status=tf.SessionLog.CHECKPOINT, checkpoint_path="p"), 3)
        out.flush()
        first = records(env.tmp)
        out.close()
        out.reopen()
        out.add_summary(sess.run(merged), 7)
        out.close()
        return first, records(env.tmp)


@script("create_file_writer_in_a_graph")
def _(env):
    with tf.Graph().as_default() as g:
        step = tf.compat.v1.train.get_or_create_global_step()
        w = summary_ops_v2.create_file_writer_v2(os.path.join(env.tmp, "v2"), filename_suffix=".v2")
        with w.as_default(step=step), summary_ops_v2.record_if(True):
            tf.compat.v2.summary.write("t", tf.constant([1, 2]), metadata=tf.SummaryMetadata(display_name="d"))
            ops = tf.compat.v1.summary.all_v2_summary_ops()
        more = tf.assign_add(step, 1)
        init, flush, close = w.init(), w.flush(), w.close()
        sess = env.session(g)
        sess.run(tf.global_variables_initializer())
        sess.run(init)
        for _ in range(3):
            sess.run(ops)
            sess.run(more)
        sess.run(flush)
        sess.run(close)
        return records(env.tmp)


@script("writers_in_a_condition")
def _(env):
    with tf.Graph().as_default() as g:
        step = tf.placeholder(I64, [])
        w = summary_ops_v2.create_file_writer_v2(os.path.join(env.tmp, "if"))
        with w.as_default(step=step), summary_ops_v2.record_if(lambda: tf.equal(step % 2, 0)):
            done = tf.compat.v2.summary.write("t", tf.constant(1.0))
        init, flush = w.init(), w.flush()
        sess = env.session(g)
        sess.run(init)
        out = [sess.run(done, {step: i}) for i in range(5)]
        sess.run(flush)
        return out, records(env.tmp)
