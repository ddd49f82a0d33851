"""Ref and resource variables: life cycle, assignment, scatter, and what happens before initialisation."""
import numpy as np

from registry import ALL, FLOATS, INTS, NUMBERS, allowed, case, const, init, inp, raw, rnd, short, steps, tf


def ref(shape, t=tf.float32, value=None, name="v"):
    """A ref variable and its initial assignment as a setup target."""
    v = raw.VariableV2(shape=shape, dtype=t, name=name)
    init(raw.Assign(ref=v, value=inp(rnd(shape, t) if value is None else value, t)).op)
    return v


def res(shape, t=tf.float32, value=None, name="r"):
    """A resource variable, initialised."""
    h = raw.VarHandleOp(dtype=t, shape=shape, shared_name=name, name=name)
    init(raw.AssignVariableOp(resource=h, value=inp(rnd(shape, t) if value is None else value, t)))
    return h


def read(h, t=tf.float32):
    return raw.ReadVariableOp(resource=h, dtype=t)


def after(op, value):
    """Reads `value()` once `op` has run."""
    with tf.control_dependencies([op]):
        return value()


for t in ALL:
    s = short(t)
    case("ref/assign_" + s, lambda t=t: [steps(raw.Identity(input=v), raw.Assign(ref=v, value=inp(rnd((2, 3), t), t)), raw.Identity(input=v))
                                        for v in [ref((2, 3), t)]][0])
    case("resource/assign_" + s, lambda t=t: [steps(read(h, t), raw.AssignVariableOp(resource=h, value=inp(rnd((2, 3), t), t)), read(h, t))
                                             for h in [res((2, 3), t)]][0])
for t in NUMBERS:
    s = short(t)
    for op in ("AssignAdd", "AssignSub"):
        case("ref/%s_%s" % (op, s), lambda op=op, t=t: [steps(*[getattr(raw, op)(ref=v, value=inp(rnd((2, 3), t), t))] * 2 + [raw.Identity(input=v)])
                                                      for v in [ref((2, 3), t)]][0])
        case("resource/%s_%s" % (op, s), lambda op=op, t=t: [steps(getattr(raw, op + "VariableOp")(
            resource=h, value=inp(rnd((2, 3), t), t)), read(h, t)) for h in [res((2, 3), t)]][0])
case("ref/assign_scalar", lambda: [steps(raw.AssignAdd(ref=v, value=inp(2.0)), raw.AssignSub(ref=v, value=inp(0.5))) for v in [ref(())]][0])
case("ref/assign_empty", lambda: [steps(raw.AssignAdd(ref=v, value=inp(rnd((0, 3))))) for v in [ref((0, 3))]][0])
case("ref/assign_wrong_shape", lambda: [steps(raw.Assign(ref=v, value=inp(rnd((3, 2)))), raw.Identity(input=v)) for v in [ref((2, 3))]][0])
case("ref/assign_no_validate", lambda: [steps(raw.Assign(ref=v, value=inp(rnd((4,))), validate_shape=False), raw.Identity(input=v))
                                       for v in [ref((2, 3))]][0])
for op in ("AssignAdd", "AssignSub"):
    case("ref/%s_wrong_shape" % op, lambda op=op: [steps(getattr(raw, op)(ref=v, value=inp(rnd((3,)))), raw.Identity(input=v))
                                                  for v in [ref((2, 3))]][0])
    case("resource/%s_wrong_shape" % op, lambda op=op: [steps(getattr(raw, op + "VariableOp")(resource=h, value=inp(rnd((3,)))), read(h))
                                                       for h in [res((2, 3))]][0])
    case("ref/%s_uninitialized" % op, lambda op=op: getattr(raw, op)(ref=raw.VariableV2(shape=[2], dtype=tf.float32, name="u"), value=inp([1.0, 2.0])))
    case("resource/%s_uninitialized" % op, lambda op=op: getattr(raw, op + "VariableOp")(
        resource=raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="u"), value=inp([1.0, 2.0])), oracle="server")

case("ref/uninitialized_read", lambda: raw.Identity(input=raw.VariableV2(shape=[2], dtype=tf.float32, name="scope/u")))
case("ref/uninitialized_fetch", lambda: raw.VariableV2(shape=[2], dtype=tf.float32, name="u"))
for container in ["with_underscore", "-first", "a b", "ok.1/two-3"]:
    case("ref/container_%s" % container, lambda c=container: raw.IsVariableInitialized(
        ref=raw.VariableV2(shape=[2], dtype=tf.float32, container=c, name="c")))
case("ref/shared_name_underscore", lambda: raw.IsVariableInitialized(
    ref=raw.VariableV2(shape=[2], dtype=tf.float32, shared_name="_mine", name="c")))
case("ref/uninitialized_math", lambda: raw.VariableV2(shape=[2], dtype=tf.float32, name="u") + inp([1.0, 1.0]))
# The container's name is in the text: the job's for a server, "localhost" in process too.
case("resource/uninitialized_read", lambda: read(raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="scope/u")), oracle="server")
case("resource/uninitialized_gather", lambda: raw.ResourceGather(
    resource=raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="u"), indices=inp([0]), dtype=tf.float32), oracle="server")
case("resource/uninitialized_shape", lambda: raw.VariableShape(input=raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="u")), oracle="server")


def initialized():
    v = raw.VariableV2(shape=[2], dtype=tf.float32, name="v")
    h = raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="h")
    ask = [raw.IsVariableInitialized(ref=v), raw.VarIsInitializedOp(resource=h)]
    return steps(ask, [raw.Assign(ref=v, value=inp([1.0, 2.0])).op], ask, raw.AssignVariableOp(resource=h, value=inp([1.0, 2.0])), ask,
                 raw.DestroyResourceOp(resource=h, ignore_lookup_error=True), ask,
                 raw.DestroyResourceOp(resource=h, ignore_lookup_error=False))


case("is_initialized", initialized, oracle="server")
case("resource/reassign_other_shape", lambda: [steps(raw.AssignVariableOp(resource=h, value=inp(rnd((4,)))), read(h), raw.VariableShape(input=h))
                                              for h in [res(None, value=rnd((2, 3)))]][0])
case("resource/validate_shape", lambda: [steps(raw.AssignVariableOp(resource=h, value=inp(rnd((4,))), validate_shape=True), read(h))
                                        for h in [res((2, 3))]][0])
case("resource/shape_i64", lambda: [raw.VariableShape(input=h, out_type=it) for h in [res((2, 0, 3))] for it in INTS])
for it in INTS:
    n = short(it)
    case("resource/gather_" + n, lambda it=it: [raw.ResourceGather(resource=h, indices=inp([[2, 0]], it), dtype=tf.float32) for h in [res((3, 2))]])
    case("resource/gather_batch_" + n, lambda it=it: raw.ResourceGather(
        resource=res((2, 3)), indices=inp([[2, 0], [1, 1]], it), dtype=tf.float32, batch_dims=1))
    case("resource/gather_range_" + n, lambda it=it: raw.ResourceGather(resource=res((3, 2)), indices=inp([0, 3], it), dtype=tf.float32))
    case("resource/gather_nd_" + n, lambda it=it: raw.ResourceGatherNd(resource=res((3, 2)), indices=inp([[2, 0], [0, 1]], it), dtype=tf.float32))
    case("resource/gather_nd_range_" + n, lambda it=it: raw.ResourceGatherNd(resource=res((3, 2)), indices=inp([[3, 0]], it), dtype=tf.float32))

SCATTER = ["Add", "Sub", "Mul", "Div", "Min", "Max", "Update"]
for op in SCATTER:
    for t in allowed("Scatter" + op):
        lo = 1 if op in ("Mul", "Div") else -3
        case("Scatter%s/%s" % (op, short(t)), lambda op=op, t=t, lo=lo: [getattr(raw, "Scatter" + op)(
            ref=ref((4, 2), t), indices=inp([[1, 3], [0, 2]]), updates=inp(rnd((2, 2, 2), t, lo), t))])
        case("ResourceScatter%s/%s" % (op, short(t)), lambda op=op, t=t, lo=lo: [steps(getattr(raw, "ResourceScatter" + op)(
            resource=h, indices=inp([1, 3, 1]), updates=inp([rnd((2,), t, lo)] * 3, t)), read(h, t)) for h in [res((4, 2), t)]][0])
    for name, idx, ush in [("index_i64", [1, 3], (2, 2)), ("duplicate", [1, 1], None), ("scalar_update", [0, 2], ()), ("scalar_index", 1, (2,)),
                           ("range", [0, 4], (2, 2)), ("negative", [-1], (1, 2)), ("shape", [0, 1], (3, 2)), ("empty", [], (0, 2))]:
        def scatter(op=op, idx=idx, ush=ush, kind="ref"):
            upd = inp(np.full((2, 2), 2.0, np.float32)) if ush is None else inp(rnd(ush, lo=1, hi=3))
            if kind == "ref":
                v = ref((4, 2))
                return steps(getattr(raw, "Scatter" + op)(ref=v, indices=inp(idx, tf.int64), updates=upd), raw.Identity(input=v))
            h = res((4, 2))
            return steps(getattr(raw, "ResourceScatter" + op)(resource=h, indices=inp(idx, tf.int64), updates=upd), read(h))
        case("Scatter%s/%s" % (op, name), scatter)
        case("ResourceScatter%s/%s" % (op, name), lambda scatter=scatter: scatter(kind="resource"))
for op in ("Add", "Sub", "Update", "Min", "Max"):
    for t in FLOATS + INTS:
        case("ScatterNd%s/%s" % (op, short(t)), lambda op=op, t=t: [steps(getattr(raw, "ScatterNd" + op)(
            ref=v, indices=inp([[1], [3]]), updates=inp(rnd((2, 2), t), t)), raw.Identity(input=v)) for v in [ref((4, 2), t)]][0])
        case("ResourceScatterNd%s/%s" % (op, short(t)), lambda op=op, t=t: [steps(getattr(raw, "ResourceScatterNd" + op)(
            ref=h, indices=inp([[1, 0], [3, 1]]), updates=inp(rnd((2,), t), t)), read(h, t)) for h in [res((4, 2), t)]][0])
    for name, idx, ush in [("range", [[4]], (1, 2)), ("shape", [[0]], (2, 2)), ("full", [[0, 1], [2, 0]], (2,)), ("deep", [[0, 0, 0]], (1,)),
                           ("empty", np.zeros((0, 1)), (0, 2))]:
        case("ScatterNd%s/%s" % (op, name), lambda op=op, idx=idx, ush=ush: [steps(getattr(raw, "ScatterNd" + op)(
            ref=v, indices=inp(idx, tf.int32), updates=inp(rnd(ush))), raw.Identity(input=v)) for v in [ref((4, 2))]][0])
        case("ResourceScatterNd%s/%s" % (op, name), lambda op=op, idx=idx, ush=ush: [steps(getattr(raw, "ResourceScatterNd" + op)(
            ref=h, indices=inp(idx, tf.int32), updates=inp(rnd(ush))), read(h)) for h in [res((4, 2))]][0])

for name, shape, kw, vshape in [
        ("range", (5,), dict(begin=[1], end=[4], strides=[1]), (3,)), ("step", (4, 4), dict(begin=[0, 1], end=[4, 4], strides=[2, 2]), (2, 2)),
        ("negative", (5,), dict(begin=[4], end=[0], strides=[-2]), (2,)), ("shrink", (3, 4), dict(begin=[1, 0], end=[2, 4], strides=[1, 1],
                                                                                              shrink_axis_mask=1), (4,)),
        ("scalar", (5,), dict(begin=[2], end=[3], strides=[1]), (1,)), ("wrong", (5,), dict(begin=[1], end=[4], strides=[1]), (2,)),
        ("zero_stride", (5,), dict(begin=[1], end=[4], strides=[0]), (3,)), ("empty", (5,), dict(begin=[3], end=[3], strides=[1]), (0,))]:
    case("StridedSliceAssign/" + name, lambda shape=shape, kw=kw, vshape=vshape: [steps(raw.StridedSliceAssign(
        ref=v, value=inp(rnd(vshape)), **{k: inp(x) if isinstance(x, list) else x for k, x in kw.items()}), raw.Identity(input=v))
        for v in [ref(shape)]][0])
    case("ResourceStridedSliceAssign/" + name, lambda shape=shape, kw=kw, vshape=vshape: [steps(raw.ResourceStridedSliceAssign(
        ref=h, value=inp(rnd(vshape)), **{k: inp(x) if isinstance(x, list) else x for k, x in kw.items()}), read(h))
        for h in [res(shape)]][0])
for t in INTS:
    case("CountUpTo/" + short(t), lambda t=t: steps(*[raw.CountUpTo(ref=ref((), t, 0, name="counter"), limit=2)] * 4))
    case("ResourceCountUpTo/" + short(t), lambda t=t: steps(*[raw.ResourceCountUpTo(resource=res((), t, 0, name="counter"), limit=2, T=t)] * 4))
case("CountUpTo/uninitialized", lambda: raw.CountUpTo(ref=raw.VariableV2(shape=[], dtype=tf.int32, name="c"), limit=3))


def temporary():
    v = raw.TemporaryVariable(shape=[2], dtype=tf.float32, var_name="tmp")
    a = raw.Assign(ref=v, value=inp([1.0, 2.0]))
    b = raw.AssignAdd(ref=a, value=inp([3.0, 4.0]))
    return steps(*[raw.DestroyTemporaryVariable(ref=b, var_name="tmp")] * 2)


case("TemporaryVariable", temporary)


def ordered_reads():
    v = tf.Variable([1.0, 2.0], use_resource=True, name="v")
    init(v.initializer)
    before = v.read_value()
    with tf.control_dependencies([before]):
        add = v.assign_add([10.0, 10.0])
    with tf.control_dependencies([add]):
        later = v.read_value()
    return steps([before, later], [before, later], v)


case("resource/read_before_and_after", ordered_reads)


def python_variables(use_resource):
    v = tf.get_variable("a", initializer=np.arange(6, dtype=np.float32).reshape(2, 3), use_resource=use_resource)
    w = tf.get_variable("b", [3], initializer=tf.ones_initializer(), use_resource=use_resource)
    u = tf.report_uninitialized_variables()
    y = tf.reduce_sum(v * w)
    return steps(u, v.initializer, u, tf.global_variables_initializer(), u, [v, w, y], v.assign(v + 1.0), tf.scatter_update(v, [1], [[9.0] * 3]),
                 y, tf.is_variable_initialized(w))


for use_resource in (False, True):
    case("python/get_variable_%s" % use_resource, lambda r=use_resource: python_variables(r))


def partitioned(use_resource):
    v = tf.get_variable("p", [7, 2], initializer=tf.random_normal_initializer(seed=3), partitioner=tf.fixed_size_partitioner(3),
                        use_resource=use_resource)
    init(tf.global_variables_initializer())
    return [tf.convert_to_tensor(v), tf.nn.embedding_lookup(v, inp([0, 6, 3]), partition_strategy="div")]


for use_resource in (False, True):
    case("python/partitioned_%s" % use_resource, lambda r=use_resource: partitioned(r))
case("python/local_and_global_init", lambda: steps(*[x for v in [tf.Variable(3), tf.Variable(4, collections=[tf.GraphKeys.LOCAL_VARIABLES])]
                                                    for x in [tf.group(tf.global_variables_initializer(), tf.local_variables_initializer()), v]]))
case("ref/shared_name", lambda: [steps(raw.Identity(input=w), raw.AssignAdd(ref=w, value=inp([1.0, 1.0])), raw.Identity(input=v)) for v, w in [(
    raw.VariableV2(shape=[2], dtype=tf.float32, shared_name="same", name="x"), raw.VariableV2(shape=[2], dtype=tf.float32, shared_name="same", name="y"))]
    for _ in [init(raw.Assign(ref=v, value=inp([1.0, 2.0])).op)]][0])
case("ref/container", lambda: [steps(raw.Identity(input=v)) for v in [raw.VariableV2(shape=[2], dtype=tf.float32, container="mine", name="x")]
                              for _ in [init(raw.Assign(ref=v, value=inp([1.0, 2.0])).op)]][0])
case("resource/DisableCopyOnRead", lambda: [steps(raw.DisableCopyOnRead(resource=h), read(h), raw.AssignAddVariableOp(resource=h, value=inp(rnd((2, 3)))), read(h))
                                           for h in [res((2, 3))]][0])
case("resource/DisableCopyOnRead_missing", lambda: raw.DisableCopyOnRead(resource=raw.VarHandleOp(dtype=tf.float32, shape=[2], shared_name="u")), oracle="server")
