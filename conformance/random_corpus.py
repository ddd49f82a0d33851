"""Calls that work, taken from the graphs of the cases: where random_ops.py starts from when it changes a call a little.

Building every case's graph takes a while, so the calls are kept under target/conformance, keyed by the cases' text.
"""
import collections
import glob
import hashlib
import os
import pickle

HERE = os.path.dirname(os.path.abspath(__file__))
PER_OP = 12
# A change should not make a call large.
MOST_ELEMENTS = 4000


def calls(work, ops):
    """op → calls, as `random_ops` draws them."""
    text = open(os.path.abspath(__file__), "rb").read() + repr(sorted(ops)).encode()
    for path in sorted(glob.glob(os.path.join(HERE, "cases", "**", "*.py"), recursive=True)):
        text += open(path, "rb").read()
    kept = os.path.join(work, "corpus-%s.pickle" % hashlib.sha256(text).hexdigest()[:24])
    if os.path.exists(kept):
        with open(kept, "rb") as f:
            return pickle.load(f)
    found = harvest(set(ops))
    with open(kept + ".tmp", "wb") as f:
        pickle.dump(found, f)
    os.replace(kept + ".tmp", kept)
    return found


def harvest(ops):
    import harness
    import registry
    import tensorflow.compat.v1 as tf
    found = collections.defaultdict(list)
    for _, path in harness.case_files():
        for case in harness.load(path):
            if case.build is None or len(found[case.name.split("/")[0]]) >= PER_OP:
                continue
            context = registry.begin(case.name)
            graph = tf.Graph()
            try:
                with graph.as_default():
                    case.build()
            except Exception:  # a case that does not build is the harness's to report
                continue
            for op in graph.get_operations():
                if op.type in ops and len(found[op.type]) < PER_OP:
                    call = call_of(op, context.feeds)
                    if call is not None:
                        found[op.type].append(call)
    return {op: list_ for op, list_ in found.items() if list_}


def call_of(op, feeds):
    """One node whose inputs are fed or constant, as a call; None where they are not."""
    import tensorflow.compat.v1 as tf
    arrays = []
    for t in op.inputs:
        value = feeds.get(t)
        if value is None and t.op.type == "Const":
            value = tf.make_ndarray(t.op.node_def.attr["value"].tensor)
        if value is None or value.size > MOST_ELEMENTS or t.dtype in (tf.resource, tf.variant) or t.dtype._is_ref_dtype:
            return None
        arrays.append(value)
    inputs, at = {}, 0
    for arg in op.op_def.input_arg:
        if arg.number_attr or arg.type_list_attr:
            n = op.get_attr(arg.number_attr) if arg.number_attr else len(op.get_attr(arg.type_list_attr))
            inputs[arg.name] = arrays[at:at + n]
            at += n
        else:
            inputs[arg.name] = arrays[at]
            at += 1
    attrs = {}
    for attr in op.op_def.attr:
        value = plain(op.node_def.attr[attr.name], attr.type)
        if value is None and attr.type != "shape":
            return None
        attrs[attr.name] = value
    return dict(op=op.type, attrs=attrs, inputs=inputs)


def plain(value, kind):
    """An attribute as random_ops.py draws them."""
    def shape(s):
        return None if s.unknown_rank else [d.size for d in s.dim]
    if kind.startswith("list("):
        kind = kind[5:-1]
        if kind == "shape":
            return [shape(s) for s in value.list.shape]
        field = dict(int="i", float="f", bool="b", type="type", string="s").get(kind)
        return None if field is None else list(getattr(value.list, field))
    if kind == "shape":
        return shape(value.shape)
    field = dict(int="i", float="f", bool="b", type="type", string="s").get(kind)
    return None if field is None else getattr(value, field)


def changed(call, draw):
    """The call with one or two things changed by `draw`, a random_ops.Draw of the same op."""
    call = dict(op=call["op"], attrs=dict(call["attrs"]), inputs=dict(call["inputs"]))
    draw.attrs, draw.inputs = call["attrs"], call["inputs"]
    for _ in range(draw.pick([1, 1, 2])):
        draw.pick([retype, revalue, revalue, reshape, reattr])(call, draw)
    return call


def retype(call, draw):
    import tensorflow as tf
    names = [a for a in draw.op_def.attr if a.type == "type"]
    if not names:
        return
    attr = draw.pick(names)
    enum = draw.a_type(attr)
    dtype = tf.as_dtype(enum)

    def cast(array):
        if (array.dtype == object) != (dtype == tf.string):
            return draw.array(dtype, arg, list(array.shape))
        with draw.np.errstate(all="ignore"):
            return array.astype(object if dtype == tf.string else dtype.as_numpy_dtype)
    call["attrs"][attr.name] = enum
    for arg in draw.op_def.input_arg:
        if arg.type_attr == attr.name:
            value = call["inputs"][arg.name]
            call["inputs"][arg.name] = [cast(v) for v in value] if isinstance(value, list) else cast(value)


def one_input(call, draw, change):
    names = [n for n, v in call["inputs"].items() if not isinstance(v, list) or v]
    if not names:
        return
    name = draw.pick(names)
    value = call["inputs"][name]
    arg = next(a for a in draw.op_def.input_arg if a.name == name)
    if isinstance(value, list):
        value = list(value)
        i = draw.rng.randint(len(value))
        value[i] = change(value[i], arg)
        call["inputs"][name] = value
    else:
        call["inputs"][name] = change(value, arg)


def revalue(call, draw):
    import random_ops
    np = draw.np

    def change(array, arg):
        out = np.array(array)
        flat = out.reshape(-1)
        for _ in range(min(3, flat.size)):
            i = draw.rng.randint(flat.size)
            if out.dtype == object:
                flat[i] = draw.pick(random_ops.WORDS)
            elif out.dtype == bool:
                flat[i] = not flat[i]
            elif out.dtype.kind in "iu":
                flat[i] = np.array(max(int(flat[i]) + draw.pick([-2, -1, 1, 2, 5]), 0 if out.dtype.kind == "u" else -9)).astype(out.dtype)
            elif out.dtype.kind != "c":
                with np.errstate(all="ignore"):
                    flat[i] = np.array(draw.pick(random_ops.SPECIAL)).astype(out.dtype)
        return flat.reshape(out.shape)
    one_input(call, draw, change)


def reshape(call, draw):
    np = draw.np

    def change(array, arg):
        ways = [lambda a: a[None]]
        if array.ndim:
            ways += [lambda a: a[:0], lambda a: a[:1], lambda a: a[:-1] if len(a) else a, lambda a: a[0] if len(a) else a, lambda a: np.concatenate([a, a]),
                     lambda a: a[..., :1], lambda a: a[..., :0], lambda a: a.reshape(-1)]
        return np.array(draw.pick(ways)(np.array(array)))
    one_input(call, draw, change)


def reattr(call, draw):
    import random_ops
    names = [a for a in draw.op_def.attr if a.type != "type" and a.type != "list(type)" and a.name not in ("container", "shared_name")
             and not any(a.name == arg.number_attr for arg in draw.op_def.input_arg)]
    if names:
        attr = draw.pick(names)
        try:
            value = draw.attr(attr)
        except random_ops.Unfit:
            return
        if value is not None:
            call["attrs"][attr.name] = value
