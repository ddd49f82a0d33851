"""Sparse tensors kept in maps, serialized, crossed; sets of them."""
from registry import ALL, allowed, case, inp, raw, rnd, short, steps, tf

L = tf.int64
AT = [[0, 1], [0, 3], [2, 2], [2, 3]]
SHAPE = [3, 4]


def sparse(at=AT, shape=SHAPE, t=tf.float32, n=4):
    return dict(sparse_indices=inp(at, L), sparse_values=inp(rnd((n,), t), t), sparse_shape=inp(shape, L))


def stored(t=tf.float32, many=True, shared="", **options):
    add = raw.AddManySparseToTensorsMap if many else raw.AddSparseToTensorsMap
    return add(shared_name=shared, **sparse(t=t, **options))


def taken(name, handles, t=tf.float32):
    return list(raw.TakeManySparseFromTensorsMap(sparse_handles=inp(handles, L), dtype=t, shared_name=name))


def through(t, many):
    name = "through_%s_%s" % (short(t), many)
    add = stored(t, many, name)
    return steps(add, taken(name, [0, 2, 1] if many else [0], t), taken(name, [0], t), add, taken(name, [4, 3] if many else [1], t))


for t in (tf.float32, tf.int64, tf.string, tf.bool, tf.complex64):
    case("TensorsMap/one_%s" % short(t), lambda t=t: through(t, False))
    case("TensorsMap/many_%s" % short(t), lambda t=t: through(t, True))
case("TakeManySparseFromTensorsMap/type", lambda: steps(stored(shared="maptype"), taken("maptype", [0], L)))
case("TakeManySparseFromTensorsMap/unknown", lambda: steps(stored(shared="mapunknown"), taken("mapunknown", [77])))
case("TakeManySparseFromTensorsMap/matrix", lambda: steps(stored(shared="mapmatrix"), taken("mapmatrix", [[0]])))
case("TakeManySparseFromTensorsMap/none", lambda: steps(stored(shared="mapnone"), taken("mapnone", [])))


def ranks():
    one = raw.AddSparseToTensorsMap(shared_name="mapranks", sparse_indices=inp([[1]], L), sparse_values=inp([1.0]), sparse_shape=inp([3], L))
    two = raw.AddSparseToTensorsMap(shared_name="mapranks", sparse_indices=inp([[1, 2]], L), sparse_values=inp([1.0]), sparse_shape=inp([3, 4], L))
    three = raw.AddSparseToTensorsMap(shared_name="mapranks", sparse_indices=inp([[1, 2]], L), sparse_values=inp([2.0]), sparse_shape=inp([5, 3], L))
    return steps(one, two, three, taken("mapranks", [1, 2]), two, taken("mapranks", [3, 0]))


case("TakeManySparseFromTensorsMap/ranks", ranks)
for kind in ("AddSparseToTensorsMap", "AddManySparseToTensorsMap", "SerializeSparse", "SerializeManySparse"):
    op = getattr(raw, kind)
    for name, options in dict(vector_at=dict(at=[1, 2, 3, 4]), counts=dict(n=2), shape_matrix=dict(shape=[SHAPE]), columns=dict(at=[[0], [1], [2], [0]]), rank1=dict(
            at=[[0], [1], [2], [2]], shape=[4]), outside=dict(at=[[0, 1], [0, 3], [2, 2], [9, 3]]), unsorted=dict(at=[[2, 1], [0, 3], [2, 2], [0, 1]]),
            empty_shape=dict(shape=[]), negative_shape=dict(shape=[-3, 4])).items():
        case("%s/%s" % (kind, name), lambda op=op, options=options: op(**sparse(**options)))
    case("%s/values_matrix" % kind, lambda op=op: op(
        sparse_indices=inp(AT, L), sparse_values=inp(rnd((4, 1))), sparse_shape=inp(SHAPE, L)))

for t in ALL:
    case("SerializeSparse/%s" % short(t), lambda t=t: raw.SerializeSparse(**sparse(t=t)))
    case("SerializeManySparse/%s" % short(t), lambda t=t: raw.SerializeManySparse(**sparse(t=t)))
    case("DeserializeManySparse/%s" % short(t), lambda t=t: list(raw.DeserializeManySparse(
        serialized_sparse=raw.SerializeManySparse(**sparse(t=t)), dtype=t)))
    case("DeserializeSparse/%s" % short(t), lambda t=t: list(raw.DeserializeSparse(
        serialized_sparse=raw.SerializeManySparse(**sparse(t=t)), dtype=t)))
for out in (tf.string, tf.variant):
    case("DeserializeSparse/one_%s" % out.name, lambda out=out: list(raw.DeserializeSparse(
        serialized_sparse=raw.SerializeSparse(out_type=out, **sparse()), dtype=tf.float32)))
    case("DeserializeSparse/many_%s" % out.name, lambda out=out: list(raw.DeserializeSparse(
        serialized_sparse=raw.SerializeManySparse(out_type=out, **sparse()), dtype=tf.float32)))
    case("DeserializeSparse/nested_%s" % out.name, lambda out=out: list(raw.DeserializeSparse(
        serialized_sparse=raw.Pack(values=[raw.SerializeManySparse(out_type=out, **sparse()) for _ in range(2)]), dtype=tf.float32)))
    case("DeserializeSparse/type_%s" % out.name, lambda out=out: list(raw.DeserializeSparse(
        serialized_sparse=raw.SerializeSparse(out_type=out, **sparse()), dtype=L)))


def unpacked(rows):
    return list(raw.DeserializeManySparse(serialized_sparse=inp(rows, tf.string), dtype=tf.float32))


case("DeserializeManySparse/garbage", lambda: unpacked([[b"a", b"b", b"c"]]))
case("DeserializeManySparse/columns", lambda: unpacked([[b"a", b"b"]]))
case("DeserializeManySparse/vector", lambda: unpacked([b"a", b"b", b"c"]))
case("DeserializeManySparse/none", lambda: list(raw.DeserializeManySparse(serialized_sparse=inp(rnd((0, 3), tf.string), tf.string), dtype=tf.float32)))
case("DeserializeManySparse/empty_strings", lambda: unpacked([[b"", b"", b""]]))
case("DeserializeSparse/none", lambda: list(raw.DeserializeSparse(serialized_sparse=inp(rnd((0, 3), tf.string), tf.string), dtype=tf.float32)))
case("DeserializeSparse/garbage", lambda: list(raw.DeserializeSparse(serialized_sparse=inp([b"a", b"b", b"c"]), dtype=tf.float32)))
case("DeserializeManySparse/shapes", lambda: list(raw.DeserializeManySparse(serialized_sparse=raw.Pack(values=[
    raw.SerializeSparse(**sparse()), raw.SerializeSparse(**sparse(shape=[9, 3]))]), dtype=tf.float32)))
case("DeserializeManySparse/ranks", lambda: list(raw.DeserializeManySparse(serialized_sparse=raw.Pack(values=[
    raw.SerializeSparse(**sparse()), raw.SerializeSparse(**sparse(at=[[0], [1], [2], [3]], shape=[9]))]), dtype=tf.float32)))

OPERATIONS = ("a-b", "b-a", "intersection", "union")
ONE, TWO = [[1, 2, 2], [3, 9, 4], [5, 5, 5]], [[2, 7], [3, 4], [6, 6]]
SET = dict(at=[[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]], values=[9, 1, 5, 2, 2], shape=[3, 2])
OTHER = dict(at=[[0, 0], [1, 0], [1, 1], [2, 0]], values=[1, 5, 6, 3], shape=[3, 2])


def prefixed(s, name, t, **more):
    s = dict(s, **more)
    return {name + "_indices": inp(s["at"], L), name + "_values": inp(s["values"], t), name + "_shape": inp(s["shape"], L)}


def words(values, t):
    if t != tf.string:
        return values
    return [words(v, t) if isinstance(v, list) else b"s%d" % v for v in values]


for t in allowed("SetSize"):
    case("SetSize/%s" % short(t), lambda t=t: raw.SetSize(**prefixed(dict(SET, values=words(SET["values"], t)), "set", t)))
    for operation in OPERATIONS:
        case("DenseToDenseSetOperation/%s_%s" % (operation, short(t)), lambda t=t, o=operation: list(raw.DenseToDenseSetOperation(
            set1=inp(words(ONE, t), t), set2=inp(words(TWO, t), t), set_operation=o)))
        case("DenseToSparseSetOperation/%s_%s" % (operation, short(t)), lambda t=t, o=operation: list(raw.DenseToSparseSetOperation(
            set1=inp(words(ONE, t), t), set_operation=o, **prefixed(dict(OTHER, values=words(OTHER["values"], t)), "set2", t))))
        case("SparseToSparseSetOperation/%s_%s" % (operation, short(t)), lambda t=t, o=operation: list(raw.SparseToSparseSetOperation(
            set_operation=o, **prefixed(dict(SET, values=words(SET["values"], t)), "set1", t),
            **prefixed(dict(OTHER, values=words(OTHER["values"], t)), "set2", t))))
CUBE = dict(at=[[0, 0, 0], [0, 1, 1], [1, 0, 0], [1, 0, 2]], values=[1, 2, 3, 4], shape=[2, 2, 3])
case("SetSize/cube", lambda: raw.SetSize(**prefixed(CUBE, "set", L)))
case("SparseToSparseSetOperation/cube", lambda: list(raw.SparseToSparseSetOperation(
    set_operation="union", **prefixed(CUBE, "set1", L), **prefixed(CUBE, "set2", L, values=[9, 2, 4, 7]))))
case("DenseToDenseSetOperation/cube", lambda: list(raw.DenseToDenseSetOperation(
    set1=inp(rnd((2, 2, 3), L), L), set2=inp(rnd((2, 2, 2), L), L), set_operation="union")))
case("DenseToDenseSetOperation/empty", lambda: list(raw.DenseToDenseSetOperation(
    set1=inp(rnd((2, 0), L), L), set2=inp(rnd((2, 0), L), L), set_operation="union")))
case("DenseToDenseSetOperation/operation", lambda: list(raw.DenseToDenseSetOperation(set1=inp(ONE), set2=inp(TWO), set_operation="xor")))
case("DenseToDenseSetOperation/upper", lambda: list(raw.DenseToDenseSetOperation(set1=inp(ONE), set2=inp(TWO), set_operation="Union")))
case("DenseToDenseSetOperation/groups", lambda: list(raw.DenseToDenseSetOperation(set1=inp(ONE), set2=inp([[1], [2]]), set_operation="union")))
case("DenseToDenseSetOperation/ranks", lambda: list(raw.DenseToDenseSetOperation(set1=inp(ONE), set2=inp([1, 2]), set_operation="union")))
case("DenseToDenseSetOperation/vectors", lambda: list(raw.DenseToDenseSetOperation(set1=inp([1, 2]), set2=inp([1, 3]), set_operation="union")))
for name, options in dict(
        groups=dict(shape=[4, 2]), ranks=dict(at=[[0], [1], [2], [3]], shape=[9]), order=dict(at=[[1, 0], [0, 0], [1, 1], [2, 0]]), outside=dict(at=[[0, 0], [1, 0], [1, 1], [2, 7]]),
        columns=dict(at=[[0], [1], [2], [3]]), counts=dict(values=[1]), shape_matrix=dict(shape=[[3, 2]]), vector_at=dict(at=[1, 2, 3, 4]),
        twice=dict(at=[[0, 0], [0, 0], [1, 1], [2, 0]]), last=dict(shape=[3, 1])).items():
    case("SetSize/" + name, lambda options=options: raw.SetSize(**prefixed(OTHER, "set", L, **options)))
    case("SetSize/unchecked_" + name, lambda options=options: raw.SetSize(validate_indices=False, **prefixed(OTHER, "set", L, **options)))
    case("DenseToSparseSetOperation/" + name, lambda options=options: list(raw.DenseToSparseSetOperation(
        set1=inp(ONE, L), set_operation="union", **prefixed(OTHER, "set2", L, **options))))
    case("SparseToSparseSetOperation/" + name, lambda options=options: list(raw.SparseToSparseSetOperation(
        set_operation="union", **prefixed(SET, "set1", L), **prefixed(OTHER, "set2", L, **options))))
    case("SparseToSparseSetOperation/first_" + name, lambda options=options: list(raw.SparseToSparseSetOperation(
        set_operation="union", **prefixed(OTHER, "set1", L, **options), **prefixed(SET, "set2", L))))

A = dict(at=[[0, 0], [0, 1], [1, 0]], values=["a", "b", "c"], shape=[2, 2])
B = dict(at=[[0, 0], [1, 0], [1, 1]], values=[11, 22, 33], shape=[2, 2])


def crossed(op, sets=((A, tf.string), (B, L)), dense=(([["x"], ["y"]], tf.string), ([[5], [6]], L)), **more):
    return list(op(indices=[inp(s["at"], L) for s, _ in sets], values=[inp(s["values"], t) for s, t in sets],
                   shapes=[inp(s["shape"], L) for s, _ in sets], dense_inputs=[inp(v, t) for v, t in dense], **more))


def old(hashed, kind=tf.string, buckets=0, **more):
    return crossed(raw.SparseCross, hashed_output=hashed, num_buckets=buckets, hash_key=956888297470, out_type=L if hashed else tf.string, internal_type=kind, **more)


NUMBERS = ((dict(A, values=[1, 2, 3]), L), (B, L))
WORDS = ((A, tf.string), (dict(B, values=["p", "q", "r"]), tf.string))
case("SparseCross/words", lambda: old(False, sets=WORDS, dense=(([["x", "z"], ["y", "w"]], tf.string),)))
case("SparseCross/hashed_words", lambda: old(True, L, buckets=1000, sets=WORDS, dense=()))
case("SparseCross/mixed", lambda: old(False))
case("SparseCross/hashed_unbounded", lambda: old(True, L, sets=NUMBERS, dense=()))
case("SparseCross/hashed_numbers", lambda: old(True, L, buckets=99, sets=NUMBERS, dense=(([[5], [6]], L),)))
case("SparseCross/hashed_mixed", lambda: old(True, L, buckets=99))
case("SparseCrossV2/words", lambda: crossed(raw.SparseCrossV2, sep=inp("_Y_")))
case("SparseCrossV2/no_sep", lambda: crossed(raw.SparseCrossV2, sep=inp("")))
case("SparseCrossHashed/weak", lambda: crossed(raw.SparseCrossHashed, num_buckets=inp(100, L), strong_hash=inp(False), salt=inp([137, 173], L)))
# TensorFlow 2.21 crashes on strong hashes of dense inputs.
case("SparseCrossHashed/strong", lambda: crossed(
    raw.SparseCrossHashed, dense=(), num_buckets=inp(100, L), strong_hash=inp(True), salt=inp([137, 173], L)))
case("SparseCrossHashed/unbounded", lambda: crossed(raw.SparseCrossHashed, num_buckets=inp(0, L), strong_hash=inp(False), salt=inp([1, 2], L)))
case("SparseCrossHashed/numbers", lambda: crossed(
    raw.SparseCrossHashed, sets=NUMBERS, dense=(), num_buckets=inp(1 << 40, L), strong_hash=inp(True), salt=inp([1, 2], L)))
case("SparseCrossHashed/salt", lambda: crossed(raw.SparseCrossHashed, num_buckets=inp(0, L), strong_hash=inp(True), salt=inp([1], L)))
case("SparseCrossV2/dense_only", lambda: crossed(raw.SparseCrossV2, sets=(), dense=(([["x", "z"], ["y", "w"]], tf.string), ([[5], [6]], L)), sep=inp("_")))
case("SparseCrossV2/gap", lambda: crossed(raw.SparseCrossV2, sets=((dict(A, at=[[1, 0], [1, 1], [2, 0]], shape=[3, 2]), tf.string), (dict(B, shape=[3, 2]), L)),
                                          dense=(), sep=inp("_")))
for name, sets in dict(
        vector_at=((dict(A, at=[0, 1, 2]), tf.string),), counts=((dict(A, values=["a"]), tf.string),), shape3=((dict(A, shape=[2, 2, 2]), tf.string),),
        columns=((dict(A, at=[[0], [1], [1]]), tf.string),), batches=((A, tf.string), (dict(A, shape=[3, 2]), tf.string)), outside=((dict(A, at=[[0, 0], [0, 1], [7, 0]]), tf.string),),
        shape_matrix=((dict(A, shape=[[2, 2]]), tf.string),), values_matrix=((dict(A, values=[["a"], ["b"], ["c"]]), tf.string),)).items():
    case("SparseCross/" + name, lambda sets=sets: old(False, sets=sets, dense=()))
    case("SparseCrossV2/" + name, lambda sets=sets: crossed(raw.SparseCrossV2, sets=sets, dense=(), sep=inp("_")))
    case("SparseCrossHashed/" + name, lambda sets=sets: crossed(
        raw.SparseCrossHashed, sets=sets, dense=(), num_buckets=inp(9, L), strong_hash=inp(True), salt=inp([1, 2], L)))
case("SparseCross/dense_vector", lambda: old(False, sets=WORDS, dense=((["x", "y"], tf.string),)))
case("SparseCross/dense_rows", lambda: old(False, sets=WORDS, dense=(([["x"]], tf.string),)))
case("SparseCross/dense_batches", lambda: old(False, sets=(), dense=(([["x"]], tf.string), ([["y"], ["z"]], tf.string))))
case("SparseCrossV2/sep", lambda: crossed(raw.SparseCrossV2, sep=inp(["_", "_"])))
case("SparseCross/nothing", lambda: old(False, sets=(), dense=()))
