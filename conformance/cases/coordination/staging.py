"""Staging areas: a queue without a handle, and maps from keys to tuples that may come in parts."""
import threading
import time

from registry import ALL, case, inp, raw, script, short, steps, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


class Area:
    """A staging area of (float, int32), shared under a name."""

    def __init__(self, name, dtypes=(F, I), **attrs):
        self.attrs = dict(shared_name="stage_" + name, **attrs)
        self.dtypes = list(dtypes)

    def put(self, *values):
        return raw.Stage(values=list(values), **self.attrs)

    def get(self, dtypes=None):
        return raw.Unstage(dtypes=dtypes or self.dtypes, **self.attrs)

    def peek(self, index, dtypes=None):
        return raw.StagePeek(index=inp(index), dtypes=dtypes or self.dtypes, **self.attrs)

    def size(self):
        return raw.StageSize(dtypes=self.dtypes, **self.attrs)

    def clear(self):
        return raw.StageClear(dtypes=self.dtypes, **self.attrs)


class Map:
    """A map of (float, int32), ordered or not."""

    def __init__(self, name, ordered=False, dtypes=(F, I), **attrs):
        self.attrs = dict(shared_name="map_%s_%s" % (name, ordered), **attrs)
        self.dtypes = list(dtypes)
        self.ordered = ordered

    def op(self, name):
        return getattr(raw, ("Ordered" if self.ordered else "") + name)

    def put(self, key, indices, *values):
        return self.op("MapStage")(key=inp(key, L), indices=inp(indices, I), values=list(values), dtypes=self.dtypes, **self.attrs)

    def get(self, key, indices, dtypes=None):
        return self.op("MapUnstage")(key=inp(key, L), indices=inp(indices, I), dtypes=dtypes or self.dtypes, **self.attrs)

    def peek(self, key, indices, dtypes=None):
        return self.op("MapPeek")(key=inp(key, L), indices=inp(indices, I), dtypes=dtypes or self.dtypes, **self.attrs)

    def any(self, indices, dtypes=None):
        return self.op("MapUnstageNoKey")(indices=inp(indices, I), dtypes=dtypes or self.dtypes, **self.attrs)

    def size(self):
        return [self.op("MapSize")(dtypes=self.dtypes, **self.attrs), self.op("MapIncompleteSize")(dtypes=self.dtypes, **self.attrs)]

    def clear(self):
        return self.op("MapClear")(dtypes=self.dtypes, **self.attrs)


def stage_life():
    a = Area("life")
    return steps(a.size(), a.put(inp(1.5), inp(1)), a.put(inp([2.5, 3.5]), inp([2])), a.size(), a.peek(1), a.peek(0), a.get(), a.size(), a.get(), a.size(),
                 a.put(inp(1.5), inp(1)), a.clear(), a.size())


case("Stage/life", stage_life)
for dtype in ALL:
    case("Stage/dtypes/%s" % short(dtype), lambda dtype=dtype: (lambda a: steps(a.put(inp([1, 0] if dtype != S else [b"1", b"0"], dtype)), a.peek(0), a.get()))(
        Area("dtype_" + short(dtype), [dtype])))
case("Unstage/count", lambda: (lambda a: steps(a.put(inp(1.0), inp(1)), a.get([F]), a.size(), a.put(inp(1.0), inp(1)), a.peek(0, [F]), a.size(),
                                               a.get([F, I, I])))(Area("count")))
case("Unstage/type", lambda: (lambda a: steps(a.put(inp(1.0), inp(1)), a.get([I, F]), a.size()))(Area("type")))
case("Stage/memory", lambda: (lambda a: steps(a.put(inp([1.0] * 10), inp(1)), a.size(), a.put(inp([1.0] * 4), inp(1)), a.size()))(Area("memory", memory_limit=20)))
case("Stage/memory_strings", lambda: (lambda a: steps(a.put(inp([b"a", b"b" * 40])), a.size()))(Area("memory_s", [S], memory_limit=20)))
case("Stage/default_name", lambda: (lambda: steps(raw.Stage(values=[inp(1.0)], name="here"), raw.StageSize(dtypes=[F], name="here_1"), raw.StageSize(
    dtypes=[F], shared_name="here")))())
case("Stage/other_container", lambda: steps(Area("boxed", container="box").put(inp(1.0), inp(1)), Area("boxed").size(), Area("boxed", container="box").size()))
case("StagePeek/shape", lambda: (lambda a: steps(a.put(inp(1.0), inp(1)), a.peek([0]), a.size()))(Area("peek_shape")))


for ordered in (False, True):
    label = "OrderedMapStage" if ordered else "MapStage"

    def life(ordered=ordered):
        m = Map("life", ordered)
        return steps(m.size(), m.put(3, [0, 1], inp(1.5), inp(1)), m.put(-1, [0, 1], inp([2.5]), inp(2)), m.size(), m.peek(3, [0, 1]), m.peek(3, [1], [I]),
                     m.get(3, [0, 1]), m.size(), m.any([0, 1]), m.size(), m.put(5, [0, 1], inp(1.5), inp(1)), m.clear(), m.size())

    def parts(ordered=ordered):
        m = Map("parts", ordered)
        return steps(m.put(3, [1], inp(1)), m.size(), m.put(4, [0], inp(0.5)), m.size(), m.put(3, [0], inp(2.5)), m.size(), m.get(3, [0], [F]), m.size(),
                     m.get(3, [0], [F]), m.peek(3, [0, 1]), m.peek(3, [1], [I]), m.get(3, [1], [I]), m.size(), m.put(4, [0], inp(0.5)), m.clear(), m.size())

    def refused(ordered=ordered):
        m = Map("refused", ordered)
        return steps(m.put(1, [], inp(1.0)), m.put(1, [1, 0], inp(1.0), inp(2)), m.put(1, [0, 0], inp(1.0), inp(2)), m.put(1, [5], inp(1.0)), m.put(1, [-1], inp(1.0)),
                     m.put(1, [0, 1, 2], inp(1.0), inp(1), inp(1)), m.size(), m.get(1, [], [F]), m.get(1, [1, 0]), m.peek(1, [], [F]), m.any([], [F]), m.any([1, 0]),
                     m.put([1], [0, 1], inp(1.0), inp(1)), m.put([1, 2], [0, 1], inp(1.0), inp(1)), m.put([], [0, 1], inp(1.0), inp(1)), m.size(),
                     m.get(1, [5], [F]), m.get(1, [-1], [F]), m.get(1, [0, 7]), m.size())

    def order(ordered=ordered):
        m = Map("order", ordered)
        puts = [m.put(k, [0, 1], inp(1.5 * k), inp(k)) for k in (5, -3, 9, 7)]
        return steps(*puts, m.size(), *[m.any([0, 1])] * 4, m.size())

    case(label + "/life", life)
    case(label + "/parts", parts)
    case(label + "/refused", refused)
    if ordered:  # an unordered map gives them in any order
        case(label + "/order", order)
    case(label + "/again", lambda ordered=ordered: (lambda m: steps(
        m.put(1, [0, 1], inp(1.0), inp(1)), m.put(1, [0, 1], inp(2.0), inp(2)), m.size(), m.get(1, [0, 1]), m.size()))(Map("again", ordered)))
    case(label + "/memory", lambda ordered=ordered: (lambda m: steps(
        m.put(1, [0, 1], inp([1.0] * 10), inp([1] * 6)), m.put(1, [0], inp([1.0] * 10)), m.size(), m.put(1, [0, 1], inp(1.0), inp(1)), m.size()))(
            Map("memory", ordered, memory_limit=20)))
    case(label + "/types", lambda ordered=ordered: (lambda m: steps(m.put(1, [0, 1], inp(1), inp(1.0)), m.get(1, [0, 1]), m.size()))(Map("types", ordered)))


@script("Stage/waits")
def _(env):
    """Whoever finds nothing waits for it; whoever finds no room waits for room."""
    out = []
    with tf.Graph().as_default() as g:
        x = tf.placeholder(F)
        attrs = dict(capacity=2, shared_name="waits")
        put, get, size = raw.Stage(values=[x], **attrs), raw.Unstage(dtypes=[F], **attrs), raw.StageSize(dtypes=[F], **attrs)
        peek = raw.StagePeek(index=1, dtypes=[F], **attrs)
        with env.session(g) as sess:
            got, seen = [], []
            waits = threading.Thread(target=lambda: got.append(sess.run(get)))
            waits.start()
            time.sleep(0.1)
            out.append(len(got))
            sess.run(put, {x: 1})
            waits.join(20)
            out.append([v for g in got for v in g])
            looks = threading.Thread(target=lambda: seen.append(sess.run(peek)))
            looks.start()
            sess.run(put, {x: 2})
            sess.run(put, {x: 3})
            looks.join(20)
            out.append([v for g in seen for v in g])
            full = threading.Thread(target=lambda: sess.run(put, {x: 4}))
            full.start()
            time.sleep(0.1)
            out.append(sess.run(size))
            out += [sess.run(get) for _ in range(3)]
            full.join(20)
            out.append(sess.run(size))
    return out


@script("Stage/memory_waits")
def _(env):
    out = []
    with tf.Graph().as_default() as g:
        x = tf.placeholder(F)
        attrs = dict(memory_limit=8, shared_name="memory_waits")
        put, get, clear = raw.Stage(values=[x], **attrs), raw.Unstage(dtypes=[F], **attrs), raw.StageClear(dtypes=[F], **attrs)
        with env.session(g) as sess:
            sess.run(put, {x: [1, 2]})
            waits = threading.Thread(target=lambda: sess.run(put, {x: [3]}))
            waits.start()
            time.sleep(0.1)
            out.append(waits.is_alive())
            sess.run(clear)
            waits.join(20)
            out.append(waits.is_alive())
            out.append(sess.run(get))
    return out


def map_waits(ordered):
    """One wait at a time: TensorFlow's hold a thread each, and it has no more than cores."""
    def body(env):
        out = []
        word = "Ordered" if ordered else ""
        with tf.Graph().as_default() as g:
            x, k = tf.placeholder(F), tf.placeholder(L)
            attrs = dict(capacity=2, dtypes=[F], shared_name="map_waits_%s" % ordered)
            op = lambda name: getattr(raw, word + name)
            put, get = op("MapStage")(key=k, indices=[0], values=[x], **attrs), op("MapUnstage")(key=k, indices=[0], **attrs)
            size, peek, some = op("MapSize")(**attrs), op("MapPeek")(key=k, indices=[0], **attrs), op("MapUnstageNoKey")(indices=[0], **attrs)
            with env.session(g) as sess:
                def meanwhile(waiting, feeds, then):
                    """What `waiting` gives, and whether it had to wait for what `then` does."""
                    got = []
                    thread = threading.Thread(target=lambda: got.append(sess.run(waiting, feeds)))
                    thread.start()
                    time.sleep(0.1)
                    early = len(got)
                    out.append(sess.run(*then))
                    thread.join(20)
                    out.append([early, got])
                meanwhile(get, {k: 7}, (put, {k: 7, x: 1}))
                meanwhile(peek, {k: 5}, (put, {k: 5, x: 2}))
                out.append(sess.run(size))
                sess.run(put, {k: 6, x: 3})
                meanwhile(put, {k: 8, x: 4}, (get, {k: 5}))
                out.append(sess.run(size))
                out += [sess.run(get, {k: key}) for key in (6, 8)]
                meanwhile(some, {}, (put, {k: 9, x: 5}))
                out.append(sess.run(size))
        return out
    return body


script("MapStage/waits")(map_waits(False))
script("OrderedMapStage/waits")(map_waits(True))
