"""tf.Example and tf.SequenceExample in every op that parses them: dense, sparse, ragged, defaults, and what they refuse."""
import numpy as np

from registry import case, const, inp, raw, tf

F, L, S = tf.float32, tf.int64, tf.string
NONE = np.array([], object)
MARKED = "protobuf opens its debug texts with a word that changes from process to process"


def feature(value):
    """A Feature of floats, ints or bytes; None is a feature without a list, bytes are taken as they are."""
    if value is None:
        return tf.train.Feature()
    if isinstance(value, tf.train.Feature):
        return value
    if all(isinstance(v, bytes) for v in value) and value:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=value))
    if all(isinstance(v, float) for v in value) and value:
        return tf.train.Feature(float_list=tf.train.FloatList(value=value))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=value))


def floats(*values):
    return tf.train.Feature(float_list=tf.train.FloatList(value=values))


def strings(*values):
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))


def ex(**features):
    return tf.train.Example(features=tf.train.Features(feature={k: feature(v) for k, v in features.items()})).SerializeToString(deterministic=True)


def sq(context={}, **lists):
    rows = {k: tf.train.FeatureList(feature=[feature(f) for f in v]) for k, v in lists.items()}
    return tf.train.SequenceExample(context=tf.train.Features(feature={k: feature(v) for k, v in context.items()}),
                                    feature_lists=tf.train.FeatureLists(feature_list=rows)).SerializeToString(deterministic=True)


def vec(values):
    out = np.empty(len(values), object)
    out[:] = values
    return out


def v2(serialized, dense=(), sparse=(), ragged=(), names=NONE):
    """ParseExampleV2; dense: (key, dtype, shape, default), sparse: (key, dtype), ragged: (key, dtype, splits)."""
    return raw.ParseExampleV2(
        serialized=inp(serialized if isinstance(serialized, bytes) else vec(serialized), S), names=inp(names, S), sparse_keys=const(vec([s[0] for s in sparse]), S),
        dense_keys=const(vec([d[0] for d in dense]), S), ragged_keys=const(vec([r[0] for r in ragged]), S),
        dense_defaults=[inp(d[3], d[1]) for d in dense], num_sparse=len(sparse), sparse_types=[s[1] for s in sparse],
        ragged_value_types=[r[1] for r in ragged], ragged_split_types=[r[2] for r in ragged], dense_shapes=[d[2] for d in dense])


def v1(serialized, dense=(), sparse=(), names=NONE):
    return raw.ParseExample(serialized=inp(vec(serialized), S), names=inp(names, S), sparse_keys=[inp(s[0], S) for s in sparse], dense_keys=[inp(d[0], S) for d in dense],
                            dense_defaults=[inp(d[3], d[1]) for d in dense], sparse_types=[s[1] for s in sparse], dense_shapes=[d[2] for d in dense])


def single(serialized, dense=(), sparse=()):
    return raw.ParseSingleExample(serialized=inp(serialized, S), dense_defaults=[inp(d[3], d[1]) for d in dense], num_sparse=len(sparse), sparse_keys=[s[0] for s in sparse],
                                  dense_keys=[d[0] for d in dense], sparse_types=[s[1] for s in sparse], dense_shapes=[d[2] for d in dense])


def flat(outputs):
    return [t for part in outputs for t in (part if isinstance(part, (list, tuple)) else [part])]


EMPTY = {F: np.array([], np.float32), L: np.array([], np.int64), S: NONE}
ALL3 = [("f", F, [2], [9.0, 8.0]), ("i", L, [], np.int64(7)), ("s", S, [1, 1], np.array([[b"d"]], object))]
BATCH = [ex(f=[1.0, 2.0], i=[3], s=[b"x"]), ex(i=[4]), ex(f=[5.0, 6.0], s=[b""], other=[1]), b"", ex(f=None, i=None, s=None)]
LISTS = [("a", L), ("b", F), ("c", S), ("d", L)]
RAGGED = [("a", L, tf.int32), ("b", F, L), ("c", S, tf.int32), ("d", L, L)]
LIST_BATCH = [ex(a=[1, 2, -3], b=[0.5], c=[b"x", b"\x00\xff"]), b"", ex(a=[], b=[1.0, float("inf")], d=[2**62]), ex(a=None), ex(a=[4])]

case("ParseExample/dense", lambda: flat(v1(BATCH, ALL3)))
case("ParseExample/sparse", lambda: flat(v1(LIST_BATCH, sparse=LISTS)))
case("ParseExample/both", lambda: flat(v1(LIST_BATCH, [("x", L, [2], [1, 2])], LISTS[:1])))
case("ParseExample/empty_batch", lambda: flat(v1([], ALL3, LISTS)))
case("ParseExample/nothing_asked", lambda: [tf.constant(1)] + flat(v1(BATCH)))
case("ParseExampleV2/dense", lambda: flat(v2(BATCH, ALL3)))
case("ParseExampleV2/sparse", lambda: flat(v2(LIST_BATCH, sparse=LISTS)))
case("ParseExampleV2/ragged", lambda: flat(v2(LIST_BATCH, ragged=RAGGED)))
case("ParseExampleV2/empty_batch", lambda: flat(v2([], ALL3, LISTS, [("r", L, L)])))
case("ParseExampleV2/scalar", lambda: flat(v2(LIST_BATCH[0], [("x", F, [], 1.5)], LISTS[:2], [("c", S, tf.int32), ("e", L, L)])))
case("ParseExampleV2/many", lambda: flat(v2([ex(a=list(range(i % 7)), k=[i]) for i in range(300)], [("k", L, [], EMPTY[L])], [("a", L)])))
case("ParseExampleV2/many_large", lambda: flat(v2([ex(a=[b"z" * (i % 900)] * 3, k=[float(i)] * 4) for i in range(600)], [("k", F, [2, 2], EMPTY[F]), ("v", S, [None], b"")], [("a", S)])))
case("ParseSingleExample/dense", lambda: flat(single(BATCH[0], ALL3)))
case("ParseSingleExample/defaults", lambda: flat(single(BATCH[4], ALL3)))
case("ParseSingleExample/sparse", lambda: flat(single(LIST_BATCH[0], sparse=LISTS)))
case("ParseSingleExample/empty_list", lambda: flat(single(LIST_BATCH[2], sparse=LISTS)))

VAR = [("a", L, [None], 0), ("b", F, [None, 2], -1.0), ("c", S, [None], b"pad")]
VAR_BATCH = [ex(a=[1], b=[1.0, 2.0, 3.0, 4.0]), ex(a=[1, 2, 3], c=[b"x", b"y"]), b"", ex(b=[1.0, 2.0])]
for name, op in dict(ParseExample=v1, ParseExampleV2=v2).items():
    case(name + "/variable", lambda op=op: flat(op(VAR_BATCH, VAR)))
    case(name + "/variable_none", lambda op=op: flat(op([b"", b""], VAR)))
    case(name + "/variable_stride", lambda op=op: flat(op([ex(b=[1.0, 2.0]), ex(b=[1.0, 2.0, 3.0])], VAR[1:2])))
    case(name + "/names", lambda op=op: flat(op([ex(i=[1]), ex(i=[1, 2])], [("i", L, [], EMPTY[L])], names=vec([b"first", b"second"]))))
    case(name + "/names_shape", lambda op=op: flat(op([ex(i=[1])], [("i", L, [], EMPTY[L])], names=vec([b"first", b"second"]))))
    for kind, bad in dict(missing=ex(), too_many=ex(i=[1, 2]), type=ex(i=[1.0]), no_list=ex(i=None)).items():
        case("%s/%s" % (name, kind), lambda op=op, bad=bad: flat(op([ex(i=[1]), bad], [("i", L, [], EMPTY[L])])))
    case(name + "/too_few_floats", lambda op=op: flat(op([ex(i=[1.0])], [("i", F, [3], EMPTY[F])])))
    case(name + "/too_few_strings", lambda op=op: flat(op([ex(i=[b"1"])], [("i", S, [3], EMPTY[S])])))
    case(name + "/too_many_strings", lambda op=op: flat(op([ex(i=[b"1"] * 4)], [("i", S, [3], EMPTY[S])])))
    case(name + "/sparse_type", lambda op=op: flat(op([ex(i=[1]), ex(i=[b"1"])], sparse=[("i", L)])))
    case(name + "/default_shape", lambda op=op: flat(op([ex()], [("i", L, [2], [1])])))
    case(name + "/variable_default", lambda op=op: flat(op([ex()], [("i", L, [None], [1, 2])])))
    case(name + "/twice", lambda op=op: flat(op([ex(i=[1]) + ex(i=[2], a=[5]) + ex(a=[6, 7])], [("i", L, [], EMPTY[L])], [("a", L)])))
    case(name + "/same_key", lambda op=op: flat(op([ex(i=[1])], [("i", L, [], EMPTY[L])], [("i", L)])))
case("ParseExample/matrix", lambda: raw.ParseExample(serialized=inp(np.array([[b""]], object)), names=inp(NONE, S), sparse_keys=[], dense_keys=[inp(b"a", S)], dense_defaults=[inp([1], L)], sparse_types=[], dense_shapes=[[]]))
case("ParseExampleV2/matrix", lambda: raw.ParseExampleV2(serialized=inp(np.array([[b""]], object)), names=inp(NONE, S), sparse_keys=inp(NONE, S), dense_keys=inp([b"a"], S), ragged_keys=inp(NONE, S),
                                                         dense_defaults=[inp([1], L)], num_sparse=0, sparse_types=[], ragged_value_types=[], ragged_split_types=[], dense_shapes=[[]]))
for what, keys in dict(dense=(2, 0, 0), sparse=(1, 1, 0), ragged=(1, 0, 1)).items():
    case("ParseExampleV2/count_" + what, lambda keys=keys: raw.ParseExampleV2(
        serialized=inp([b""], S), names=inp(NONE, S), dense_keys=inp([b"a"] * keys[0], S), sparse_keys=inp([b"b"] * keys[1], S), ragged_keys=inp([b"c"] * keys[2], S),
        dense_defaults=[inp([1], L)], num_sparse=0, sparse_types=[], ragged_value_types=[], ragged_split_types=[], dense_shapes=[[]]))
for kind, bad in dict(missing=ex(), too_many=ex(i=[1, 2]), type=ex(i=[1.0])).items():
    case("ParseSingleExample/" + kind, lambda bad=bad: flat(single(bad, [("i", L, [], EMPTY[L])])))
    case("ParseExampleV2/scalar_" + kind, lambda bad=bad: flat(v2(bad, [("i", L, [], EMPTY[L])])))
case("ParseSingleExample/sparse_type", lambda: flat(single(ex(i=[b"1"]), sparse=[("i", L)])))
case("ParseSingleExample/variable", lambda: flat(single(VAR_BATCH[0], VAR)))
case("ParseSingleExample/variable_stride", lambda: flat(single(ex(b=[1.0, 2.0, 3.0]), VAR[1:2])))
case("ParseSingleExample/vector", lambda: flat(single(vec([b""]), ALL3)))
case("ParseSingleExample/twice", lambda: flat(single(ex(i=[1]) + ex(i=None), [("i", L, [], EMPTY[L])])))

# Bytes that are no canonical example. Keys and lengths by hand.
RAWS = {
    "not_a_message": b"\x0a\x05abc", "text": b"hello world", "unknown_field": ex(i=[1]) + b"\x12\x03abc", "unknown_varint": b"\x18\x05" + ex(i=[1]), "group": b"\x0b\x0c",
    "zero_tag": b"\x00\x00", "truncated_outer": ex(i=[1])[:-1], "value_first": b"\x0a\x0a\x0a\x08\x12\x03\x1a\x01\x08\x0a\x01i", "no_value": b"\x0a\x05\x0a\x03\x0a\x01i",
    "unpacked": b"\x0a\x0d\x0a\x0b\x0a\x01i\x12\x06\x1a\x04\x08\x05\x08\x06"[:-2].replace(b"\x0d", b"\x0b").replace(b"\x0a\x0b\x0a\x0b", b"\x0a\x0b\x0a\x09"),
    "kind_4": b"\x0a\x0a\x0a\x08\x0a\x01i\x12\x03\x22\x01\x08", "long_outer": b"\x0a\x7f" + ex(i=[1])[2:], "packed_cut": b"\x0a\x0d\x0a\x0b\x0a\x01i\x12\x06\x1a\x04\x0a\x02\x01\xff",
    "packed_twice": b"\x0a\x0f\x0a\x0d\x0a\x01i\x12\x08\x1a\x06\x0a\x01\x05\x0a\x01\x06", "list_twice": b"\x0a\x11\x0a\x0f\x0a\x01i\x12\x0a\x1a\x03\x0a\x01\x05\x1a\x03\x0a\x01\x06",
    "wrong_tag_in_list": b"\x0a\x0b\x0a\x09\x0a\x01i\x12\x04\x1a\x02\x10\x05", "bad_utf8_key": b"\x0a\x0d\x0a\x0b\x0a\x01\xff\x12\x06\x1a\x04\x0a\x02\x01\x02",
}
for name, data in RAWS.items():
    case("ParseExample/bytes/" + name, lambda data=data: flat(v1([data], [("i", L, [], np.int64(9))], [("j", L)])))
    case("ParseExampleV2/bytes_sparse/" + name, lambda data=data: flat(v2([data], sparse=[("i", L)])))
    case("ParseSingleExample/bytes/" + name, lambda data=data: flat(single(data, [("i", L, [], np.int64(9))])))
for name, data in {"odd": b"\x0a\x0f\x0a\x0d\x0a\x01i\x12\x08\x12\x06\x0a\x04\x00\x00\x80\x3f"[:-1].replace(b"\x04\x00", b"\x03\x00").replace(b"\x06\x0a", b"\x05\x0a").replace(b"\x08\x12", b"\x07\x12").replace(b"\x0d\x0a", b"\x0c\x0a").replace(b"\x0a\x0f", b"\x0a\x0e"),
                   "unpacked": b"\x0a\x0e\x0a\x0c\x0a\x01i\x12\x07\x12\x05\x0d\x00\x00\x80\x3f", "cut": b"\x0a\x0d\x0a\x0b\x0a\x01i\x12\x06\x12\x04\x0a\x04\x00\x00"}.items():
    case("ParseExample/float_bytes/" + name, lambda data=data: flat(v1([data], sparse=[("i", F)])))


# Sequence examples.
def seq(serialized, context_dense=(), context_sparse=(), lists_dense=(), lists_sparse=(), names=NONE):
    """ParseSequenceExample; lists_dense: (key, dtype, shape, missing_is_empty)."""
    return raw.ParseSequenceExample(
        serialized=inp(serialized if isinstance(serialized, bytes) else vec(serialized), S), debug_name=inp(names, S), context_dense_defaults=[inp(d[3], d[1]) for d in context_dense],
        feature_list_dense_missing_assumed_empty=[d[0] for d in lists_dense if d[3]], context_sparse_keys=[s[0] for s in context_sparse], context_dense_keys=[d[0] for d in context_dense],
        feature_list_sparse_keys=[s[0] for s in lists_sparse], feature_list_dense_keys=[d[0] for d in lists_dense], Ncontext_sparse=len(context_sparse), Nfeature_list_sparse=len(lists_sparse),
        Nfeature_list_dense=len(lists_dense), context_sparse_types=[s[1] for s in context_sparse], feature_list_dense_types=[d[1] for d in lists_dense],
        context_dense_shapes=[d[2] for d in context_dense], feature_list_sparse_types=[s[1] for s in lists_sparse], feature_list_dense_shapes=[d[2] for d in lists_dense], Ncontext_dense=len(context_dense))


def seq2(serialized, context_dense=(), context_sparse=(), lists_dense=(), lists_sparse=(), context_ragged=(), lists_ragged=(), names=NONE):
    keys = lambda parts: inp(vec([p[0] for p in parts]), S)
    return raw.ParseSequenceExampleV2(
        serialized=inp(serialized if isinstance(serialized, bytes) else vec(serialized), S), debug_name=inp(names, S), context_sparse_keys=keys(context_sparse), context_dense_keys=keys(context_dense),
        context_ragged_keys=keys(context_ragged), feature_list_sparse_keys=keys(lists_sparse), feature_list_dense_keys=keys(lists_dense), feature_list_ragged_keys=keys(lists_ragged),
        feature_list_dense_missing_assumed_empty=inp(np.array([d[3] for d in lists_dense], bool)), context_dense_defaults=[inp(d[3], d[1]) for d in context_dense],
        Ncontext_sparse=len(context_sparse), context_sparse_types=[s[1] for s in context_sparse], context_ragged_value_types=[r[1] for r in context_ragged],
        context_ragged_split_types=[r[2] for r in context_ragged], context_dense_shapes=[d[2] for d in context_dense], Nfeature_list_sparse=len(lists_sparse), Nfeature_list_dense=len(lists_dense),
        feature_list_dense_types=[d[1] for d in lists_dense], feature_list_sparse_types=[s[1] for s in lists_sparse], feature_list_ragged_value_types=[r[1] for r in lists_ragged],
        feature_list_ragged_split_types=[r[2] for r in lists_ragged], feature_list_dense_shapes=[d[2] for d in lists_dense])


def seq1(serialized, context_dense=(), context_sparse=(), lists_dense=(), lists_sparse=(), name=b"name"):
    return raw.ParseSingleSequenceExample(
        serialized=inp(serialized, S), feature_list_dense_missing_assumed_empty=inp(vec([d[0].encode() for d in lists_dense if d[3]]), S), context_sparse_keys=[inp(s[0], S) for s in context_sparse],
        context_dense_keys=[inp(d[0], S) for d in context_dense], feature_list_sparse_keys=[inp(s[0], S) for s in lists_sparse], feature_list_dense_keys=[inp(d[0], S) for d in lists_dense],
        context_dense_defaults=[inp(d[3], d[1]) for d in context_dense], debug_name=inp(name, S), context_sparse_types=[s[1] for s in context_sparse],
        feature_list_dense_types=[d[1] for d in lists_dense], context_dense_shapes=[d[2] for d in context_dense], feature_list_sparse_types=[s[1] for s in lists_sparse],
        feature_list_dense_shapes=[d[2] for d in lists_dense])


SEQS = [sq(dict(i=[1], s=[b"x", b"y"], v=[1, 2]), a=[[1, 2], [3, 4]], b=[[b"q"], strings(), None, [b"r", b"s"]], f=[[0.5], [1.5]]), sq(dict(v=[]), a=[]), sq(dict(i=[5], s=[b"", b"z"]), a=[[5, 6]], b=[[b"t"]]), b""]
C_DENSE = [("i", L, [], 7), ("s", S, [2, 1], np.array([[b"d"], [b"e"]], object))]
L_DENSE = [("a", L, [2], True), ("f", F, [], True)]
for name, op in dict(ParseSequenceExample=seq, ParseSequenceExampleV2=seq2).items():
    case(name + "/batch", lambda op=op: flat(op(SEQS, C_DENSE, [("v", L), ("none", F)], L_DENSE, [("b", S), ("none", L)])))
    case(name + "/scalar", lambda op=op: flat(op(SEQS[0], C_DENSE, [("v", L)], L_DENSE, [("b", S)])))
    case(name + "/empty_batch", lambda op=op: flat(op([], C_DENSE, [("v", L)], L_DENSE, [("b", S)])))
    case(name + "/context_missing", lambda op=op: flat(op(SEQS, [("i", L, [], EMPTY[L])])))
    case(name + "/context_nowhere", lambda op=op: flat(op(SEQS, [("nowhere", L, [], EMPTY[L])])))
    case(name + "/context_type", lambda op=op: flat(op(SEQS, [("i", F, [], 1.0)])))
    case(name + "/context_count", lambda op=op: flat(op(SEQS, [("v", L, [2], EMPTY[L])])))
    case(name + "/context_max", lambda op=op: flat(op(SEQS, [("v", L, [3], EMPTY[L])])))
    case(name + "/list_missing", lambda op=op: flat(op(SEQS, lists_dense=[("a", L, [2], False)], names=vec([b"n%d" % i for i in range(4)]))))
    case(name + "/list_type", lambda op=op: flat(op(SEQS, lists_dense=[("a", F, [2], True)])))
    case(name + "/list_sparse_type", lambda op=op: flat(op(SEQS, lists_sparse=[("b", L)])))
    case(name + "/list_row", lambda op=op: flat(op([sq(a=[[1, 2], [3], [4]])], lists_dense=[("a", L, [2], True)])))
    case(name + "/list_total", lambda op=op: flat(op([sq(a=[[1, 2], [3]])], lists_dense=[("a", L, [2], True)])))
    case(name + "/default_shape", lambda op=op: flat(op(SEQS, [("i", L, [2], [7])])))
    case(name + "/no_message", lambda op=op: flat(op([b"\x0a\x05abc"], C_DENSE)))
    case(name + "/matrix", lambda op=op: flat(op(np.array([[b""]], object), C_DENSE)), text="the client's shape function speaks first")
    case(name + "/names_count", lambda op=op: flat(op(SEQS, C_DENSE, names=vec([b"a"]))))
case("ParseSequenceExampleV2/ragged", lambda: flat(seq2(SEQS, context_ragged=[("v", L, tf.int32), ("s", S, L)], lists_ragged=[("a", L, tf.int32), ("b", S, L), ("none", F, L)])))
case("ParseSequenceExampleV2/ragged_scalar", lambda: [flat(seq2(SEQS[0], context_ragged=[("v", L, L)], lists_ragged=[("b", S, L)]))[i] for i in (0, 2, 4)])
case("ParseSequenceExampleV2/both_kinds", lambda: flat(seq2(SEQS, context_sparse=[("v", L)], context_ragged=[("v", L, L)])))
case("ParseSequenceExampleV2/dense_and_sparse", lambda: flat(seq2(SEQS, lists_sparse=[("a", L)], lists_dense=[("a", L, [2], True)])))
case("ParseSingleSequenceExample/all", lambda: flat(seq1(SEQS[0], C_DENSE, [("v", L), ("none", F)], L_DENSE, [("b", S), ("none", L)])))
case("ParseSingleSequenceExample/defaults", lambda: flat(seq1(b"", C_DENSE, [("v", L)], L_DENSE, [("b", S)])))
case("ParseSingleSequenceExample/no_name", lambda: flat(seq1(b"", [("i", L, [], EMPTY[L])], name=b"")))
case("ParseSingleSequenceExample/context_missing", lambda: flat(seq1(b"", [("i", L, [], EMPTY[L])])))
case("ParseSingleSequenceExample/context_type", lambda: flat(seq1(SEQS[0], [("i", F, [], 1.0)])), text=MARKED)
case("ParseSingleSequenceExample/context_sparse_type", lambda: flat(seq1(SEQS[0], context_sparse=[("s", F)])), text=MARKED)
case("ParseSingleSequenceExample/context_count", lambda: flat(seq1(SEQS[0], [("v", L, [3], EMPTY[L])])))
case("ParseSingleSequenceExample/context_count_s", lambda: flat(seq1(SEQS[0], [("s", S, [3], EMPTY[S])])))
case("ParseSingleSequenceExample/list_missing", lambda: flat(seq1(b"", lists_dense=[("a", L, [2], False)])))
case("ParseSingleSequenceExample/list_type", lambda: flat(seq1(SEQS[0], lists_dense=[("a", F, [2], True)])), text=MARKED)
case("ParseSingleSequenceExample/list_no_list", lambda: flat(seq1(SEQS[0], lists_dense=[("b", S, [1], True)])), text=MARKED)
case("ParseSingleSequenceExample/list_sparse_type", lambda: flat(seq1(SEQS[0], lists_sparse=[("f", L)])), text=MARKED)
case("ParseSingleSequenceExample/list_count", lambda: flat(seq1(sq(a=[[1, 2], [3]]), lists_dense=[("a", L, [2], True)])))
case("ParseSingleSequenceExample/no_message", lambda: flat(seq1(b"\x0a\x05abc", C_DENSE)))
case("ParseSingleSequenceExample/default_shape", lambda: flat(seq1(b"", [("i", L, [2], [7])])))
case("ParseSingleSequenceExample/vector", lambda: flat(seq1(vec([b""]), C_DENSE)))
case("ParseSingleSequenceExample/value_first", lambda: flat(seq1(RAWS["value_first"], [("i", L, [], 9)])))
case("ParseSingleSequenceExample/list_twice", lambda: flat(seq1(RAWS["list_twice"], [("i", L, [2], EMPTY[L])])))


# Tensors and JSON.
for t in [tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int8, tf.int32, tf.int64, tf.uint16, tf.uint64, tf.bool, tf.complex64, tf.complex128, tf.string]:
    value = np.array([b"a", b"", b"\x00\xff"], object) if t == tf.string else np.array([1, 0, 1]).astype(t.as_numpy_dtype)
    case("SerializeTensor/" + t.name, lambda t=t, v=value: raw.SerializeTensor(tensor=inp(v)))
    case("ParseTensor/" + t.name, lambda t=t, v=value: raw.ParseTensor(serialized=inp(tf.make_tensor_proto(v, t).SerializeToString(), S), out_type=t))
    case("ParseTensor/fields/" + t.name, lambda t=t, v=value: raw.ParseTensor(serialized=raw.SerializeTensor(tensor=inp(v)), out_type=t))
case("SerializeTensor/scalar", lambda: raw.SerializeTensor(tensor=inp(1.5)))
case("SerializeTensor/empty", lambda: raw.SerializeTensor(tensor=inp(np.zeros([0, 3], np.float32))))
case("ParseTensor/type", lambda: raw.ParseTensor(serialized=raw.SerializeTensor(tensor=inp([1.0])), out_type=tf.int32))
case("ParseTensor/vector", lambda: raw.ParseTensor(serialized=inp([b""], S), out_type=F))
case("ParseTensor/not_a_proto", lambda: raw.ParseTensor(serialized=inp(b"bogus", S), out_type=F))
case("ParseTensor/nothing", lambda: raw.ParseTensor(serialized=inp(b"", S), out_type=F), text=MARKED)
case("ParseTensor/short_content", lambda: raw.ParseTensor(serialized=inp(b"\x08\x01\x12\x04\x12\x02\x08\x02\x22\x04\x00\x00\x80\x3f", S), out_type=F), text=MARKED)
case("ParseTensor/splat", lambda: raw.ParseTensor(serialized=inp(b"\x08\x01\x12\x04\x12\x02\x08\x05\x2a\x04\x00\x00\x80\x3f", S), out_type=F))
case("ParseTensor/negative_dim", lambda: raw.ParseTensor(serialized=inp(b"\x08\x01\x12\x0d\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", S), out_type=F), text=MARKED)

JSON = ['{}', '{"features":{"feature":{"a":{"int64List":{"value":["1","-2",3]}},"f":{"floatList":{"value":[1.5,"NaN","-Infinity",2]}},"b":{"bytesList":{"value":["YQ==","YWI","-_-_"]}}}}}',
        '{"features":{"feature":{"\\u00e9\\ud83d\\ude00\\n":{"int64_list":{"value":7}}}}}', "{features:{'feature':{'x':null,'y':{},}}}"]
case("DecodeJSONExample/values", lambda: raw.DecodeJSONExample(json_examples=inp(np.array([JSON[:2], JSON[2:]], object))))
for i, bad in enumerate(["", "[]", '{"x":1}', '{"features":3}', '{} {}', '{"features":{"feature":{"a":{"int64List":{"value":[1.5]}}}}}', '{"features":{"feature":{"a":{"int64List":{"value":["x"]}}}}}',
                         '{"features":{"feature":{"a":{"bytesList":{"value":["?"]}}}}}', '{"features":{"feature":{"a":{"floatList":{"value":[1e40]}}}}}', b'{"features":{"feature":{"\xff":{}}}}']):
    case("DecodeJSONExample/error/%d" % i, lambda bad=bad: raw.DecodeJSONExample(json_examples=inp(bad, S)), text="protobuf spaces its messages at random")
