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
