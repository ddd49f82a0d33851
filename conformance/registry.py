"""What a case file uses: `case`, `script`, and the helpers that make a case's inputs.

A case is one small v1 graph. Its build function runs inside a fresh graph and returns what to
fetch; inputs made with `inp` become placeholders of unknown shape, so that a wrong shape reaches
the kernel instead of stopping in the client. Nothing here talks to a server: harness.py does.
"""
import zlib

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_library, op_def_registry

raw = tf.raw_ops

FLOATS = [tf.float32, tf.float64]
SMALL_FLOATS = [tf.float16, tf.bfloat16]
INTS = [tf.int32, tf.int64]
SMALL_INTS = [tf.int8, tf.int16, tf.uint8, tf.uint16, tf.uint32, tf.uint64]
COMPLEX = [tf.complex64, tf.complex128]
NUMBERS = FLOATS + SMALL_FLOATS + INTS + SMALL_INTS + COMPLEX
ALL = NUMBERS + [tf.bool, tf.string]


class Error:
    """A TensorFlow error as a result: class name and the runtime's own message."""

    def __init__(self, kind, message):
        self.kind, self.message = kind, message

    def __repr__(self):
        return "%s: %s" % (self.kind, self.message)


class Steps(list):
    """Fetches to run one after the other in the same session; each may be (fetches, feeds)."""


class Case:
    """One comparison. `build` is given for graph cases, `body` for scripts."""

    def __init__(self, name, build=None, body=None, rtol=None, atol=None, text=True, oracle="local",
                 post=None, config=None):
        self.name, self.build, self.body = name, build, body
        self.rtol, self.atol = rtol, atol
        self.text = text
        self.oracle = oracle
        self.post = post
        self.config = config
        self.family = None


class _Context:
    """Inputs of the case being built."""

    def __init__(self, name):
        self.feeds = {}
        self.inits = []
        self.rng = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)


_registered = []
_context = None


def case(name, build, **options):
    """Registers a graph case.

    options: rtol/atol (tolerance; default by dtype, see README), text (True, or a reason why only
    the error's class is compared), oracle ("local", "server" where TF's own gRPC server answers
    otherwise than its in-process session, or "onednn" for a server with the kernels of oneDNN), post (function over the fetched values, both sides),
    config (function returning a ConfigProto).
    """
    _registered.append(Case(name, build=build, **options))


def script(name, **options):
    """Decorator: registers a function of (env) that opens sessions itself and returns values."""
    def register(body):
        _registered.append(Case(name, body=body, **options))
        return body
    return register


def take_registered():
    """Hands over (and forgets) what the case file just imported has registered."""
    global _registered
    taken, _registered = _registered, []
    return taken


def begin(name):
    """Starts the inputs of one case: every random draw depends on the case's name alone."""
    global _context
    _context = _Context(name)
    return _context


def to_array(value, dtype=None):
    """A numpy array in the type TensorFlow would feed."""
    if dtype is not None:
        dtype = tf.as_dtype(dtype).as_numpy_dtype
    elif isinstance(value, np.ndarray):
        return value
    else:
        probe = np.asarray(value)
        if probe.dtype.kind in "SUO":
            dtype = object
        elif probe.dtype.kind == "f":
            dtype = np.float32
        elif probe.dtype.kind in "iu":
            dtype = np.int32
        else:
            dtype = probe.dtype
    return np.array(value, dtype=dtype)


def inp(value, dtype=None, shape=None):
    """A placeholder fed with `value`; its static shape is unknown unless `shape` is given."""
    array = to_array(value, dtype)
    tensor = tf.placeholder(tf.as_dtype(array.dtype) if array.dtype != object else tf.string, shape)
    _context.feeds[tensor] = array
    return tensor


def const(value, dtype=None):
    """A Const node, so that folding and shape inference see the value."""
    array = to_array(value, dtype)
    return tf.constant(array, tf.string if array.dtype == object else tf.as_dtype(array.dtype))


def init(*ops):
    """Targets to run, in order, before the fetches."""
    _context.inits.extend(ops)


def steps(*fetches):
    """Runs each argument in turn in one session; an error at one step does not stop the next."""
    return Steps(fetches)


def rnd(shape, dtype=tf.float32, lo=-3, hi=3):
    """Random values of a shape: uniform in [lo, hi) (integers included, when unsigned from 0)."""
    rng = _context.rng
    dtype = tf.as_dtype(dtype)
    if dtype == tf.bool:
        return rng.rand(*shape) < 0.5 if shape else np.bool_(rng.rand() < 0.5)
    if dtype == tf.string:
        words = [b"", b"a", b"bc", b"\x00\xff", "ß".encode(), b"longer string value"]
        out = np.empty(shape, dtype=object)
        for i in np.ndindex(*shape):
            out[i] = words[rng.randint(len(words))]
        return out
    if dtype.is_complex:
        return np.array(rng.uniform(lo, hi, shape) + 1j * rng.uniform(lo, hi, shape), dtype.as_numpy_dtype)
    if dtype.is_integer:
        if dtype.is_unsigned:
            lo, hi = max(lo, 0), max(hi, 1)
        return np.array(rng.randint(int(lo), int(hi) + 1, shape), dtype.as_numpy_dtype)
    return np.array(rng.uniform(lo, hi, shape), dtype.as_numpy_dtype)


def allowed(op, attr="T"):
    """The ordinary dtypes an op's signature permits for a type attr (kernel or not)."""
    for a in op_def_registry.get(op).attr:
        if a.name == attr:
            values = [tf.as_dtype(t) for t in a.allowed_values.list.type]
            return [t for t in dict.fromkeys(values or ALL) if t in ALL]
    raise KeyError("%s has no attr %s" % (op, attr))


def any_op(name, **given):
    """A node of any registered op, also of those without a python function; attrs default as in C++."""
    definition = op_def_registry.get(name)
    inferred = {n for a in definition.input_arg for n in (a.type_attr, a.number_attr, a.type_list_attr)}
    for attr in definition.attr:
        if attr.name in given or attr.name in inferred or not attr.HasField("default_value"):
            continue
        kind = attr.default_value.WhichOneof("value")
        value = getattr(attr.default_value, kind)
        if kind == "list":
            value = next((list(v) for _, v in value.ListFields()), [])
        given[attr.name] = value
    return op_def_library.apply_op(name, name=name.lstrip("_"), **given)


def old_op(name, inputs, attrs, producer, outputs=1):
    """Outputs of an op that only graphs of old producers may hold: the case's graph becomes such a graph."""
    graph = tf.GraphDef()
    graph.versions.producer = producer
    node = graph.node.add(name="old", op=name)
    for i, tensor in enumerate(inputs):
        graph.node.add(name="in%d" % i, op="Placeholder").attr["dtype"].type = tensor.dtype.as_datatype_enum
        node.input.append("in%d" % i)
    for key, value in attrs.items():
        if isinstance(value, bool):
            node.attr[key].b = value
        elif isinstance(value, float):
            node.attr[key].f = value
        elif isinstance(value, int):
            node.attr[key].i = value
        elif isinstance(value, tf.DType):
            node.attr[key].type = value.as_datatype_enum
        else:
            node.attr[key].s = value.encode()
    found = tf.import_graph_def(graph, input_map={"in%d:0" % i: t for i, t in enumerate(inputs)},
                                return_elements=["old:%d" % i for i in range(outputs)], name="")
    return found if outputs > 1 else found[0]


def quantized(array, dtype):
    """A tensor of a quantized type with these integers, fed as plain ones."""
    plain = {"qint8": np.int8, "quint8": np.uint8, "qint16": np.int16, "quint16": np.uint16, "qint32": np.int32}
    return tf.bitcast(inp(np.asarray(array, plain[dtype.name])), dtype)


def short(dtype):
    """`f32`-like dtype names for case names."""
    names = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
    name = tf.as_dtype(dtype).name
    word = name.rstrip("0123456789")
    return names[word] + name[len(word):] if word in names else name
