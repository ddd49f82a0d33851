"""What `downpour inspect` says of files that TensorFlow wrote, beside what TensorFlow says of them.

  python inspect_files.py --server target/release/downpour --work target/inspect [--only NAME]
"""
import argparse
import collections
import json
import os
import random
import shutil
import struct
import subprocess
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1


class Tool:
    """The program, and a folder for the files of one case."""

    def __init__(self, options, name):
        self.program = options.server
        self.dir = os.path.join(options.work, name)
        shutil.rmtree(self.dir, ignore_errors=True)
        os.makedirs(self.dir)

    def path(self, *parts):
        return os.path.join(self.dir, *parts)

    def run(self, *args, code=0):
        done = subprocess.run([self.program, "inspect", *args], capture_output=True, text=True, timeout=120)
        if done.returncode != code:
            raise AssertionError("%s: exit %d, not %d: %s" % (args, done.returncode, code, done.stderr.strip()))
        if "panicked" in done.stderr:
            raise AssertionError("%s: %s" % (args, done.stderr))
        return done

    def json(self, *args, code=0):
        return json.loads(self.run(*args, "--json", code=code).stdout)


def same(what, ours, theirs):
    if ours != theirs:
        raise AssertionError("%s: ours %r, TensorFlow's %r" % (what, ours, theirs))


def save_v1(tool, name="model.ckpt", sharded=False, partitioned=False, devices=1, steps=(7,), v1_format=False):
    """Saves a model as a TF1 program does; returns the last prefix."""
    with tf.Graph().as_default() as graph, v1.Session(
            config=v1.ConfigProto(device_count={"CPU": max(devices, 1)})) as session:
        partitioner = v1.fixed_size_partitioner(3) if partitioned else None
        with v1.variable_scope("net", partitioner=partitioner):
            for i in range(3):
                with v1.device("/cpu:%d" % (i % devices)):
                    v1.get_variable("w%d" % i, initializer=v1.random_uniform_initializer(
                        -1, 2, seed=i), shape=[7, 4], dtype=[tf.float32, tf.float64, tf.float32 if partitioned else tf.float16][i], use_resource=i > 0)
        v1.train.get_or_create_global_step()
        v1.get_variable("names", initializer=tf.constant([b"a", b"", b"\xff\x00z"]), dtype=tf.string)
        v1.get_variable("flags", initializer=tf.constant([[True], [False]]))
        session.run(v1.global_variables_initializer())
        version = v1.train.SaverDef.V1 if v1_format else v1.train.SaverDef.V2
        saver = v1.train.Saver(sharded=sharded, write_version=version)
        for step in steps:
            prefix = saver.save(session, tool.path(name), global_step=step)
    return prefix


def check_listing(tool, prefix):
    """Names, shapes, types and figures of every tensor against TensorFlow's reader."""
    ours = tool.json("checkpoint", prefix, "--stats")
    same("problems", ours["problems"], 0)
    reader = tf.train.load_checkpoint(prefix)
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    listed = [(name, shape) for name, shape in tf.train.list_variables(prefix)]
    same("list", [(t["name"], t["shape"]) for t in ours["tensors"]], listed)
    for t in ours["tensors"]:
        name = t["name"]
        same(name + " dtype", t["dtype"], types[name].name)
        if types[name] in (tf.string, tf.variant):
            continue
        values = reader.get_tensor(name).astype(np.complex128 if types[name].is_complex else np.float64)
        values = np.abs(values) if types[name].is_complex else values
        stats = t["stats"]
        same(name + " count", stats["count"], values.size)
        if values.size:
            for key, want in (("min", values.min()), ("max", values.max()), ("mean", values.mean()), ("std", values.std())):
                if not np.isclose(stats[key], want, rtol=1e-6, atol=1e-9):
                    same("%s %s" % (name, key), stats[key], want)
            same(name + " zeros", stats["zeros"], int((values == 0).sum()))
    return len(listed), shapes


def checkpoints(tool):
    notes = []
    for kind in ({}, {"sharded": True, "devices": 2}, {"partitioned": True},
                 {"partitioned": True, "sharded": True, "devices": 3}):
        name = "_".join(sorted(kind)) or "plain"
        prefix = save_v1(tool, name, **kind)
        n, _ = check_listing(tool, prefix)
        done = tool.json("checkpoint", prefix, "--verify")
        same("ok", done["ok"], True)
        notes.append("%s %d" % (name, n))
    return ", ".join(notes)


def first_format(tool):
    prefix = save_v1(tool, "old", v1_format=True)
    ours = tool.json("checkpoint", prefix)
    same("format", ours["format"], "V1")
    listed = [(name, shape) for name, shape in tf.train.list_variables(prefix)]
    same("list", [(t["name"], t["shape"]) for t in ours["tensors"]], listed)
    return "%d tensors" % len(listed)


def every_type(tool):
    types = [np.float32, np.float64, np.int32, np.uint8, np.int16, np.int8, np.complex64, np.int64,
             np.uint16, np.complex128, np.float16, np.uint32, np.uint64]
    items = [("t/" + np.dtype(t).name, tf.constant(np.arange(6).reshape(2, 3).astype(t))) for t in types]
    items += [("t/bfloat16", tf.cast(tf.range(4), tf.bfloat16)), ("empty", tf.zeros([0, 3])), ("scalar", tf.constant(-2.5)),
              ("utf8/\u00e4", tf.constant(1.0)), ("bool", tf.constant([True, False]))]
    names, tensors = zip(*items)
    prefix = tool.path("all")
    tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(names), shape_and_slices=[""] * len(names), tensors=list(tensors))
    n, _ = check_listing(tool, prefix)
    for name, tensor in items:
        got = tool.json("checkpoint", prefix, "--tensor", name)[0]["values"]
        want = tensor.numpy()
        want = np.abs(want) if np.iscomplexobj(want) else want
        np.testing.assert_allclose(np.array(got, np.float64), want.astype(np.float64).ravel(), rtol=1e-6)
    return "%d tensors" % n


def keras_and_objects(tool):
    """Object-based checkpoints and SavedModels of TensorFlow 2."""
    module = tf.Module()
    module.w = tf.Variable(np.eye(3, dtype=np.float32), name="w")
    module.f = tf.function(lambda x: tf.matmul(x, module.w), input_signature=[tf.TensorSpec([None, 3], tf.float32, name="x")])
    path = tf.train.Checkpoint(module=module).save(tool.path("object"))
    n, _ = check_listing(tool, path)
    tf.saved_model.save(module, tool.path("model"), signatures={"serving_default": module.f})
    check_listing_prefix = tool.json("checkpoint", tool.path("model"))
    same("prefix", check_listing_prefix["prefix"], tool.path("model", "variables", "variables"))
    graph = tool.json("graph", tool.path("model"))
    same("kind", graph["kind"], "SavedModel")
    signature = [s for s in graph["graphs"][0]["signatures"] if s["name"] == "serving_default"][0]
    same("inputs", [(i["key"], i["dtype"], i["shape"]) for i in signature["inputs"]], [("x", "float32", "[?,3]")])
    return "%d tensors, %d functions" % (n, graph["graphs"][0]["functions"])


def differences(tool):
    a, b = tool.path("a"), tool.path("b")
    rng = np.random.RandomState(3)
    base = {"same": rng.randn(5), "moved": rng.randn(4, 4), "grown": rng.randn(2), "gone": rng.randn(1)}
    other = dict(base, moved=base["moved"] + np.eye(4) * 0.25, grown=rng.randn(3), fresh=rng.randn(2))
    del other["gone"]
    for prefix, values in ((a, base), (b, other)):
        names = sorted(values)
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names),
                          tensors=[tf.constant(values[n]) for n in names])
    got = {c["name"]: c for c in tool.json("checkpoint", a, "--diff", b, code=1)["changes"]}
    same("changes", {n: c["change"] for n, c in got.items()},
         {"moved": "values", "grown": "kind", "gone": "removed", "fresh": "added"})
    same("differing", (got["moved"]["differing"], got["moved"]["count"]), (4, 16))
    assert abs(got["moved"]["largest"] - 0.25) < 1e-12
    same("itself", tool.json("checkpoint", a, "--diff", a)["changes"], [])
    got = tool.json("checkpoint", a, "--diff", b, "--tolerance", "0.3", code=1)["changes"]
    same("tolerated", "moved" in [c["name"] for c in got], False)
    return "4 kinds of change"


def flipped_bits(tool):
    """Every flip inside a tensor is found, named and placed; listing never panics on any flip."""
    prefix = save_v1(tool, "flip")
    data, index = prefix + ".data-00000-of-00001", prefix + ".index"
    entries = [(p["offset"], p["bytes"], t["name"]) for t in tool.json("checkpoint", prefix)["tensors"] for p in t["parts"]]
    rng = random.Random(11)
    whole = {path: open(path, "rb").read() for path in (data, index)}
    flips = 0
    for path, n in ((data, 12), (index, 12)):
        for _ in range(n):
            at = rng.randrange(len(whole[path]))
            bad = bytearray(whole[path])
            bad[at] ^= 1 << rng.randrange(8)
            open(path, "wb").write(bad)
            try:
                done = tool.run("checkpoint", prefix, "--verify", "--json", code=1)
            except AssertionError:
                # Padding of the index's footer is nobody's; TensorFlow does not mind it either.
                if path == index and len(bad) - 48 <= at < len(bad) - 8:
                    continue
                raise
            flips += 1
            if path == data and done.stdout:
                owner = [name for start, size, name in entries if start <= at < start + size]
                found = json.loads(done.stdout)["damage"]
                same("flip at %d" % at, [d["tensor"] for d in found], owner)
        open(path, "wb").write(whole[path])
    for cut in (0, 1, len(whole[data]) // 2, len(whole[data]) - 1):
        open(data, "wb").write(whole[data][:cut])
        assert not tool.json("checkpoint", prefix, "--verify", code=1)["ok"]
    os.remove(data)
    found = tool.json("checkpoint", prefix, "--verify", code=1)["damage"]
    same("missing", [d["what"] for d in found], ["the file is missing"])
    return "%d flips" % flips


def records(tool):
    notes = []
    for kind in ("", "GZIP", "ZLIB"):
        path = tool.path("r" + kind)
        written = []
        with tf.io.TFRecordWriter(path, kind) as writer:
            for i in range(50):
                features = {"i": tf.train.Feature(int64_list=tf.train.Int64List(value=[i, -i])),
                            "x": tf.train.Feature(float_list=tf.train.FloatList(value=[i / 4] * (i % 3))),
                            "s": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"n%d" % i]))}
                example = tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
                written.append(example)
                writer.write(example)
        options = v1.io.TFRecordOptions({"": 0, "ZLIB": 1, "GZIP": 2}[kind])
        theirs = list(v1.io.tf_record_iterator(path, options))
        ours = tool.json("record", path, "--limit", "-1")
        same("count", ours["records"], len(theirs))
        same("sizes", [r["bytes"] for r in ours["shown"]], [len(r) for r in theirs])
        same("compression", ours["compression"], (kind or "none").lower())
        for record, data in zip(ours["shown"], theirs):
            example = tf.train.Example.FromString(data)
            for name, feature in example.features.feature.items():
                field = feature.WhichOneof("kind")
                values = list(getattr(feature, field).value)
                values = [v.decode() for v in values] if field == "bytes_list" else values
                same(name, record["features"][name], {"kind": field.split("_")[0], "values": values})
        notes.append("%s %d" % (kind or "plain", len(theirs)))
    # Damage: the data of record 20, then a length.
    plain = open(tool.path("r"), "rb").read()
    offsets = [r["offset"] for r in tool.json("record", tool.path("r"), "--limit", "-1")["shown"]]
    bad = bytearray(plain)
    bad[offsets[20] + 15] ^= 4
    open(tool.path("bad"), "wb").write(bad)
    ours = tool.json("record", tool.path("bad"), code=1)
    same("damage", ([d["offset"] for d in ours["damage"]], ours["records"]), ([offsets[20]], 49))
    bad[offsets[30]] ^= 4
    open(tool.path("bad"), "wb").write(bad)
    ours = tool.json("record", tool.path("bad"), code=1)
    same("damage", ([d["offset"] for d in ours["damage"]], ours["records"]), ([offsets[20], offsets[30]], 29))
    # A length of 2^62 whose own checksum is right.
    from tensorflow.python.lib.io import tf_record  # noqa: F401  (only to fail early where it moved)
    huge = struct.pack("<Q", 1 << 62)
    open(tool.path("huge"), "wb").write(huge + struct.pack("<I", masked_crc(huge)) + b"x" * 100)
    tool.run("record", tool.path("huge"), code=1)
    return ", ".join(notes)


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def events(tool):
    first, second = tool.path("one"), tool.path("two")
    with tf.Graph().as_default() as graph:
        tf.constant(1.0, name="c")
        writer = v1.summary.FileWriter(first, graph)
        for step in range(20):
            summary = v1.Summary(value=[v1.Summary.Value(tag="loss", simple_value=1.0 / (step + 1)),
                                        v1.Summary.Value(tag="acc", simple_value=step / 20)])
            writer.add_summary(summary, step)
        h = v1.HistogramProto(min=0, max=1, num=2, sum=1, sum_squares=1, bucket_limit=[0, 1], bucket=[1, 1])
        writer.add_summary(v1.Summary(value=[v1.Summary.Value(tag="h", histo=h)]), 3)
        writer.add_session_log(v1.SessionLog(status=v1.SessionLog.CHECKPOINT, checkpoint_path="/m-3"), 3)
        writer.close()
    writer = tf.summary.create_file_writer(second)
    with writer.as_default():
        for step in range(5):
            # What tf.summary.scalar and its like write; they themselves need TensorBoard.
            for tag, plugin, value in (("loss", "scalars", tf.constant(np.float32(step) ** 2)),
                                       ("weights", "histograms", tf.ones([3, 3])), ("note", "text", tf.constant("hello"))):
                tf.summary.write(tag, value, step=step, metadata=v1.SummaryMetadata(
                    plugin_data=v1.SummaryMetadata.PluginData(plugin_name=plugin)))
    writer.close()
    ours = {os.path.dirname(f["path"]): f for f in tool.json("events", tool.dir)["files"]}
    for folder in (first, second):
        theirs, graphs = collections.defaultdict(list), 0
        for event in v1.train.summary_iterator(ours[folder]["path"]):
            graphs += bool(event.graph_def)
            for value in event.summary.value:
                plain = value.WhichOneof("value") == "simple_value"
                number = value.simple_value if plain else (
                    tf.make_ndarray(value.tensor) if value.HasField("tensor") else None)
                theirs[value.tag].append((event.step, number, event.wall_time))
        tags = {t["tag"]: t for t in ours[folder]["tags"]}
        same("tags", {t: tags[t]["count"] for t in tags}, {t: len(theirs[t]) for t in theirs})
        same("graphs", ours[folder]["graphs"] + ours[folder]["meta_graphs"] > 0, graphs > 0)
        got = tool.json("events", folder, "--tag", "loss")[0]["points"]
        same("loss", [(p["step"], p["value"], p["wall_time"]) for p in got],
             [(step, float(value), time) for step, value, time in theirs["loss"]])
    kinds = {t["tag"]: t["kind"] for folder in (first, second) for t in ours[folder]["tags"]}
    same("kinds", kinds, {"loss": "scalars", "acc": "scalars", "h": "histograms", "weights": "histograms", "note": "text"})
    same("sessions", ours[first]["sessions"], [{"status": "checkpoint", "step": 3, "detail": "/m-3"}])
    # Torn at every tenth byte: never an error, never an event too many.
    path = ours[first]["path"]
    whole = open(path, "rb").read()
    for cut in range(0, len(whole), max(len(whole) // 10, 1)):
        open(path, "wb").write(whole[:cut])
        tool.json("events", path)
    bad = bytearray(whole)
    bad[len(bad) // 2] ^= 1
    open(path, "wb").write(bad)
    tool.run("events", path, code=1)
    return "%d tags" % sum(len(f["tags"]) for f in ours.values())


def mnist_graph():
    """A classifier with its gradients and optimizer, on two jobs."""
    graph = tf.Graph()
    with graph.as_default(), v1.device(v1.train.replica_device_setter(ps_tasks=2)):
        x = v1.placeholder(tf.float32, [None, 784], name="x")
        y = v1.placeholder(tf.int64, [None], name="y")
        with v1.variable_scope("hidden"):
            w = v1.get_variable("w", [784, 100])
            h = tf.nn.relu(tf.matmul(x, w) + v1.get_variable("b", [100]))
        with v1.variable_scope("softmax"):
            logits = tf.matmul(h, v1.get_variable("w", [100, 10])) + v1.get_variable("b", [10], use_resource=True)
        with tf.name_scope("loss"):
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        step = v1.train.get_or_create_global_step()
        v1.train.AdagradOptimizer(0.1).minimize(loss, global_step=step)
    return graph


def graphs(tool):
    graph = mnist_graph()
    definition = graph.as_graph_def()
    v1.train.write_graph(definition, tool.dir, "graph.pbtxt")
    v1.train.write_graph(definition, tool.dir, "graph.pb", as_text=False)
    with graph.as_default():
        v1.train.export_meta_graph(tool.path("m.meta"))
        v1.train.export_meta_graph(tool.path("m.pbtxt"), as_text=True)
        v1.summary.FileWriter(tool.path("events"), graph).close()
    event = [os.path.join(tool.path("events"), n) for n in os.listdir(tool.path("events"))][0]
    ops = collections.Counter(n.op for n in definition.node)
    devices = collections.Counter(n.device for n in definition.node)
    with graph.as_default():
        parameters = sum(v.shape.num_elements() for v in v1.global_variables())
    kinds = {}
    for path in ("graph.pb", "graph.pbtxt", "m.meta", "m.pbtxt", event):
        ours = tool.json("graph", tool.path(path))
        one = ours["graphs"][0]
        same("nodes", one["nodes"], len(definition.node))
        same("ops", {o["op"]: o["count"] for o in one["ops"]}, dict(ops))
        same("devices", {d["device"]: d["nodes"] for d in one["devices"]}, dict(devices))
        same("parameters", one["parameters"], parameters)
        kinds[os.path.basename(path)] = ours["kind"]
    import xml.dom.minidom
    svg = tool.run("graph", tool.path("graph.pb"), "--svg", "-").stdout
    xml.dom.minidom.parseString(svg)
    dot = tool.run("graph", tool.path("graph.pb"), "--dot", "-").stdout
    assert dot.startswith("digraph"), dot[:40]
    return "%d nodes as %s" % (len(definition.node), ", ".join(sorted(set(kinds.values()))))


def other_kinds(tool):
    """Each kind of file given to each command is refused in one line, never with a panic."""
    prefix = save_v1(tool, "m")
    paths = {"index": prefix + ".index", "data": prefix + ".data-00000-of-00001", "meta": prefix + ".meta",
             "state": tool.path("checkpoint"), "program": os.path.abspath(__file__), "null": "/dev/null",
             "zero": "/dev/zero", "missing": tool.path("missing"), "dir": tool.dir}
    with tf.io.TFRecordWriter(tool.path("records")) as writer:
        writer.write(b"hello")
    paths["records"] = tool.path("records")
    refused = 0
    for command in ("checkpoint", "events", "graph", "record"):
        for name, path in paths.items():
            done = subprocess.run([tool.program, "inspect", command, path], capture_output=True, text=True, timeout=60)
            if done.returncode == 0:
                continue
            refused += 1
            lines = done.stderr.strip().splitlines()
            assert len(lines) == 1 and lines[0].startswith("error: "), (command, name, done.stderr)
            assert done.returncode in (1, 2), (command, name, done.returncode)
    assert refused >= 20, refused
    return "%d refusals" % refused


CASES = [checkpoints, first_format, every_type, keras_and_objects, differences, flipped_bits, records, events, graphs, other_kinds]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server", required=True, help="the downpour program")
    p.add_argument("--work", required=True, help="folder for files")
    p.add_argument("--only", help="one case")
    options = p.parse_args()
    options.server = os.path.abspath(options.server)
    options.work = os.path.abspath(os.path.join(options.work, str(os.getpid())))
    passed, failed = 0, 0
    for case in CASES:
        name = case.__name__
        if options.only not in (None, name):
            continue
        try:
            note, passed = case(Tool(options, name)), passed + 1
            print("ok   inspect/%s: %s" % (name, note), flush=True)
        except Exception as e:
            failed += 1
            print("FAIL inspect/%s: %s: %s" % (name, type(e).__name__, e), flush=True)
    if not failed:
        shutil.rmtree(options.work, ignore_errors=True)
    print("inspect: %d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
