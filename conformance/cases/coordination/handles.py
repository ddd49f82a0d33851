"""Tensors kept in a session between steps, by handle. TensorFlow's own server has none of it."""
from registry import script, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def in_session(name):
    """Registers a function of (env, sess), which runs in a graph of its own."""
    def register(body):
        def run(env):
            with tf.Graph().as_default() as g:
                with env.session(g) as sess:
                    return body(env, sess)
        script("SessionHandle/" + name)(run)
        return body
    return register


@in_session("life")
def _(env, sess):
    a, b = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])
    h = sess.run(tf.get_session_handle(a * b))
    p, x = tf.get_session_tensor(h.handle, F)
    out = [sess.run(x * 10.0, {p: h.handle}), sess.run(x, {p: h.handle}), h.eval()]
    q, gone = tf.delete_session_tensor(h.handle)
    sess.run(gone, {q: h.handle})

    def plain(f):
        e = env.error(f)
        if hasattr(e, "message"):
            e.message = e.message.replace(h.handle, "<handle>")
        return e
    out.append(plain(lambda: sess.run(x, {p: h.handle})))
    out.append(plain(lambda: sess.run(gone, {q: h.handle})))
    return out


@in_session("type")
def _(env, sess):
    h = sess.run(tf.get_session_handle(tf.constant([1.0, 2.0])))
    p, x = tf.get_session_tensor(h.handle, I)
    return [env.error(lambda: sess.run(x, {p: h.handle}))]


@in_session("dtypes")
def _(env, sess):
    out = []
    for value in (1.5, [1, 2], [b"a", b"bc"], [True, False], [[1j]]):
        t = tf.constant(value)
        h = sess.run(tf.get_session_handle(t))
        p, x = tf.get_session_tensor(h.handle, t.dtype)
        out.append(sess.run(x, {p: h.handle}))
    return out


@in_session("kept_across_updates")
def _(env, sess):
    v = tf.get_variable("v", [2], initializer=tf.zeros_initializer(), use_resource=True)
    sess.run(v.initializer)
    h = sess.run(tf.get_session_handle(v.read_value()))
    sess.run(tf.assign_add(v, [1.0, 1.0]))
    return [h.eval(), sess.run(v)]
