"""Rules of a session: feeds, fetches, targets, partial runs, callables, extension, closing, timeouts, traces."""
import threading

import numpy as np
from google.protobuf import json_format

from registry import script, tf

# TensorFlow's distributed session words some of these errors otherwise than its local one.
SERVER = dict(oracle="server")


def run(env, graph, *args, **kw):
    """session.run in a fresh session: the value or the error."""
    with env.session(graph) as sess:
        return env.error(lambda: sess.run(*args, **kw))


def raw_run(sess, feeds, fetches, targets):
    """A step that skips python's own checks of names."""
    from tensorflow.python.client import pywrap_tf_session as c
    return c.TF_SessionRun_wrapper(sess._session, None, feeds, fetches, targets, None)


@script("fetch/kinds", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a, b = tf.constant([1.0, 2.0], name="a"), tf.constant(3, name="b")
        c = tf.placeholder(tf.float32, [None], name="c")
        d = tf.add(a, c, name="d")
        return [run(env, g, a), run(env, g, "a:0"), run(env, g, [a, b, a]), run(env, g, {"x": a, "y": [b, (b, a)]}), run(env, g, []),
                run(env, g, d, {c: [1, 2]}), run(env, g, d, {"c:0": [1, 2]}), run(env, g, d, {d: [9.0]}), run(env, g, [d, a], {a: [5.0, 5.0], c: [1.0, 1.0]}),
                run(env, g, d.op, {c: [0.0, 0.0]}), run(env, g, c, {c: [7.0]}), run(env, g, [c, d], {c: [7.0, 8.0]})]


@script("fetch/no_op", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        n = tf.no_op(name="n")
        t = tf.group(n, tf.constant(1).op)
        return [run(env, g, n), run(env, g, [n, t]), run(env, g, [n, tf.constant(4)])]


@script("feed/overrides_in_the_middle", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, name="x")
        y = tf.square(x, name="y")
        z = y + 1.0
        return [run(env, g, z, {y: 3.0}), run(env, g, [y, z], {y: 3.0}), run(env, g, z), run(env, g, z, {x: 2.0, y: 3.0})]


@script("feed/multiple_outputs", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a, b, c = tf.split(tf.constant([1, 2, 3, 4, 5, 6]), 3)
        return [run(env, g, [a, b, c], {b: [9, 9]}), run(env, g, a + b + c, {a: [0, 0], c: [0, 0]})]


@script("feed/every_dtype", **SERVER)
def _(env):
    from registry import ALL, rnd
    out = []
    with tf.Graph().as_default() as g:
        nodes = [(tf.placeholder(t), rnd(s, t)) for t in ALL for s in ((2, 3), (), (0,))]
        fetch = [tf.identity(p) for p, _ in nodes]
        out.append(run(env, g, fetch, {p: v for p, v in nodes}))
        out.append(run(env, g, [p for p, _ in nodes], {p: v for p, v in nodes}))
    return out


@script("feed/big", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        p = tf.placeholder(tf.float32)
        v = np.arange(6 << 20, dtype=np.float32)
        return [run(env, g, [tf.reduce_max(p), tf.shape(p)], {p: v}), run(env, g, p * 2.0, {p: v})[-3:]]


@script("feed/wrong_dtype_on_the_wire", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        p = tf.placeholder(tf.float32, name="p")
        q = tf.identity(p, name="q")
        with env.session(g) as sess:
            sess.run(q, {p: 1.0})
            return [env.error(lambda: raw_run(sess, {p._as_tf_output(): np.int32(3)}, [q._as_tf_output()], []))]


@script("errors/unfed", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, [None, 3], name="in/x")
        y = tf.placeholder(tf.int32, name="y")
        return [run(env, g, x), run(env, g, x + 1.0), run(env, g, y), run(env, g, tf.cast(y, tf.float32) + x, {x: [[1, 2, 3]]})]


@script("errors/step_failure_leaves_session_usable", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.int32, name="x")
        y = tf.reshape(tf.range(6), x)
        with env.session(g) as sess:
            return [env.error(lambda: sess.run(y, {x: [4, 4]})), sess.run(y, {x: [2, 3]}), env.error(lambda: sess.run(y, {x: [-1, 4]})), sess.run(y, {x: [-1]})]


@script("errors/same_fetch_other_inputs", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32)
        m = tf.matmul(x, x)
        with env.session(g) as sess:
            return [sess.run(m, {x: np.eye(n)}) for n in (1, 2, 3)] + [env.error(lambda: sess.run(m, {x: np.ones((2, 3))}))]


@script("extend/graph_grows_between_runs", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a = tf.constant(1.0)
        with env.session(g) as sess:
            out = [sess.run(a)]
            b = a + 2.0
            out.append(sess.run(b))
            v = tf.Variable(10.0)
            out.append(env.error(lambda: sess.run(v)))
            sess.run(v.initializer)
            out += [sess.run(v + b), sess.run([a, b, v])]
            for i in range(5):
                b = b * 2.0
                out.append(sess.run(b))
        return out


@script("extend/empty_graph_first", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        sess = env.session(g)
        out = [env.error(lambda: sess.run([]))]
        out.append(sess.run(tf.constant(5)))
        return out


@script("close/run_after_close", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a = tf.constant(1.0)
        sess = env.session(g)
        out = [sess.run(a)]
        sess.close()
        out.append(env.error(lambda: sess.run(a)))
        sess.close()
        return out


@script("state/shared_between_sessions", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable([1.0, 2.0], name="shared")
        r = tf.Variable([5.0], name="shared_resource", use_resource=True)
        init = tf.global_variables_initializer()
        add = [v.assign_add([1.0, 1.0]), r.assign_add([1.0])]
        with env.session(g) as one, env.session(g) as two:
            one.run(init)
            one.run(add)
            out = [two.run([v, r])]
            two.run(add)
            out.append(one.run([v, r]))
        with env.session(g) as three:
            out.append(three.run([v, r]))
        return out


@script("state/reset_forgets", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable([1.0, 2.0], name="v")
        with env.session(g) as sess:
            sess.run(v.initializer)
        tf.Session.reset(env.target)
        with env.session(g) as sess:
            return [env.error(lambda: sess.run(v))]


@script("state/reset_container", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        with tf.container("kept"):
            k = tf.Variable(1.0, name="k")
        with tf.container("dropped"):
            d = tf.Variable(2.0, name="d")
        with env.session(g) as sess:
            sess.run(tf.global_variables_initializer())
        tf.Session.reset(env.target, ["dropped"])
        with env.session(g) as sess:
            out = [env.error(lambda: sess.run(k)), env.error(lambda: sess.run(d))]
        tf.Session.reset(env.target, ["kept"])
        return out


@script("state/isolated", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable([1.0, 2.0], name="iso")
        with env.session(g, tf.ConfigProto(isolate_session_state=True)) as one, env.session(g, tf.ConfigProto(isolate_session_state=True)) as two:
            one.run(v.initializer)
            return [one.run(v), env.error(lambda: two.run(v))]


@script("partial_run/stages", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
        r1 = tf.add(a, b)
        r2 = tf.multiply(r1, c)
        with env.session(g) as sess:
            h = sess.partial_run_setup([r1, r2], [a, b, c])
            out = [sess.partial_run(h, r1, {a: 1, b: 2})]
            out.append(sess.partial_run(h, r2, {c: out[0] * 17}))
            h = sess.partial_run_setup([r1, r2], [a, b, c])
            out.append(sess.partial_run(h, [r1, r2], {a: 1, b: 2, c: 3}))
            return out


@script("partial_run/errors", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a, b, c, d = (tf.placeholder(tf.float32, [], name=n) for n in "abcd")
        r1 = tf.add(a, b, name="r1")
        r2 = tf.multiply(r1, c, name="r2")
        out = []
        with env.session(g) as sess:
            h = sess.partial_run_setup([r1, r2], [a, b, c])
            out.append(env.error(lambda: sess.partial_run(h, r2, {a: 1, b: 2})))
            h = sess.partial_run_setup([r1, r2], [a, b, c])
            out.append(sess.partial_run(h, r1, {a: 1, b: 2}))
            out.append(env.error(lambda: sess.partial_run(h, r1)))
            h = sess.partial_run_setup([r1, r2], [a, b, c])
            out.append(sess.partial_run(h, r1, {a: 1, b: 2}))
            out.append(env.error(lambda: sess.partial_run(h, r2, {a: 5, c: 1})))
            h = sess.partial_run_setup([r1], [a, b])
            out.append(env.error(lambda: sess.partial_run(h, r2, {a: 1, b: 2})))
            h = sess.partial_run_setup([r1, r2], [a, b, c])
            out.append(env.error(lambda: sess.partial_run(h, r1, {a: 1, b: 2, d: 3})))
        return out


@script("partial_run/concurrent", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        a, b = (tf.placeholder(tf.float32, [], name=n) for n in "ab")
        r1, r2 = a + 1.0, a * b
        with env.session(g) as sess:
            hs = [sess.partial_run_setup([r1, r2], [a, b]) for _ in range(5)]
            firsts = [sess.partial_run(h, r1, {a: float(i)}) for i, h in enumerate(hs)]
            return [firsts, [sess.partial_run(h, r2, {b: 10.0}) for h in reversed(hs)]]


@script("callable/make_callable", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, name="x")
        y, z = x * 2.0, x + 1.0
        with env.session(g) as sess:
            f = sess.make_callable([y, z], [x])
            h = sess.make_callable(y.op, [x])
            k = sess.make_callable(tf.constant(4))
            return [f(3.0), f(np.ones((2, 2))), h(1.0), k(), env.error(lambda: sess.make_callable(y)())]


@script("callable/options", **SERVER)
def _(env):
    from tensorflow.core.protobuf import config_pb2
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, name="x")
        y = tf.identity(x * 2.0, name="y")
        v = tf.Variable(1.0, name="v")
        add = tf.assign_add(v, 1.0, name="add")
        with env.session(g) as sess:
            sess.run(v.initializer)
            opts = config_pb2.CallableOptions()
            opts.feed.append("x:0")
            opts.fetch.append("y:0")
            opts.target.append(add.op.name)
            f = sess._make_callable_from_options(opts)
            out = [f(np.float32(2.0)), f(np.float32(5.0)), sess.run(v)]
            del f
            bad = config_pb2.CallableOptions()
            bad.fetch.append("nothere:0")
            out.append(env.error(lambda: sess._make_callable_from_options(bad)()))
            return out


@script("timeout/run_options", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        q = tf.FIFOQueue(2, tf.float32, shapes=[[]])
        deq = q.dequeue()
        with env.session(g) as sess:
            first = env.error(lambda: sess.run(deq, options=tf.RunOptions(timeout_in_ms=200)))
            first.message = first.message.split(";")[0]
            return [first, sess.run(tf.constant(3))]


@script("timeout/session_default", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        deq = tf.FIFOQueue(2, tf.float32).dequeue()
        config = tf.ConfigProto(operation_timeout_in_ms=200)
        with env.session(g, config) as sess:
            return [env.error(lambda: sess.run(deq)).kind]


@script("close/cancels_running_step", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        deq = tf.FIFOQueue(2, tf.float32).dequeue()
        one = tf.constant(1)
        sess = env.session(g)
        sess.run(one)
        box = []
        t = threading.Thread(target=lambda: box.append(env.error(lambda: sess.run(deq))))
        t.start()
        import time
        time.sleep(0.5)
        sess.close()
        t.join(20)
        return [b.kind for b in box]


@script("concurrent/steps_of_one_session", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable(0, name="v", use_resource=True)
        add = v.assign_add(1)
        with env.session(g) as sess:
            sess.run(v.initializer)
            threads = [threading.Thread(target=lambda: [sess.run(add) for _ in range(20)]) for _ in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            return [sess.run(v)]


@script("metadata/full_trace", **SERVER)
def _(env):
    from tensorflow.python.client import timeline
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        w = tf.Variable(np.ones((4, 3), np.float32), name="w")
        y = tf.nn.relu(tf.matmul(x, w, name="product"), name="act")
        with env.session(g) as sess:
            sess.run(w.initializer)
            meta = tf.RunMetadata()
            value = sess.run(y, {x: np.ones((2, 4))}, options=tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), run_metadata=meta)
            names = {n.node_name.split(":")[0] for d in meta.step_stats.dev_stats for n in d.node_stats}
            devices = sorted({d.device for d in meta.step_stats.dev_stats if d.device.endswith("CPU:0")})
            positive = all(n.all_start_micros > 0 and n.all_end_rel_micros >= 0 for d in meta.step_stats.dev_stats for n in d.node_stats)
            drawn = timeline.Timeline(meta.step_stats).generate_chrome_trace_format()
            return [value, sorted(names & {"product", "act"}), devices, positive, '"name": "MatMul"' in drawn, json_format.MessageToDict(meta) != {}]


@script("metadata/partition_graphs", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        y = tf.add(tf.placeholder(tf.float32, name="x"), 1.0, name="y")
        with env.session(g) as sess:
            meta = tf.RunMetadata()
            sess.run(y, {"x:0": 1.0}, options=tf.RunOptions(output_partition_graphs=True), run_metadata=meta)
            return [len(meta.partition_graphs), sorted(n.op for n in meta.partition_graphs[0].node if n.name == "y")]


@script("metadata/none_by_default", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        with env.session(g) as sess:
            meta = tf.RunMetadata()
            sess.run(tf.constant(1), run_metadata=meta)
            return [len(meta.step_stats.dev_stats)]


@script("devices/list", **SERVER)
def _(env):
    with env.session(tf.Graph()) as sess:
        return [[(d.name, d.device_type) for d in sess.list_devices() if d.device_type == "CPU"]]


@script("devices/explicit", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        out = []
        for spec in ("/cpu:0", "/device:CPU:0", "/job:localhost/task:0", "/job:localhost/replica:0/task:0/device:CPU:0", "/replica:0"):
            with tf.device(spec):
                out.append(run(env, g, tf.constant(1) + 1))
    return out


@script("devices/unknown", **SERVER)
def _(env):
    out = []
    for spec in ("/cpu:7", "/job:nowhere/task:0", "/gpu:0", "/job:localhost/task:9"):
        with tf.Graph().as_default() as g:
            with tf.device(spec):
                out.append(run(env, g, tf.constant(1) + 1))
    return out


@script("devices/soft_placement", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        with tf.device("/gpu:0"):
            x = tf.constant(1) + 1
        with env.session(g, tf.ConfigProto(allow_soft_placement=True)) as sess:
            return [env.error(lambda: sess.run(x))]


@script("graph/no_kernel", **SERVER)
def _(env):
    out = []
    for build in (lambda: tf.raw_ops.Neg(x=tf.placeholder(tf.complex64)), lambda: tf.raw_ops.Softmax(logits=tf.placeholder(tf.half)),
                  lambda: tf.raw_ops.Cumsum(x=tf.placeholder(tf.uint64), axis=0),
                  lambda: tf.raw_ops.CudnnRNNParamsSize(num_layers=1, num_units=1, input_size=1, T=tf.float32, S=tf.int32),
                  lambda: tf.raw_ops.NcclAllReduce(input=tf.placeholder(tf.float32), reduction="sum", num_devices=1, shared_name="x")):
        with tf.Graph().as_default() as g:
            t = build()
            out.append(run(env, g, t, {p.outputs[0]: np.ones((2,), p.outputs[0].dtype.as_numpy_dtype) for p in g.get_operations() if p.type == "Placeholder"}))
    return out


@script("graph/control_dependencies_order", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable(1.0, name="v")
        with tf.control_dependencies([tf.assign(v, 5.0)]):
            a = tf.identity(v.read_value())
        with tf.control_dependencies([a]):
            with tf.control_dependencies([tf.assign_add(v, 1.0)]):
                b = tf.identity(v.read_value())
        with env.session(g) as sess:
            sess.run(v.initializer)
            return [sess.run([a, b]), sess.run([a, b]), sess.run(b)]


@script("graph/wide_and_deep", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32)
        chain = x
        for _ in range(300):
            chain = chain + 1.0
        wide = tf.add_n([x * float(i) for i in range(200)])
        return [run(env, g, [chain, wide], {x: 1.0})]


@script("graph/large_constant", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        c = tf.constant(np.arange(1 << 20, dtype=np.float32))
        return [run(env, g, [tf.reduce_max(c), c[17]])]


@script("graph/import_graph_def", **SERVER)
def _(env):
    with tf.Graph().as_default() as g1:
        x = tf.placeholder(tf.float32, [2], name="x")
        tf.identity(x * 3.0, name="y")
    with tf.Graph().as_default() as g2:
        (y,) = tf.import_graph_def(g1.as_graph_def(), input_map={"x:0": tf.constant([1.0, 2.0])}, return_elements=["y:0"], name="imported")
        return [run(env, g2, y)]


@script("graph/gradients", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, [3], name="x")
        y = tf.reduce_sum(tf.exp(x) * tf.sin(x) / (1.0 + x * x))
        return [run(env, g, tf.gradients(y, x), {x: [0.1, 0.5, 2.0]})]


@script("fetch/sparse_and_indexed", **SERVER)
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable(np.arange(8, dtype=np.float32).reshape(4, 2), name="v")
        y = tf.reduce_sum(tf.square(tf.gather(v, [1, 3, 1])))
        grad = tf.gradients(y, v)[0]
        sp = tf.sparse_placeholder(tf.float32)
        dense = tf.sparse.to_dense(sp) if hasattr(tf, "sparse") else tf.sparse_tensor_to_dense(sp)
        with env.session(g) as sess:
            sess.run(v.initializer)
            return [sess.run(grad), sess.run(sp, {sp: tf.SparseTensorValue([[0, 1], [1, 0]], [5.0, 6.0], [2, 2])}), dense is not None]


@script("fetch/raw_names", **SERVER)
def _(env):
    """Names python would refuse itself, sent as they are."""
    with tf.Graph().as_default() as g:
        a = tf.constant([1.0], name="a")
        n = tf.no_op(name="n")
        with env.session(g) as sess:
            sess.run(a)
            return [env.error(lambda: raw_run(sess, {}, [a._as_tf_output()], [n._c_op]))]
