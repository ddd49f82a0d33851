"""Programs for cluster.py in which more than plain tensors crosses from task to task: partial runs, functions called on
another task, tensor lists."""
PS, WORKER = "/job:ps/task:0", "/job:worker/task:0"


def partial_run(tf, run):
    """Fed and fetched over several calls, part of it on the ps; and one that fails in the middle."""
    with run.graph() as graph:
        a, b, c = (tf.placeholder(tf.float32, [], name=n) for n in "abc")
        with run.device(PS):
            total = a + b
            product = total * c
            assertion = tf.debugging.check_numerics(c, "not a number")
        with run.device(WORKER):
            scaled = product * 10.0
    out = []
    with run.session(graph, 0) as session:
        for start in (1.0, 5.0):
            handle = session.partial_run_setup([total, product, scaled], [a, b, c])
            first = session.partial_run(handle, total, {a: start, b: 2.0})
            out += [first, session.partial_run(handle, [product, scaled], {c: first})]
        handle = session.partial_run_setup([total, assertion], [a, b, c])
        out.append(session.partial_run(handle, total, {a: 1.0, b: 1.0}))
        try:
            session.partial_run(handle, assertion, {c: float("nan")})
        except tf.errors.OpError:
            out.append("failed")
    with run.session(graph, 0) as session:
        out.append(session.run(scaled, {a: 1.0, b: 1.0, c: 2.0}))
    return out


def remote_call(tf, run):
    """A function of functions run on the ps, whose results and errors come back."""
    from tensorflow.python.framework import function
    from tensorflow.python.ops import functional_ops
    on_ps = "/job:ps/replica:0/task:0/device:CPU:0" if hasattr(run, "cluster") else "/device:CPU:0"
    with run.graph() as graph:
        x, n = tf.placeholder(tf.float32, [None], name="x"), tf.placeholder(tf.int32, [], name="n")

        @function.Defun(tf.float32)
        def double(a):
            return a * 2.0

        @function.Defun(tf.float32, tf.int32)
        def both(a, b):
            return double(a) + 1.0, 12 // b

        with run.device(WORKER):
            results = functional_ops.remote_call(target=on_ps, args=[x, n], Tout=[tf.float32, tf.int32], f=both)
            total = tf.reduce_sum(results[0])
    out = []
    with run.session(graph, 0) as session:
        for i in (3, 4):
            out += session.run([*results, total], {x: [1.0, float(i)], n: i})
        try:
            session.run(results, {x: [1.0], n: 0})
        except tf.errors.InvalidArgumentError as e:
            out.append("failed" if "ivision by zero" in e.message else e.message)
        out += session.run([*results], {x: [], n: 5})
    return out


def lists(tf, run):
    """Lists, with elements that are not there and with lists in them, optional values and ragged tensors, made on one
    task, changed on the other and taken apart on the first."""
    raw = tf.raw_ops
    with run.graph() as graph:
        x = tf.placeholder(tf.float32, [3, 2], name="x")
        with run.device(PS):
            made = raw.TensorListFromTensor(tensor=x, element_shape=tf.constant([2]))
            gaps = raw.TensorListReserve(element_shape=tf.constant([2]), num_elements=3, element_dtype=tf.float32)
            gaps = raw.TensorListSetItem(input_handle=gaps, index=1, item=x[0])
            words = raw.EmptyTensorList(element_shape=-1, max_num_elements=4, element_dtype=tf.string)
            nested = raw.EmptyTensorList(element_shape=tf.constant([], tf.int32), max_num_elements=-1, element_dtype=tf.variant)
            nested = raw.TensorListPushBack(input_handle=nested, tensor=made)
            maybe = raw.OptionalFromValue(components=[x[0], tf.constant("b")])
            nothing = raw.OptionalNone()
            ragged = raw.RaggedTensorToVariant(rt_nested_splits=[tf.constant([0, 1, 3], tf.int64)], rt_dense_values=x, batched_input=True)
        with run.device(WORKER):
            made = raw.TensorListPushBack(input_handle=made, tensor=x[1] * 10.0)
            gaps = raw.TensorListSetItem(input_handle=gaps, index=2, item=x[2])
            words = raw.TensorListPushBack(input_handle=words, tensor=tf.constant(["a", "bc"]))
            inner = raw.TensorListGetItem(input_handle=nested, index=0, element_shape=tf.constant([], tf.int32), element_dtype=tf.variant)
            inner = raw.TensorListStack(input_handle=inner, element_shape=tf.constant([2]), element_dtype=tf.float32)
            values = raw.OptionalGetValue(optional=maybe, output_types=[tf.float32, tf.string], output_shapes=[[2], []])
            has = [raw.OptionalHasValue(optional=maybe), raw.OptionalHasValue(optional=nothing)]
            rows = raw.RaggedTensorFromVariant(encoded_ragged=ragged, input_ragged_rank=0, output_ragged_rank=1,
                                               Tvalues=tf.float32, Tsplits=tf.int64)
        with run.device(PS):
            stacked = raw.TensorListStack(input_handle=made, element_shape=tf.constant([2]), element_dtype=tf.float32)
            filled = raw.TensorListStack(input_handle=gaps, element_shape=tf.constant([2]), element_dtype=tf.float32)
            count = raw.TensorListLength(input_handle=words)
            last = raw.TensorListPopBack(input_handle=words, element_shape=-1, element_dtype=tf.string).tensor
            joined = tf.strings.reduce_join(last)
    with run.session(graph, 0) as session:
        feed = {x: [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
        out = session.run([stacked, filled, count, inner, *has, values[0], *rows.output_nested_splits, rows.output_dense_values], feed)
        return out + [v.decode() for v in session.run([joined, values[1]], feed)]


def traces(tf, run):
    """A traced step names what crossed the network, and costs are reported when the session asks for them."""
    with run.graph() as graph:
        x = tf.placeholder(tf.float32, [2, 3], name="x")
        with run.device(PS):
            total = tf.reduce_sum(x * 2.0)
        with run.device(WORKER):
            y = total + 1.0
    config = tf.ConfigProto()
    config.graph_options.build_cost_model = 1
    target = run.cluster.target(0) if hasattr(run, "cluster") else ""
    options, metadata = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE), tf.RunMetadata()
    with tf.Session(target, graph=graph, config=config) as session:
        value = session.run(y, {x: [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]}, options=options, run_metadata=metadata)
    labels = [n.timeline_label for d in metadata.step_stats.dev_stats for n in d.node_stats if n.node_name == "RecvTensor"]
    came = any(l.startswith("[4B] [") and " from %s" % PS.replace("/task", "/replica:0/task") in l for l in labels) if target else True
    costs = {n.name: n for n in metadata.cost_graph.node}
    total = [n for name, n in costs.items() if name.split(":")[0] == "add"]
    return [value, "received" if came else str(labels), "costs" if total and total[0].compute_cost >= 0 else str(list(costs))]


PROGRAMS = [partial_run, remote_call, lists, traces]
