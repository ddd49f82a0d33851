"""Meta graphs: what Downpour's Rust API writes beside checkpoints, imported by TensorFlow, and the reverse.

Of each model with its optimizer a meta graph is written by one side; the other imports it, restores a checkpoint half-way
through training and goes on to the same losses. Called by optimizers.py, which says how models and feeds look.
"""
import os
import tempfile

import numpy as np

STEPS = 20
CASES = [("mlp", "momentum"), ("embedding", "adagrad"), ("parts", "named_adam")]


def jobs(tf, tool, targets):
    out = []
    for model, optimizer in CASES:
        for name, body in (("written", written), ("read", read)):
            out.append(("meta/%s/%s/%s" % (name, model, optimizer),
                        lambda b=body, m=model, o=optimizer: b(tf, tool, targets, m, o)))
    return out


def imported(tf, path):
    """A graph with all that a .meta file says of it, and its saver."""
    graph = tf.Graph()
    with graph.as_default():
        saver = tf.train.import_meta_graph(path)
        return graph, saver, tf.global_variables_initializer()


def train(tf, target, path, loss, feeds, steps, restore=None, save=None):
    """Losses of some steps of what a .meta file holds."""
    graph, saver, init = imported(tf, path)
    config = tf.ConfigProto(isolate_session_state=True)
    with tf.Session(target, graph=graph, config=config) as session:
        if restore:
            saver.restore(session, restore)
        else:
            session.run(init)
        op, = graph.get_collection("train_op")
        losses = []
        for i in steps:
            fed = {name + ":0": value for name, value in feeds(i).items()}
            losses.append(session.run([loss, op], fed)[0])
        step = session.run(graph.get_collection("global_step")[0])
        if save:
            saved = saver.save(session, save)
            assert saved == save, (saved, save)
        return np.array(losses), int(step)


def goes_on(tf, targets, path, loss, feeds, other=None):
    """Trains half on each target, saves, restores and goes on on each: the losses must be as if nothing was."""
    problems = []
    whole, step = train(tf, "", path, loss, feeds, range(STEPS))
    if step != STEPS:
        problems.append("after %d steps the count is %d" % (STEPS, step))
    for first, _, first_name in targets:
        with tempfile.TemporaryDirectory() as work:
            prefix = os.path.join(work, "model.ckpt")
            half, _ = train(tf, first, path, loss, feeds, range(STEPS // 2), save=prefix)
            for then, tolerance, then_name in targets:
                rest, step = train(tf, then, other or path, loss, feeds, range(STEPS // 2, STEPS), restore=prefix)
                got = np.concatenate([half, rest])
                if step != STEPS or not np.allclose(whole, got, rtol=tolerance * 10, atol=tolerance):
                    problems.append("%s then %s: step %d, losses %s... and %s..." % (
                        first_name, then_name, step, whole[-3:], got[-3:]))
    return problems


def written(tf, tool, targets, model, optimizer):
    """Ours, imported by TensorFlow."""
    import optimizers
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "ours.meta")
        answer, _ = tool.ask({"ask": "export", "path": path,
                              "training": {"model": model, "optimizer": optimizer}}, tf.GraphDef())
        trained, problems = answer["training"], []
        _, variables = optimizers.theirs(tf, model, optimizer, None)
        graph, saver, _ = imported(tf, path)
        with graph.as_default():
            for collection, want in (("global_variables", [v.name for v in variables]),
                                     ("trainable_variables", [v.name for v in variables if v.trainable])):
                got = [v.name for v in getattr(tf, collection)()]
                if got != want:
                    problems.append("%s: TensorFlow has %s, Downpour %s" % (collection, want, got))
            slices = {v.op.name: v._get_save_slice_info() for v in tf.global_variables()}
            for v in variables:
                want, got = v._get_save_slice_info(), slices.get(v.op.name)
                if bool(want) != bool(got) or (want and want.spec != got.spec):
                    problems.append("%s is another part" % v.op.name)
            if tf.train.get_global_step() is None:
                problems.append("no global step")
            if [op.name for op in graph.get_collection("train_op")] != [trained["train"]]:
                problems.append("train_op is %s" % graph.get_collection("train_op"))
        if saver.saver_def.max_to_keep != 3:
            problems.append("max_to_keep is %d" % saver.saver_def.max_to_keep)
        feeds = lambda i: optimizers.feeds(model, i)
        return problems + goes_on(tf, targets, path, trained["loss"], feeds)


def read(tf, tool, targets, model, optimizer):
    """TensorFlow's, read and written again by Downpour."""
    import optimizers
    program, variables = optimizers.theirs(tf, model, optimizer, None)
    with tempfile.TemporaryDirectory() as work:
        path, again = os.path.join(work, "theirs.meta"), os.path.join(work, "again.meta")
        with program.graph.as_default():
            for op in list(program.graph.get_collection_ref("train_op")):
                if op.name != program.names["train"]:
                    program.graph.get_collection_ref("train_op").remove(op)
            saver = tf.train.Saver()
            saver.export_meta_graph(path)
        answer, _ = tool.ask({"ask": "import", "path": path, "to": again}, tf.GraphDef())
        if answer.get("error"):
            return [answer["error"]]
        found, problems = answer["meta"], []
        want = sorted(program.graph.get_all_collection_keys())
        got = sorted(found["collections"])
        # TensorFlow drops empty collections when it writes.
        if [w for w in want if w in got] != got or "variables" not in got:
            problems.append("collections: TensorFlow has %s, Downpour %s" % (want, got))
        for what, want, got in (
                ("variables", [v.op.name for v in variables], [v["name"] for v in found["variables"]]),
                ("trainable", [v.op.name for v in variables if v.trainable], found["trainable"]),
                ("train_op", [program.names["train"]], found["train_op"])):
            if want != got:
                problems.append("%s: TensorFlow has %s, Downpour %s" % (what, want, got))
        for v, kept in zip(variables, found["variables"]):
            info = v._get_save_slice_info()
            want = (info.full_name, info.spec) if info else (v.op.name, "")
            if want != (kept["save_name"], kept["slice"]):
                problems.append("%s is kept as %s" % (v.op.name, kept))
        feeds = lambda i: optimizers.feeds(model, i)
        return problems + goes_on(tf, targets, path, program.names["loss"], feeds, other=again)
