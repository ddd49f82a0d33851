"""Ragged tensors as variants."""
from registry import ALL, INTS, case, inp, raw, rnd, short, tf


def there_and_back(t, ix, batched, output_rank, input_rank=-1, shape=(7,)):
    inner, outer = inp([0, 2, 2, 5, 7], ix), inp([0, 1, 3, 4], ix)
    encoded = raw.RaggedTensorToVariant(rt_nested_splits=[outer, inner], rt_dense_values=inp(rnd(shape, t), t), batched_input=batched)
    splits, values = raw.RaggedTensorFromVariant(encoded_ragged=encoded, input_ragged_rank=input_rank, output_ragged_rank=output_rank, Tvalues=t, Tsplits=ix)
    return [tf.shape(encoded), values] + list(splits)


for t in ALL:
    for ix in INTS:
        for batched in (True, False):
            case("RaggedTensorToVariant/%s_%s_%s" % (short(t), short(ix), batched), lambda t=t, ix=ix, b=batched: there_and_back(t, ix, b, 2))
case("RaggedTensorToVariant/inner", lambda: there_and_back(tf.float32, tf.int64, True, 2, shape=(7, 2, 3)))
case("RaggedTensorToVariant/explicit", lambda: there_and_back(tf.float32, tf.int64, True, 2, 1))
for out, given in [(3, -1), (0, -1), (1, 0)]:
    case("RaggedTensorFromVariant/ranks_%d_%d" % (out, given), lambda out=out, given=given: there_and_back(tf.float32, tf.int64, True, out, given))


def dense(shape, batched, out):
    encoded = raw.RaggedTensorToVariant(rt_nested_splits=[], rt_dense_values=inp(rnd(shape)), batched_input=batched)
    splits, values = raw.RaggedTensorFromVariant(encoded_ragged=encoded, input_ragged_rank=0, output_ragged_rank=out, Tvalues=tf.float32, Tsplits=tf.int64)
    return [values] + list(splits)


for shape in [(3, 2), (3,), ()]:
    case("RaggedTensorToVariant/dense_batch_%s" % (shape,), lambda shape=shape: dense(shape, True, 1))
    case("RaggedTensorToVariant/dense_%s" % (shape,), lambda shape=shape: dense(shape, False, 0))


def stacked(n):
    parts = [raw.RaggedTensorToVariant(rt_nested_splits=[inp([0, i, i + 1], tf.int64)], rt_dense_values=inp(rnd((i + 1,))), batched_input=False) for i in range(n)]
    splits, values = raw.RaggedTensorFromVariant(encoded_ragged=tf.reshape(tf.stack(parts), [2, n // 2]), input_ragged_rank=1, output_ragged_rank=3,
                                                 Tvalues=tf.float32, Tsplits=tf.int64)
    return [values] + list(splits)


case("RaggedTensorFromVariant/stacked", lambda: stacked(4))
case("RaggedTensorFromVariant/wrong_type", lambda: raw.RaggedTensorFromVariant(
    encoded_ragged=raw.RaggedTensorToVariant(rt_nested_splits=[inp([0, 1], tf.int64)], rt_dense_values=inp([1.0]), batched_input=False),
    input_ragged_rank=1, output_ragged_rank=1, Tvalues=tf.int32, Tsplits=tf.int64)[1])


def gradient():
    values = inp(rnd((7,)))
    encoded = raw.RaggedTensorToVariant(rt_nested_splits=[inp([0, 2, 7], tf.int64)], rt_dense_values=values, batched_input=True)
    return raw.RaggedTensorToVariantGradient(encoded_ragged_grad=encoded, row_splits=inp([0, 2, 7], tf.int64), dense_values_shape=inp([7]), Tvalues=tf.float32)


case("RaggedTensorToVariantGradient/batch", gradient)


def mapped():
    ragged = tf.RaggedTensor.from_row_splits(inp(rnd((7,)), shape=(7,)), inp([0, 2, 2, 7], tf.int64, (4,)))
    out = tf.map_fn(lambda x: x * 2, ragged, fn_output_signature=tf.RaggedTensorSpec([None], tf.float32))
    return [out.flat_values, out.row_splits]


case("RaggedTensorToVariant/map_fn", mapped)


def splits_of(outer, inner, batched, ix=tf.int64):
    encoded = raw.RaggedTensorToVariant(rt_nested_splits=[inp(s, ix) for s in (outer, inner) if s is not None], rt_dense_values=inp(rnd((7, 2))), batched_input=batched)
    rank = 2 if inner is not None else 1
    splits, values = raw.RaggedTensorFromVariant(encoded_ragged=encoded, input_ragged_rank=-1 if batched else rank, output_ragged_rank=rank, Tvalues=tf.float32, Tsplits=ix)
    return [tf.shape(encoded), values] + list(splits)


GOOD = [0, 2, 2, 5, 7]
for batched in (True, False):
    for what, outer, inner in [("start", [1, 3], GOOD), ("beyond", [0, 1, 9], GOOD), ("short", [0, 1, 3], GOOD), ("down", [0, 3, 1, 4], GOOD), ("negative", [0, -1, 4], GOOD), ("none", [], GOOD),
                               ("scalar", 0, GOOD), ("matrix", [[0, 4]], GOOD), ("no_rows", [0], GOOD), ("inner_start", [0, 4], [1, 2, 2, 5, 7]), ("inner_beyond", [0, 4], [0, 2, 2, 5, 8]),
                               ("inner_short", [0, 4], [0, 2, 2, 5, 6]), ("inner_down", [0, 4], [0, 5, 2, 5, 7]), ("inner_negative", [0, 4], [0, 2, -2, 5, 7]), ("inner_none", [0, 4], []),
                               ("inner_scalar", [0, 4], 7), ("one_beyond", [0, 8], None), ("one_down", [0, 5, 2, 7], None), ("one_start", [2, 7], None), ("one_none", [], None), ("one_single", [7], None)]:
        case("RaggedTensorToVariant/bad_%s_%s" % (what, batched), lambda outer=outer, inner=inner, batched=batched: splits_of(outer, inner, batched))
