"""Checkpoints through the client: each side saves and restores, TensorFlow in process reads what was written,
and the server reads what TensorFlow wrote. Errors name the key, dtype or shape."""
import os

import numpy as np

from registry import ALL, rnd, script, tf


def variables(use_resource, shapes=((3, 2), (4,), ())):
    return [tf.get_variable("v%d" % i, s, initializer=tf.random_normal_initializer(seed=i + 1), use_resource=use_resource) for i, s in enumerate(shapes)]


def in_checkpoint(path):
    """What real TensorFlow finds in a checkpoint: names, dtypes, shapes, values."""
    reader = tf.train.NewCheckpointReader(path)
    shapes, dtypes = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    return {n: [list(shapes[n]), dtypes[n].name, reader.get_tensor(n)] for n in shapes}


def files(folder):
    return sorted(os.listdir(folder))


for use_resource in (False, True):
    @script("save_restore_%s" % use_resource)
    def _(env, use_resource=use_resource):
        with tf.Graph().as_default() as g:
            vs = variables(use_resource)
            saver = tf.train.Saver()
            change = [v.assign(tf.zeros_like(v)) for v in vs]
            with env.session(g) as sess:
                sess.run(tf.global_variables_initializer())
                want = sess.run(vs)
                path = saver.save(sess, os.path.join(env.tmp, "model"), global_step=7)
                sess.run(change)
                zeros = sess.run(vs)
                saver.restore(sess, path)
                return [os.path.basename(path), want, zeros, sess.run(vs), in_checkpoint(path), files(env.tmp)]

    @script("tensorflow_writes_%s" % use_resource)
    def _(env, use_resource=use_resource):
        with tf.Graph().as_default() as g:
            vs = variables(use_resource)
            saver = tf.train.Saver()
            with tf.Session(graph=g) as local:
                local.run(tf.global_variables_initializer())
                path = saver.save(local, os.path.join(env.tmp, "model"))
            with env.session(g) as sess:
                saver.restore(sess, path)
                return sess.run(vs)

    @script("partitioned_%s" % use_resource)
    def _(env, use_resource=use_resource):
        def build(parts):
            v = tf.get_variable("p", [10, 3], initializer=tf.random_normal_initializer(seed=3), partitioner=tf.fixed_size_partitioner(parts),
                                use_resource=use_resource)
            return tf.convert_to_tensor(v), tf.train.Saver()
        with tf.Graph().as_default() as g:
            v, saver = build(3)
            with env.session(g) as sess:
                sess.run(tf.global_variables_initializer())
                want = sess.run(v)
                path = saver.save(sess, os.path.join(env.tmp, "model"))
            out = [want, in_checkpoint(path)]
        for parts in (1, 2, 3, 4):  # restored under other partitionings: slices are cut and joined
            env.reset()
            with tf.Graph().as_default() as g:
                v, saver = build(parts)
                with env.session(g) as sess:
                    saver.restore(sess, path)
                    out.append(sess.run(v))
        return out

    @script("sharded_%s" % use_resource)
    def _(env, use_resource=use_resource):
        with tf.Graph().as_default() as g:
            with tf.device("/cpu:0"):
                a = tf.get_variable("a", [3], initializer=tf.ones_initializer(), use_resource=use_resource)
            b = tf.get_variable("b", [2, 2], initializer=tf.zeros_initializer(), use_resource=use_resource)
            saver = tf.train.Saver(sharded=True)
            with env.session(g) as sess:
                sess.run(tf.global_variables_initializer())
                path = saver.save(sess, os.path.join(env.tmp, "model"))
                sess.run([a.assign([5.0, 5.0, 5.0])])
                saver.restore(sess, path)
                return [sess.run([a, b]), in_checkpoint(path), files(env.tmp)]


@script("every_dtype")
def _(env):
    with tf.Graph().as_default() as g:
        vs = {}
        for t in ALL:
            for i, s in enumerate(((2, 3), (), (0, 2))):
                vs["%s_%d" % (t.name, i)] = tf.Variable(rnd(s, t), dtype=t, name="%s_%d" % (t.name, i), use_resource=True)
        saver = tf.train.Saver(vs)
        with env.session(g) as sess:
            sess.run(tf.global_variables_initializer())
            path = saver.save(sess, os.path.join(env.tmp, "model"), write_meta_graph=False)
            saver.restore(sess, path)
            return [{k: sess.run(v) for k, v in vs.items()}, in_checkpoint(path)]


@script("keeps_last_five")
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable(0.0)
        saver = tf.train.Saver(max_to_keep=2)
        add = v.assign_add(1.0)
        with env.session(g) as sess:
            sess.run(v.initializer)
            for step in range(4):
                sess.run(add)
                saver.save(sess, os.path.join(env.tmp, "m"), global_step=step, write_meta_graph=False)
            saver.restore(sess, tf.train.latest_checkpoint(env.tmp))
            return [sess.run(v), files(env.tmp), [os.path.basename(c) for c in saver.last_checkpoints]]


@script("big_tensor")
def _(env):
    with tf.Graph().as_default() as g:
        v = tf.Variable(tf.reshape(tf.range(1 << 20, dtype=tf.float32), [1024, 1024]))
        total = tf.reduce_sum(v)
        saver = tf.train.Saver()
        with env.session(g) as sess:
            sess.run(v.initializer)
            path = saver.save(sess, os.path.join(env.tmp, "m"), write_meta_graph=False)
            sess.run(v.assign(tf.zeros([1024, 1024])))
            saver.restore(sess, path)
            return [sess.run(total), os.path.getsize(path + ".data-00000-of-00001")]


@script("bytes_equal_tensorflows")
def _(env):
    """The bundle of each side, byte for byte, beside TensorFlow's own of the same values."""
    with tf.Graph().as_default() as g:
        variables(False)
        saver = tf.train.Saver()
        init = tf.global_variables_initializer()
        with env.session(g) as sess, tf.Session(graph=g) as local:
            sess.run(init)
            local.run(init)
            ours = saver.save(sess, os.path.join(env.tmp, "ours"), write_meta_graph=False, write_state=False)
            theirs = saver.save(local, os.path.join(env.tmp, "theirs"), write_meta_graph=False, write_state=False)
        return [open(ours + s, "rb").read() == open(theirs + s, "rb").read() for s in (".index", ".data-00000-of-00001")]


def restore(prefix, names, slices, dtypes):
    return tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=names, shape_and_slices=slices, dtypes=dtypes)


def saved(env):
    """A checkpoint TensorFlow wrote: a=[1 2 3], m=[[1 2] [3 4]], s=["x" "yz"]."""
    prefix = os.path.join(env.tmp, "c")
    with tf.Graph().as_default() as g, tf.Session(graph=g) as local:
        local.run(tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["a", "m", "s"], shape_and_slices=["", "", ""], tensors=[
            tf.constant([1.0, 2.0, 3.0]), tf.constant([[1, 2], [3, 4]]), tf.constant(["x", "yz"])]))
    return prefix


@script("raw/restore")
def _(env):
    prefix = saved(env)
    out = []
    for names, slices, dtypes in [(["a"], [""], [tf.float32]), (["s", "m", "a"], [""] * 3, [tf.string, tf.int32, tf.float32]), (["a"], ["3 1,2"], [tf.float32]),
                                  (["m"], ["2 2 0,1:-"], [tf.int32]), (["m"], ["2 2 -:1,1"], [tf.int32]), (["nope"], [""], [tf.float32]), (["a"], [""], [tf.int32]),
                                  (["m"], ["3 2 0,1:-"], [tf.int32]), (["a"], ["3 2,2"], [tf.float32]), (["a"], ["x"], [tf.float32]), (["a", "m"], [""], [tf.float32, tf.int32]),
                                  (["a"], ["3 0,1,2"], [tf.float32]), (["a"], ["3"], [tf.float32])]:
        with tf.Graph().as_default() as g:
            fetch = restore(tf.placeholder_with_default(prefix, None), tf.placeholder_with_default(names, None), tf.placeholder_with_default(slices, None), dtypes)
            with env.session(g) as sess:
                out.append(env.error(lambda: sess.run(fetch)))
    return out


@script("raw/restore_missing_files")
def _(env):
    out = []
    for prefix in (os.path.join(env.tmp, "absent"), os.path.join(env.tmp, "no", "folder"), ""):
        with tf.Graph().as_default() as g:
            fetch = restore(tf.placeholder_with_default(prefix, None), ["a"], [""], [tf.float32])
            with env.session(g) as sess:
                out.append(env.error(lambda: sess.run(fetch)))
    return out


@script("raw/restore_damaged", text="the wording of a damaged table is the library's")
def _(env):
    out = []
    for damage in ("truncate_index", "flip_index", "truncate_data", "flip_data", "empty_index"):
        prefix = saved(env)
        path = prefix + (".index" if "index" in damage else ".data-00000-of-00001")
        data = bytearray(open(path, "rb").read())
        if damage.startswith("truncate"):
            data = data[:len(data) // 2]
        elif damage.startswith("flip"):
            data[len(data) // 3] ^= 0xFF
        else:
            data = bytearray()
        open(path, "wb").write(data)
        with tf.Graph().as_default() as g:
            fetch = restore(tf.placeholder_with_default(prefix, None), ["a", "m"], ["", ""], [tf.float32, tf.int32])
            with env.session(g) as sess:
                out.append(env.error(lambda: sess.run(fetch)))
    return out


@script("raw/save_errors")
def _(env):
    out = []
    prefix = os.path.join(env.tmp, "x")
    for names, slices, values in [(["a", "b"], [""], [1.0]), (["a"], ["3 0,2"], [[1.0, 2.0, 3.0]]), (["a"], ["zz"], [[1.0]]), (["a", "a"], ["", ""], [1.0, 2.0])]:
        with tf.Graph().as_default() as g:
            op = tf.raw_ops.SaveV2(prefix=tf.placeholder_with_default(prefix, None), tensor_names=tf.placeholder_with_default(names, None),
                                   shape_and_slices=tf.placeholder_with_default(slices, None), tensors=[tf.constant(v) for v in values])
            with env.session(g) as sess:
                out.append(env.error(lambda: sess.run(op)))
    return out


@script("raw/merge")
def _(env):
    with tf.Graph().as_default() as g:
        parts = [os.path.join(env.tmp, "tmp", "part-%d" % i) for i in range(2)]
        saves = [tf.raw_ops.SaveV2(prefix=p, tensor_names=["t%d" % i], shape_and_slices=[""], tensors=[tf.constant([float(i)] * 3)]) for i, p in enumerate(parts)]
        with tf.control_dependencies(saves):
            merge = tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=os.path.join(env.tmp, "merged"))
        with env.session(g) as sess:
            sess.run(merge)
            again = env.error(lambda: sess.run(tf.raw_ops.MergeV2Checkpoints(
                checkpoint_prefixes=[os.path.join(env.tmp, "none")], destination_prefix=os.path.join(env.tmp, "m2"))))
        return [in_checkpoint(os.path.join(env.tmp, "merged")), files(env.tmp), again]


@script("raw/slices_join")
def _(env):
    prefix = os.path.join(env.tmp, "s")
    with tf.Graph().as_default() as g:
        save = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=["w", "w"], shape_and_slices=["4 2 0,2:-", "4 2 2,2:-"], tensors=[
            tf.constant([[1.0, 2.0], [3.0, 4.0]]), tf.constant([[5.0, 6.0], [7.0, 8.0]])])
        with env.session(g) as sess:
            sess.run(save)
            out = [in_checkpoint(prefix)]
            for spec in ("", "4 2 1,2:-", "4 2 -:1,1", "4 2 3,1:0,1"):
                out.append(env.error(lambda spec=spec: sess.run(restore(prefix, ["w"], [spec], [tf.float32]))))
    return out


@script("meta_graph")
def _(env):
    with tf.Graph().as_default() as g:
        x = tf.placeholder(tf.float32, [None, 2], name="x")
        w = tf.get_variable("w", [2, 1], initializer=tf.ones_initializer())
        tf.matmul(x, w, name="y")
        with env.session(g) as sess:
            sess.run(tf.global_variables_initializer())
            path = tf.train.Saver().save(sess, os.path.join(env.tmp, "m"))
    with tf.Graph().as_default() as g:
        saver = tf.train.import_meta_graph(path + ".meta")
        with env.session(g) as sess:
            saver.restore(sess, path)
            return sess.run("y:0", {"x:0": np.ones((3, 2))})


@script("files/read_write_match")
def _(env):
    with tf.Graph().as_default() as g:
        name = os.path.join(env.tmp, "sub", "f.txt")
        write = tf.io.write_file(name, "contents\x00\xff")
        read = tf.io.read_file(name)
        match = tf.io.matching_files(os.path.join(env.tmp, "sub", "*.txt"))
        missing = tf.io.read_file(os.path.join(env.tmp, "absent"))
        with env.session(g) as sess:
            sess.run(write)
            return [sess.run(read), [os.path.basename(p) for p in sess.run(match).tolist()], env.error(lambda: sess.run(missing))]
