"""Barriers: components that come one by one, in the order in which keys were first seen."""
import threading
import time

from registry import ALL, case, inp, raw, script, short, steps, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def make(name, types=(F, I), shapes=((2,), ()), **attrs):
    return raw.Barrier(component_types=list(types), shapes=[list(s) for s in shapes], shared_name="barrier_" + name, **attrs)


def put(b, keys, values, component):
    return raw.BarrierInsertMany(handle=b, keys=inp(keys, S), values=values, component_index=component)


def take(b, n, types=(F, I), **attrs):
    return raw.BarrierTakeMany(handle=b, num_elements=inp(n), component_types=list(types), **attrs)


def close(b, cancel=False):
    return raw.BarrierClose(handle=b, cancel_pending_enqueues=cancel)


def sizes(b):
    return [raw.BarrierReadySize(handle=b), raw.BarrierIncompleteSize(handle=b)]


def life():
    b = make("life")
    return steps(sizes(b), put(b, [b"x", b"y"], inp([[1.0, 2], [3, 4]]), 0), sizes(b), put(b, [b"z", b"y"], inp([10, 20]), 1), sizes(b), take(b, 1), sizes(b),
                 put(b, [b"x"], inp([5]), 1), put(b, [b"z"], inp([[7.0, 8]]), 0), sizes(b), take(b, 2), sizes(b), take(b, 0),
                 put(b, [b"x"], inp([[1.0, 2]]), 0), put(b, [b"x"], inp([[1.0, 2]]), 0), close(b), sizes(b), take(b, 2), put(b, [b"new"], inp([1]), 1),
                 put(b, [b"x", b"new"], inp([1, 2]), 1), sizes(b), take(b, 1), take(b, 1), close(b), put(b, [], inp([], I), 1), put(b, [b"q"], inp([1]), 1))


case("Barrier/life", life)
case("Barrier/close_empty", lambda: (lambda b: steps(close(b), sizes(b), take(b, 1), take(b, 0), take(b, 1, allow_small_batch=True), close(b), put(b, [b"x"], inp([1]), 1)))(make("empty")))
case("Barrier/small_batch", lambda: (lambda b: steps(
    put(b, [b"x", b"y", b"z"], inp([[1.0, 2], [3, 4], [5, 6]]), 0), put(b, [b"x", b"y"], inp([1, 2]), 1), close(b), take(b, 5), take(b, 3, allow_small_batch=True), sizes(b),
    take(b, 1, allow_small_batch=True), put(b, [b"z"], inp([3]), 1), take(b, 9, allow_small_batch=True), take(b, 9, allow_small_batch=True)))(make("small")))
case("Barrier/cancel", lambda: (lambda b: steps(
    put(b, [b"x", b"y"], inp([[1.0, 2], [3, 4]]), 0), put(b, [b"x"], inp([1]), 1), close(b, True), sizes(b), put(b, [b"y"], inp([2]), 1), put(b, [], inp([], I), 1),
    take(b, 1), take(b, 1), close(b, True), close(b)))(make("cancel")))
case("Barrier/shape", lambda: (lambda b: steps(put(b, [b"x"], inp([[1.0, 2, 3]]), 0), put(b, [b"x"], inp([3]), 1), sizes(b)))(make("shape")))
case("Barrier/no_elements", lambda: (lambda b: steps(put(b, [b"x"], inp([], F), 0), put(b, [b"x"], inp([[]], F), 0), put(b, [], inp([], F), 0), sizes(b)))(make("none")))
case("Barrier/component", lambda: (lambda b: steps(put(b, [b"x"], inp([1]), 2), put(b, [b"x"], inp([1]), 0), put(b, [b"x"], inp([[1.0, 2]]), 1)))(make("component")))
case("Barrier/take_types", lambda: (lambda b: steps(take(b, 1, [F]), take(b, 1, [I, F]), take(b, [1]), take(b, 1, timeout_ms=5)))(make("types")))
case("Barrier/scalar_keys", lambda: (lambda b: steps(put(b, b"x", inp([[1.0, 2]]), 0), put(b, [[b"x"]], inp([4]), 1), take(b, 1)))(make("scalar")))
case("Barrier/capacity", lambda: sizes(make("capacity", capacity=5)))
case("Barrier/shapes_missing", lambda: sizes(make("missing", shapes=[[2]])))
case("Barrier/partial_shape", lambda: sizes(make("partial", shapes=[[None], []])))
case("Barrier/unknown_shape", lambda: (lambda b: steps(sizes(b), put(b, [b"x"], inp([1.0]), 0), put(b, [b"x"], inp([2]), 1), take(b, 1)))(
    raw.Barrier(component_types=[F, I], shapes=[None, None], shared_name="barrier_unknown")))
case("Barrier/shared", lambda: (lambda a, b, c, d: steps(put(a, [b"x"], inp([1]), 1), sizes(b), sizes(c), sizes(d)))(
    make("shared"), make("shared"), make("shared", (F, F)), make("shared", shapes=[[3], []])))
case("Barrier/same_key_twice", lambda: (lambda b: steps(put(b, [b"x", b"x"], inp([1, 2]), 1), sizes(b), put(b, [b"x"], inp([[1.0, 2]]), 0), take(b, 1)))(make("twice")))
for dtype in ALL:
    case("Barrier/dtypes/%s" % short(dtype), lambda dtype=dtype: (lambda b: steps(
        put(b, [b"x", b"y"], inp([[1, 0], [0, 1]] if dtype != S else [[b"1", b"0"], [b"", b"x"]], dtype), 0), take(b, 2, [dtype])))(
            make("dtype_" + short(dtype), [dtype], [[2]])))


@script("Barrier/waits")
def _(env):
    out = []
    with tf.Graph().as_default() as g:
        b = raw.Barrier(component_types=[F], shapes=[[]], shared_name="waits_b")
        keys, values = tf.placeholder(S), tf.placeholder(F)
        add, two = raw.BarrierInsertMany(handle=b, keys=keys, values=values, component_index=0), raw.BarrierTakeMany(handle=b, num_elements=2, component_types=[F])
        shut = raw.BarrierClose(handle=b)
        with env.session(g) as sess:
            got = []
            thread = threading.Thread(target=lambda: got.append(env.error(lambda: sess.run(two))))
            thread.start()
            sess.run(add, {keys: ["a"], values: [1]})
            time.sleep(0.1)
            out.append(len(got))
            sess.run(add, {keys: ["b", "c"], values: [2, 3]})
            thread.join(20)
            out.append(list(got))
            thread = threading.Thread(target=lambda: got.append(env.error(lambda: sess.run(two))))
            thread.start()
            time.sleep(0.1)
            sess.run(shut)
            thread.join(20)
            out.append(got[1:])
    return out
