"""The ops of the sweep: what each is given, small, medium and large.

`TABLE` names the ops whose inputs must fit together. Any other op gets inputs by its signature: several guesses, of which
TensorFlow's server takes the first it can run. Inputs are variables of the server and every copy of an op reads them
anew, so that nothing is sent, folded or merged.
"""
import zlib

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import op_def_registry

raw = tf.raw_ops
F32, F64, F16, I32, I64 = "float32", "float64", "float16", "int32", "int64"
C64, STR, BOOL, U8 = "complex64", "string", "bool", "uint8"


class Row:
    """One graph for both servers."""
    kind = "op"

    def __init__(self, name, dtype, size, graph, inits, targets):
        self.name, self.dtype, self.size = name, dtype, size
        self.graph, self.inits, self.targets = graph, inits, targets

    def stepper(self, session):
        return session.make_callable(self.targets)

    def forget(self):
        self.graph = self.inits = self.targets = None


class Given:
    """Inputs for the copies of one op: the n-th one a copy asks for is the same variable in every copy."""

    def __init__(self, name, dtype, size):
        self.T, self.size = tf.as_dtype(dtype), size
        self.rng = np.random.RandomState(zlib.crc32(name.encode()) & 0x7FFFFFFF)
        self.inits, self.variables, self.at, self.after = [], [], 0, []

    def n(self, *choices):
        """One of three numbers, by size."""
        return choices[self.size]

    def var(self, make, dtype=None):
        dtype = tf.as_dtype(dtype or self.T)
        if self.at == len(self.variables):
            value = np.asarray(make())
            name = "v%d" % self.at
            with tf.control_dependencies(None):
                handle = raw.VarHandleOp(dtype=dtype, shape=value.shape, shared_name=name)
                fed = tf.placeholder(dtype, value.shape)
                self.inits.append((raw.AssignVariableOp(resource=handle, value=fed), {fed: value}))
            self.variables.append((handle, dtype, value.shape))
        handle, dtype, shape = self.variables[self.at]
        self.at += 1
        out = raw.ReadVariableOp(resource=handle, dtype=dtype)
        out.set_shape(shape)
        return out

    def f(self, *shape, lo=-1.0, hi=1.0, dtype=None):
        """Random numbers of the row's type (or another)."""
        dtype = tf.as_dtype(dtype or self.T)
        def make():
            if dtype == tf.bool:
                return self.rng.rand(*shape) < 0.5
            if dtype == tf.string:
                return self.strings(shape)
            if dtype.is_integer:
                return self.rng.randint(1, 100, shape).astype(dtype.as_numpy_dtype)
            if dtype.is_complex:
                return (self.rng.uniform(lo, hi, shape) + 1j * self.rng.uniform(lo, hi, shape)).astype(dtype.as_numpy_dtype)
            return self.rng.uniform(lo, hi, shape).astype(dtype.as_numpy_dtype)
        return self.var(make, dtype)

    def i(self, high, *shape, dtype=I32, low=0):
        return self.var(lambda: self.rng.randint(low, max(high, low + 1), shape).astype(dtype), dtype)

    def array(self, value, dtype=None):
        value = np.asarray(value, dtype=tf.as_dtype(dtype).as_numpy_dtype if dtype and dtype != STR else None)
        return self.var(lambda: value, dtype or tf.as_dtype(value.dtype))

    def c(self, value, dtype=None):
        return tf.constant(value, dtype)

    def s(self, *shape, words=2):
        return self.var(lambda: self.strings(shape, words), STR)

    def strings(self, shape, words=2):
        count = int(np.prod(shape))
        bag = ["alpha", "be", "gamma delta", "x", "epsilon", "zeta-eta", "theta", "12", "iota kappa lambda"]
        pick = self.rng.randint(0, len(bag), (count, words))
        return np.array([" ".join(bag[j] for j in p) for p in pick], dtype=object).reshape(shape)

    def once(self, make):
        """Something all copies share (a table, a queue): made before the first of them."""
        if self.at == len(self.variables):
            with tf.control_dependencies(None):
                self.variables.append(make())
        self.at += 1
        return self.variables[self.at - 1]


def build(name, dtype, size, body, copies):
    graph = tf.Graph()
    with graph.as_default():
        given, targets = Given(name, dtype, size), []
        previous = []
        for _ in range(copies):
            given.at = 0
            with tf.control_dependencies(previous):
                out = body(given)
            op = operation(out)
            targets.append(op)
            if size == 2:
                previous = [op]
    return graph, given.inits, targets


def operation(out):
    while not isinstance(out, tf.Operation):
        out = out.op if isinstance(out, tf.Tensor) else out[0] if out else None
        if out is None:
            raise ValueError("an op without outputs")
    return out


TABLE = {}


def op(names, body, *dtypes):
    for name in names.split():
        TABLE[name] = (lambda h, name=name: body(h, getattr(raw, name)), dtypes or (F32,))


# Elementwise. Lists by what TensorFlow takes; ranges where the function is defined.
V = (64, 10_000, 1_000_000)


def unary(names, *dtypes, lo=-1.0, hi=1.0, arg="x"):
    op(names, lambda h, o: o(**{arg: h.f(h.n(*V), lo=lo, hi=hi)}), *dtypes)


unary("Abs Neg Sign Square", F32, F64, I32, I64, F16)
unary("Exp Expm1 Sin Cos Tan Tanh Sigmoid Sinh Cosh Asinh Atan Erf Ceil Floor Rint Round Inv Reciprocal", F32, F64, F16)
unary("Sqrt Rsqrt Log Log1p Lgamma Digamma", F32, F64, F16, lo=0.1, hi=5)
unary("Acosh", F32, lo=1.5, hi=4)
unary("Acos Asin Atanh Erfc Erfinv Ndtri", F32, F64, lo=0.05, hi=0.95)
unary("BesselI0e BesselI1e BesselI0 BesselI1 BesselJ0 BesselJ1 BesselK0 BesselK1 BesselK0e BesselK1e BesselY0 BesselY1 "
      "Dawsn Expint FresnelCos FresnelSin Spence", F32, F64, lo=0.1, hi=5)
unary("IsNan IsInf IsFinite", F32, F64)
unary("Relu Relu6 Elu Selu Softplus Softsign", F32, F64, F16, arg="features")
unary("LeakyRelu", F32, F64, arg="features")
unary("LogicalNot", BOOL)
unary("Invert", I32, I64, U8)
unary("PopulationCount", I32, I64)
unary("Conj Real Imag Angle ComplexAbs", C64, arg="input")
TABLE["ComplexAbs"] = (lambda h: raw.ComplexAbs(x=h.f(h.n(*V))), (C64,))


def binary(names, *dtypes, lo=-1.0, hi=1.0):
    op(names, lambda h, o: o(x=h.f(h.n(*V), lo=lo, hi=hi), y=h.f(h.n(*V), lo=lo, hi=hi)), *dtypes)


binary("Add AddV2 Sub Mul Maximum Minimum SquaredDifference", F32, F64, I32, I64, F16)
binary("Div RealDiv FloorDiv FloorMod Mod TruncateDiv TruncateMod DivNoNan MulNoNan Xdivy Xlogy Xlog1py Pow Atan2 NextAfter",
       F32, F64, I32, I64, lo=0.5, hi=2)
binary("Less LessEqual Greater GreaterEqual Equal NotEqual ApproximateEqual", F32, F64, I32, I64)
binary("LogicalAnd LogicalOr", BOOL)
binary("BitwiseAnd BitwiseOr BitwiseXor LeftShift RightShift", I32, I64, U8)
TABLE["Igamma"] = TABLE["Igammac"] = None
op("Igamma Igammac IgammaGradA", lambda h, o: o(a=h.f(h.n(64, 4000, 100_000), lo=0.5, hi=5), x=h.f(h.n(64, 4000, 100_000), lo=0.5, hi=5)), F32)
op("Zeta", lambda h, o: o(x=h.f(h.n(64, 4000, 100_000), lo=1.5, hi=5), q=h.f(h.n(64, 4000, 100_000), lo=0.5, hi=5)), F32)
op("Polygamma", lambda h, o: o(a=h.f(h.n(64, 4000, 100_000), lo=1, hi=1), x=h.f(h.n(64, 4000, 100_000), lo=0.5, hi=5)), F32)
op("Betainc", lambda h, o: o(a=h.f(h.n(64, 4000, 50_000), lo=0.5, hi=5), b=h.f(h.n(64, 4000, 50_000), lo=0.5, hi=5),
                             x=h.f(h.n(64, 4000, 50_000), lo=0.1, hi=0.9)), F32)
op("SigmoidGrad TanhGrad SqrtGrad RsqrtGrad InvGrad ReciprocalGrad",
   lambda h, o: o(y=h.f(h.n(*V), lo=0.1), dy=h.f(h.n(*V))), F32, F64)
op("ReluGrad Relu6Grad LeakyReluGrad SoftplusGrad SoftsignGrad",
   lambda h, o: o(gradients=h.f(h.n(*V)), features=h.f(h.n(*V))), F32, F64)
op("EluGrad SeluGrad", lambda h, o: o(gradients=h.f(h.n(*V)), outputs=h.f(h.n(*V))), F32)
op("Select", lambda h, o: o(condition=h.f(h.n(*V), dtype=BOOL), x=h.f(h.n(*V)), y=h.f(h.n(*V))), F32, I32)
op("SelectV2", lambda h, o: o(condition=h.f(h.n(*V), dtype=BOOL), t=h.f(h.n(*V)), e=h.f(h.n(*V))), F32, I32, STR)
op("ClipByValue", lambda h, o: o(t=h.f(h.n(*V)), clip_value_min=h.c(-0.5), clip_value_max=h.c(0.5)), F32)
op("AddN", lambda h, o: o(inputs=[h.f(h.n(*V)) for _ in range(4)]), F32, I32)
op("AccumulateNV2", lambda h, o: o(inputs=[h.f(h.n(*V)) for _ in range(4)], shape=[h.n(*V)]), F32)
for _name, _to in (("Cast", "float32"),):
    for _from, _dst in ((F32, I32), (I32, F32), (F32, F16), (F64, F32), (U8, F32), (I64, I32), (BOOL, F32)):
        TABLE["Cast to %s" % _dst] = TABLE.get("Cast to %s" % _dst, (lambda h, d=_dst: raw.Cast(x=h.f(h.n(*V)), DstT=tf.as_dtype(d)), ()))
        TABLE["Cast to %s" % _dst] = (TABLE["Cast to %s" % _dst][0], TABLE["Cast to %s" % _dst][1] + (_from,))
op("Bitcast", lambda h, o: o(input=h.f(h.n(*V)), type=tf.int32), F32)
op("BroadcastTo", lambda h, o: o(input=h.f(1, h.n(8, 100, 1000)), shape=h.c([h.n(8, 100, 1000)] * 2)), F32, I32)
TABLE["AddV2 row"] = (lambda h: raw.AddV2(x=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), y=h.f(h.n(8, 100, 1000))), (F32, F64, I32))
TABLE["Mul column"] = (lambda h: raw.Mul(x=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), y=h.f(h.n(8, 100, 1000), 1)), (F32, F64, I32))
TABLE["Sub scalar"] = (lambda h: raw.Sub(x=h.f(h.n(*V)), y=h.f()), (F32, I32))

# Reductions and scans.
for _axis in (0, 1):
    for _name in "Sum Mean Max Min Prod EuclideanNorm".split():
        TABLE["%s axis %d" % (_name, _axis)] = (
            lambda h, name=_name, axis=_axis: getattr(raw, name)(input=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), axis=h.c([axis])),
            (F32, F64, I32))
op("Sum Mean Max Min Prod EuclideanNorm", lambda h, o: o(input=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), axis=h.c([0, 1])), F32, F64, I32, F16)
op("All Any", lambda h, o: o(input=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000), dtype=BOOL), axis=h.c([1])), BOOL)
op("ArgMax ArgMin", lambda h, o: o(input=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), dimension=h.c(1)), F32, I32)
op("Cumsum Cumprod CumulativeLogsumexp", lambda h, o: o(**{"x": h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), "axis": h.c(1)}), F32, F64)
op("L2Loss", lambda h, o: o(t=h.f(h.n(*V))), F32)
op("Bincount", lambda h, o: o(arr=h.i(100, h.n(*V)), size=h.c(100), weights=h.c([], tf.float32)), F32)
op("DenseBincount", lambda h, o: o(input=h.i(100, h.n(*V)), size=h.c(100), weights=h.c([], tf.float32)), F32)
op("HistogramFixedWidth", lambda h, o: o(values=h.f(h.n(*V)), value_range=h.c([-1.0, 1.0]), nbins=h.c(50)), F32)
op("Bucketize", lambda h, o: o(input=h.f(h.n(*V)), boundaries=[-0.5, 0.0, 0.5]), F32)
op("LowerBound UpperBound", lambda h, o: o(sorted_inputs=h.array(np.sort(np.random.RandomState(1).rand(1, 1000), 1), F32),
                                           values=h.f(1, h.n(64, 10_000, 200_000))), F32)
op("Cross", lambda h, o: o(a=h.f(h.n(20, 3000, 300_000), 3), b=h.f(h.n(20, 3000, 300_000), 3)), F32)
op("InTopKV2", lambda h, o: o(predictions=h.f(h.n(8, 100, 1000), 1000), targets=h.i(1000, h.n(8, 100, 1000)), k=h.c(5)), F32)
op("TopKV2", lambda h, o: o(input=h.f(h.n(1, 16, 256), h.n(64, 1000, 4000)), k=h.c(10)), F32, I32)
op("NthElement", lambda h, o: o(input=h.f(h.n(1, 16, 256), h.n(64, 1000, 4000)), n=h.c(10)), F32)
op("Unique", lambda h, o: o(x=h.i(1000, h.n(*V), dtype=I64), out_idx=tf.int32), I64)
op("UniqueWithCounts", lambda h, o: o(x=h.i(1000, h.n(*V), dtype=I64), out_idx=tf.int32), I64)
op("UniqueV2", lambda h, o: o(x=h.i(1000, h.n(*V), dtype=I64), axis=h.c([], tf.int64)), I64)
op("ListDiff", lambda h, o: o(x=h.i(10_000, h.n(64, 10_000, 200_000), dtype=I64), y=h.i(10_000, h.n(64, 10_000, 200_000), dtype=I64)), I64)

# Linear algebra.
def spd(h, n):
    def make():
        a = h.rng.uniform(-1, 1, (n, n))
        return (a @ a.T + n * np.eye(n)).astype(h.T.as_numpy_dtype)
    return h.var(make)


def well(h, n):
    return h.var(lambda: (h.rng.uniform(-1, 1, (n, n)) + 3 * np.eye(n) * np.sqrt(n)).astype(h.T.as_numpy_dtype))


S = (8, 64, 256)
op("MatMul", lambda h, o: o(a=h.f(h.n(16, 128, 768), h.n(16, 128, 768)), b=h.f(h.n(16, 128, 768), h.n(16, 128, 768))), F32, F64, I32, I64, F16, "bfloat16", C64)
TABLE["MatMul transposed"] = (lambda h: raw.MatMul(a=h.f(h.n(16, 128, 768), h.n(16, 128, 768)), b=h.f(h.n(16, 128, 768), h.n(16, 128, 768)), transpose_a=True, transpose_b=True), (F32,))
TABLE["MatMul vector"] = (lambda h: raw.MatMul(a=h.f(1, h.n(64, 512, 2048)), b=h.f(h.n(64, 512, 2048), h.n(64, 512, 2048))), (F32, F64))
op("BatchMatMul", lambda h, o: o(x=h.f(h.n(4, 16, 64), h.n(8, 32, 128), h.n(8, 32, 128)), y=h.f(h.n(4, 16, 64), h.n(8, 32, 128), h.n(8, 32, 128))), F32, F64, C64)
op("BatchMatMulV2", lambda h, o: o(x=h.f(h.n(4, 16, 64), h.n(8, 32, 128), h.n(8, 32, 128)), y=h.f(h.n(4, 16, 64), h.n(8, 32, 128), h.n(8, 32, 128))), F32, I32)
op("BatchMatMulV3", lambda h, o: o(x=h.f(h.n(4, 16, 64), h.n(8, 32, 128), h.n(8, 32, 128)), y=h.f(h.n(4, 16, 64), h.n(8, 32, 128), h.n(8, 32, 128)), Tout=h.T), F32)
op("Einsum", lambda h, o: o(inputs=[h.f(h.n(4, 16, 64), h.n(8, 32, 64), 8), h.f(h.n(4, 16, 64), h.n(8, 32, 64), 8)], equation="bij,bkj->bik"), F32)
op("Cholesky", lambda h, o: o(input=spd(h, h.n(*S))), F32, F64)
op("CholeskyGrad", lambda h, o: o(l=spd(h, h.n(*S)), grad=h.f(h.n(*S), h.n(*S))), F32)
op("MatrixInverse", lambda h, o: o(input=well(h, h.n(*S))), F32, F64, C64)
op("MatrixDeterminant LogMatrixDeterminant", lambda h, o: o(input=well(h, h.n(*S))), F32, F64)
op("MatrixSolve", lambda h, o: o(matrix=well(h, h.n(*S)), rhs=h.f(h.n(*S), h.n(*S))), F32, F64, C64)
op("MatrixTriangularSolve", lambda h, o: o(matrix=well(h, h.n(*S)), rhs=h.f(h.n(*S), h.n(*S))), F32, F64, C64)
TABLE["MatrixTriangularSolve vector"] = (lambda h: raw.MatrixTriangularSolve(matrix=well(h, h.n(*S)), rhs=h.f(h.n(*S), 1)), (F32,))
TABLE["MatrixSolve batch"] = (lambda h: raw.MatrixSolve(matrix=h.var(lambda: (h.rng.uniform(-1, 1, (h.n(4, 64, 512), 16, 16)) + 8 * np.eye(16)).astype(h.T.as_numpy_dtype)), rhs=h.f(h.n(4, 64, 512), 16, 4)), (F32,))
op("MatrixSolveLs", lambda h, o: o(matrix=h.f(h.n(16, 100, 400), h.n(4, 32, 100)), rhs=h.f(h.n(16, 100, 400), 2), l2_regularizer=h.c(0.1, tf.float64)), F32)
op("Lu", lambda h, o: o(input=well(h, h.n(*S))), F32, F64)
op("Qr", lambda h, o: o(input=h.f(h.n(*S), h.n(*S))), F32, F64)
op("Svd", lambda h, o: o(input=h.f(h.n(8, 48, 128), h.n(8, 48, 128))), F32, F64)
TABLE["Svd values"] = (lambda h: raw.Svd(input=h.f(h.n(8, 48, 128), h.n(8, 48, 128)), compute_uv=False), (F32,))
op("SelfAdjointEigV2", lambda h, o: o(input=spd(h, h.n(8, 48, 128))), F32, F64)
op("Eig", lambda h, o: o(input=h.f(h.n(8, 48, 128), h.n(8, 48, 128)), Tout=tf.complex64), F32)
op("MatrixExponential MatrixLogarithm MatrixSquareRoot", lambda h, o: o(input=spd(h, h.n(8, 32, 64))), C64)
op("TridiagonalSolve", lambda h, o: o(diagonals=h.f(3, h.n(16, 1000, 20_000), lo=1, hi=2), rhs=h.f(h.n(16, 1000, 20_000), 2)), F32)
op("TridiagonalMatMul", lambda h, o: o(superdiag=h.f(1, h.n(16, 1000, 50_000)), maindiag=h.f(1, h.n(16, 1000, 50_000)), subdiag=h.f(1, h.n(16, 1000, 50_000)), rhs=h.f(h.n(16, 1000, 50_000), 4)), F32)
op("BandedTriangularSolve", lambda h, o: o(matrix=h.f(3, h.n(16, 1000, 20_000), lo=1, hi=2), rhs=h.f(h.n(16, 1000, 20_000), 2)), F32)
op("MatrixBandPart", lambda h, o: o(input=h.f(h.n(*S), h.n(*S)), num_lower=h.c(3, tf.int64), num_upper=h.c(3, tf.int64)), F32)
op("MatrixDiag Diag", lambda h, o: o(diagonal=h.f(h.n(8, 100, 1000))), F32)
op("MatrixDiagPart DiagPart", lambda h, o: o(input=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000))), F32)
op("MatrixSetDiag", lambda h, o: o(input=h.f(h.n(8, 100, 1000), h.n(8, 100, 1000)), diagonal=h.f(h.n(8, 100, 1000))), F32)

# Spectra.
op("FFT IFFT", lambda h, o: o(input=h.f(h.n(1, 16, 64), h.n(64, 256, 4096))), C64, "complex128")
TABLE["FFT odd"] = (lambda h: raw.FFT(input=h.f(h.n(1, 16, 64), h.n(60, 250, 3000))), (C64,))
op("FFT2D IFFT2D", lambda h, o: o(input=h.f(h.n(1, 4, 8), h.n(8, 32, 256), h.n(8, 32, 256))), C64)
op("FFT3D IFFT3D", lambda h, o: o(input=h.f(1, h.n(4, 16, 64), h.n(4, 16, 64), h.n(4, 16, 64))), C64)
op("RFFT", lambda h, o: o(input=h.f(h.n(1, 16, 64), h.n(64, 256, 4096)), fft_length=h.c([h.n(64, 256, 4096)])), F32)
op("IRFFT", lambda h, o: o(input=h.f(h.n(1, 16, 64), h.n(33, 129, 2049)), fft_length=h.c([h.n(64, 256, 4096)])), C64)
op("RFFT2D", lambda h, o: o(input=h.f(h.n(1, 4, 8), h.n(8, 32, 256), h.n(8, 32, 256)), fft_length=h.c([h.n(8, 32, 256)] * 2)), F32)
op("IRFFT2D", lambda h, o: o(input=h.f(h.n(1, 4, 8), h.n(8, 32, 256), h.n(5, 17, 129)), fft_length=h.c([h.n(8, 32, 256)] * 2)), C64)

# Arrays.
M = (8, 100, 1000)
op("Transpose", lambda h, o: o(x=h.f(h.n(*M), h.n(*M)), perm=h.c([1, 0])), F32, F64, I32, U8)
TABLE["Transpose NCHW"] = (lambda h: raw.Transpose(x=h.f(h.n(1, 4, 16), h.n(8, 28, 56), h.n(8, 28, 56), h.n(3, 16, 32)), perm=h.c([0, 3, 1, 2])), (F32,))
op("ConcatV2", lambda h, o: o(values=[h.f(h.n(*M), h.n(*M)) for _ in range(3)], axis=h.c(1)), F32, I32, STR)
op("Concat", lambda h, o: o(values=[h.f(h.n(*M), h.n(*M)) for _ in range(3)], concat_dim=h.c(0)), F32)
op("Pack", lambda h, o: o(values=[h.f(h.n(*M), h.n(*M)) for _ in range(3)], axis=1), F32)
op("Unpack", lambda h, o: o(value=h.f(8, h.n(*V) // 8), num=8), F32)
op("Split", lambda h, o: o(axis=h.c(1), value=h.f(h.n(*M), h.n(*M)), num_split=4), F32)
op("SplitV", lambda h, o: o(value=h.f(h.n(*M), h.n(*M)), size_splits=h.c([2, -1]), axis=h.c(1), num_split=2), F32)
op("Slice", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), begin=h.c([1, 1]), size=h.c([h.n(*M) - 2] * 2)), F32)
op("StridedSlice", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), begin=h.c([0, 1]), end=h.c([0, 0]), strides=h.c([1, 2]), begin_mask=1, end_mask=3), F32)
op("StridedSliceGrad", lambda h, o: o(shape=h.c([h.n(*M)] * 2), begin=h.c([0, 0]), end=h.c([0, 0]), strides=h.c([1, 1]), dy=h.f(h.n(*M), h.n(*M)), begin_mask=3, end_mask=3), F32)
op("Tile", lambda h, o: o(input=h.f(h.n(4, 50, 500), h.n(4, 50, 500)), multiples=h.c([2, 2])), F32)
op("Pad", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), paddings=h.c([[1, 1], [2, 2]])), F32)
op("PadV2", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), paddings=h.c([[1, 1], [2, 2]]), constant_values=h.c(1, h.T)), F32)
op("MirrorPad", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), paddings=h.c([[1, 1], [2, 2]]), mode="REFLECT"), F32)
op("Reverse", lambda h, o: o(tensor=h.f(h.n(*M), h.n(*M)), dims=h.c([False, True])), F32)
op("ReverseV2", lambda h, o: o(tensor=h.f(h.n(*M), h.n(*M)), axis=h.c([1])), F32)
op("ReverseSequence", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), seq_lengths=h.i(h.n(*M), h.n(*M), dtype=I64), seq_dim=1), F32)
op("Roll", lambda h, o: o(input=h.f(h.n(*M), h.n(*M)), shift=h.c([3]), axis=h.c([1])), F32)
op("Gather", lambda h, o: o(params=h.f(1000, 64), indices=h.i(1000, h.n(8, 1000, 20_000))), F32)
op("GatherV2", lambda h, o: o(params=h.f(1000, 64), indices=h.i(1000, h.n(8, 1000, 20_000)), axis=h.c(0)), F32, F64, STR)
TABLE["GatherV2 axis 1"] = (lambda h: raw.GatherV2(params=h.f(h.n(4, 100, 1000), 256), indices=h.i(256, h.n(4, 64, 256)), axis=h.c(1)), (F32,))
op("GatherNd", lambda h, o: o(params=h.f(1000, 64), indices=h.i(60, h.n(8, 1000, 100_000), 2)), F32)
op("ScatterNd", lambda h, o: o(indices=h.i(1000, h.n(8, 1000, 10_000), 1), updates=h.f(h.n(8, 1000, 10_000), 32), shape=h.c([1000, 32])), F32)
op("TensorScatterUpdate TensorScatterAdd TensorScatterSub TensorScatterMax TensorScatterMin", lambda h, o: o(tensor=h.f(1000, 32), indices=h.i(1000, h.n(8, 1000, 10_000), 1), updates=h.f(h.n(8, 1000, 10_000), 32)), F32)
op("OneHot", lambda h, o: o(indices=h.i(100, h.n(8, 1000, 10_000)), depth=h.c(100), on_value=h.c(1.0), off_value=h.c(0.0)), F32)
op("Where", lambda h, o: o(condition=h.f(h.n(*V), dtype=BOOL)), BOOL)
op("Range", lambda h, o: o(start=h.array(0, I32), limit=h.array(h.n(*V), I32), delta=h.array(1, I32)), I32)
op("LinSpace", lambda h, o: o(start=h.array(0, F32), stop=h.array(1, F32), num=h.array(h.n(*V), I32)), F32)
op("Fill", lambda h, o: o(dims=h.array([h.n(*V)], I32), value=h.f()), F32)
op("ZerosLike OnesLike", lambda h, o: o(x=h.f(h.n(*V))), F32)
op("Shape ShapeN Size Rank", lambda h, o: o(input=[h.f(h.n(*M), h.n(*M))] if o is raw.ShapeN else h.f(h.n(*M), h.n(*M))), F32)
op("Reshape", lambda h, o: o(tensor=h.f(h.n(*V)), shape=h.c([-1, 2])), F32)
op("ExpandDims", lambda h, o: o(input=h.f(h.n(*V)), axis=h.c(0)), F32)
op("Identity StopGradient Snapshot PreventGradient", lambda h, o: o(input=h.f(h.n(*V))), F32)
op("DeepCopy", lambda h, o: o(x=h.f(h.n(*V))), F32)
op("IdentityN", lambda h, o: o(input=[h.f(h.n(*V)), h.f(4)]), F32)
op("InvertPermutation", lambda h, o: o(x=h.array(np.random.RandomState(3).permutation(h.n(*V)), I32)), I32)
op("BroadcastGradientArgs BroadcastArgs", lambda h, o: o(s0=h.array([4, 1, 3], I32), s1=h.array([2, 3], I32)), I32)
op("DynamicPartition", lambda h, o: o(data=h.f(h.n(8, 1000, 50_000), 16), partitions=h.i(4, h.n(8, 1000, 50_000)), num_partitions=4), F32)
op("DynamicStitch ParallelDynamicStitch", lambda h, o: o(indices=[h.array(np.arange(0, h.n(8, 1000, 50_000)), I32), h.array(np.arange(h.n(8, 1000, 50_000), 2 * h.n(8, 1000, 50_000)), I32)],
   data=[h.f(h.n(8, 1000, 50_000), 8), h.f(h.n(8, 1000, 50_000), 8)]), F32)
op("SpaceToDepth", lambda h, o: o(input=h.f(h.n(1, 4, 8), h.n(8, 32, 64), h.n(8, 32, 64), 16), block_size=2), F32)
op("DepthToSpace", lambda h, o: o(input=h.f(h.n(1, 4, 8), h.n(8, 32, 64), h.n(8, 32, 64), 16), block_size=2), F32)
op("SpaceToBatchND", lambda h, o: o(input=h.f(h.n(1, 4, 8), h.n(8, 32, 64), h.n(8, 32, 64), 16), block_shape=h.c([2, 2]), paddings=h.c([[0, 0], [0, 0]])), F32)
op("BatchToSpaceND", lambda h, o: o(input=h.f(h.n(4, 16, 32), h.n(4, 16, 32), h.n(4, 16, 32), 16), block_shape=h.c([2, 2]), crops=h.c([[0, 0], [0, 0]])), F32)
op("SequenceMask", lambda h, o: None, F32)
del TABLE["SequenceMask"]
op("SearchSorted", lambda h, o: None, F32) if hasattr(raw, "SearchSorted") else None
op("ExtractImagePatches", lambda h, o: o(images=h.f(h.n(1, 4, 8), h.n(8, 28, 56), h.n(8, 28, 56), 8), ksizes=[1, 3, 3, 1], strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME"), F32)
op("EditDistance", lambda h, o: None, F32)
del TABLE["EditDistance"]

# Segments and sparse.
def sparse(h, rows, cols, count):
    def indices():
        flat = np.sort(h.rng.choice(rows * cols, count, replace=False))
        return np.stack([flat // cols, flat % cols], 1).astype(np.int64)
    return h.var(indices, I64), h.f(count), h.array([rows, cols], I64)


Z = (10, 1000, 100_000)
op("SegmentSum SegmentMean SegmentMax SegmentMin SegmentProd", lambda h, o: o(data=h.f(h.n(*Z), 16), segment_ids=h.array(np.arange(h.n(*Z)) // 7, I32)), F32, I32)
op("UnsortedSegmentSum UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentProd", lambda h, o: o(data=h.f(h.n(*Z), 16), segment_ids=h.i(100, h.n(*Z)), num_segments=h.c(100)), F32, I32)
op("SparseSegmentSum SparseSegmentMean SparseSegmentSqrtN", lambda h, o: o(data=h.f(1000, 16), indices=h.i(1000, h.n(*Z)), segment_ids=h.array(np.arange(h.n(*Z)) // 7, I32)), F32)
op("SparseToDense", lambda h, o: o(sparse_indices=h.array(np.arange(h.n(*Z)) * 3, I64), output_shape=h.c([3 * h.n(*Z)], tf.int64), sparse_values=h.f(h.n(*Z)), default_value=h.c(0.0)), F32)


def sparse_op(name, build, *dtypes):
    TABLE[name] = (lambda h: build(h, *sparse(h, h.n(10, 100, 1000), h.n(10, 100, 1000), h.n(*Z) // 2)), dtypes or (F32,))


sparse_op("SparseTensorDenseMatMul", lambda h, i, v, s: raw.SparseTensorDenseMatMul(a_indices=i, a_values=v, a_shape=s, b=h.f(h.n(10, 100, 1000), 32)))
sparse_op("SparseReduceSum", lambda h, i, v, s: raw.SparseReduceSum(input_indices=i, input_values=v, input_shape=s, reduction_axes=h.c([1])))
sparse_op("SparseReduceMax", lambda h, i, v, s: raw.SparseReduceMax(input_indices=i, input_values=v, input_shape=s, reduction_axes=h.c([1])))
sparse_op("SparseReorder", lambda h, i, v, s: raw.SparseReorder(input_indices=i, input_values=v, input_shape=s))
sparse_op("SparseSoftmax", lambda h, i, v, s: raw.SparseSoftmax(sp_indices=i, sp_values=v, sp_shape=s))
sparse_op("SparseAdd", lambda h, i, v, s: raw.SparseAdd(a_indices=i, a_values=v, a_shape=s, b_indices=i, b_values=v, b_shape=s, thresh=h.c(0.0)))
sparse_op("SparseTensorDenseAdd", lambda h, i, v, s: raw.SparseTensorDenseAdd(a_indices=i, a_values=v, a_shape=s, b=h.f(h.n(10, 100, 1000), h.n(10, 100, 1000))))
sparse_op("SparseDenseCwiseMul", lambda h, i, v, s: raw.SparseDenseCwiseMul(sp_indices=i, sp_values=v, sp_shape=s, dense=h.f(h.n(10, 100, 1000), h.n(10, 100, 1000))))
sparse_op("SparseConcat", lambda h, i, v, s: raw.SparseConcat(indices=[i, i], values=[v, v], shapes=[s, s], concat_dim=0))
sparse_op("SparseSplit", lambda h, i, v, s: raw.SparseSplit(split_dim=h.c(1, tf.int64), indices=i, values=v, shape=s, num_split=2))
sparse_op("SparseSlice", lambda h, i, v, s: raw.SparseSlice(indices=i, values=v, shape=s, start=h.c([2, 2], tf.int64), size=h.c([5, 50], tf.int64)))
sparse_op("SparseReshape", lambda h, i, v, s: raw.SparseReshape(input_indices=i, input_shape=s, new_shape=h.c([-1], tf.int64)))
sparse_op("SparseFillEmptyRows", lambda h, i, v, s: raw.SparseFillEmptyRows(indices=i, values=v, dense_shape=s, default_value=h.c(0.0)))

# Networks.
def image(h, *channels):
    return h.f(h.n(1, 8, 16), h.n(8, 28, 56), h.n(8, 28, 56), h.n(*(channels or (4, 16, 32))))


CH = (4, 16, 32)
op("Conv2D", lambda h, o: o(input=image(h), filter=h.f(3, 3, h.n(*CH), h.n(8, 32, 64)), strides=[1, 1, 1, 1], padding="SAME"), F32, F64, F16)
TABLE["Conv2D 1x1"] = (lambda h: raw.Conv2D(input=image(h), filter=h.f(1, 1, h.n(*CH), h.n(8, 32, 64)), strides=[1, 1, 1, 1], padding="SAME"), (F32,))
TABLE["Conv2D stride 2"] = (lambda h: raw.Conv2D(input=image(h), filter=h.f(5, 5, h.n(*CH), h.n(8, 32, 64)), strides=[1, 2, 2, 1], padding="VALID"), (F32,))
op("Conv2DBackpropInput", lambda h, o: o(input_sizes=h.c([h.n(1, 8, 16), h.n(8, 28, 56), h.n(8, 28, 56), h.n(*CH)]), filter=h.f(3, 3, h.n(*CH), h.n(8, 32, 64)),
   out_backprop=image(h, 8, 32, 64), strides=[1, 1, 1, 1], padding="SAME"), F32)
op("Conv2DBackpropFilter", lambda h, o: o(input=image(h), filter_sizes=h.c([3, 3, h.n(*CH), h.n(8, 32, 64)]), out_backprop=image(h, 8, 32, 64), strides=[1, 1, 1, 1], padding="SAME"), F32)
op("DepthwiseConv2dNative", lambda h, o: o(input=image(h), filter=h.f(3, 3, h.n(*CH), 1), strides=[1, 1, 1, 1], padding="SAME"), F32)
op("DepthwiseConv2dNativeBackpropInput", lambda h, o: o(input_sizes=h.c([h.n(1, 8, 16), h.n(8, 28, 56), h.n(8, 28, 56), h.n(*CH)]), filter=h.f(3, 3, h.n(*CH), 1), out_backprop=image(h), strides=[1, 1, 1, 1], padding="SAME"), F32)
op("DepthwiseConv2dNativeBackpropFilter", lambda h, o: o(input=image(h), filter_sizes=h.c([3, 3, h.n(*CH), 1]), out_backprop=image(h), strides=[1, 1, 1, 1], padding="SAME"), F32)


def volume(h, c):
    return h.f(h.n(1, 2, 4), h.n(4, 8, 16), h.n(4, 16, 28), h.n(4, 16, 28), h.n(*c))


op("Conv3D", lambda h, o: o(input=volume(h, (2, 8, 16)), filter=h.f(3, 3, 3, h.n(2, 8, 16), h.n(4, 16, 32)), strides=[1] * 5, padding="SAME"), F32, F64)
op("Conv3DBackpropInputV2", lambda h, o: o(input_sizes=h.c([h.n(1, 2, 4), h.n(4, 8, 16), h.n(4, 16, 28), h.n(4, 16, 28), h.n(2, 8, 16)]), filter=h.f(3, 3, 3, h.n(2, 8, 16), h.n(4, 16, 32)),
   out_backprop=volume(h, (4, 16, 32)), strides=[1] * 5, padding="SAME"), F32)
op("Conv3DBackpropFilterV2", lambda h, o: o(input=volume(h, (2, 8, 16)), filter_sizes=h.c([3, 3, 3, h.n(2, 8, 16), h.n(4, 16, 32)]), out_backprop=volume(h, (4, 16, 32)), strides=[1] * 5, padding="SAME"), F32)
op("MaxPool3D AvgPool3D", lambda h, o: o(input=volume(h, (2, 8, 16)), ksize=[1, 2, 2, 2, 1], strides=[1, 2, 2, 2, 1], padding="SAME"), F32)
op("MaxPool", lambda h, o: o(input=image(h), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), F32, F16)
op("AvgPool", lambda h, o: o(value=image(h), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), F32, F16)
TABLE["MaxPool 3x3"] = (lambda h: raw.MaxPool(input=image(h), ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding="SAME"), (F32,))
op("MaxPoolGrad", lambda h, o: o(orig_input=image(h), orig_output=h.f(h.n(1, 8, 16), h.n(4, 14, 28), h.n(4, 14, 28), h.n(*CH)), grad=h.f(h.n(1, 8, 16), h.n(4, 14, 28), h.n(4, 14, 28), h.n(*CH)), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), F32)
op("AvgPoolGrad", lambda h, o: o(orig_input_shape=h.c([h.n(1, 8, 16), h.n(8, 28, 56), h.n(8, 28, 56), h.n(*CH)]), grad=h.f(h.n(1, 8, 16), h.n(4, 14, 28), h.n(4, 14, 28), h.n(*CH)), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), F32)
op("MaxPoolWithArgmax", lambda h, o: o(input=image(h), ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME"), F32)
op("LRN", lambda h, o: o(input=image(h)), F32)
op("LRNGrad", lambda h, o: o(input_grads=image(h), input_image=image(h), output_image=image(h)), F32)
op("FusedBatchNormV3", lambda h, o: o(x=image(h), scale=h.f(h.n(*CH), dtype=F32), offset=h.f(h.n(*CH), dtype=F32), mean=h.c([], tf.float32), variance=h.c([], tf.float32)), F32)
TABLE["FusedBatchNormV3 inference"] = (lambda h: raw.FusedBatchNormV3(x=image(h), scale=h.f(h.n(*CH)), offset=h.f(h.n(*CH)), mean=h.f(h.n(*CH)), variance=h.f(h.n(*CH), lo=0.1), is_training=False), (F32,))
op("FusedBatchNormGradV3", lambda h, o: o(y_backprop=image(h), x=image(h), scale=h.f(h.n(*CH)), reserve_space_1=h.f(h.n(*CH)), reserve_space_2=h.f(h.n(*CH), lo=0.1), reserve_space_3=h.f(h.n(*CH))), F32)
op("BiasAdd", lambda h, o: o(value=image(h), bias=h.f(h.n(*CH))), F32, F64)
op("BiasAddGrad", lambda h, o: o(out_backprop=image(h)), F32)
op("Softmax LogSoftmax", lambda h, o: o(logits=h.f(h.n(8, 100, 1000), h.n(10, 100, 1000))), F32, F64, F16)
op("SoftmaxCrossEntropyWithLogits", lambda h, o: o(features=h.f(h.n(8, 100, 1000), h.n(10, 100, 1000)), labels=h.f(h.n(8, 100, 1000), h.n(10, 100, 1000), lo=0)), F32, F64)
op("SparseSoftmaxCrossEntropyWithLogits", lambda h, o: o(features=h.f(h.n(8, 100, 1000), h.n(10, 100, 1000)), labels=h.i(10, h.n(8, 100, 1000))), F32)
op("Dilation2D", lambda h, o: o(input=image(h), filter=h.f(3, 3, h.n(*CH)), strides=[1, 1, 1, 1], rates=[1, 1, 1, 1], padding="SAME"), F32)
op("ResizeBilinear ResizeNearestNeighbor ResizeBicubic ResizeArea", lambda h, o: o(images=image(h, 3, 3, 3), size=h.c([h.n(12, 40, 100)] * 2)), F32)
op("ResizeBilinearGrad", lambda h, o: o(grads=h.f(h.n(1, 8, 16), 20, 20, 3), original_image=image(h, 3, 3, 3)), F32)
op("ResizeNearestNeighborGrad", lambda h, o: o(grads=h.f(h.n(1, 8, 16), 20, 20, 3), size=h.c([h.n(12, 40, 100)] * 2)), F32)
op("CropAndResize", lambda h, o: o(image=image(h, 3, 3, 3), boxes=h.array([[0.1, 0.1, 0.8, 0.9]] * h.n(1, 8, 16), F32), box_ind=h.array([0] * h.n(1, 8, 16), I32), crop_size=h.c([16, 16])), F32)
op("RGBToHSV HSVToRGB", lambda h, o: o(images=h.f(h.n(8, 100, 500), h.n(8, 100, 500), 3, lo=0)), F32)
op("AdjustContrastv2", lambda h, o: o(images=image(h, 3, 3, 3), contrast_factor=h.c(1.5)), F32)
op("AdjustHue", lambda h, o: o(images=image(h, 3, 3, 3), delta=h.c(0.2)), F32)
op("AdjustSaturation", lambda h, o: o(images=image(h, 3, 3, 3), scale=h.c(0.2)), F32)
op("NonMaxSuppressionV3", lambda h, o: o(boxes=h.f(h.n(8, 200, 2000), 4, lo=0), scores=h.f(h.n(8, 200, 2000), lo=0), max_output_size=h.c(50), iou_threshold=h.c(0.5), score_threshold=h.c(0.1)), F32)


def picture(h, encode):
    shape = (h.n(8, 64, 256), h.n(8, 64, 256), 3)
    y, x = np.mgrid[0:shape[0], 0:shape[1]]
    value = np.stack([x * 3 % 256, y * 5 % 256, (x + y) % 256], -1).astype(np.uint8)
    if encode is None:
        return h.array(value, U8)
    with tf.Graph().as_default(), tf.Session() as s:
        data = s.run(encode(tf.constant(value)))
    return h.var(lambda: np.array(data, dtype=object), STR)


op("EncodePng", lambda h, o: o(image=picture(h, None)), U8)
op("DecodePng", lambda h, o: o(contents=picture(h, tf.io.encode_png), channels=3), U8)
op("EncodeJpeg", lambda h, o: o(image=picture(h, None)), U8)
op("DecodeJpeg", lambda h, o: o(contents=picture(h, tf.io.encode_jpeg), channels=3), U8)
op("BlockLSTM", lambda h, o: o(seq_len_max=h.c(h.n(2, 10, 20), tf.int64), x=h.f(h.n(2, 10, 20), h.n(2, 16, 32), h.n(4, 32, 128)), cs_prev=h.f(h.n(2, 16, 32), h.n(4, 32, 128)), h_prev=h.f(h.n(2, 16, 32), h.n(4, 32, 128)),
   w=h.f(2 * h.n(4, 32, 128), 4 * h.n(4, 32, 128), lo=-0.1, hi=0.1), wci=h.f(h.n(4, 32, 128)), wcf=h.f(h.n(4, 32, 128)), wco=h.f(h.n(4, 32, 128)), b=h.f(4 * h.n(4, 32, 128))), F32)

# Strings and parsing.
W = (32, 2000, 50_000)
op("AsString", lambda h, o: o(input=h.f(h.n(*W))), F32, F64, I32, I64, BOOL, C64)
op("StringToNumber", lambda h, o: o(string_tensor=h.var(lambda: np.array([b"%.4f" % v for v in h.rng.rand(h.n(*W))], dtype=object), STR), out_type=tf.float32), STR)
op("StringLower StringUpper StringStrip StringLength", lambda h, o: o(input=h.s(h.n(*W))), STR)
op("StringJoin", lambda h, o: o(inputs=[h.s(h.n(*W)), h.s(h.n(*W))], separator=","), STR)
op("StringSplitV2", lambda h, o: o(input=h.s(h.n(*W)), sep=h.c(" ")), STR)
op("StringSplit", lambda h, o: o(input=h.s(h.n(*W)), delimiter=h.c(" ")), STR)
op("ReduceJoin", lambda h, o: o(inputs=h.s(h.n(*W) // 8, 8), reduction_indices=h.c([1]), separator=" "), STR)
op("Substr", lambda h, o: o(input=h.s(h.n(*W)), pos=h.c(0), len=h.c(2)), STR)
op("RegexReplace", lambda h, o: o(input=h.s(h.n(*W)), pattern=h.c("a+"), rewrite=h.c("b")), STR)
op("StaticRegexReplace", lambda h, o: o(input=h.s(h.n(*W)), pattern="a+", rewrite="b"), STR)
op("RegexFullMatch", lambda h, o: o(input=h.s(h.n(*W)), pattern=h.c(".*a.*")), STR)
op("StaticRegexFullMatch", lambda h, o: o(input=h.s(h.n(*W)), pattern=".*a.*"), STR)
op("StringToHashBucketFast StringToHashBucket", lambda h, o: o(**{"string_tensor" if o is raw.StringToHashBucket else "input": h.s(h.n(*W)), "num_buckets": 1000}), STR)
op("StringToHashBucketStrong", lambda h, o: o(input=h.s(h.n(*W)), num_buckets=1000, key=[1, 2]), STR)
op("EncodeBase64", lambda h, o: o(input=h.s(h.n(*W))), STR)
op("DecodeBase64", lambda h, o: o(input=h.var(lambda: np.array([b"YWxwaGE"] * h.n(*W), dtype=object), STR)), STR)
op("DecodeRaw", lambda h, o: o(bytes=h.var(lambda: np.array([b"01234567" * 8] * h.n(*W), dtype=object), STR), out_type=tf.float32), STR)
op("UnicodeTranscode", lambda h, o: o(input=h.s(h.n(*W)), input_encoding="UTF-8", output_encoding="UTF-8"), STR)
op("UnicodeDecode", lambda h, o: o(input=h.s(h.n(*W)), input_encoding="UTF-8"), STR)
op("UnicodeScript", lambda h, o: o(input=h.i(1000, h.n(*W))), I32)
op("StringNGrams", lambda h, o: o(data=h.s(h.n(*W), words=1), data_splits=h.array(np.arange(0, h.n(*W) + 1, 8), I64), separator=" ", ngram_widths=[2], left_pad="", right_pad="", pad_width=0, preserve_short_sequences=False), STR)
op("StringFormat", lambda h, o: o(inputs=[h.s(h.n(*W))], template="{}"), STR)
op("DecodeCSV", lambda h, o: o(records=h.var(lambda: np.array([b"%d,%.3f,word" % (i, i / 7) for i in range(h.n(*W))], dtype=object), STR), record_defaults=[h.c([0]), h.c([0.0]), h.c([""])]), STR)


def examples(h):
    def make():
        def one(i):
            feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=list(h.rng.rand(8)))),
                       "y": tf.train.Feature(int64_list=tf.train.Int64List(value=[i]))}
            return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
        return np.array([one(i) for i in range(h.n(8, 256, 4096))], dtype=object)
    return h.var(make, STR)


TABLE["ParseExample"] = (lambda h: list(tf.io.parse_example(examples(h), {"x": tf.FixedLenFeature([8], tf.float32), "y": tf.FixedLenFeature([], tf.int64)}).values()), (STR,))
op("ParseTensor", lambda h, o: o(serialized=h.var(lambda: np.array(tf.make_tensor_proto(h.rng.rand(h.n(*V)).astype(np.float32)).SerializeToString(), dtype=object), STR), out_type=tf.float32), STR)
op("SerializeTensor", lambda h, o: o(tensor=h.f(h.n(*V))), F32)


# Tables, queues, random numbers, variables.
def table(h, key, value):
    def make():
        count = h.n(32, 2000, 50_000)
        t = raw.HashTableV2(key_dtype=key, value_dtype=value, shared_name="table")
        k, v = tf.placeholder(key, [None]), tf.placeholder(value, [None])
        keys = np.array(["key %d" % i for i in range(count)], dtype=object) if key == tf.string else np.arange(count) * 7
        values = np.arange(count) if value != tf.string else np.array(["value %d" % i for i in range(count)], dtype=object)
        h.inits.append((raw.LookupTableImportV2(table_handle=t, keys=k, values=v), {k: keys, v: values}))
        return t
    return h.once(make)


def find(key, value, default):
    def body(h):
        t = table(h, key, value)
        count = h.n(32, 2000, 50_000)
        if key == tf.string:
            keys = h.var(lambda: np.array(["key %d" % i for i in h.rng.randint(0, 2 * count, count)], dtype=object), STR)
        else:
            keys = h.var(lambda: h.rng.randint(0, 2 * count, count) * 7, I64)
        return raw.LookupTableFindV2(table_handle=t, keys=keys, default_value=h.c(default, value))
    return body


TABLE["LookupTableFindV2"] = (find(tf.string, tf.int64, -1), (STR,))
TABLE["LookupTableFindV2 int64"] = (find(tf.int64, tf.int64, -1), (I64,))
TABLE["LookupTableFindV2 to string"] = (find(tf.int64, tf.string, "?"), (I64,))


def random(name, **more):
    TABLE[name] = (lambda h: getattr(raw, name)(shape=h.array([h.n(*V)], I32), **{k: f(h) for k, f in more.items()}), (F32,))


for _name in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
    random(_name, dtype=lambda h: h.T)
    TABLE[_name] = (TABLE[_name][0], (F32, F64))
for _name in ("StatelessRandomUniform", "StatelessRandomNormal", "StatelessTruncatedNormal"):
    random(_name, seed=lambda h: h.c([1, 2]))
random("RandomUniformInt", minval=lambda h: h.c(0), maxval=lambda h: h.c(1000))
op("RandomShuffle", lambda h, o: o(value=h.f(h.n(*V))), F32)
op("RandomGamma", lambda h, o: o(shape=h.array([h.n(8, 1000, 50_000)], I32), alpha=h.f(2, lo=0.5, hi=3)), F32)
op("RandomPoissonV2", lambda h, o: o(shape=h.array([h.n(8, 1000, 50_000)], I32), rate=h.f(2, lo=0.5, hi=3)), F32)
op("Multinomial", lambda h, o: o(logits=h.f(h.n(2, 16, 64), h.n(10, 100, 1000)), num_samples=h.c(h.n(4, 64, 256))), F32)


def slot(h, *shape):
    """A variable that an op changes."""
    def make():
        value = h.rng.uniform(0.1, 1, shape).astype(h.T.as_numpy_dtype)
        handle = raw.VarHandleOp(dtype=h.T, shape=shape, shared_name="slot%d" % len(h.variables))
        fed = tf.placeholder(h.T, shape)
        h.inits.append((raw.AssignVariableOp(resource=handle, value=fed), {fed: value}))
        return handle
    return h.once(make)


small = lambda h, v=1e-6: h.c(v, h.T)
op("AssignVariableOp AssignAddVariableOp AssignSubVariableOp", lambda h, o: o(resource=slot(h, h.n(*V)), value=h.f(h.n(*V))), F32)
op("ResourceApplyGradientDescent", lambda h, o: o(var=slot(h, h.n(*V)), alpha=small(h), delta=h.f(h.n(*V))), F32, F64)
op("ResourceApplyMomentum", lambda h, o: o(var=slot(h, h.n(*V)), accum=slot(h, h.n(*V)), lr=small(h), grad=h.f(h.n(*V)), momentum=small(h, 0.9)), F32)
op("ResourceApplyAdagrad", lambda h, o: o(var=slot(h, h.n(*V)), accum=slot(h, h.n(*V)), lr=small(h), grad=h.f(h.n(*V))), F32)
op("ResourceApplyAdam", lambda h, o: o(var=slot(h, h.n(*V)), m=slot(h, h.n(*V)), v=slot(h, h.n(*V)), beta1_power=small(h, 0.9), beta2_power=small(h, 0.99), lr=small(h), beta1=small(h, 0.9), beta2=small(h, 0.99), epsilon=small(h), grad=h.f(h.n(*V))), F32)
op("ResourceApplyRMSProp", lambda h, o: o(var=slot(h, h.n(*V)), ms=slot(h, h.n(*V)), mom=slot(h, h.n(*V)), lr=small(h), rho=small(h, 0.9), momentum=small(h, 0.9), epsilon=small(h), grad=h.f(h.n(*V))), F32)
op("ResourceApplyAdadelta", lambda h, o: o(var=slot(h, h.n(*V)), accum=slot(h, h.n(*V)), accum_update=slot(h, h.n(*V)), lr=small(h), rho=small(h, 0.9), epsilon=small(h), grad=h.f(h.n(*V))), F32)
op("ResourceApplyFtrl", lambda h, o: o(var=slot(h, h.n(*V)), accum=slot(h, h.n(*V)), linear=slot(h, h.n(*V)), grad=h.f(h.n(*V)), lr=small(h, 0.01), l1=small(h), l2=small(h), lr_power=small(h, -0.5)), F32)
op("ResourceSparseApplyAdagrad", lambda h, o: o(var=slot(h, 1000, 64), accum=slot(h, 1000, 64), lr=small(h), grad=h.f(h.n(8, 500, 5000), 64), indices=h.i(1000, h.n(8, 500, 5000))), F32)
op("ResourceGather", lambda h, o: o(resource=slot(h, 1000, 64), indices=h.i(1000, h.n(8, 1000, 20_000)), dtype=h.T), F32)
op("ResourceScatterAdd ResourceScatterUpdate ResourceScatterSub", lambda h, o: o(resource=slot(h, 1000, 64), indices=h.i(1000, h.n(8, 500, 5000)), updates=h.f(h.n(8, 500, 5000), 64, lo=-1e-6, hi=1e-6)), F32)
op("ReadVariableOp", lambda h, o: o(resource=slot(h, h.n(*V)), dtype=h.T), F32)

# Ops that wait, end the process, want files or devices, or have no meaning alone.
SKIP = ("Abort", "Barrier*", "Batch", "BatchFunction", "*Dataset*", "*Iterator*", "*Queue*", "*Reader*", "*Stack*", "*Stage*", "*Unstage*",
        "*TPU*", "*Collective*", "Nccl*", "Xla*", "*Send*", "*Recv*", "*File*", "Restore*", "Save*", "Load*", "*Summary*", "Debug*", "*Py*",
        "*Accumulator*", "*TensorArray*", "*Mutex*", "*Map*", "Enter", "Exit", "Switch", "Merge", "NextIteration", "LoopCond", "Ref*",
        "*Timestamp*", "*Delete*", "*Quantiles*", "Boosted*", "*Placeholder*", "_*", "Host*", "*Lookup*", "*Table*", "If", "While", "Case",
        "StatelessIf", "StatelessWhile", "StatelessCase", "For", "*Partitioned*", "SymbolicGradient", "RemoteCall", "*Session*", "*Sdca*",
        "Print*", "Assert", "NoOp", "ControlTrigger", "Const", "*Variable*", "Scatter*", "Assign*", "Apply*", "SparseApply*", "*Cudnn*",
        "Audio*", "Decode*", "Encode*", "*Quantized*", "Uniform*", "*Embedding*", "Rpc*", "*Server*", "*Cluster*", "*Device*", "*Forest*", "*Bytes*",
        "*Sampler*", "*Where3*", "Copy*", "*Worker*", "*Coordination*", "*Event*", "*Tree*", "*Ragged*", "Mfcc", "*Cache*", "*RandomSeed*",
        "*Generator*", "*Rng*", "*Checkpoint*", "*Disable*", "*Consume*", "*Multi*", "*Optional*", "*Handle*", "*List*", "*Conditional*", "Fact",
        "Shutdown*", "Configure*", "InfeedEnqueue*", "Outfeed*", "Infeed*", "Stochastic*", "Threa*", "*Unsupported*", "*Anonymous*", "Bitcast",
        "Fake*", "*Lsh*", "Skipgram", "NegTrain", "*Sobol*", "*Composite*", "Empty", "*Inplace*", "Wait*", "Delay*", "*Wav", "Spectro*", "*Mkl*")


def skipped(name):
    import fnmatch
    return any(fnmatch.fnmatch(name, p) for p in SKIP)


def guesses(definition):
    """Inputs by an op's signature: first those that make sense to most ops."""
    import itertools
    shapes = (lambda h: (h.n(*V),), lambda h: (h.n(*M), h.n(*M)), lambda h: (h.n(1, 4, 8), h.n(8, 24, 48), h.n(8, 24, 48), 4), lambda h: ())
    for shape, small_ints in itertools.product(shapes, (True, False)):
        yield lambda h, shape=shape, small_ints=small_ints: by_signature(h, definition, shape(h), small_ints)


def by_signature(h, definition, shape, small_ints):
    values = {}
    lists = {a.number_attr for a in definition.input_arg if a.number_attr}
    typed = {a.type_attr for a in definition.input_arg if a.type_attr}
    first = definition.input_arg[0].type_attr if definition.input_arg else ""
    for arg in definition.input_arg:
        if arg.type_list_attr or arg.is_ref:
            raise ValueError("a list of types or a reference")
        if arg.type:
            dtype = tf.as_dtype(arg.type)
        elif arg.type_attr == first:
            dtype = h.T
        else:
            attr = next(a for a in definition.attr if a.name == arg.type_attr)
            allowed = [tf.as_dtype(t) for t in attr.allowed_values.list.type]
            dtype = tf.int32 if tf.int32 in allowed else allowed[0] if allowed else h.T
        if dtype in (tf.resource, tf.variant):
            raise ValueError("a resource")
        one = lambda: h.c(0 if dtype != tf.string else "a", dtype) if small_ints and arg.type_attr != first else h.f(*shape, dtype=dtype)
        values[arg.name] = [one(), one()] if arg.number_attr else one()
    for attr in definition.attr:
        if attr.HasField("default_value") or attr.name in typed or attr.name in lists:
            continue
        if attr.type != "type":
            raise ValueError("an attribute without a default")
        values[attr.name] = tf.float32
    return getattr(raw, definition.name)(**values)


def dtypes_of(definition):
    """The types to measure an op in: those of its first input's attribute that models use most."""
    main = [F32, I32, C64, STR, BOOL]
    attr = definition.input_arg[0].type_attr if definition.input_arg else ""
    if not attr:
        return [F32]
    allowed = next(a for a in definition.attr if a.name == attr).allowed_values.list.type
    allowed = [tf.as_dtype(t).name for t in allowed] or main
    found = [t for t in main[:2] if t in allowed] or [t for t in main if t in allowed] or allowed[:1]
    return found + ([F64] if F64 in allowed else [])


def rows(chosen, sizes, copies, probe, quick=False):
    names = sorted(set(TABLE) | {n for n, d in op_def_registry.get_registered_ops().items() if not skipped(n)}
                   if hasattr(op_def_registry, "get_registered_ops") else set(TABLE) | all_ops())
    for name in names:
        if not chosen(name) or (quick and name not in TABLE):
            continue
        if name in TABLE:
            if TABLE[name] is None:
                continue
            body, dtypes = TABLE[name]
        else:
            if probe is None or not hasattr(raw, name):
                continue
            definition = op_def_registry.get(name)
            if definition is None or not definition.input_arg or definition.deprecation.version:
                continue
            dtypes = dtypes_of(definition)
            body = None
            for guess in guesses(definition):
                row = make(name, dtypes[0], 0, guess, 1)
                if row is not None and probe(row):
                    body = guess
                    break
            if body is None:
                continue
        for which, dtype in enumerate(dtypes):
            for i, size in enumerate(("small", "medium", "large")):
                # All sizes in the first type, the middle one in the others.
                if size not in sizes or (which and size != "medium") or (quick and (which or size == "large")):
                    continue
                row = make(name, dtype, i, body, copies[i])
                if row is not None:
                    yield row


def all_ops():
    """The names of ops that raw_ops has."""
    return {n for n in dir(raw) if n[0].isupper() and not skipped(n)}


def make(name, dtype, size, body, copies):
    """A row, or nothing where the op refuses such inputs when its graph is built."""
    try:
        graph, inits, targets = build(name, dtype, size, body, copies)
    except Exception:
        return None
    return Row(name, dtype, ("small", "medium", "large")[size], graph, inits, targets)
