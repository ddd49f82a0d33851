"""Connectionist temporal classification."""
import numpy as np

from registry import case, inp, raw, rnd, short, tf

PLACES = [[0, 0], [0, 1], [0, 2], [1, 0], [2, 0], [2, 1]]
LABELS = [0, 1, 1, 3, 2, 2]


def loss(time=7, classes=5, batch=3, places=PLACES, labels=LABELS, lengths=(7, 5, 6), t=tf.float32, x=None, **more):
    x = rnd((time, batch, classes), t) if x is None else x
    return list(raw.CTCLoss(inputs=inp(x, t), labels_indices=inp(places, tf.int64), labels_values=inp(labels, tf.int32),
                            sequence_length=inp(list(lengths), tf.int32), **more))


for t in (tf.float32, tf.float64):
    for what, more in dict(plain={}, collapse=dict(preprocess_collapse_repeated=True), apart=dict(ctc_merge_repeated=False),
                           short=dict(lengths=(7, 5, 2)), short_ignored=dict(lengths=(7, 0, 1), ignore_longer_outputs_than_inputs=True),
                           zero=dict(lengths=(7, 0, 6)), repeats=dict(lengths=(3, 5, 2)), blanks=dict(labels=[0, 1, 4, 3, 2, 4])).items():
        case("CTCLoss/%s_%s" % (what, short(t)), lambda t=t, more=more: loss(t=t, **more), rtol=1e-4, atol=1e-5)
for what, more in dict(rank=dict(x=np.zeros((7, 3), np.float32)), time=dict(time=0), lengths=dict(lengths=(7, 5)), long=dict(lengths=(8, 5, 6)), negative=dict(lengths=(7, -5, 6)),
                       missing=dict(places=[[0, 0], [2, 0]], labels=[1, 1]), counts=dict(labels=[0]), order=dict(places=[[0, 1], [0, 0], [1, 0], [2, 0], [2, 1], [2, 2]]),
                       repeated=dict(places=[[0, 0], [0, 0], [1, 0], [2, 0], [2, 1], [2, 2]]), outside=dict(places=[[0, 0], [0, 1], [1, 0], [2, 0], [3, 0], [3, 1]]),
                       label=dict(labels=[0, -1, 1, 3, 2, 2]), after=dict(labels=[4, 1, 1, 3, 2, 2]), columns=dict(places=[[0]] * 6),
                       batch=dict(batch=0, lengths=(), places=np.zeros((0, 2)), labels=[])).items():
    case("CTCLoss/bad_" + what, lambda more=more: loss(**more))
for what, more in dict(one=dict(classes=1, labels=[0] * 6), one_unlabelled=dict(classes=1, places=np.zeros((0, 2)), labels=[]), two=dict(classes=2, labels=[0] * 6),
                       one_ignored=dict(classes=1, labels=[0] * 6, ignore_longer_outputs_than_inputs=True), one_short=dict(classes=1, labels=[0] * 6, lengths=(7, 1, 0))).items():
    case("CTCLoss/classes_" + what, lambda more=more: loss(**more), rtol=1e-4, atol=1e-5)

for t in (tf.float32, tf.float64):
    for merge in (True, False):
        case("CTCGreedyDecoder/%s_%s" % (short(t), merge), lambda t=t, merge=merge: list(raw.CTCGreedyDecoder(
            inputs=inp(rnd((9, 3, 4), t), t), sequence_length=inp([9, 4, 0]), merge_repeated=merge)), rtol=1e-5)
        for width, top in [(1, 1), (2, 2), (10, 3), (100, 4)]:
            case("CTCBeamSearchDecoder/%s_%s_%d_%d" % (short(t), merge, width, top), lambda t=t, merge=merge, width=width, top=top: [
                v for part in raw.CTCBeamSearchDecoder(inputs=inp(rnd((9, 3, 4), t), t), sequence_length=inp([9, 4, 6]), beam_width=width,
                                                       top_paths=top, merge_repeated=merge) for v in (part if isinstance(part, list) else [part])], rtol=1e-4)
for blank in (0, 2, -2, 4, -5):
    case("CTCGreedyDecoder/blank_%d" % blank, lambda blank=blank: list(raw.CTCGreedyDecoder(
        inputs=inp(rnd((9, 2, 4))), sequence_length=inp([9, 4]), blank_index=blank)), rtol=1e-5)
for what, shape, lengths in [("rank", (3, 4), [1]), ("time", (0, 2, 4), [0, 0]), ("count", (3, 2, 4), [1]), ("long", (3, 2, 4), [1, 4]), ("length_rank", (3, 1, 4), 1)]:
    case("CTCGreedyDecoder/bad_" + what, lambda shape=shape, lengths=lengths: list(raw.CTCGreedyDecoder(inputs=inp(rnd(shape)), sequence_length=inp(lengths))))
    case("CTCBeamSearchDecoder/bad_" + what, lambda shape=shape, lengths=lengths: raw.CTCBeamSearchDecoder(
        inputs=inp(rnd(shape)), sequence_length=inp(lengths), beam_width=3, top_paths=1)[3])
case("CTCBeamSearchDecoder/too_many", lambda: raw.CTCBeamSearchDecoder(inputs=inp(rnd((3, 1, 4))), sequence_length=inp([3]), beam_width=3, top_paths=5)[3])
case("CTCBeamSearchDecoder/no_time", lambda: raw.CTCBeamSearchDecoder(inputs=inp(rnd((3, 1, 4))), sequence_length=inp([0]), beam_width=3, top_paths=2)[3])
