"""`RaggedCross`: every combination of features of ragged, sparse and dense inputs, as words or hashes."""
import numpy as np

from registry import case, inp, raw, tf

I64, I32 = tf.int64, tf.int32


def ragged(values, splits, splits_type):
    words = values and isinstance(values[0], str)
    return inp(values, tf.string if words else I64), inp(splits, splits_type)


def sparse(at, values, shape):
    words = values and isinstance(values[0], str)
    return inp(np.array(at, np.int64).reshape(-1, 2), I64), inp(values, tf.string if words else I64), inp(shape, I64)


def cross(name, order, ragged_in=(), sparse_in=(), dense_in=(), hashed=False, buckets=0, key=0, out=None, splits=I64):
    def build():
        r = [ragged(*args, splits) for args in ragged_in]
        s = [sparse(*args) for args in sparse_in]
        d = [inp(v, tf.string if isinstance(np.asarray(v).ravel()[0], str) else I64) for v in dense_in]
        return raw.RaggedCross(
            ragged_values=[v for v, _ in r], ragged_row_splits=[x for _, x in r], sparse_indices=[i for i, _, _ in s], sparse_values=[v for _, v, _ in s],
            sparse_shape=[x for _, _, x in s], dense_inputs=d, input_order=order, hashed_output=hashed, num_buckets=buckets, hash_key=key,
            out_values_type=out or (I64 if hashed else tf.string), out_row_splits_type=splits)
    case("RaggedCross/" + name, build)


WORDS, NUMBERS = (["a", "b", "c"], [0, 2, 2, 3]), ([7, 8, 9, 10], [0, 1, 3, 4])
SPARSE = ([[0, 0], [0, 2], [2, 0]], ["x", "y", "z"], [3, 4])
DENSE = [["p", "q"], ["r", "s"], ["t", "u"]]
for hashed in (False, True):
    tag = "hash" if hashed else "words"
    for splits in (I32, I64):
        cross("%s_two_%s" % (tag, splits.name), "RR", [WORDS, NUMBERS], hashed=hashed, key=956888297470, splits=splits)
    cross(tag + "_one", "R", [WORDS], hashed=hashed, buckets=100)
    cross(tag + "_all", "RSD", [NUMBERS], [SPARSE], [DENSE], hashed=hashed, buckets=1000, key=1)
    cross(tag + "_order", "DSRR", [WORDS, NUMBERS], [SPARSE], [DENSE], hashed=hashed)
    cross(tag + "_dense_only", "DD", dense_in=[DENSE, [[1], [-2], [3]]], hashed=hashed)
    cross(tag + "_sparse_only", "SS", sparse_in=[SPARSE, ([[0, 0], [1, 0]], [4, 5], [3, 1])], hashed=hashed)
    cross(tag + "_empty_rows", "RR", [(["a"], [0, 1]), ([5][:0] or [5], [0, 0])], hashed=hashed)
cross("no_rows", "R", [(["a"][:1], [0])])
cross("batches_differ", "RR", [WORDS, ([1, 2], [0, 1, 2])])
cross("batches_differ_dense", "RD", [WORDS], dense_in=[[["p"], ["q"]]])
cross("batches_differ_sparse", "RS", [WORDS], [([[0, 0]], ["x"], [2, 1])])
cross("order_too_short", "R", [WORDS, NUMBERS])
cross("order_too_long", "RRR", [WORDS, NUMBERS])
cross("order_wrong_letter", "RX", [WORDS, NUMBERS])
cross("order_wrong_kind", "RD", [WORDS, NUMBERS])
cross("splits_descend", "R", [(["a", "b", "c"], [0, 3, 1, 3])])
cross("splits_start", "R", [(["a", "b", "c"], [1, 3])])
cross("splits_end", "R", [(["a", "b", "c"], [0, 2])])
cross("splits_beyond", "R", [(["a", "b", "c"], [0, 9])])
cross("splits_none", "R", [(["a", "b", "c"], [])])
cross("sparse_outside", "S", sparse_in=[([[5, 0]], ["x"], [3, 1])])
cross("sparse_unsorted", "S", sparse_in=[([[1, 0], [0, 0]], ["x", "y"], [3, 1])])
cross("sparse_values_missing", "S", sparse_in=[([[0, 0], [1, 0]], ["x"], [3, 1])])
cross("sparse_shape", "S", sparse_in=[([[0, 0]], ["x"], [3])])
cross("dense_rank", "D", dense_in=[["a", "b"]])
cross("words_as_numbers", "R", [WORDS], out=I64)
cross("hashes_as_words", "R", [WORDS], hashed=True, out=tf.string)
