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
