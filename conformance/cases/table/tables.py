"""Lookup tables: every kind and dtype, sharing, and what they refuse."""
import numpy as np

from registry import ALL, case, inp, raw, script, short, steps, tf
from cases.table._common import (ABSENT, B, D, DEFAULT, DELETED, EMPTY, F, I, KEYS, L, S, V, VALUES, by_key, dense, export, find, fixed,
                                 insert, mutable, of_tensors, remove, restore, setup, size)

KINDS = dict(HashTableV2=raw.HashTableV2, MutableHashTableV2=raw.MutableHashTableV2, MutableHashTableOfTensorsV2=raw.MutableHashTableOfTensorsV2,
             AnonymousHashTable=raw.AnonymousHashTable, AnonymousMutableHashTable=raw.AnonymousMutableHashTable,
             AnonymousMutableHashTableOfTensors=raw.AnonymousMutableHashTableOfTensors)
NAMES = [(k, v) for k in (I, L, S, F, tf.uint8) for v in ALL]


def tcase(name, build, **options):
    case(name, build, post=by_key, **options)


# Which pairs of dtypes have a kernel.
for name, op in KINDS.items():
    extra = dict(value_shape=[2]) if "Tensors" in name else {}
    for k, v in NAMES:
        case("%s/dtypes/%s_%s" % (name, short(k), short(v)),
             lambda op=op, k=k, v=v, extra=extra: size(op(key_dtype=k, value_dtype=v, **extra)))
for k, v in NAMES:
    if k not in EMPTY:
        continue
    case("MutableDenseHashTableV2/dtypes/%s_%s" % (short(k), short(v)), lambda k=k, v=v: size(dense(k, v)))
    case("AnonymousMutableDenseHashTable/dtypes/%s_%s" % (short(k), short(v)), lambda k=k, v=v: size(
        raw.AnonymousMutableDenseHashTable(empty_key=inp(EMPTY[k], k), deleted_key=inp(DELETED[k], k), value_dtype=v)))


def fixed_life(k, v):
    t = fixed(k, v)
    keys, values = inp(KEYS[k], k), inp(VALUES[v], v)
    probe = inp([KEYS[k][1], ABSENT[k], KEYS[k][0]], k)
    first = setup(t, keys, values)
    return steps(size(t), find(t, probe, inp(DEFAULT[v], v)), export(t, k, v), first, size(t), find(t, probe, inp(DEFAULT[v], v)),
                 find(t, inp(KEYS[k][2], k), inp(DEFAULT[v], v)), find(t, inp([], k), inp(DEFAULT[v], v)), export(t, k, v),
                 first, setup(t, inp(KEYS[k][:1], k), inp(VALUES[v][:1], v)), insert(t, keys, values), remove(t, keys),
                 restore(t, keys, values), restore(t, inp(KEYS[k][:2], k), inp(VALUES[v][:2], v)), size(t))


def mutable_life(k, v):
    t = mutable(k, v, shared_name="mutable_life_%s_%s" % (short(k), short(v)))
    keys, values = inp(KEYS[k], k), inp(VALUES[v], v)
    probe = inp([[KEYS[k][1], ABSENT[k]], [KEYS[k][0], KEYS[k][2]]], k)
    return steps(size(t), export(t, k, v), find(t, probe, inp(DEFAULT[v], v)), insert(t, keys, values), size(t),
                 find(t, probe, inp(DEFAULT[v], v)), find(t, inp(KEYS[k][0], k), inp(DEFAULT[v], v)),
                 find(t, inp([ABSENT[k]] * 3, k), inp(VALUES[v], v)), insert(t, inp(KEYS[k][0], k), inp(VALUES[v][1], v)), export(t, k, v),
                 remove(t, inp([KEYS[k][1], ABSENT[k]], k)), size(t), export(t, k, v), insert(t, inp([KEYS[k][1]] * 2, k), inp(VALUES[v][1:], v)),
                 export(t, k, v), restore(t, inp(KEYS[k][:2], k), inp(VALUES[v][:2], v)), export(t, k, v),
                 setup(t, keys, values), remove(t, inp([], k)), insert(t, inp([], k), inp([], v)), size(t))


def tensors_life(k, v):
    t = of_tensors(k, v)
    rows = np.array([VALUES[v][:2], VALUES[v][1:], VALUES[v][:2][::-1]], dtype=object)
    values = inp(rows.tolist(), v)
    probe = inp([[KEYS[k][1], ABSENT[k]], [KEYS[k][0], KEYS[k][2]]], k)
    default = inp([DEFAULT[v], VALUES[v][0]], v)
    return steps(size(t), export(t, k, v), insert(t, inp(KEYS[k], k), values), size(t), find(t, probe, default), find(t, inp(KEYS[k][0], k), default),
                 find(t, inp([ABSENT[k]] * 3, k), values), remove(t, inp(KEYS[k][:1], k)), export(t, k, v),
                 restore(t, inp(KEYS[k][:1], k), inp(rows[:1].tolist(), v)), export(t, k, v), find(t, inp([], k), default))


def dense_life(k, v):
    t = dense(k, v)
    keys, values = inp(KEYS[k], k), inp(VALUES[v], v)
    more = {I: [11, 12, 13, 14, 15, 16], L: [11, 12, 13, 14, 15, 16], S: [b"1", b"22", b"333", b"4", b"5", b"a longer key than eight bytes"]}[k]
    default = inp(DEFAULT[v], v)
    return steps(size(t), export(t, k, v), insert(t, keys, values), size(t), export(t, k, v), find(t, inp([KEYS[k][1], ABSENT[k]], k), default),
                 find(t, inp([ABSENT[k]] * 3, k), values), remove(t, inp([KEYS[k][1], ABSENT[k]], k)), export(t, k, v), size(t),
                 insert(t, inp(more, k), inp(VALUES[v] * 2, v)), export(t, k, v), size(t), find(t, inp(more, k), default),
                 find(t, inp(KEYS[k][0], k), default), insert(t, inp([EMPTY[k]], k), inp(VALUES[v][:1], v)), insert(t, inp([DELETED[k]], k), inp(VALUES[v][:1], v)),
                 find(t, inp([EMPTY[k]], k), default), find(t, inp([DELETED[k]], k), default), remove(t, inp([EMPTY[k]], k)), remove(t, inp([DELETED[k]], k)),
                 insert(t, inp(KEYS[k][0], k), inp(VALUES[v][0], v)), size(t))


def pairs(kinds):
    """The pairs TensorFlow has kernels for, of a kind."""
    some = {I: [I, F, D], L: [I, F, D, L], S: [I, F, D, L, B]}
    more = dict(fixed=[(I, S), (L, S), (S, S)], mutable=[(L, S)], tensors=[(L, S)], dense=[(L, B)])[kinds]
    return [(k, v) for k in some for v in some[k]] + more


for life, label, kinds in ((fixed_life, "HashTableV2", "fixed"), (mutable_life, "MutableHashTableV2", "mutable"),
                           (tensors_life, "MutableHashTableOfTensorsV2", "tensors"), (dense_life, "MutableDenseHashTableV2", "dense")):
    for k, v in pairs(kinds):
        tcase("%s/life/%s_%s" % (label, short(k), short(v)), lambda life=life, k=k, v=v: life(k, v))


# By reference.
def old_life(t):
    keys, values = inp([b"a", b"b"]), inp([1, 2], L)
    look = raw.LookupTableFind(table_handle=t, keys=inp([b"b", b"z"]), default_value=inp(-1, L))
    return steps(look, raw.InitializeTable(table_handle=t, keys=keys, values=values), raw.LookupTableSize(table_handle=t), look,
                 raw.LookupTableInsert(table_handle=t, keys=keys, values=values), look, raw.LookupTableSize(table_handle=t),
                 raw.LookupTableExport(table_handle=t, Tkeys=S, Tvalues=L), raw.LookupTableImport(table_handle=t, keys=inp([b"q"]), values=inp([7], L)),
                 raw.LookupTableExport(table_handle=t, Tkeys=S, Tvalues=L), raw.LookupTableFind(table_handle=t, keys=inp([1]), default_value=inp(-1, L)))


tcase("HashTable/life", lambda: old_life(raw.HashTable(key_dtype=S, value_dtype=L, shared_name="old_fixed")))
tcase("MutableHashTable/life", lambda: old_life(raw.MutableHashTable(key_dtype=S, value_dtype=L, shared_name="old_mutable")))
tcase("MutableHashTableOfTensors/life", lambda: (lambda t: steps(
    raw.LookupTableInsert(table_handle=t, keys=inp([b"a"]), values=inp([[1.0, 2]])), raw.LookupTableFind(
        table_handle=t, keys=inp([b"a", b"b"]), default_value=inp([0.5, 0.25])), raw.LookupTableExport(table_handle=t, Tkeys=S, Tvalues=F)))(
            raw.MutableHashTableOfTensors(key_dtype=S, value_dtype=F, value_shape=[2])))
tcase("MutableDenseHashTable/by_reference", lambda: raw.LookupTableSize(table_handle=raw.MutableDenseHashTable(empty_key=inp(0, L), value_dtype=L)))
tcase("HashTable/private_error", lambda: raw.LookupTableFind(table_handle=raw.HashTable(key_dtype=S, value_dtype=L), keys=inp([b"a"]), default_value=inp(0, L)))


# What find and insert refuse.
for label, make in (("fixed", fixed), ("mutable", mutable)):
    def filled(make=make):
        t = make()
        return t, (setup if make is fixed else insert)(t, inp([b"a", b"b"]), inp([1, 2], L))
    if label == "fixed":  # of others the client knows the types
        tcase("LookupTableFindV2/key_type", lambda f=filled: (lambda t, s: steps(s, find(t, inp([1]), inp(0, L))))(*f()))
        tcase("LookupTableFindV2/default_type", lambda f=filled: (lambda t, s: steps(s, find(t, inp([b"a"]), inp(0.0))))(*f()))
    tcase("LookupTableFindV2/default_shape_%s" % label, lambda f=filled: (lambda t, s: steps(
        s, find(t, inp([b"a"]), inp([1, 2], L)), find(t, inp([b"a", b"z"]), inp([7, 8], L)), find(t, inp([b"a"]), inp([7], L)),
        find(t, inp([[b"a", b"q"]]), inp([[7, 8]], L)), find(t, inp([[b"a", b"q"]]), inp([7, 8], L))))(*f()))
    tcase("LookupTableInsertV2/shapes_%s" % label, lambda f=filled: (lambda t, s: steps(
        s, insert(t, inp([b"a"]), inp([1, 2], L)), insert(t, inp(b"a"), inp([1], L)), insert(t, inp([b"a"]), inp(1, L))))(*f()))
    tcase("LookupTableInsertV2/type_%s" % label, lambda f=filled: (lambda t, s: steps(
        s, insert(t, inp([b"a"]), inp([1], I)), insert(t, inp([1], L), inp([1], L)), remove(t, inp([1], L))))(*f()))
    tcase("LookupTableImportV2/type_%s" % label, lambda f=filled: (lambda t, s: steps(
        s, restore(t, inp([b"a"]), inp([1], I)), restore(t, inp([b"a"]), inp([1, 2], L)), restore(t, inp([], S), inp([], L)), size(t)))(*f()))

tcase("InitializeTableV2/shapes", lambda: (lambda t: steps(
    setup(t, inp(b"a"), inp(1, L)), setup(t, inp([[b"a"]]), inp([[1]], L)), setup(t, inp([b"a"]), inp([1, 2], L)), setup(t, inp([b"a"]), inp(1, L)),
    setup(t, inp([], S), inp([], L)), setup(t, inp([b"a"]), inp([1], I)), setup(t, inp([1], L), inp([1], L)), size(t)))(fixed()))
tcase("InitializeTableV2/mutable", lambda: setup(mutable(shared_name="not_initializable"), inp([b"a"]), inp([1], L)))
for k, v in pairs("fixed"):
    tcase("InitializeTableV2/conflict/%s_%s" % (short(k), short(v)), lambda k=k, v=v: (lambda t: steps(
        setup(t, inp([KEYS[k][0], KEYS[k][1], KEYS[k][0]], k), inp([VALUES[v][0], VALUES[v][1], VALUES[v][1]], v)), size(t),
        find(t, inp(KEYS[k][0], k), inp(DEFAULT[v], v)), setup(t, inp([KEYS[k][1], KEYS[k][0], KEYS[k][0]], k), inp([VALUES[v][1], VALUES[v][0], VALUES[v][0]], v)),
        size(t), export(t, k, v)))(fixed(k, v)))
tcase("InitializeTableV2/nan", lambda: (lambda t: steps(setup(t, inp([1, 1], L), inp([float("nan")] * 2)), size(t)))(fixed(L, F)))
tcase("InitializeTableV2/same_twice", lambda: (lambda t: steps(setup(t, inp([1, 1, 2], L), inp([5.0, 5, 6])), size(t)))(fixed(L, F)))

tcase("MutableHashTableOfTensorsV2/shapes", lambda: (lambda t: steps(
    insert(t, inp([b"a"]), inp([1, 2], L)), insert(t, inp([b"a"]), inp([[1, 2, 3]], L)), insert(t, inp(b"a"), inp([1, 2], L)), find(t, inp([b"a"]), inp(1, L)),
    find(t, inp([b"a"]), inp([[5, 6]], L)), find(t, inp([b"a", b"c"]), inp([[5, 6], [7, 8]], L)), find(t, inp([b"a"]), inp([5, 6, 7], L)), size(t)))(of_tensors()))
for shape in ([], [2, 2], [0], None):
    tcase("MutableHashTableOfTensorsV2/value_shape_%s" % shape, lambda shape=shape: (lambda t: steps(size(t), insert(t, inp([b"a"]), inp(np.zeros([1, 0]), L)),
                                                                                                    find(t, inp([b"a", b"b"]), inp([], L))))(of_tensors(shape=shape)))


# Dense tables.
tcase("MutableDenseHashTableV2/vector_keys", lambda: (lambda t: steps(
    insert(t, inp([[1, 2], [2, 1], [3, 4]], L), inp([[1.0, 2], [3, 4], [5, 6]])), find(t, inp([[2, 1], [9, 9]], L), inp([0.5, 0.25])), size(t), export(t, L, F),
    remove(t, inp([[1, 2]], L)), export(t, L, F), find(t, inp([1, 2], L), inp([0.5, 0.25])), find(t, inp([[1, 2, 3]], L), inp([0.5, 0.25])),
    insert(t, inp([1, 2], L), inp([0.5, 0.25])), insert(t, inp([[0, 0]], L), inp([[0.5, 0.25]])), insert(t, inp([[0, 1]], L), inp([[0.5, 0.25]])),
    find(t, inp([[2, 1], [9, 9]], L), inp([[0.5, 0.25], [0.75, 1]]))))(dense(L, F, [2], inp([0, 0], L), inp([0, 1], L))))
tcase("MutableDenseHashTableV2/string_vectors", lambda: (lambda t: steps(
    insert(t, inp([[b"a", b"b"], [b"b", b"a"]]), inp([1, 2])), export(t, S, I), find(t, inp([[b"b", b"a"], [b"x", b"y"]]), inp(-1))))(
        dense(S, I, [], inp([b"", b""]), inp([b"-", b""]))))
tcase("MutableDenseHashTableV2/matrix_of_keys", lambda: (lambda t: steps(
    insert(t, inp([[1, 2], [3, 4]], L), inp([[1, 2], [3, 4]], L)), find(t, inp([[1, 2]], L), inp(0, L)), remove(t, inp([[1, 2]], L)),
    insert(t, inp([], L), inp([], L)), find(t, inp([], L), inp(0, L)), remove(t, inp([], L)), size(t)))(dense()))
tcase("MutableDenseHashTableV2/same_keys", lambda: size(dense(empty=inp(1, L), deleted=inp(1, L))))
tcase("MutableDenseHashTableV2/key_shapes", lambda: steps(*[size(dense(empty=inp(e, L), deleted=inp(d, L))) for e, d in (
    ([1], 2), ([1], [2]), ([[1]], [[2]]), ([1, 2], [1]), ([], []), ([1, 2], [1, 2]))]))
for buckets in (0, 1, 2, 3, 4, 12, -8):
    tcase("MutableDenseHashTableV2/buckets_%d" % buckets, lambda buckets=buckets: size(dense(buckets=buckets)))
for load in (0.0, 1.0, -1.0, 0.1, 0.99, float("nan")):
    tcase("MutableDenseHashTableV2/load_%s" % load, lambda load=load: (lambda t: steps(insert(t, inp([1, 2, 3, 4, 5], L), inp([1, 2, 3, 4, 5], L)), export(t, L, L)))(
        dense(max_load_factor=load)))
for shape in ([2, 2], None, [0]):
    tcase("MutableDenseHashTableV2/value_shape_%s" % shape, lambda shape=shape: size(dense(shape=shape)))
tcase("MutableDenseHashTableV2/import", lambda: (lambda t: steps(
    # A sum, because TensorFlow would write into the array that was fed.
    restore(t, inp([[-1000], [5], [-1000], [7]], L) + 0, inp([[0], [50], [0], [70]], L) + 0), size(t), find(t, inp([5, 7, 6], L), inp(0, L)), export(t, L, L),
    insert(t, inp([6], L), inp([60], L)), export(t, L, L), restore(t, inp([5, 6], L), inp([1, 2], L)), restore(t, inp([[5], [6]], L), inp([1, 2], L)),
    restore(t, inp([[5]], L), inp([[1], [2]], L)), restore(t, inp([[5]], L), inp([[1.0]])), size(t)))(dense()))
tcase("MutableDenseHashTableV2/probing", lambda: (lambda t: steps(
    insert(t, inp([8, 16, 24], L), inp([1, 2, 3], L)), export(t, L, L), remove(t, inp([16], L)), insert(t, inp([24], L), inp([4], L)), export(t, L, L), size(t),
    remove(t, inp([24], L)), find(t, inp([24], L), inp(0, L)), size(t), insert(t, inp([32], L), inp([5], L)), export(t, L, L)))(dense()))
tcase("MutableDenseHashTableV2/default_buckets", lambda: (lambda t: steps(insert(t, inp([1, 200000], L), inp([5, 6], L)), size(t), find(t, inp([1, 200000], L), inp(0, L))))(
    raw.MutableDenseHashTableV2(empty_key=inp(0, L), deleted_key=inp(-1, L), value_dtype=L)))


# Values that point elsewhere.
def variants(t):
    one = raw.TensorListFromTensor(tensor=inp([1.0, 2]), element_shape=inp([], I))
    back = find(t, inp([5], L), raw.TensorListFromTensor(tensor=inp([9.0]), element_shape=inp([], I)))
    put = insert(t, inp([5], L), tf.reshape(one, [1]))
    return steps(raw.TensorListStack(input_handle=tf.reshape(back, []), element_shape=inp([], I), element_dtype=F), put, size(t),
                 raw.TensorListStack(input_handle=tf.reshape(back, []), element_shape=inp([], I), element_dtype=F))


tcase("MutableHashTableV2/variant", lambda: variants(mutable(L, V)))
tcase("MutableDenseHashTableV2/variant", lambda: variants(dense(L, V)))


def resources():
    t = dense(S, tf.resource)
    v, w = (raw.VarHandleOp(dtype=F, shape=[], shared_name="in_table_%s" % n) for n in "vw")
    got = raw.ReadVariableOp(resource=tf.reshape(find(t, inp([b"v"]), w), []), dtype=F)
    return steps(raw.AssignVariableOp(resource=v, value=inp(1.5)), raw.AssignVariableOp(resource=w, value=inp(2.5)), got,
                 insert(t, inp([b"v"]), tf.reshape(v, [1])), got, size(t))


tcase("MutableDenseHashTableV2/resource", resources)


# Sharing.
tcase("HashTableV2/shared", lambda: (lambda a, b: steps(setup(a, inp([b"x"]), inp([1], L)), find(b, inp([b"x"]), inp(0, L))))(
    fixed(shared_name="shared_t"), fixed(shared_name="shared_t")))
tcase("HashTableV2/private", lambda: (lambda a, b: steps(insert(a, inp([b"x"]), inp([1], L)), find(b, inp([b"x"]), inp(0, L))))(mutable(), mutable()))
tcase("HashTableV2/shared_other_types", lambda: (lambda a, b: steps(size(a), size(b)))(
    fixed(shared_name="shared_types"), fixed(S, F, shared_name="shared_types")))
tcase("HashTableV2/shared_other_kind", lambda: (lambda a, b: steps(insert(b, inp([b"x"]), inp([1], L)), size(a), setup(a, inp([b"y"]), inp([2], L))))(
    fixed(shared_name="shared_kind"), mutable(shared_name="shared_kind")))
tcase("HashTableV2/shared_of_tensors", lambda: (lambda a, b: steps(size(a), insert(b, inp([b"x"]), inp([[1, 2]], L)), size(b)))(
    mutable(shared_name="shared_rows"), of_tensors(shared_name="shared_rows")))
tcase("HashTableV2/reserved_name", lambda: size(fixed(shared_name="_x")))
tcase("HashTableV2/container", lambda: (lambda a, b: steps(setup(a, inp([b"x"]), inp([1], L)), size(a), size(b)))(
    fixed(shared_name="in_container", container="c1"), fixed(shared_name="in_container", container="c2")))
tcase("HashTableV2/wrong_handle", lambda: size(raw.FIFOQueueV2(component_types=[F], shared_name="q_for_table")))
tcase("QueueSizeV2/table", lambda: raw.QueueSizeV2(handle=fixed(shared_name="t_for_queue")))


def by_node_name():
    a = raw.MutableHashTableV2(key_dtype=S, value_dtype=L, use_node_name_sharing=True, name="by_node")
    return steps(insert(a, inp([b"x"]), inp([1], L)), size(a), find(a, inp([b"x"]), inp(0, L)))


tcase("MutableHashTableV2/node_name", by_node_name)


@script("MutableHashTableV2/node_name_across_sessions", oracle="server")
def _(env):
    out = []
    for _ in range(2):
        with tf.Graph().as_default() as g:
            a = raw.MutableHashTableV2(key_dtype=S, value_dtype=L, use_node_name_sharing=True, name="across")
            b = raw.MutableHashTableV2(key_dtype=S, value_dtype=L, name="across_private")
            put = [insert(t, tf.constant(["k%d" % len(out)]), tf.constant([1], L)) for t in (a, b)]
            with env.session(g) as sess:
                sess.run(put)
                out.append(sess.run([size(a), size(b)]))
    return out


# Anonymous tables live as long as their handle. Inputs are made outside of the control dependency,
# which they would else stand in for.
def anonymous(t, fill, *probe):
    fill = fill(t)
    with tf.control_dependencies([fill]):
        found, count = find(t, *probe), size(t)
    return steps(found, [found, count], size(t), find(t, *probe))


tcase("AnonymousMutableHashTable/life", lambda: anonymous(
    raw.AnonymousMutableHashTable(key_dtype=S, value_dtype=L), lambda t: insert(t, inp([b"a"]), inp([1], L)), inp([b"a", b"b"]), inp(-1, L)))
tcase("AnonymousHashTable/life", lambda: anonymous(
    raw.AnonymousHashTable(key_dtype=S, value_dtype=L), lambda t: setup(t, inp([b"a"]), inp([1], L)), inp([b"a", b"b"]), inp(-1, L)))
tcase("AnonymousMutableDenseHashTable/life", lambda: anonymous(
    raw.AnonymousMutableDenseHashTable(empty_key=inp(0, L), deleted_key=inp(-1, L), value_dtype=F, value_shape=[2], initial_num_buckets=4),
    lambda t: insert(t, inp([5], L), inp([[1.0, 2.0]])), inp([5, 6], L), inp([0.0, 0.5])))
tcase("AnonymousMutableHashTableOfTensors/life", lambda: anonymous(
    raw.AnonymousMutableHashTableOfTensors(key_dtype=L, value_dtype=F, value_shape=[2]),
    lambda t: insert(t, inp([5], L), inp([[1.0, 2.0]])), inp([5, 6], L), inp([0.0, 0.5])))
