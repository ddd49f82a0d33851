"""Tables from text files: columns, delimiters, sizes, offsets, broken files; savers."""
import os

from registry import raw, script, short, tf
from cases.table._common import B, D, F, I, L, S, by_key, dense, export, find, fixed, insert, mutable, setup, size

FILES = dict(
    words=b"brain\nsalad\nsurgery\n", no_end=b"brain\nsalad", crlf=b"brain\r\nsalad\r\n", columns=b"0\tbrain\t1.5\n1\tsalad\t2.5\n5\tsurgery\t-3\n",
    spaces=b"0 brain 1\n1 salad 2\n", empty=b"", blank=b"brain\n\nsalad\n", blank_first=b"\nbrain\n", only_newline=b"\n", numbers=b"1\n2\n3\n",
    bad_number=b"1\tbrain\nx\tsalad\n", large=b"1\tbrain\n99999999999\tsalad\n", short_line=b"0\tbrain\n1\n", repeated=b"brain\nsalad\nbrain\n", twice=b"1\ta\n1\ta\n",
    conflict=b"a\t1\nb\t2\na\t3\n", padded=b" 1 \tbrain\n2\t salad\n", bytes=b"\xff\x00z\n\xc3\x9f\n", spare=b"1\tbrain\t\n2\t\tx\n", float=b"1e3\ta\n-0x10\tb\nnan\tc\n",
    bools=b"a\ttrue\nb\tfalse\n")

CASES = []


def file_case(name, file, k=S, v=L, key=-2, value=-1, absent=None, **attrs):
    """Initialises from `file`, twice, and shows what is in the table."""
    @script("InitializeTableFromTextFileV2/" + name)
    def _(env):
        path = os.path.join(env.tmp, file).rstrip("/")
        if file in FILES:
            with open(path, "wb") as f:
                f.write(FILES[file])
        with tf.Graph().as_default() as g:
            t = fixed(k, v)
            go = raw.InitializeTableFromTextFileV2(table_handle=t, filename=path, key_index=key, value_index=value, **attrs)
            fetches = [go, size(t), export(t, k, v), go, size(t)]
            with env.session(g) as sess:
                out = []
                for f in fetches:
                    got = env.error(lambda: sess.run(f))
                    out.append(by_key(got._asdict()) if hasattr(got, "_asdict") else got)
                return out


for f in FILES:
    file_case("words/" + f, f)
for f in ("columns", "spaces", "bad_number", "large", "short_line", "padded", "spare", "float", "conflict", "twice"):
    file_case("two_columns/" + f, f, I, S, 0, 1)
    file_case("two_columns_back/" + f, f, S, I, 1, 0)
for k in (I, L, S):
    for v in (I, F, D, L, S, B):
        file_case("dtypes/lines_%s_%s" % (short(k), short(v)), "words", k, v, -2, -1)
        file_case("dtypes/numbers_%s_%s" % (short(k), short(v)), "numbers", k, v, -2, -2)
        file_case("dtypes/number_of_line_%s_%s" % (short(k), short(v)), "numbers", k, v, -1, 0)
        file_case("dtypes/columns_%s_%s" % (short(k), short(v)), "columns", k, v, 0, 2)
        file_case("dtypes/bools_%s_%s" % (short(k), short(v)), "bools", k, v, 0, 1)
file_case("line_of_key", "words", L, S, -1, -2)
file_case("both_lines", "words", L, L, -1, -1)
file_case("both_whole", "words", S, S, -2, -2)
file_case("column_beyond", "columns", S, S, 0, 3)
file_case("floats", "float", S, F, 1, 0)
file_case("doubles", "float", S, D, 1, 0)
file_case("missing_file", "no/such/file")
file_case("directory", "")
for n in (0, 1, 2, 3, 4):
    file_case("vocab_size/%d" % n, "words", vocab_size=n)
    file_case("vocab_size_blank/%d" % n, "blank", vocab_size=n)
file_case("delimiter", "spaces", I, S, 0, 1, delimiter=" ")
file_case("delimiter_missing", "columns", I, S, 0, 1, delimiter=" ")
file_case("delimiter_long", "columns", I, S, 0, 1, delimiter="ab")
file_case("delimiter_empty", "columns", I, S, 0, 1, delimiter="")
file_case("offset", "words", offset=5)
file_case("offset_back", "words", L, S, -1, -2, offset=-7)
file_case("offset_columns", "columns", I, S, 0, 1, offset=3)
file_case("offset_whole_line", "numbers", I, I, -2, 0, offset=3)
for v in (I, F, D, L):
    file_case("offset_value/%s" % short(v), "columns", S, v, 1, 0, offset=3)


@script("InitializeTableFromTextFileV2/refused")
def _(env):
    path = os.path.join(env.tmp, "words")
    with open(path, "wb") as f:
        f.write(FILES["words"])
    out = []
    with tf.Graph().as_default() as g:
        t, m = fixed(), mutable(shared_name="mutable_for_file")
        name = tf.placeholder(S)

        def go(t):
            return raw.InitializeTableFromTextFileV2(table_handle=t, filename=name, key_index=-2, value_index=-1)
        into_fixed, into_mutable, other = go(t), go(m), setup(t, tf.constant([b"x"]), tf.constant([1], L))
        same = setup(t, tf.constant([b"x", b"y", b"z"]), tf.constant([1, 2, 3], L))
        with env.session(g) as sess:
            for op, value in ((into_fixed, b""), (into_fixed, [path]), (into_mutable, path), (into_fixed, path), (other, path), (same, path), (into_fixed, path)):
                out.append(env.error(lambda: sess.run(op, {name: value})))
            out.append(sess.run(find(t, tf.constant([b"salad", b"x"]), tf.constant(-5, L))))
    return out


@script("InitializeTableFromTextFile/by_reference")
def _(env):
    path = os.path.join(env.tmp, "words")
    with open(path, "wb") as f:
        f.write(FILES["words"])
    with tf.Graph().as_default() as g:
        t = raw.HashTable(key_dtype=S, value_dtype=L)
        go = raw.InitializeTableFromTextFile(table_handle=t, filename=path, key_index=-2, value_index=-1)
        look = raw.LookupTableFind(table_handle=t, keys=tf.constant([b"salad", b"x"]), default_value=tf.constant(-5, L))
        with env.session(g) as sess:
            return [env.error(lambda: sess.run(f)) for f in (go, look, go)]


@script("after_a_failed_file")
def _(env):
    """What the lines before the broken one leave behind."""
    paths = []
    for name in ("bad_number", "twice"):
        paths.append(os.path.join(env.tmp, name))
        with open(paths[-1], "wb") as f:
            f.write(FILES[name])
    with tf.Graph().as_default() as g:
        t = fixed(I, S)
        name = tf.placeholder(S)
        go = raw.InitializeTableFromTextFileV2(table_handle=t, filename=name, key_index=0, value_index=1)
        with env.session(g) as sess:
            out = [env.error(lambda: sess.run(go, {name: p})) for p in paths]
            return out + [env.error(lambda: sess.run(f)) for f in (size(t), find(t, tf.constant([1]), tf.constant("?")))]


def saved(make, k, v, keys, values, more_keys, more_values):
    def body(env):
        out = []
        path = os.path.join(env.tmp, "ckpt")
        for step in range(2):
            with tf.Graph().as_default() as g:
                t = make()
                saver = tf.train.Saver()
                with env.session(g) as sess:
                    if step == 0:
                        sess.run(t.insert(tf.constant(keys, k), tf.constant(values, v)))
                        saver.save(sess, path)
                    else:
                        sess.run(t.insert(tf.constant(more_keys, k), tf.constant(more_values, v)))
                        saver.restore(sess, path)
                    got = sess.run(t.export())
                    out.append(by_key({"keys": got[0], "values": got[1]}))
                    out.append(sess.run(t.lookup(tf.constant(keys[:1] + more_keys, k))))
            env.reset()
        return out
    return body


tables = tf.lookup.experimental
script("saver/mutable")(saved(lambda: tables.MutableHashTable(S, L, -1, name="t1"), S, L, [b"a", b"b"], [1, 2], [b"c"], [3]))
script("saver/rows")(saved(lambda: tables.MutableHashTable(L, F, [-1.0, 0.5], name="t2"), L, F, [5, 6], [[1, 2], [3, 4]], [7], [[8, 9]]))
script("saver/dense")(saved(lambda: tables.DenseHashTable(L, F, -1.0, empty_key=0, deleted_key=-1, initial_num_buckets=8, name="t3"), L, F, [5, 6], [1.5, 2.5], [7], [8]))
script("saver/dense_rows")(saved(lambda: tables.DenseHashTable(S, F, [-1.0, 0.5], empty_key=b"", deleted_key=b"-", initial_num_buckets=8, name="t4"), S, F, [b"a", b"b"],
                                 [[1, 2], [3, 4]], [b"c"], [[8, 9]]))


@script("lookup_ops")
def _(env):
    """The python wrappers: static tables, vocabularies with hashed out-of-range words, both ways."""
    path = os.path.join(env.tmp, "words")
    with open(path, "wb") as f:
        f.write(FILES["words"])
    with tf.Graph().as_default() as g:
        lookup = tf.lookup
        text = lookup.StaticHashTable(lookup.TextFileInitializer(path, S, lookup.TextFileIndex.WHOLE_LINE, L, lookup.TextFileIndex.LINE_NUMBER), -1)
        pairs = lookup.StaticHashTable(lookup.KeyValueTensorInitializer([b"a", b"b"], [1.5, 2.5]), 0.0)
        vocabulary = lookup.StaticVocabularyTable(lookup.TextFileInitializer(path, S, lookup.TextFileIndex.WHOLE_LINE, L, lookup.TextFileIndex.LINE_NUMBER), 3)
        ids = tf.contrib.lookup.index_table_from_file(path) if hasattr(tf, "contrib") else None
        sparse = tf.sparse.SparseTensor([[0, 0], [1, 2]], tf.constant([b"salad", b"tarkus"]), [2, 3])
        fetches = [text.lookup(tf.constant([b"salad", b"x"])), text.size(), pairs.lookup(tf.constant([[b"b"], [b"c"]])), vocabulary.lookup(tf.constant([b"brain", b"toccata", b"karn evil"])),
                   vocabulary.size(), vocabulary.lookup(sparse)]
        del ids
        with env.session(g) as sess:
            before = env.error(lambda: sess.run(fetches[0]))
            sess.run(tf.tables_initializer())
            return [before, sess.run(fetches)]
