"""Whole files, and checkpoints through the raw ops of both formats: what is on disk and how failures read."""
import os

import numpy as np

from registry import ALL, raw, rnd, script, tf


def run(env, build):
    """Fetches or the error of one small graph, paths in results made relative."""
    def body():
        with tf.Graph().as_default() as g:
            fetch = build()
            with env.session(g) as sess:
                return sess.run(fetch)
    value = env.error(body)
    strip = lambda v: v.replace(env.tmp.encode(), b"<tmp>") if isinstance(v, bytes) else v
    if isinstance(value, np.ndarray) and value.dtype == object:
        return np.array([strip(v) for v in value.ravel()], object).reshape(value.shape)
    return strip(value)


def fed(value, dtype=tf.string):
    """A value whose shape the client does not know."""
    array = np.array(value, object) if dtype == tf.string else np.array(value, dtype.as_numpy_dtype)
    return tf.placeholder_with_default(array if dtype == tf.string else tf.constant(array), None)


@script("read_and_write")
def _(env):
    path = os.path.join(env.tmp, "a/b/file")
    out = [run(env, lambda: raw.WriteFile(filename=fed(path), contents=fed(b"bytes \x00\xff"))), run(env, lambda: raw.ReadFile(filename=fed(path)))]
    out.append(run(env, lambda: raw.WriteFile(filename=fed(path), contents=fed(b""))))
    out.append(run(env, lambda: raw.ReadFile(filename=fed(path))))
    for build in (lambda: raw.ReadFile(filename=fed([path])), lambda: raw.ReadFile(filename=fed(path + ".none")), lambda: raw.ReadFile(filename=fed(env.tmp)),
                  lambda: raw.WriteFile(filename=fed([path]), contents=fed("x")), lambda: raw.WriteFile(filename=fed(path), contents=fed(["x"])),
                  lambda: raw.WriteFile(filename=fed(env.tmp), contents=fed("x"))):
        out.append(run(env, build))
    return out


@script("matching_files")
def _(env):
    for name in ("b1", "a1", "a2", "c"):
        open(os.path.join(env.tmp, name), "w").close()
    at = lambda p: os.path.join(env.tmp, p)
    return [run(env, lambda p=p: raw.MatchingFiles(pattern=fed(p))) for p in (at("a*"), at("?1"), at("[bc]*"), [at("c"), at("a?")], at("none*"), [[at("a*")]], [])]


@script("sharded_names")
def _(env):
    i = tf.int32
    return [run(env, b) for b in (
        lambda: raw.ShardedFilename(basename=fed("b"), shard=fed(3, i), num_shards=fed(100000, i)), lambda: raw.ShardedFilename(basename=fed("b"), shard=fed(-3, i), num_shards=fed(10, i)),
        lambda: raw.ShardedFilename(basename=fed(["b"]), shard=fed(3, i), num_shards=fed(10, i)), lambda: raw.ShardedFilename(basename=fed("b"), shard=fed([3], i), num_shards=fed(10, i)),
        lambda: raw.ShardedFilespec(basename=fed("b"), num_shards=fed(10, i)), lambda: raw.ShardedFilespec(basename=fed("b"), num_shards=fed([10], i)))]


@script("save_v2_checks")
def _(env):
    prefix = os.path.join(env.tmp, "ck")
    save = lambda p, n, s, t: run(env, lambda: raw.SaveV2(prefix=fed(p), tensor_names=fed(n), shape_and_slices=fed(s), tensors=[tf.constant(v) for v in t]))
    restore = lambda p, n, s, t: run(env, lambda: raw.RestoreV2(prefix=fed(p), tensor_names=fed(n), shape_and_slices=fed(s), dtypes=t))
    one = np.array([1.0], np.float32)
    out = [save(prefix, ["x", "y"], ["", ""], [np.array([1.0, 2.0], np.float32), np.array(["q"])])]
    out += [restore(prefix, ["y", "x"], ["", ""], [tf.string, tf.float32]), restore(prefix, ["x"], ["2 0,1"], [tf.float32])]
    for args in (([prefix, prefix], ["x"], [""], [one]), (prefix, "x", [""], [one]), (prefix, ["x", "y"], [""], [one]), (prefix, ["x"], [""], [one, one]),
                 (prefix, ["x", "x"], ["", ""], [one, one]), (prefix, ["x"], ["bogus"], [one]), (prefix, ["x"], ["4 0,2"], [one])):
        out.append(save(*args))
    save(prefix, ["x", "y"], ["", ""], [np.array([1.0, 2.0], np.float32), np.array(["q"])])
    for args in ((prefix, ["x"], [""], [tf.int32]), (prefix, ["z"], [""], [tf.float32]), (prefix + "none", ["z"], [""], [tf.float32]), (prefix, ["x"], ["", ""], [tf.float32]),
                 (prefix, ["x", "y"], ["", ""], [tf.float32]), ([prefix, prefix], ["x"], [""], [tf.float32]), (prefix, "x", "", [tf.float32]), (prefix, ["x"], ["3 0,1"], [tf.float32])):
        out.append(restore(*args))
    for p, d in (([prefix + "none"], prefix), ([prefix], [prefix]), (prefix, prefix), ([], prefix)):
        out.append(run(env, lambda p=p, d=d: raw.MergeV2Checkpoints(checkpoint_prefixes=fed(p), destination_prefix=fed(d))))
    return out


@script("save_v1")
def _(env):
    path = os.path.join(env.tmp, "v1")
    values = {t.name: rnd((2, 3), t) for t in ALL}
    out = []
    for t in ALL:
        name = path + t.name
        out.append(run(env, lambda: raw.Save(filename=fed(name), tensor_names=fed([t.name]), data=[tf.constant(values[t.name], t)])))
        out.append(run(env, lambda: raw.Restore(file_pattern=fed(name), tensor_name=fed(t.name), dt=t)))
        if os.path.exists(name):
            out.append(np.frombuffer(open(name, "rb").read(), np.uint8))
    return out


@script("save_slices_v1")
def _(env):
    path = os.path.join(env.tmp, "v1")
    slices = lambda n, s, t: run(env, lambda: raw.SaveSlices(filename=fed(path), tensor_names=fed(n), shapes_and_slices=fed(s), data=[tf.constant(np.array(v, np.float32)) for v in t]))
    out = [slices(["x", "x", "y"], ["4 0,2", "4 2,2", ""], [[1, 2], [3, 4], [[5, 6]]]), np.frombuffer(open(path, "rb").read(), np.uint8)]
    for name, spec, t in (("x", "", tf.float32), ("x", "4 1,2", tf.float32), ("y", "1 2 -:1,1", tf.float32), ("x", "3 0,1", tf.float32), ("x", "bogus", tf.float32),
                          ("x", "", tf.int32), ("z", "", tf.float32)):
        out.append(run(env, lambda: raw.RestoreSlice(file_pattern=fed(path), tensor_name=fed(name), shape_and_slice=fed(spec), dt=t)))
    out.append(run(env, lambda: raw.Restore(file_pattern=fed(path + "none"), tensor_name=fed("x"), dt=tf.float32)))
    out.append(run(env, lambda: raw.Restore(file_pattern=fed([path, path]), tensor_name=fed("x"), dt=tf.float32)))
    for args in ((["x"], ["4 0,2"], [[1, 2, 3]]), (["x"], ["4 0,2", ""], [[1, 2]]), (["x"], ["bogus"], [[1, 2]]), (["x", "y"], ["", ""], [[1]])):
        out.append(slices(*args))
    out.append(run(env, lambda: raw.Save(filename=fed([path, path]), tensor_names=fed(["x"]), data=[tf.constant(1.0)])))
    return out


@script("print_to_file")
def _(env):
    path = os.path.join(env.tmp, "lines")
    for text in ("one", "two"):
        run(env, lambda: raw.PrintV2(input=fed(text), output_stream="file://" + path, end=";"))
    bad = [run(env, lambda: raw.PrintV2(input=fed("x"), output_stream=s)) for s in ("bogus", "file://" + env.tmp + "/no/dir")]
    return [open(path).read()] + bad


@script("vocabulary")
def _(env):
    path = os.path.join(env.tmp, "vocab")
    with open(path, "w") as f:
        f.write('a,1\nb,2\n"c,c",3.5\nd,4\n')
    sample = lambda **kw: run(env, lambda: list(raw.FixedUnigramCandidateSampler(
        true_classes=fed([[1], [0]], tf.int64), num_true=1, num_sampled=2, unique=False, seed=1, seed2=2, vocab_file=path, **kw)))
    return [sample(range_max=4), sample(range_max=2, num_shards=2, shard=1), sample(range_max=3, num_shards=2, num_reserved_ids=1), sample(range_max=5)]
