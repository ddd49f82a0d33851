"""Iterators: starting, ending, starting again, feeding, sharing, and what they refuse."""
from registry import case, inp, raw, script, steps, tf

L, F, S = tf.int64, tf.float32, tf.string
D = tf.data.Dataset


def it(types=(L,), shapes=((),), name="", op=raw.IteratorV2):
    return op(shared_name=name, container="", output_types=list(types), output_shapes=list(shapes))


def make(iterator, dataset):
    return raw.MakeIterator(dataset=dataset._variant_tensor, iterator=iterator)


def get(iterator, types=(L,), shapes=((),), op=raw.IteratorGetNext):
    return list(op(iterator=iterator, output_types=list(types), output_shapes=list(shapes)))


def life(iterator_op, get_op):
    i = it(op=iterator_op)
    n = get(i, op=get_op)
    return steps(n, make(i, D.range(2)), n, n, n, n, make(i, D.range(10, 11)), n, n)


for name, op in [("Iterator", raw.Iterator), ("IteratorV2", raw.IteratorV2)]:
    case("%s/life" % name, lambda op=op: life(op, raw.IteratorGetNext))
case("IteratorGetNextSync/life", lambda: life(raw.IteratorV2, raw.IteratorGetNextSync))


def optional():
    i = it()
    o = raw.IteratorGetNextAsOptional(iterator=i, output_types=[L], output_shapes=[[]])
    has = raw.OptionalHasValue(optional=o)
    value = raw.OptionalGetValue(optional=o, output_types=[L], output_shapes=[[]])
    return steps(has, make(i, D.range(2)), [has] + list(value), has, has, value)


case("IteratorGetNextAsOptional/life", optional)
case("MakeIterator/types", lambda: make(it([F]), D.range(2)))
case("MakeIterator/count", lambda: make(it([L, L], [[], []]), D.range(2)))
case("MakeIterator/shapes", lambda: make(it([L], [[2]]), D.range(2)))
case("MakeIterator/no_dataset", lambda: raw.MakeIterator(dataset=raw.OptionalNone(), iterator=it()))
case("MakeIterator/no_iterator", lambda: raw.MakeIterator(dataset=D.range(2)._variant_tensor, iterator=raw.VarHandleOp(dtype=F, shape=[])))


def wrong_types():
    i = it()
    return steps(make(i, D.range(2)), get(i, [F]), get(i, [L], [[3]]), get(i))


case("IteratorGetNext/declared_otherwise", wrong_types)


def shared():
    a, b = it(name="shared"), it(name="shared")
    c = it([F], name="shared")
    d = it([L], [[2]], name="shared")
    e = it([L, L], [[], []], name="shared")
    return steps(make(a, D.range(5)), get(a), get(b), c.op, d.op, e.op, get(a))


case("IteratorV2/shared", shared)
case("IteratorV2/reserved_name", lambda: it(name="_x"))


def feedable():
    """A handle chosen by a feed."""
    a, b = (tf.data.make_initializable_iterator(d) for d in (D.range(3), D.range(10, 14)))
    handles = a.string_handle(), b.string_handle()
    handle = tf.placeholder(S, [])
    chosen = tf.data.Iterator.from_string_handle(handle, tf.data.get_output_types(a), tf.data.get_output_shapes(a)).get_next()
    return a, b, handles, handle, chosen


@script("IteratorFromStringHandle/feedable")
def fed(env):
    a, b, handles, handle, chosen = feedable()
    with env.session() as sess:
        sess.run([a.initializer, b.initializer])
        one, two = sess.run(handles)
        out = [sess.run(chosen, {handle: h}) for h in (one, two, two, one, one)]
        out.append(env.error(lambda: sess.run(chosen, {handle: one})))
        out.append(sess.run(chosen, {handle: two}))
        out.append(env.error(lambda: sess.run(chosen, {handle: b"junk"})))
        out.append(env.error(lambda: sess.run(chosen, {handle: one.replace(b"CPU:0", b"CPU:1")})))
        return out


def from_handle(types, shapes):
    i = it()
    text = raw.IteratorToStringHandle(resource_handle=i)
    back = raw.IteratorFromStringHandleV2(string_handle=text, output_types=types, output_shapes=shapes)
    return steps(make(i, D.range(2)), get(back), get(back), get(back))


case("IteratorFromStringHandleV2/plain", lambda: from_handle([], []))
case("IteratorFromStringHandleV2/same", lambda: from_handle([L], [[]]))
case("IteratorFromStringHandleV2/types", lambda: from_handle([F], [[]]))
case("IteratorFromStringHandleV2/shapes", lambda: from_handle([L], [[2]]))
case("IteratorFromStringHandleV2/vector", lambda: raw.IteratorFromStringHandleV2(string_handle=inp([b"x"])))


def reinitialisable():
    i = tf.data.Iterator.from_structure(L, tf.TensorShape([]))
    n = i.get_next()
    train, test = i.make_initializer(D.range(2)), i.make_initializer(D.range(10, 12).repeat(2))
    return steps(n, train, n, test, n, n, n, n, n, train, n, n, n)


case("Iterator/reinitialisable", reinitialisable)


@script("IteratorV2/two_graphs")
def two_graphs(env):
    """A shared name reaches the same iterator from another session; the position stays."""
    def build():
        g = tf.Graph()
        with g.as_default():
            i = tf.data.make_initializable_iterator(D.range(5), shared_name="both")
            return g, i.initializer, i.get_next()
    (g1, init, next1), (g2, _, next2) = build(), build()
    if not env.target:
        return [0, 1, 2, 3]
    with env.session(g1) as s1, env.session(g2) as s2:
        s1.run(init)
        return [int(s1.run(next1)), int(s2.run(next2)), int(s1.run(next1)), int(s2.run(next2))]


@script("IteratorGetNext/beside_each_other")
def concurrent(env):
    """Many calls at once give each element once."""
    import threading
    i = tf.data.make_initializable_iterator(D.range(60).prefetch(2))
    n = i.get_next()
    with env.session() as sess:
        sess.run(i.initializer)
        got = []

        def take():
            for _ in range(10):
                got.append(int(sess.run(n)))
        threads = [threading.Thread(target=take) for _ in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        return sorted(got), env.error(lambda: sess.run(n))


def saved(make, before, after):
    """Writes an iterator's state down, goes on, goes back to it, and goes on again, also after starting anew."""
    @script("SerializeIterator/%s" % make)
    def body(env):
        it = tf.data.make_initializable_iterator(PIPELINES[make]())
        n = tf.nest.flatten(it.get_next())
        handle = it._iterator_resource
        state = raw.SerializeTensor(tensor=raw.SerializeIterator(resource_handle=handle, external_state_policy=0))
        text = tf.placeholder(S, [])
        restore = raw.DeserializeIterator(resource_handle=handle, serialized=raw.ParseTensor(serialized=text, out_type=tf.variant))
        take = lambda sess, k: [env.error(lambda: sess.run(n)) for _ in range(k)]
        with env.session() as sess:
            sess.run(it.initializer)
            out = [take(sess, before)]
            kept = sess.run(state)
            out.append(take(sess, after))
            sess.run(restore, {text: kept})
            out.append(take(sess, after))
            sess.run(it.initializer)
            sess.run(restore, {text: kept})
            out.append(take(sess, after))
        again = [str(out[1]) == str(o) or (out[1], o) for o in out[2:]]
        return (out[0] if make != "unseeded" else "by chance"), again


def fails_at(k):
    return lambda x: tf.debugging.check_numerics(1.0 / tf.cast(x - k, F), "oops")


r = D.range
PIPELINES = dict(
    range=lambda: r(10), slices=lambda: D.from_tensor_slices(([1, 2, 3, 4, 5, 6], ["a", "b", "c", "d", "e", "f"])),
    repeat=lambda: r(3).repeat(4).skip(1).take(9), forever=lambda: r(3).repeat(), shard=lambda: r(20).shard(3, 1),
    zip=lambda: D.zip((r(9), r(20, 29).skip(2))), concatenate=lambda: r(3).concatenate(r(10, 19)), batch=lambda: r(19).batch(2).unbatch().batch(3),
    padded=lambda: r(1, 12).map(lambda x: tf.fill([x], x)).padded_batch(2, [None]), map=lambda: r(9).map(lambda x: x * x, num_parallel_calls=2),
    mapped_errors=lambda: r(9).map(fails_at(5), num_parallel_calls=3), batched_map=lambda: r(20).map(lambda x: x + 1).batch(3),
    filter=lambda: r(30).filter(lambda x: tf.equal(x % 3, 1)), scan=lambda: r(9).scan(tf.constant(0, L), lambda s, x: (s + x, s)),
    flat_map=lambda: r(5).flat_map(lambda x: r(x, x + 3)), interleave=lambda: r(6).interleave(lambda x: r(x * 10, x * 10 + x), cycle_length=3, block_length=2),
    parallel_interleave=lambda: r(6).interleave(lambda x: r(x * 10, x * 10 + x), cycle_length=3, num_parallel_calls=2),
    shuffle=lambda: r(12).shuffle(5, seed=3), reshuffle=lambda: r(4).shuffle(9, seed=3).repeat(3), unseeded=lambda: r(12).shuffle(6),
    prefetch=lambda: r(9).prefetch(3).map(lambda x: x + 1).prefetch(2), cache=lambda: r(4).cache().repeat(3),
    window=lambda: r(12).window(3, shift=2).flat_map(lambda w: w.batch(3)), random=lambda: D.random(seed=4).take(10), enumerate=lambda: r(5, 15).enumerate(),
    groups=lambda: r(14).group_by_window(lambda x: x % 3, lambda k, d: d.batch(3), window_size=3), unique=lambda: D.from_tensor_slices([1, 2, 1, 3, 4, 3, 5]).unique(),
    choose=lambda: D.sample_from_datasets([r(9), r(20, 29)], seed=5), ended=lambda: r(2))
for name in PIPELINES:
    saved(name, 3, 5)
case("SerializeIterator/not_started", lambda: raw.SerializeTensor(tensor=raw.SerializeIterator(resource_handle=it())))


@script("SerializeIterator/stateful")
def stateful(env):
    i = tf.data.make_initializable_iterator(r(3).map(lambda x: tf.random.uniform([])))
    save = raw.SerializeIterator(resource_handle=i._iterator_resource, external_state_policy=2)
    with env.session() as sess:
        sess.run(i.initializer)
        return [env.error(lambda: sess.run(save.op))]


@script("SerializeIterator/saver")
def saver(env):
    """An iterator in a checkpoint beside a variable; TensorFlow can read what was written."""
    def build():
        g = tf.Graph()
        with g.as_default():
            i = tf.data.make_initializable_iterator(r(50).shuffle(7, seed=3).map(lambda x: x * 2).batch(3))
            v = tf.get_variable("v", initializer=0, use_resource=True)
            n = tf.group(v.assign_add(1)), i.get_next()
            tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, tf.data.experimental.make_saveable_from_iterator(i))
            return g, i.initializer, n, v, tf.train.Saver()
    path = env.tmp + "/model"
    g, init, n, v, save = build()
    with env.session(g) as sess:
        sess.run([init, v.initializer])
        out = [sess.run(n)[1] for _ in range(4)]
        save.save(sess, path, write_meta_graph=False)
        out += [sess.run(n)[1] for _ in range(3)]
    g, init, n, v, save = build()
    with env.session(g) as sess:
        sess.run(init)
        save.restore(sess, path)
        again = [sess.run(n)[1] for _ in range(3)]
        count = sess.run(v)
    names = [k for k in tf.train.load_checkpoint(path).get_variable_to_shape_map() if k != "v"]
    with tf.Graph().as_default(), tf.Session() as local:
        state = raw.RestoreV2(prefix=path, tensor_names=names, shape_and_slices=[""], dtypes=[tf.variant])
        readable = len(local.run(raw.SerializeTensor(tensor=state[0]))) > 0
    return out, [str(a) for a in again] == [str(b) for b in out[4:]], count, len(names), readable
