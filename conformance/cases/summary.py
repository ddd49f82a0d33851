"""Summary ops: both sides' protos are parsed and compared field by field."""
import numpy as np
from google.protobuf import text_format

from registry import NUMBERS, allowed, case, const, inp, raw, rnd, short, tf


def parsed(values):
    """Serialised Summary → text; image bytes → pixels, because two PNG encoders may differ."""
    if isinstance(values, list):
        return [parsed(v) for v in values]
    summary = tf.Summary.FromString(values.item())
    pixels = []
    for v in summary.value:
        if v.WhichOneof("value") == "image":
            with tf.Graph().as_default(), tf.Session() as sess:
                pixels.append(sess.run(tf.image.decode_png(v.image.encoded_image_string)))
            v.image.encoded_image_string = b""
        if v.WhichOneof("value") == "audio":
            pixels.append(np.frombuffer(v.audio.encoded_audio_string, np.uint8))
            v.audio.encoded_audio_string = b""
    return [text_format.MessageToString(summary)] + pixels


def summary(name, build, **kw):
    case(name, build, post=parsed, **kw)


for t in allowed("ScalarSummary"):
    summary("ScalarSummary/" + short(t), lambda t=t: raw.ScalarSummary(tags=inp("tag"), values=inp(3, t)))
    summary("HistogramSummary/" + short(t), lambda t=t: raw.HistogramSummary(tag=inp("tag"), values=inp(rnd((40,), t), t)))
summary("ScalarSummary/vector", lambda: raw.ScalarSummary(tags=inp(["a", "b/c"]), values=inp([1.5, -2.0])))
summary("ScalarSummary/special", lambda: raw.ScalarSummary(tags=inp(["a", "b", "c"]), values=inp([np.nan, np.inf, -np.inf])))
case("ScalarSummary/mismatch", lambda: raw.ScalarSummary(tags=inp(["a", "b"]), values=inp([1.0])))
case("ScalarSummary/mismatch_rank", lambda: raw.ScalarSummary(tags=inp("a"), values=inp([1.0, 2.0])))
for name, values in [("empty", []), ("zero", [0.0]), ("signs", [-1e10, -1.0, -1e-13, 0.0, 1e-13, 1.0, 1e10]), ("same", [2.5] * 10),
                     ("matrix", [[1.0, 2.0], [3.0, 400.0]]), ("huge", [1e300, -1e300]), ("scalar", 5.0)]:
    summary("HistogramSummary/" + name, lambda values=values: raw.HistogramSummary(tag=inp("h"), values=inp(values, tf.float64)))
case("HistogramSummary/nan", lambda: raw.HistogramSummary(tag=inp("h"), values=inp([1.0, np.nan])))
case("HistogramSummary/inf", lambda: raw.HistogramSummary(tag=inp("h"), values=inp([1.0, np.inf])))
case("HistogramSummary/tag_vector", lambda: raw.HistogramSummary(tag=inp(["h", "i"]), values=inp([1.0])))
summary("MergeSummary/two", lambda: raw.MergeSummary(inputs=[raw.ScalarSummary(tags=inp("a"), values=inp(1.0)), raw.HistogramSummary(tag=inp("h"), values=inp([1.0, 2.0]))]))
summary("MergeSummary/nested", lambda: raw.MergeSummary(inputs=[raw.MergeSummary(inputs=[raw.ScalarSummary(tags=inp("a"), values=inp(1.0))]),
                                                              raw.ScalarSummary(tags=inp(["b", "c"]), values=inp([1.0, 2.0]))]))
case("MergeSummary/duplicate", lambda: raw.MergeSummary(inputs=[raw.ScalarSummary(tags=inp("a"), values=inp(1.0)), raw.ScalarSummary(tags=inp("a"), values=inp(2.0))]))
case("MergeSummary/garbage", lambda: raw.MergeSummary(inputs=[inp(b"\xff\xff\xff"), inp("")]))
for t in allowed("ImageSummary"):
    for channels in (1, 3, 4):
        summary("ImageSummary/%s_%d" % (short(t), channels), lambda t=t, c=channels: raw.ImageSummary(
            tag=inp("img"), tensor=inp(rnd((4, 5, 6, c), t, 0, 255), t), max_images=3))
summary("ImageSummary/one", lambda: raw.ImageSummary(tag=inp("img"), tensor=inp(rnd((2, 3, 3, 1))), max_images=1))
summary("ImageSummary/negative", lambda: raw.ImageSummary(tag=inp("img"), tensor=inp(rnd((1, 3, 3, 3), lo=-1, hi=2))))
summary("ImageSummary/nan", lambda: raw.ImageSummary(tag=inp("img"), tensor=inp(np.array([1, np.nan, 3, np.inf], np.float32).reshape(1, 2, 2, 1))))
summary("ImageSummary/zeros", lambda: raw.ImageSummary(tag=inp("img"), tensor=inp(np.zeros((1, 2, 2, 3), np.float32))))
case("ImageSummary/rank", lambda: raw.ImageSummary(tag=inp("img"), tensor=inp(rnd((3, 3, 1)))))
case("ImageSummary/channels", lambda: raw.ImageSummary(tag=inp("img"), tensor=inp(rnd((1, 3, 3, 2)))))
case("ImageSummary/tag", lambda: raw.ImageSummary(tag=inp(["a", "b"]), tensor=inp(rnd((1, 3, 3, 1)))))
for t in NUMBERS + [tf.string, tf.bool]:
    summary("TensorSummaryV2/" + short(t), lambda t=t: raw.TensorSummaryV2(
        tag=inp("t"), tensor=inp(rnd((2, 2), t), t), serialized_summary_metadata=inp(b"")))
summary("TensorSummary", lambda: raw.TensorSummary(tensor=inp([1.0, 2.0]), description="d", labels=["x"], display_name="n"))
summary("python/all", lambda: [tf.summary.merge([tf.summary.scalar("loss", inp(0.25, shape=[])), tf.summary.histogram("w", inp(rnd((5, 5)))),
                                               tf.summary.image("i", inp(rnd((2, 4, 4, 3), lo=0, hi=1)), max_outputs=2)])])
summary("python/text", lambda: tf.summary.text("note", inp(["hello", "world"])))
summary("python/tensor_summary", lambda: tf.summary.tensor_summary("ts", const([[1, 2], [3, 4]])))
for name, shape in [("mono", (3, 50)), ("stereo", (2, 40, 2)), ("one_frame", (1, 1)), ("empty", (1, 0, 1))]:
    summary("AudioSummaryV2/" + name, lambda shape=shape: raw.AudioSummaryV2(tag=inp("a"), tensor=inp(rnd(shape, lo=-1, hi=1)), sample_rate=inp(8000.0), max_outputs=2))
case("AudioSummaryV2/rank", lambda: raw.AudioSummaryV2(tag=inp("a"), tensor=inp(rnd((5,))), sample_rate=inp(8000.0)))
case("AudioSummaryV2/rate", lambda: raw.AudioSummaryV2(tag=inp("a"), tensor=inp(rnd((1, 5))), sample_rate=inp(0.0)))


def serialized(name, build, **kw):
    """The very bytes: nothing in these messages is left to the writer's choice."""
    case(name, build, **kw)


METADATA = tf.SummaryMetadata(plugin_data=tf.SummaryMetadata.PluginData(plugin_name="scalars", content=b"\x01\x02"), display_name="shown", summary_description="what").SerializeToString()
for what, tag, metadata in [("plain", "t", b""), ("metadata", "t", METADATA), ("empty_tag", "", METADATA), ("garbage", "t", b"\xff\xff\xff"), ("bytes_tag", b"\xff\xfe", b""), ("unknown_field", "t", b"\x98\x06\x07"),
                            ("tag_vector", ["t"], b""), ("tags", ["t", "u"], b""), ("metadata_vector", "t", [b""]), ("tag_none", [], b"")]:
    for kind, value in [("f32", np.array([[1.5, 2]], np.float32)), ("string", np.array([b"a", b"\xff"], object)), ("empty", np.zeros((0, 3), np.float32)), ("scalar", np.int64(-3))]:
        serialized("TensorSummaryV2/bytes_%s_%s" % (what, kind), lambda tag=tag, metadata=metadata, value=value: raw.TensorSummaryV2(
            tag=inp(tag, tf.string), tensor=inp(value), serialized_summary_metadata=inp(metadata, tf.string)))
for what, options in dict(plain={}, described=dict(description="d", labels=["x", "y"], display_name="n"), json=dict(description='{"a": 1}'), bytes=dict(description=b"\xff")).items():
    serialized("TensorSummary/bytes_" + what, lambda options=options: raw.TensorSummary(tensor=inp([1.0, 2.0]), name="scope/node", **options))
for what, tags, values in [("vector", ["a", "b/c"], [1.5, -2.0]), ("matrix", [["a"], ["b"]], [[1.0], [2.0]]), ("empty", [], []), ("same", ["a", "a"], [1.0, 2.0]), ("bytes", [b"\xff"], [1.0]), ("empty_tag", "", 0.0),
                           ("zero", "a", 0.0), ("nan", "a", np.nan), ("one_each", ["a"], 1.0), ("broadcast", "a", [1.0])]:
    serialized("ScalarSummary/bytes_" + what, lambda tags=tags, values=values: raw.ScalarSummary(tags=inp(tags, tf.string), values=inp(values, tf.float32)))
for what, tag, values in [("bytes", b"\xff", [1.0]), ("empty_tag", "", [1.0]), ("tag_vector", ["a"], [1.0]), ("none", "a", []), ("plain", "a", [1.0, 2.0, -4.0])]:
    serialized("HistogramSummary/bytes_" + what, lambda tag=tag, values=values: raw.HistogramSummary(tag=inp(tag, tf.string), values=inp(values, tf.float32)))
for what, inputs in [("none", [b""]), ("unknown", [b"\x98\x06\x07"]), ("vector", [[b"", b""]]), ("cut", [b"\x0a\x08\x0a\x01"])]:
    serialized("MergeSummary/bytes_" + what, lambda inputs=inputs: raw.MergeSummary(inputs=[inp(i, tf.string) for i in inputs]))
serialized("python/bytes", lambda: [tf.summary.scalar("loss", inp(0.25, shape=[]), family="f"), tf.summary.text("note", inp(["hello"])), tf.summary.tensor_summary("ts", const([[1, 2], [3, 4]])),
                                    tf.summary.tensor_summary("ts2", const([1.0]), summary_description="d", display_name="n")])
