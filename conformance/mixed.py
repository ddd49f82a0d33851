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


PROGRAMS = [partial_run]
