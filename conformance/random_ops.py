"""Random calls of single ops, answered by TensorFlow and by a server, and compared. See README.md.

Every call is drawn from (seed, number) alone: dtypes among those the signature allows, small shapes (empty
ones, scalars and wrong ranks among them), attributes with their edges, special floats. TensorFlow answers
in a child process, because some calls kill it; so does the client of the server under test.

Nothing here decides what is right: TensorFlow's answer does, and `random_known.tsv` says where ours differs
on purpose.
"""
import argparse
import collections
import fnmatch
import multiprocessing
import os
import re
import resource
import sys
import time
import zlib

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)

CALL_TIMEOUT_S = 20
# A child that asks for more dies as TensorFlow does, without taking the machine with it.
CHILD_BYTES = 12 << 30

# Ops that are not called, and why.
SKIPPED = [
    ("_*", "internal"),
    ("*TPU*", "needs a TPU"), ("*Tpu*", "needs a TPU"), ("XlaHost*", "needs a TPU"), ("Xla*", "needs a compiler"), ("*Cudnn*", "needs a GPU"), ("Nccl*", "needs a GPU"),
    ("Collective*", "waits for other tasks"), ("Recv*", "waits for a sender"), ("Send*", "waits for a receiver"), ("*Barrier*", "waits"),
    ("*Queue*", "waits; a handle comes from another op"), ("*Stage*", "waits"), ("*Unstage*", "waits"), ("*Dataset*", "results are variants"), ("*Iterator*", "a handle comes from another op"),
    ("*Reader*", "reads files"), ("*File*", "reads or writes files"), ("Read*", "reads files"), ("Write*", "writes files"), ("*Save*", "writes files"), ("*Restore*", "reads files"),
    ("*Checkpoint*", "reads or writes files"), ("*Print*", "writes to a console"), ("Debug*", "writes to a debugger"), ("Abort", "ends the process"), ("PyFunc*", "calls the client's python"),
    ("EagerPyFunc", "calls the client's python"), ("*Summary*Writer*", "writes files"), ("*Timestamp*", "the time of day"), ("NonDeterministicInts", "not repeatable"), ("GenerateVocab*", "reads files"),
    ("*Mutex*", "waits"), ("*TensorArray*", "a handle comes from another op"), ("*Stack*", "a handle comes from another op"), ("Enter", "needs a frame"), ("Exit", "needs a frame"), ("NextIteration", "needs a frame"),
    ("Ref*", "needs a frame or a reference"), ("LoopCond", "needs a frame"), ("Switch", "dead outputs cannot be fetched"), ("Merge", "dead outputs cannot be fetched"), ("DecodeJpeg", "decoders differ in the last bit"),
    ("DecodeAndCropJpeg", "decoders differ in the last bit"), ("*RandomDataset*", "results are variants"), ("Rpc*", "needs a server"), ("TryRpc", "needs a server"), ("Batch", "waits for other calls"),
    ("Unbatch*", "waits for other calls"), ("*Uniform*Quant*", "results are quantized"), ("ImmutableConst", "reads files"), ("GetSession*", "a handle comes from another op"), ("DeleteSession*", "a handle comes from another op"),
    ("*Accumulator*", "waits; a handle comes from another op"), ("StatsAggregator*", "a handle comes from another op"), ("*MultiDevice*", "a handle comes from another op"), ("DeviceIndex", "the device's place"),
    ("ConfigureDistributed*", "needs a TPU"), ("Shutdown*", "needs a TPU"), ("InitializeTable*", "a handle comes from another op"), ("*LookupTable*", "a handle comes from another op"),
    ("DestroyTemporaryVariable", "a reference comes from another op"), ("TemporaryVariable", "leaks unless destroyed"), ("Placeholder*", "must be fed"), ("Where", "results come in any order of threads"),
    ("ParallelDynamicStitch", "any of several writers wins"), ("IsBoostedTreesEnsembleInitialized", "a handle comes from another op"), ("*Risc*", "has no kernel"), ("FakeQueue", "waits"), ("StopGradientV*", "has no kernel"),
    ("RegisterDataset*", "needs a service"), ("*OneShot*", "needs a function"), ("Skipgram", "reads files"), ("NegTrain", "trains on shared state"), ("RecordInput", "reads files"), ("AudioSpectrogram", "long"),
    ("*HashTable*", "names are counted"), ("FakeParam", "gives what memory held"), ("EncodePng", "compressors differ"), ("EncodeJpeg*", "compressors differ"), ("Copy*", "for the debugger"),
    ("CheckPinned", "needs a GPU"), ("StatefulRandomBinomial", "a handle comes from another op"), ("UnicodeTranscode", "encodings are another library's"), ("RandomGamma*", "libraries differ in their last bits, and then in how many draws"),
]


def skip_reason(op):
    return next((why for glob, why in SKIPPED if fnmatch.fnmatchcase(op, glob)), None)


class Unfit(Exception):
    """This op cannot be called here; the text says why."""


# --- Drawing -------------------------------------------------------------------------------------

SPECIAL = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, -1e30]
DIMS = [0, 1, 1, 2, 2, 3, 3, 4, 5]
WORDS = [b"", b"a", b"bc", b"a b c", b"\x00\xff", "ß€".encode(), b"1", b"-2.5", b"longer string value", b"0x1F", b"nan", b"a,b|c"]
# Arguments that hold positions, counts and shapes: small numbers, mostly valid.
COUNTS = re.compile(r"shape|size|dims|multiples|num_|depth|length|limit|crops|paddings|splits|rates|output|n$|k$|bins|count|row|lens")
PLACES = re.compile(r"axis|dim|indices|index|ids|begin|end|start|offset|perm|segment|position|batch_|seq|label|which|diagonal|shift|lower|upper|band")


class Draw:
    """One call's decisions."""

    def __init__(self, op_def, seed, number):
        import numpy as np
        self.np, self.op_def = np, op_def
        self.rng = np.random.RandomState(zlib.crc32(("%d/%d/%s" % (seed, number, op_def.name)).encode()) & 0x7FFFFFFF)
        self.attrs, self.inputs = {}, {}
        rank = self.pick([0, 1, 1, 2, 2, 2, 3, 4, 4])
        self.base = [self.pick(DIMS[2:] if rank == 4 else DIMS) for _ in range(rank)]
        self.wild = self.rng.rand() < 0.3

    def pick(self, items):
        return items[self.rng.randint(len(items))]

    def chance(self, p):
        return self.rng.rand() < p

    def call(self):
        for attr in self.op_def.attr:
            self.attrs[attr.name] = self.attr(attr)
        self.attrs = {k: v for k, v in self.attrs.items() if v is not None}
        for arg in self.op_def.input_arg:
            self.inputs[arg.name] = self.argument(arg)
        return dict(op=self.op_def.name, attrs=self.attrs, inputs=self.inputs)

    def types(self, attr):
        import registry
        import tensorflow as tf
        allowed = [tf.as_dtype(t) for t in attr.allowed_values.list.type]
        found = [t for t in (dict.fromkeys(allowed) if allowed else registry.ALL) if t in registry.ALL]
        if not found:
            raise Unfit("no ordinary dtype")
        return found

    def a_type(self, attr):
        import tensorflow as tf
        found = self.types(attr)
        common = [t for t in found if t in (tf.float32, tf.int32, tf.float64, tf.int64)]
        return self.pick(common if common and self.chance(0.6) else found).as_datatype_enum

    def attr(self, attr):
        kind, name = attr.type, attr.name
        if kind == "func" or kind == "list(func)":
            raise Unfit("takes a function")
        counts = {a.number_attr for a in self.op_def.input_arg}
        lists = {a.type_list_attr for a in self.op_def.input_arg} | {a.type_list_attr for a in self.op_def.output_arg}
        if kind == "type":
            return self.a_type(attr)
        if name in lists:
            least = attr.minimum if attr.has_minimum else 0
            return [self.a_type(attr) for _ in range(least + self.pick([0, 1, 2]))]
        if name in counts:
            return max(attr.minimum if attr.has_minimum else 1, self.pick([1, 2, 2, 3]))
        if name in ("seed", "seed2"):
            return int(self.rng.randint(1, 1000))
        if attr.HasField("default_value") and self.chance(0.5):
            return None
        if kind == "bool":
            return bool(self.rng.randint(2))
        if kind == "int":
            return self.an_int(attr)
        if kind == "float":
            return float(self.pick([0.0, 1.0, -1.0, 0.5, 2.0, 1e-3, 10.0] + (SPECIAL if self.wild else [])))
        if kind == "string":
            choices = list(attr.allowed_values.list.s)
            if choices:
                return self.pick(choices)
            if attr.HasField("default_value"):
                return None
            if name in ("container", "shared_name"):
                return b""
            return self.pick(WORDS)
        if kind == "shape":
            return self.a_shape_attr()
        if kind == "tensor":
            raise Unfit("takes a tensor as an attribute")
        if kind == "list(int)":
            n = max(attr.minimum if attr.has_minimum else 0, self.pick([0, 1, 2, 4, 4, 4, 5]))
            if "strides" in name or "ksize" in name or "dilations" in name:
                inner = [self.pick([1, 1, 2, 3]) for _ in range(max(n, 4) - 2)] if not self.wild else [self.pick([0, 1, 2, -1, 7]) for _ in range(max(n, 4) - 2)]
                return [1] + inner + [1]
            return [self.pick([0, 1, 1, 2, 3, -1]) for _ in range(n)]
        if kind == "list(float)":
            return [float(self.pick([0.0, 1.0, 0.5, -1.0])) for _ in range(self.pick([0, 1, 2, 3]))]
        if kind == "list(bool)":
            return [bool(self.rng.randint(2)) for _ in range(self.pick([0, 1, 2]))]
        if kind == "list(string)":
            if attr.allowed_values.list.s:
                return [self.pick(list(attr.allowed_values.list.s)) for _ in range(self.pick([0, 1, 2]))]
            return [self.pick(WORDS) for _ in range(self.pick([0, 1, 2]))]
        if kind == "list(type)":
            return [self.a_type(attr) for _ in range(self.pick([0, 1, 2]))]
        if kind == "list(shape)":
            return [self.a_shape_attr() for _ in range(self.pick([0, 1, 2]))]
        raise Unfit("takes an attribute of kind " + kind)

    def an_int(self, attr):
        low = attr.minimum if attr.has_minimum else None
        choices = [low, low + 1, low + 3] if low is not None else [-1, 0, 1, 2, 3]
        if attr.HasField("default_value"):
            choices += [attr.default_value.i, attr.default_value.i + 1]
        if self.wild and "num" not in attr.name and "size" not in attr.name and "max" not in attr.name:
            choices += [-7, 100]
        return int(self.pick(choices))

    def a_shape_attr(self):
        if self.chance(0.2):
            return None if self.chance(0.5) else [-1]
        return list(self.base) if self.chance(0.7) else [self.pick(DIMS) for _ in range(self.pick([0, 1, 2]))]

    def argument(self, arg):
        """One input: an array, a list of arrays, or what to make a variable of."""
        import tensorflow as tf
        if arg.type_list_attr:
            return [self.array(tf.as_dtype(t), arg) for t in self.attrs.get(arg.type_list_attr, self.default(arg.type_list_attr))]
        enum = arg.type or self.attrs.get(arg.type_attr, self.default(arg.type_attr) if arg.type_attr else 0)
        dtype = tf.as_dtype(enum)
        if dtype == tf.resource:
            attr = next((a.name for a in self.op_def.attr if a.type == "type" and a.name in ("T", "dtype")), None)
            if attr is None or arg.number_attr or not self.op_def.name.startswith(("Resource", "Assign", "VarIsInit", "VariableShape")):
                raise Unfit("a handle comes from another op")
            return ("resource", self.array(tf.as_dtype(self.attrs.get(attr, self.default(attr))), arg))
        if dtype == tf.variant:
            raise Unfit("a variant comes from another op")
        if arg.is_ref:
            if dtype == tf.string:
                raise Unfit("a handle comes from another op")
            return ("ref", self.array(dtype, arg))
        if arg.number_attr:
            shape = self.shape(dtype, arg)
            n = self.attrs.get(arg.number_attr, self.default(arg.number_attr))
            return [self.array(dtype, arg, shape if self.chance(0.85) else None) for _ in range(n)]
        return self.array(dtype, arg)

    def default(self, name):
        attr = next(a for a in self.op_def.attr if a.name == name)
        value = attr.default_value
        return {"type": value.type, "int": value.i, "list(type)": list(value.list.type)}[attr.type]

    def shape(self, dtype, arg):
        fixed_int = dtype.is_integer and (arg.type or arg.type_attr != "T")
        p = self.rng.rand()
        if fixed_int:
            if p < 0.4:
                return []
            if p < 0.85:
                return [self.pick([len(self.base), self.base[0] if self.base else 1, 1, 2, 3])]
        if p < 0.6:
            return list(self.base)
        if p < 0.72:
            return []
        if p < 0.82 and self.base:
            return [self.base[-1] if self.chance(0.5) else self.base[0]]
        if p < 0.9 and self.base:
            return [d if self.chance(0.6) else 1 for d in self.base[self.rng.randint(len(self.base)):]]
        return [self.pick(DIMS) for _ in range(self.pick([0, 1, 2, 3]))]

    def array(self, dtype, arg, shape=None):
        import tensorflow as tf
        np = self.np
        shape = self.shape(dtype, arg) if shape is None else shape
        n = int(np.prod(shape))
        if dtype == tf.string:
            out = np.empty(n, object)
            out[:] = [self.pick(WORDS) for _ in range(n)]
            return out.reshape(shape)
        if dtype == tf.bool:
            return np.array(self.rng.rand(n) < 0.5).reshape(shape)
        if dtype.is_integer:
            return self.integers(dtype, arg.name, n).reshape(shape)
        values = self.rng.uniform(-3, 3, n) if self.chance(0.6) else self.rng.uniform(0, 1, n)
        if dtype.is_complex:
            values = values + 1j * self.rng.uniform(-3, 3, n)
        # What infinities do in complex products is up to the compiler and the width of its vectors.
        if self.wild and not dtype.is_complex:
            for i in range(n):
                if self.chance(0.4):
                    values[i] = self.pick(SPECIAL)
        with np.errstate(all="ignore"):
            return values.astype(dtype.as_numpy_dtype).reshape(shape)

    def integers(self, dtype, name, n):
        np = self.np
        if COUNTS.search(name):
            values = self.rng.randint(0, 5, n) if self.chance(0.7) else self.rng.randint(-2, 6, n)
            if "splits" in name:
                values = np.sort(values)
                values[:1] = 0
        elif PLACES.search(name):
            values = self.rng.randint(0, 2, n) if self.chance(0.6) else self.rng.randint(-3, 5, n)
            if "perm" in name and self.chance(0.8):
                values = self.rng.permutation(n)
            if "segment" in name and self.chance(0.7):
                values = np.sort(np.abs(values))
        else:
            values = self.rng.randint(-5, 10, n)
            if self.wild and dtype.size >= 4 and self.chance(0.3) and name in ("x", "y", "a", "b", "value", "features"):
                values = np.array([self.pick([dtype.max, dtype.min, 0, 1, -1]) for _ in range(n)], object)
        if dtype.is_unsigned:
            values = np.abs(values)
        return np.array([int(v) for v in values], dtype.as_numpy_dtype) if n else np.zeros(0, dtype.as_numpy_dtype)


# --- Running (in a child) ------------------------------------------------------------------------

def build(tf, call, number):
    """The call as a graph: (feeds, initialisers, fetches, reads of the variables)."""
    from tensorflow.python.framework import op_def_library
    feeds, inits, reads, args = {}, [], [], {}

    def fed(array):
        dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
        p = tf.placeholder(dtype)
        feeds[p] = array
        return p

    def made(value, name):
        if isinstance(value, list):
            return [made(v, "%s_%d" % (name, i)) for i, v in enumerate(value)]
        if isinstance(value, tuple):
            kind, array = value
            dtype = tf.string if array.dtype == object else tf.as_dtype(array.dtype)
            shared = "random_%d_%s" % (number, name)
            if kind == "resource":
                h = tf.raw_ops.VarHandleOp(dtype=dtype, shape=tf.TensorShape(None), shared_name=shared)
                inits.append(tf.raw_ops.AssignVariableOp(resource=h, value=fed(array)))
                reads.append(tf.raw_ops.ReadVariableOp(resource=h, dtype=dtype))
                return h
            v = tf.raw_ops.VariableV2(shape=array.shape, dtype=dtype, shared_name=shared)
            inits.append(tf.raw_ops.Assign(ref=v, value=fed(array)).op)
            reads.append(tf.raw_ops.Identity(input=v))
            return v
        return fed(value)

    for name, value in call["inputs"].items():
        args[name] = made(value, name)
    inferred = {n for a in call_def(call["op"]).input_arg for n in (a.type_attr, a.number_attr, a.type_list_attr)}
    for name, value in call["attrs"].items():
        if name in inferred:
            continue
        if isinstance(value, list) and value and isinstance(value[0], list):
            value = [tf.TensorShape([None if d < 0 else d for d in s]) for s in value]
        args[name] = value
    kinds = {a.name: a.type for a in call_def(call["op"]).attr}
    for attr in call_def(call["op"]).attr:
        if attr.name not in inferred and attr.HasField("default_value"):
            args.setdefault(attr.name, None)
    for name in [n for n in call["attrs"] if n in args]:
        if kinds[name] == "shape":
            value = args[name]
            args[name] = tf.TensorShape(None if value is None else [None if d < 0 else d for d in value])
        elif kinds[name] == "list(shape)":
            args[name] = [tf.TensorShape(None) if v is None else tf.TensorShape([None if d < 0 else d for d in v]) if isinstance(v, list) else v for v in args[name]]
    # A name of its own: ops that keep something keep it under their name.
    name = "op%d" % number
    op_def_library.apply_op(call["op"], name=name, **args)
    op = tf.get_default_graph().get_operation_by_name(name)
    fetches = [t for t in op.outputs if t.dtype.base_dtype not in (tf.resource, tf.variant)]
    return feeds, inits, fetches or op, reads


def call_def(op):
    from tensorflow.python.framework import op_def_registry
    return op_def_registry.get(op)


def answer(tf, target, call, number):
    """What one side says: values, or an Error. None when the client refuses to build the call."""
    import compare
    import harness
    with tf.Graph().as_default() as graph:
        try:
            feeds, inits, fetches, reads = build(tf, call, number)
        except (ValueError, TypeError, RuntimeError, tf.errors.OpError):
            return None
        config = tf.ConfigProto(operation_timeout_in_ms=CALL_TIMEOUT_S * 500)
        try:
            with tf.Session(target, graph=graph, config=config) as sess:
                for op in inits:
                    sess.run(op, feeds)
                values = sess.run(fetches, feeds)
                return harness.plain([values, sess.run(reads, feeds)])
        except Exception as e:  # the error is the result
            error = compare.error_of(e)
            error.has_kernels = "no registered kernels" not in str(e)
            return error


def child(target, pipe):
    if not target:
        resource.setrlimit(resource.RLIMIT_AS, (CHILD_BYTES, CHILD_BYTES))
    # What TensorFlow says when it dies belongs to nobody.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    while True:
        try:
            number, call = pipe.recv()
        except EOFError:
            os._exit(0)
        pipe.send(answer(tf, target, call, number))


class Side:
    """One side's child process; a new one is started where the last has died."""

    def __init__(self, target):
        self.target, self.process, self.pipe = target, None, None
        self.start()

    def start(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process = context.Process(target=child, args=(self.target, far), daemon=True)
        self.process.start()
        far.close()

    def ask(self, number, call):
        self.pipe.send((number, call))

    def reply(self, timeout):
        """("answer", value), ("died", exit code) or ("hung", None)."""
        try:
            if self.pipe.poll(timeout):
                return "answer", self.pipe.recv()
            outcome = "hung", None
        except (EOFError, ConnectionError):
            self.process.join(5)
            outcome = "died", self.process.exitcode
        self.stop()
        self.start()
        return outcome

    def stop(self):
        self.process.kill()
        self.process.join()
        self.pipe.close()


# --- Comparing -----------------------------------------------------------------------------------

class Known:
    """`random_known.tsv`: a glob over ops, a regular expression over the difference, why we differ."""

    def __init__(self, path):
        self.lines = []
        for line in open(path) if os.path.exists(path) else []:
            if line.strip() and not line.startswith("#"):
                glob, pattern, reason = line.rstrip("\n").split("\t")
                self.lines.append((glob, re.compile(pattern), reason))

    def excuse(self, op, text):
        return next((why for glob, pattern, why in self.lines if fnmatch.fnmatchcase(op, glob) and pattern.search(text)), None)


class Loose:
    """Tolerances of a random call: its values may be ill-conditioned."""
    text, rtol, atol = "class only", None, None


WIDER = {"float32": (1e-3, 1e-4), "float64": (1e-6, 1e-8), "complex64": (1e-3, 1e-4), "complex128": (1e-6, 1e-8), "float16": (2e-2, 1e-2), "bfloat16": (6e-2, 5e-2)}


def difference(want, got, texts):
    import compare
    compare.TOLERANCE.update(WIDER)
    case = Loose()
    case.text = True if texts else "class only"
    return "; ".join(compare.differences(case, want, got))


def shown(call):
    def value(v):
        if isinstance(v, list):
            return "[%s]" % ", ".join(map(value, v))
        if isinstance(v, tuple):
            return "%s(%s)" % (v[0], value(v[1]))
        text = " ".join(str(v.tolist()).split())
        return "%s%s %s" % (v.dtype, list(v.shape), text if len(text) < 160 else text[:160] + "…")
    return "%s(%s)" % (call["op"], ", ".join(["%s=%s" % (k, value(v)) for k, v in call["inputs"].items()] + ["%s=%r" % kv for kv in call["attrs"].items()]))


def candidates(globs):
    """Ops to draw from, with the reasons of those that are not."""
    from tensorflow.python.framework import op_def_registry
    import tensorflow as tf
    names = sorted({n for n in tf.raw_ops.__dict__ if not n.startswith("_") and op_def_registry.get(n) is not None})
    chosen, left = [], {}
    for name in names:
        if globs and not any(fnmatch.fnmatchcase(name, g) for g in globs):
            continue
        why = skip_reason(name)
        if why is None:
            try:
                Draw(op_def_registry.get(name), 0, 0).call()
            except Unfit as e:
                why = str(e)
        if why is None:
            chosen.append(name)
        else:
            left[name] = why
    return chosen, left


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--server-cmd", help="starts the server under test; {port} is replaced")
    p.add_argument("--target", help="a server that already runs, grpc://host:port")
    p.add_argument("--tf", action="store_true", help="TensorFlow's own server is the one under test")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--count", type=int, default=2000, help="calls to draw")
    p.add_argument("--start", type=int, default=0, help="number of the first call: with --count 1, one call again")
    p.add_argument("--seconds", type=float, help="stop drawing after this long")
    p.add_argument("--op", action="append", default=[], metavar="GLOB", help="only ops whose name matches")
    p.add_argument("--cases", action="store_true", help="start from the cases' calls where there are any, and change them a little")
    p.add_argument("--texts", action="store_true", help="compare error texts too, not only their classes")
    p.add_argument("--show", action="store_true", help="print every call and TensorFlow's answer")
    p.add_argument("--skipped", action="store_true", help="print which ops are not called, and why")
    p.add_argument("--work", default=os.path.join(HERE, "..", "target", "conformance"))
    return p.parse_args()


class Tally:
    def __init__(self):
        self.passed = self.failed = self.known = self.unbuilt = 0
        self.errors = 0
        self.died, self.missing, self.failing = collections.Counter(), collections.Counter(), collections.Counter()


def main():
    options = arguments()
    os.makedirs(options.work, exist_ok=True)
    import tensorflow.compat.v1 as tf
    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.FATAL)
    import random_corpus
    import servers
    ops, left = candidates(options.op)
    if options.skipped:
        for name, why in sorted(left.items()):
            print("  %-40s %s" % (name, why))
    if not ops:
        sys.exit("no such op, or one that is skipped: %s" % left)
    server = None
    if options.tf:
        options.server_cmd = servers.TF_SERVER
    if options.target is None:
        if not options.server_cmd:
            sys.exit("say which server to test: --server-cmd, --target or --tf")
        server = servers.Server(options.server_cmd, os.path.join(options.work, "random.log"))
        options.target = server.target
    corpus = random_corpus.calls(options.work, ops) if options.cases else {}
    known, tally = Known(os.path.join(HERE, "random_known.tsv")), Tally()
    start = time.time()
    oracle, subject = Side(""), Side(options.target)
    try:
        for number in range(options.start, options.start + options.count):
            if options.seconds and time.time() - start > options.seconds:
                break
            name = ops[zlib.crc32(b"%d.%d" % (options.seed, number)) % len(ops)]
            draw = Draw(call_def(name), options.seed, number)
            try:
                if name in corpus and draw.chance(0.8):
                    call = random_corpus.changed(draw.pick(corpus[name]), draw)
                else:
                    call = draw.call()
            except Unfit:
                tally.unbuilt += 1
                continue
            if tally.died[name] >= 3 or tally.missing[name]:
                continue
            one(options, tally, known, oracle, subject, server, number, call)
    finally:
        oracle.stop()
        subject.stop()
        if server is not None:
            server.stop()
    print("%d ops, %d not called; the client refused %d calls; TensorFlow answered %d with an error; %.0f s" % (
        len(ops), len(left), tally.unbuilt, tally.errors, time.time() - start))
    for title, counter in (("TensorFlow died", tally.died), ("no kernel here", tally.missing), ("differ", tally.failing)):
        if any(counter.values()):
            print("%s: %s" % (title, ", ".join("%s (%d)" % c for c in counter.most_common() if c[1])))
    if tally.known:
        print("known differences (random_known.tsv says why): %d" % tally.known)
    print("random ops: %d passed, %d failed" % (tally.passed, tally.failed))
    return 1 if tally.failed or not tally.passed else 0


def one(options, tally, known, oracle, subject, server, number, call):
    import compare
    import registry
    name = call["op"]
    oracle.ask(number, call)
    how, want = oracle.reply(CALL_TIMEOUT_S + 40)
    if how != "answer":
        tally.died[name] += 1
        if options.show:
            print("%6d %s\n       TensorFlow %s" % (number, shown(call), how))
        return
    if want is None:
        tally.unbuilt += 1
        return
    subject.ask(number, call)
    how, got = subject.reply(CALL_TIMEOUT_S + 40)
    tally.errors += isinstance(want, registry.Error)
    if options.show:
        print("%6d %s\n       %s" % (number, shown(call), compare.show(want)))
    if isinstance(got, registry.Error) and not got.has_kernels and (not isinstance(want, registry.Error) or want.has_kernels):
        tally.missing[name] += 1
        return
    if server is not None and server.is_dead():
        text = "the server died (code %s)" % server.process.returncode
        server.restart()
        subject.target = server.target
        subject.stop()
        subject.start()
    elif how != "answer":
        text = "the client of the server %s" % how
    else:
        text = difference(want, got, options.texts)
    if not text:
        tally.passed += 1
    elif known.excuse(name, text) is not None:
        tally.known += 1
    else:
        tally.failed += 1
        tally.failing[name] += 1
        print("FAIL %d (%s--seed %d --start %d --count 1%s) %s\n     %s" % (number, "--cases " if options.cases else "", options.seed, number, "".join(" --op '%s'" % g for g in options.op), shown(call), text[:600]), flush=True)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
