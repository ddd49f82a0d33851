"""Queues and accumulators: order, capacity, closing, waiting, and what they refuse.

Cases that wait on each other run their ops in threads of one session. Names of private objects hold a
process-wide number, so cases whose error text shows a name use a queue shared under a name of their own.
"""
import threading
import time

from registry import case, inp, raw, script, steps, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string
KINDS = dict(fifo=raw.FIFOQueueV2, padding=raw.PaddingFIFOQueueV2, shuffle=raw.RandomShuffleQueueV2, priority=raw.PriorityQueueV2)


def pair(kind="fifo", **attrs):
    """A queue of (float[2], int32)."""
    if kind == "shuffle":
        attrs = dict(seed=3, seed2=4, **attrs)
    return KINDS[kind](**dict(dict(component_types=[F, I], shapes=[[2], []], capacity=3), **attrs))


def put(q, *values):
    return raw.QueueEnqueueV2(handle=q, components=list(values))


def put_many(q, *values):
    return raw.QueueEnqueueManyV2(handle=q, components=list(values))


def get(q, types=(F, I)):
    return raw.QueueDequeueV2(handle=q, component_types=list(types))


def get_many(q, n, types=(F, I)):
    return raw.QueueDequeueManyV2(handle=q, n=inp(n), component_types=list(types))


def get_up_to(q, n, types=(F, I)):
    return raw.QueueDequeueUpToV2(handle=q, n=inp(n), component_types=list(types))


def size(q):
    return raw.QueueSizeV2(handle=q)


def close(q, cancel=False):
    return raw.QueueCloseV2(handle=q, cancel_pending_enqueues=cancel)


def is_closed(q):
    return raw.QueueIsClosedV2(handle=q)


def life(kind):
    """Everything one queue goes through without waiting."""
    q = pair(kind, capacity=10, shared_name="life_" + kind)
    first = [inp(1, L)] if kind == "priority" else []
    batch = [inp([5, 3, 5, 4], L)] if kind == "priority" else []
    types = ((L,) if kind == "priority" else ()) + (F, I)
    one = put(q, *first, inp([1.0, 2.0]), inp(7))
    many = put_many(q, *batch, inp([[1.0, 2], [3, 4], [5, 6], [7, 8]]), inp([1, 2, 3, 4]))
    return steps(size(q), is_closed(q), one, many, size(q), get(q, types), get_many(q, 2, types), size(q), get_many(q, 0, types),
                 get_up_to(q, 1, types), one, close(q), is_closed(q), close(q), one, many, get_many(q, 9, types), size(q),
                 get_up_to(q, 2, types), get(q, types), get_up_to(q, 2, types), get_many(q, 0, types), close(q, cancel=True))


for kind in KINDS:
    case("Queue/life/%s" % kind, lambda kind=kind: life(kind))


case("QueueEnqueueV2/count", lambda: put(pair(), inp([1.0, 2.0])))
case("QueueEnqueueV2/type", lambda: put(pair(), inp([1.0, 2.0]), inp(1.0)))
case("QueueEnqueueV2/shape", lambda: put(pair(), inp([1.0, 2.0, 3.0]), inp(1)))
case("QueueEnqueueManyV2/shape", lambda: put_many(pair(), inp([[1.0, 2.0, 3.0]]), inp([1])))
case("QueueEnqueueManyV2/lengths", lambda: put_many(pair(), inp([[1.0, 2.0]]), inp([1, 2])))
case("QueueEnqueueManyV2/lengths_unknown", lambda: put_many(raw.FIFOQueueV2(component_types=[F, F]), inp([[1.0, 2.0]]), inp([1.0, 2.0])))
case("QueueEnqueueManyV2/empty", lambda: (
    lambda q: steps(put_many(q, inp([], F)), size(q)))(raw.FIFOQueueV2(component_types=[F], shapes=[[]])))
case("QueueDequeueV2/type", lambda: get(pair(), (F, F)))
case("QueueDequeueV2/count", lambda: get(pair(), (F,)))
for kind in KINDS:
    if kind != "priority":
        case("QueueDequeueManyV2/negative_%s" % kind, lambda kind=kind: steps(get_many(pair(kind), -1), get_up_to(pair(kind), -1)))
    if kind in ("fifo", "shuffle"):
        case("QueueDequeueManyV2/no_shapes_%s" % kind,
             lambda kind=kind: (lambda q: steps(get_many(q, 1, [F]), get_up_to(q, 1, [F])))(KINDS[kind](component_types=[F])))
        case("QueueV2/unknown_rank_%s" % kind, lambda kind=kind: (lambda q: steps(put(q, inp(1.0)), get(q, [F]), put(q, inp([1.0]))))(
            KINDS[kind](component_types=[F], shapes=[None], **({} if kind == "fifo" else dict(min_after_dequeue=0)))))
        case("QueueV2/partial_shape_%s" % kind, lambda kind=kind: KINDS[kind](component_types=[F], shapes=[[None]]).op)
    case("QueueV2/shape_count_%s" % kind, lambda kind=kind: KINDS[kind](component_types=[F, I], shapes=[[2]]).op)
case("PaddingFIFOQueueV2/no_shapes", lambda: raw.PaddingFIFOQueueV2(component_types=[F]).op)
case("PaddingFIFOQueueV2/unknown_rank", lambda: raw.PaddingFIFOQueueV2(component_types=[F], shapes=[None]).op)
case("RandomShuffleQueueV2/min_after_dequeue", lambda: raw.RandomShuffleQueueV2(
    component_types=[F], min_after_dequeue=-1, capacity=3).op)
case("RandomShuffleQueueV2/min_is_capacity", lambda: raw.RandomShuffleQueueV2(component_types=[F], min_after_dequeue=3, capacity=3).op)
case("QueueV2/reserved_name", lambda: size(raw.FIFOQueueV2(component_types=[F], shared_name="_x")))


def shuffled():
    q = raw.RandomShuffleQueueV2(component_types=[I], shapes=[[]], capacity=40, seed=1, seed2=2)
    return steps(put_many(q, inp(list(range(30)))), get(q, [I]), get_many(q, 5, [I]), put_many(q, inp([50, 51])), get_many(q, 20, [I]))


def padded():
    q = raw.PaddingFIFOQueueV2(component_types=[F, S], shapes=[[None, 2], [None]], capacity=10)
    return steps(put(q, inp([[1.0, 2]]), inp([b"a", b"b"])), put(q, inp([[1.0, 2], [3, 4]]), inp([b"c"])), get_many(q, 2, [F, S]),
                 put(q, inp([[1.0, 2, 3]]), inp([b"a"])), put(q, inp([1.0, 2]), inp([b"a"])), put_many(q, inp([[[1.0, 2]]]), inp([b"a"])),
                 put_many(q, inp([[[1.0, 2]]]), inp([[b"a"], [b"b"]])), put_many(q, inp([[[1.0, 2]]]), inp([[b"a"]])), get(q, [F, S]),
                 put_many(q, inp([[1.0, 2]]), inp([[b"a"]])), get_many(q, 0, [F, S]))


def prioritised():
    q = raw.PriorityQueueV2(component_types=[I], shapes=[[]])
    return steps(put_many(q, inp([3, 1, 3, 1, 2, 1, 1, 3, 2], L), inp(list(range(9)))), get_many(q, 4, [L, I]), put(q, inp(-5, L), inp(99)),
                 *[get(q, [L, I])] * 6, put(q, inp(3), inp(1)), put(q, inp([3], L), inp(1)), put_many(q, inp([[3, 1]], L), inp([0])), put(q, inp(1)))


case("RandomShuffleQueueV2/seeded", shuffled)
case("PaddingFIFOQueueV2/padding", padded)
case("PriorityQueueV2/order", prioritised)
case("PriorityQueueV2/no_shapes", lambda: raw.PriorityQueueV2(component_types=[F], shapes=[], shared_name="prio_no_shapes").op)


def reopened():
    base = dict(component_types=[F], shapes=[[2]], capacity=3, shared_name="reopened")
    again = lambda op=raw.FIFOQueueV2, **change: size(op(**dict(base, **change)))
    return steps(again(), again(), again(capacity=4), again(capacity=-1), again(component_types=[I]), again(component_types=[F, I], shapes=[]),
                 again(shapes=[[3]]), again(shapes=[]), again(raw.RandomShuffleQueueV2), again(raw.PaddingFIFOQueueV2), again(raw.PriorityQueueV2))


def reopened_shuffle():
    base = dict(component_types=[F], shapes=[[2]], capacity=3, shared_name="reopened_shuffle", min_after_dequeue=1, seed=3, seed2=4)
    again = lambda **change: size(raw.RandomShuffleQueueV2(**dict(base, **change)))
    return steps(again(), again(min_after_dequeue=2), again(seed=9), again(seed=0, seed2=0), again(seed2=9), again(capacity=7))


case("QueueV2/reopened", reopened)
case("QueueV2/reopened_shuffle", reopened_shuffle)


def legacy():
    q = raw.FIFOQueue(component_types=[F], shared_name="legacy", shapes=[[]])
    return steps(raw.QueueEnqueue(handle=q, components=[inp(1.0)]), raw.QueueEnqueueMany(handle=q, components=[inp([2.0, 3.0, 4.0])]),
                 raw.QueueSize(handle=q), raw.QueueDequeue(handle=q, component_types=[F]),
                 raw.QueueDequeueMany(handle=q, n=inp(2), component_types=[F]), raw.QueueIsClosed(handle=q),
                 raw.QueueEnqueue(handle=q, components=[inp(1)]), raw.QueueClose(handle=q), raw.QueueIsClosed(handle=q),
                 raw.QueueDequeueUpTo(handle=q, n=inp(2), component_types=[F]), raw.QueueDequeue(handle=q, component_types=[F]))


case("Queue/by_reference", legacy)


def together(env, build):
    """Starts `waits` one after the other, runs `then`, waits for all, runs `after`."""
    env.reset()
    graph = tf.Graph()
    with graph.as_default():
        waits, then, after = build()
    session = env.session(graph)
    answers = [None] * len(waits)

    def run(fetch):
        return env.error(lambda: session.run(fetch))

    def wait(i):
        answers[i] = run(waits[i])

    threads = []
    for i in range(len(waits)):
        threads.append(threading.Thread(target=wait, args=(i,)))
        threads[-1].start()
        time.sleep(0.2)
    middle = [run(f) for f in then]
    for t in threads:
        t.join()
    return [answers, middle, [run(f) for f in after]]


def waiting(name, build):
    script(name)(lambda env: together(env, build))


class Waiting:
    """One queue of one kind for waiting cases; constants only, as scripts feed nothing."""

    def __init__(self, kind, name, capacity):
        self.priority = kind == "priority"
        self.types = [L, F] if self.priority else [F]
        seeds = dict(seed=3, seed2=4) if kind == "shuffle" else {}
        self.q = KINDS[kind](component_types=[F], shapes=[[]], capacity=capacity, shared_name="%s_%s" % (name, kind), **seeds)

    def put(self, value):
        first = [tf.constant(1, L)] if self.priority else []
        return raw.QueueEnqueueV2(handle=self.q, components=first + [tf.constant(value)])

    def put_many(self, values):
        first = [tf.constant([1] * len(values), L)] if self.priority else []
        return raw.QueueEnqueueManyV2(handle=self.q, components=first + [tf.constant(values)])

    def get(self):
        return get(self.q, self.types)

    def get_many(self, n):
        return raw.QueueDequeueManyV2(handle=self.q, n=n, component_types=self.types)

    def get_up_to(self, n):
        return raw.QueueDequeueUpToV2(handle=self.q, n=n, component_types=self.types)


def waits_for_element(kind):
    w = Waiting(kind, "element", 5)
    return [w.get(), w.get_many(2)], [w.put(1.0), w.put(2.0), size(w.q), w.put(3.0), size(w.q)], []


def waits_for_room(kind):
    w = Waiting(kind, "room", 2)
    return [w.put_many([1.0, 2.0, 3.0])], [size(w.q), w.get_many(2), size(w.q)], [w.get(), size(w.q)]


def closed_under_batch(kind):
    w = Waiting(kind, "batch", 5)
    return [w.get_many(2)], [w.put(1.0), size(w.q), close(w.q)], [size(w.q), w.get(), w.get()]


def closed_under_up_to(kind):
    w = Waiting(kind, "up_to", 5)
    return [w.get_up_to(2)], [w.put(1.0), close(w.q)], [size(w.q)]


def closed_under_get(kind):
    w = Waiting(kind, "get", 5)
    return [w.get()], [close(w.q)], []


def close_cancels(kind):
    w = Waiting(kind, "cancels", 2)
    return [w.put_many([1.0, 2.0, 3.0]), w.put(9.0)], [close(w.q, cancel=True)], [size(w.q), w.get_many(2), w.put(1.0)]


def close_waits(kind):
    w = Waiting(kind, "waits", 2)
    return [w.put_many([1.0, 2.0, 3.0]), close(w.q), w.put(4.0)], [is_closed(w.q), w.get()], [is_closed(w.q), w.get_many(2), w.get()]


for kind in KINDS:
    for build in (waits_for_element, waits_for_room, closed_under_batch, closed_under_up_to, closed_under_get, close_cancels, close_waits):
        waiting("Queue/%s/%s" % (build.__name__, kind), lambda build=build, kind=kind: build(kind))


@script("Queue/timeout")
def timeout(env):
    """A step that runs out of time leaves the queue usable, and what an unfinished batch had taken is gone."""
    graph = tf.Graph()
    with graph.as_default():
        w = Waiting("fifo", "timeout", 1)
        soon = tf.RunOptions(timeout_in_ms=500)
        session = env.session(graph)
        run = lambda fetch, options=None: env.error(lambda: session.run(fetch, options=options))
        late = lambda fetch: type(run(fetch, soon)).__name__
        return [late(w.put_many([1.0, 2.0])), run(size(w.q)), late(w.get_many(2)), run(size(w.q)), run(w.put(3.0)), run(w.get())]


class Accumulator:
    """A dense accumulator behind either kind of handle."""

    def __init__(self, prefix, shape, dtype=F, **attrs):
        self.prefix, self.dtype = prefix, dtype
        self.handle = getattr(raw, prefix + "ConditionalAccumulator")(dtype=dtype, shape=tf.TensorShape(shape), **attrs)

    def op(self, name, **args):
        return getattr(raw, self.prefix + "Accumulator" + name)(handle=self.handle, **args)

    def give(self, step, value):
        return self.op("ApplyGradient", local_step=inp(step, L), gradient=inp(value, self.dtype))

    def take(self, n):
        return self.op("TakeGradient", num_required=inp(n), dtype=self.dtype)

    def count(self):
        return self.op("NumAccumulated")

    def set_step(self, step):
        return self.op("SetGlobalStep", new_global_step=inp(step, L))


def accumulated(prefix, dtype, reduction):
    a = Accumulator(prefix, [2], dtype, reduction_type=reduction)
    return steps(a.count(), a.give(0, [1, 2]), a.give(0, [3, 5]), a.give(7, [0.1, 0.7]), a.count(), a.take(1), a.count(), a.give(0, [9, 9]), a.count(),
                 a.give(1, [1, 1]), a.give(1, [1, 1, 1]), a.give(0, [1, 1, 1]), a.give(1, 1), a.take(0), a.take(-3), a.set_step(5), a.give(4, [1, 1]),
                 a.count(), a.give(5, [2, 2]), a.count(), a.set_step(2), a.give(3, [7, 7]), a.take(2), a.give([0], [1, 2]), a.set_step([5]))


def unshaped(prefix):
    a = Accumulator(prefix, None)
    return steps(a.give(0, [1, 2]), a.give(0, [1, 2, 3]), a.give(0, 2), a.take(1), a.give(1, [[1]]), a.take(1))


def half_shaped(prefix):
    a = Accumulator(prefix, [None, 2], reduction_type="SUM")
    return steps(a.give(0, [1]), a.give(0, [[1, 2]]), a.give(0, [[3, 5]]), a.give(0, [[1, 2, 3]]), a.give(0, [[1, 2], [3, 4]]), a.take(1))


for prefix in ("", "Resource"):
    for dtype in (tf.float16, tf.float32, tf.float64, tf.bfloat16, tf.int32, tf.complex64):
        if dtype in (tf.float16, tf.float32, tf.float64):
            for reduction in ("MEAN", "SUM"):
                case("%sConditionalAccumulator/%s_%s" % (prefix, dtype.name, reduction),
                     lambda prefix=prefix, dtype=dtype, reduction=reduction: accumulated(prefix, dtype, reduction))
        else:
            case("%sConditionalAccumulator/%s" % (prefix, dtype.name), lambda prefix=prefix, dtype=dtype: Accumulator(prefix, [2], dtype).handle.op)
    case("%sConditionalAccumulator/unknown_shape" % prefix, lambda prefix=prefix: unshaped(prefix))
    case("%sConditionalAccumulator/partial_shape" % prefix, lambda prefix=prefix: half_shaped(prefix))


def shared_accumulator():
    a = Accumulator("", [2], shared_name="shared_accumulator")
    b = Accumulator("", [3], tf.float64, shared_name="shared_accumulator", reduction_type="SUM")
    return steps(a.give(0, [1, 2]), b.count(), raw.QueueSize(handle=a.handle))


case("ConditionalAccumulator/shared", shared_accumulator)


class Sparse:
    def __init__(self, shape, dtype=F, **attrs):
        self.dtype = dtype
        self.handle = raw.SparseConditionalAccumulator(dtype=dtype, shape=tf.TensorShape(shape), **attrs)

    def give(self, step, indices, values, shape=None):
        return raw.SparseAccumulatorApplyGradient(
            handle=self.handle, local_step=inp(step, L), gradient_indices=inp(indices, L), gradient_values=inp(values, self.dtype),
            gradient_shape=inp([] if shape is None else shape, L), has_known_shape=shape is not None)

    def take(self, n):
        return raw.SparseAccumulatorTakeGradient(handle=self.handle, num_required=inp(n), dtype=self.dtype)

    def count(self):
        return raw.AccumulatorNumAccumulated(handle=self.handle)


def sparse_rows():
    a = Sparse([4, 2])
    return steps(a.give(0, [0, 2], [[1, 2], [3, 4]], [4, 2]), a.give(0, [2, 3], [[5, 6], [7, 8]], [4, 2]), a.count(), a.take(1), a.count(),
                 a.give(0, [0], [[1, 1]], [4, 2]), a.count(), a.give(1, [2, 0], [[5, 6], [7, 8]], [4, 2]), a.take(1),
                 a.give(2, [1, 1], [[5, 6], [7, 8]], [4, 2]), a.give(2, [1, 1], [[5, 6], [7, 8]], [4, 2]), a.take(1))


def sparse_refusals():
    a = Sparse([4, 2])
    return steps(a.give(0, [0], [[1, 2, 3]], [4, 3]), a.give(0, [0], [[1, 2]], [5, 2]), a.give(0, [9], [[1, 2]], [4, 2]), a.give(0, [0, 1], [[1, 2]], [4, 2]),
                 a.give(0, [[0]], [[1, 2]], [4, 2]), a.give(0, [0], 1, [4, 2]), a.give(0, [0], [1], [4]), a.give(0, [0], [[1, 2, 3]]), a.give(0, [0], [1]),
                 a.give(0, [0], [[1, 2]], [-1, 2]), a.count(), a.give(0, [-1], [[1, 2]], [4, 2]), a.give(0, [1], [[1, 2]]), a.give(0, [1], [[1, 2, 3]]),
                 a.give(0, [0], [1]), a.take(0), a.take(1))


def sparse_unshaped():
    a = Sparse(None)
    return steps(a.give(0, [0, 2], [[1, 2], [3, 4]], [4, 2]), a.give(0, [2, 3], [[5, 6], [7, 8]], [5, 2]), a.give(0, [2, 3], [[5, 6], [7, 8]]), a.take(1),
                 a.give(1, [2, 3], [5, 6], [7]), a.take(1), a.give(2, [], [], [3]), a.take(1))


def sparse_sum():
    a = Sparse([None, 2], tf.float64, reduction_type="SUM")
    return steps(a.give(0, [3, 0], [[1, 2], [3, 4]], [4, 2]), a.give(0, [0, 2], [[5, 6], [7, 8]], [5, 2]), a.take(2), a.give(1, [0], [[5, 6, 7]], [5, 3]))


case("SparseConditionalAccumulator/rows", sparse_rows)
case("SparseConditionalAccumulator/refusals", sparse_refusals)
case("SparseConditionalAccumulator/unknown_shape", sparse_unshaped)
case("SparseConditionalAccumulator/sum_of_unsorted", sparse_sum)


def takes_in_order():
    a = raw.ConditionalAccumulator(dtype=F, shape=[], shared_name="takes_in_order")
    take = lambda n: raw.AccumulatorTakeGradient(handle=a, num_required=n, dtype=F)
    give = lambda step, value: raw.AccumulatorApplyGradient(handle=a, local_step=tf.constant(step, L), gradient=tf.constant(value))
    return [take(2), take(1)], [give(0, 1.0), give(0, 2.0), give(0, 3.0), give(1, 7.0)], [raw.AccumulatorNumAccumulated(handle=a)]


waiting("ConditionalAccumulator/takes_in_order", takes_in_order)


def waiting(op, **more):
    """An op on a queue of one element, with a time limit."""
    q = pair(**more)
    full, many = [inp([1.0, 2.0]), inp(3)], [inp([[1.0, 2.0]]), inp([3])]
    return q, full, many


for limit in (-1, 0, 1, 1000, -2):
    for name, build in dict(
            enqueue=lambda q, full, many, t: raw.QueueEnqueueV2(handle=q, components=full, timeout_ms=t),
            enqueue_many=lambda q, full, many, t: raw.QueueEnqueueManyV2(handle=q, components=many, timeout_ms=t),
            dequeue=lambda q, full, many, t: list(raw.QueueDequeueV2(handle=q, component_types=[F, I], timeout_ms=t)),
            dequeue_many=lambda q, full, many, t: list(raw.QueueDequeueManyV2(handle=q, n=inp(1), component_types=[F, I], timeout_ms=t)),
            dequeue_up_to=lambda q, full, many, t: list(raw.QueueDequeueUpToV2(handle=q, n=inp(1), component_types=[F, I], timeout_ms=t))).items():
        def limited(build=build, limit=limit):
            q, full, many = waiting(build)
            return steps(put(q, inp([4.0, 5.0]), inp(6)), build(q, full, many, limit), raw.QueueSizeV2(handle=q))
        case("timeout/%s_%d" % (name, limit), limited)
