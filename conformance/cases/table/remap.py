"""Warm starts: lines of a new vocabulary among those of an old one, and matrices moved accordingly."""
import os

import numpy as np

from registry import raw, script, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def write(folder, name, words):
    path = os.path.join(folder, name)
    with open(path, "w") as f:
        f.write("".join(w + "\n" for w in words))
    return path


@script("GenerateVocabRemapping")
def _(env):
    new, old = write(env.tmp, "new", ["a", "b", "c", "d"]), write(env.tmp, "old", ["d", "x", "a", "y"])
    out = []
    with tf.Graph().as_default() as g, env.session(g) as sess:
        def ask(offset, count, size=-1, new=new, old=old):
            op = raw.GenerateVocabRemapping(new_vocab_file=new, old_vocab_file=old, new_vocab_offset=offset, num_new_vocab=count, old_vocab_size=size)
            out.append(env.error(lambda: sess.run(op)))
        ask(0, 4)
        ask(1, 3)
        ask(0, 0)
        ask(4, 0)
        ask(2, 3)
        ask(0, 4, 2)
        ask(0, 4, 9)
        ask(0, 4, new="")
        ask(0, 4, old="")
        ask(0, 1, old=os.path.join(env.tmp, "nothing"))
    return out


@script("LoadAndRemapMatrix")
def _(env):
    path = os.path.join(env.tmp, "ckpt")
    out = []
    with tf.Graph().as_default() as g, env.session(g) as sess:
        m = tf.get_variable("m", initializer=np.arange(12, dtype=np.float32).reshape(4, 3))
        v = tf.get_variable("v", initializer=np.arange(3, dtype=np.float32))
        n = tf.get_variable("n", initializer=np.arange(4, dtype=np.int32).reshape(2, 2))
        sess.run(tf.global_variables_initializer())
        tf.train.Saver([m, v, n]).save(sess, path)

        def ask(rows, cols, fresh, shape, name="m", **attrs):
            op = raw.LoadAndRemapMatrix(ckpt_path=attrs.pop("path", path), old_tensor_name=name, row_remapping=tf.constant(rows, L), col_remapping=tf.constant(cols, L),
                                        initializing_values=tf.constant(fresh, F), num_rows=shape[0], num_cols=shape[1], **attrs)
            out.append(env.error(lambda: sess.run(op)))
        ask([0, 1, 2, 3], [], [], (4, 3))
        ask([3, 0], [], [], (2, 3))
        ask([3, -1, 0], [], [10, 11, 12], (3, 3))
        ask([1, -1], [2, 0, -1], [10, 11, 12, 13], (2, 3))
        ask([1, -1], [2, -1], [10, 11, 12], (2, 2), max_rows_in_memory=1)
        ask([-1, -1], [], [0, 1, 2, 3, 4, 5], (2, 3))
        ask([0, 3, 1], [1, 2, 0], [], (3, 3), max_rows_in_memory=2)
        ask([0, 0], [], [], (2, 3))
        ask([0, 1], [1, 1], [], (2, 2))
        ask([0, 1], [], [], (3, 3))
        ask([0, 1], [0], [], (2, 2))
        ask([0, 1], [], [], (2, 2))
        ask([-1], [], [1, 2], (1, 3))
        ask([0], [], [1, 2], (1, 3))
        ask([0], [], [], (1, 3), name="v")
        ask([0], [], [], (1, 2), name="n")
        ask([0], [], [], (1, 3), name="absent")
    return out
