"""Reading from queues that stay empty: the wait ends with a deadline, with the session, with the queue."""
import threading

from registry import raw, script, tf


def reader():
    """A line reader whose queue of file names is empty."""
    queue = raw.FIFOQueueV2(component_types=[tf.string], shapes=[[]])
    lines = raw.TextLineReaderV2()
    return queue, raw.ReaderReadV2(reader_handle=lines, queue_handle=queue)


@script("wait/deadline")
def _(env):
    with tf.Graph().as_default() as g:
        _, read = reader()
        with env.session(g) as sess:
            return [env.error(lambda: sess.run(read, options=tf.RunOptions(timeout_in_ms=300))).kind for _ in range(2)]


@script("wait/closed_queue")
def _(env):
    with tf.Graph().as_default() as g:
        queue, read = reader()
        close = raw.QueueCloseV2(handle=queue)
        with env.session(g) as sess:
            out = []
            waiting = threading.Thread(target=lambda: out.append(env.error(lambda: sess.run(read)).kind))
            waiting.start()
            sess.run(close)
            waiting.join(30)
            return out + [waiting.is_alive()]


@script("wait/closed_session")
def _(env):
    with tf.Graph().as_default() as g:
        _, read = reader()
        sess = env.session(g)
        out = []
        waiting = threading.Thread(target=lambda: out.append(env.error(lambda: sess.run(read)).kind))
        waiting.start()
        while not waiting.is_alive():
            pass
        threading.Event().wait(0.5)
        sess.close()
        waiting.join(30)
        return [len(out), waiting.is_alive()]
