"""Ops that only graphs of old producers may hold."""
import numpy as np

from registry import any_op, case, const, inp, old_op, rnd, short, tf

FOUR = [tf.float32, tf.float64, tf.complex64, tf.complex128]


def loose(t):
    return dict(rtol=2e-3, atol=2e-4) if t in (tf.float32, tf.complex64) else dict(rtol=1e-8, atol=1e-9)


def regular(shape, t):
    return rnd(shape, t, -1, 1) + np.eye(shape[-1], dtype=t.as_numpy_dtype) * 3


def definite(shape, t):
    a = rnd(shape, t, -1, 1)
    return np.matmul(a, np.swapaxes(a, -1, -2)) + np.eye(shape[-1], dtype=t.as_numpy_dtype) * 2


for t in (tf.float32, tf.float64):
    for shape in [(3, 3), (2, 4, 4)]:
        s = "%s_%s" % (short(t), shape)
        case("BatchCholesky/" + s, lambda t=t, shape=shape: old_op("BatchCholesky", [inp(definite(shape, t), t)], dict(T=t), 8), **loose(t))
        case("BatchCholeskyGrad/" + s, lambda t=t, shape=shape: old_op("BatchCholeskyGrad", [
            inp(np.linalg.cholesky(definite(shape, t)).astype(t.as_numpy_dtype), t), inp(rnd(shape, t), t)], dict(T=t), 8), **loose(t))
        for adjoint in (False, True):
            case("BatchMatrixInverse/%s_%s" % (s, adjoint), lambda t=t, shape=shape, a=adjoint: old_op("BatchMatrixInverse", [inp(regular(shape, t), t)], dict(T=t, adjoint=a), 8), **loose(t))
            case("BatchMatrixSolve/%s_%s" % (s, adjoint), lambda t=t, shape=shape, a=adjoint: old_op("BatchMatrixSolve", [
                inp(regular(shape, t), t), inp(rnd(shape, t), t)], dict(T=t, adjoint=a), 8), **loose(t))
            case("BatchMatrixTriangularSolve/%s_%s" % (s, adjoint), lambda t=t, shape=shape, a=adjoint: old_op("BatchMatrixTriangularSolve", [
                inp(regular(shape, t), t), inp(rnd(shape, t), t)], dict(T=t, adjoint=a, lower=not a), 8), **loose(t))
        case("BatchMatrixSolveLs/" + s, lambda t=t, shape=shape: old_op("BatchMatrixSolveLs", [
            inp(regular(shape, t), t), inp(rnd(shape, t), t), inp(0.1, tf.float64)], dict(T=t, fast=True), 8), **loose(t))
        case("SelfAdjointEig/" + s, lambda t=t, shape=shape: old_op("SelfAdjointEig", [inp(definite(shape, t), t)], dict(T=t), 8), post=lambda v: np.abs(v), **loose(t))
        case("BatchSelfAdjointEig/" + s, lambda t=t, shape=shape: old_op("BatchSelfAdjointEig", [inp(definite(shape, t), t)], dict(T=t), 8), post=lambda v: np.abs(v), **loose(t))
        case("BatchSelfAdjointEigV2/" + s, lambda t=t, shape=shape: old_op("BatchSelfAdjointEigV2", [
            inp(definite(shape, t), t)], dict(T=t, compute_v=True), 8, 2), post=lambda v: [np.abs(x) for x in v], **loose(t))
for t in FOUR:
    for shape in [(3, 3), (2, 4, 4)]:
        s = "%s_%s" % (short(t), shape)
        case("BatchMatrixDeterminant/" + s, lambda t=t, shape=shape: old_op("BatchMatrixDeterminant", [inp(regular(shape, t), t)], dict(T=t), 8), **loose(t))
        case("BatchSvd/" + s, lambda t=t, shape=shape: old_op("BatchSvd", [inp(regular(shape, t), t)], dict(T=t, compute_uv=True, full_matrices=False), 8, 3),
             post=lambda v: [np.abs(x) for x in v], **loose(t))
    for shape in [(1, 1), (3, 3), (2, 4, 4), (0, 2, 2), (0, 0)]:
        case("MatrixExponential/%s_%s" % (short(t), shape), lambda t=t, shape=shape: old_op("MatrixExponential", [inp(rnd(shape, t), t)], dict(T=t), 26), **loose(t))
    case("MatrixExponential/large_" + short(t), lambda t=t: old_op("MatrixExponential", [inp(rnd((4, 4), t, -9, 9), t)], dict(T=t), 26), **loose(t))
    case("MatrixExponential/shape_" + short(t), lambda t=t: old_op("MatrixExponential", [inp(rnd((2, 3), t), t)], dict(T=t), 26))

for t in (tf.float32, tf.float64, tf.float16):
    for after in (True, False):
        attrs = dict(T=t, variance_epsilon=0.1, scale_after_normalization=after)
        few = dict(rtol=2e-2, atol=2e-2) if t == tf.float16 else dict(rtol=1e-4, atol=1e-5)
        case("BatchNormWithGlobalNormalization/%s_%s" % (short(t), after), lambda t=t, a=attrs: old_op("BatchNormWithGlobalNormalization", [
            inp(rnd((2, 3, 2, 4), t), t), inp(rnd((4,), t), t), inp(rnd((4,), t, 0.5, 2), t), inp(rnd((4,), t), t), inp(rnd((4,), t), t)], a, 8), **few)
        case("BatchNormWithGlobalNormalizationGrad/%s_%s" % (short(t), after), lambda t=t, a=attrs: old_op("BatchNormWithGlobalNormalizationGrad", [
            inp(rnd((1, 2, 2, 4), t), t), inp(rnd((4,), t), t), inp(rnd((4,), t, 0.5, 2), t), inp(rnd((4,), t), t), inp(rnd((1, 2, 2, 4), t), t)], a, 8, 5), **few)
for t in (tf.float32, tf.uint8, tf.int32, tf.float64):
    case("AdjustContrast/" + short(t), lambda t=t: old_op("AdjustContrast", [inp(rnd((2, 3, 2, 3), t, 0, 9), t), inp(1.5), inp(1.0), inp(8.0)], dict(T=t), 1))
for t in (tf.float32, tf.float64):
    for signed in (True, False):
        for given in (True, False):
            case("QuantizeAndDequantize/first_%s_%s_%s" % (short(t), signed, given), lambda t=t, s=signed, g=given: old_op("QuantizeAndDequantize", [
                inp(rnd((4, 5), t, -3 if s else 0, 3), t)], dict(T=t, signed_input=s, num_bits=4, range_given=g, input_min=-1.0 if s else 0.0, input_max=2.0), 21))
for names in (["Abs"], ["Abs", "Sqrt"], ["Square", "Neg", "Exp", "Log1p"], ["Relu", "Tanh"], ["Elu", "Selu", "Relu6"], ["Sigmoid", "Cos", "Rsqrt"], ["Zzz"], []):
    for t in (tf.float32, tf.float64, tf.float16):
        case("_UnaryOpsComposition/%s_%s" % (short(t), "_".join(names)), lambda t=t, n=names: any_op("_UnaryOpsComposition", x=inp(rnd((3, 4), t, -2, 2), t), op_names=n), rtol=1e-2 if t == tf.float16 else 1e-4, atol=1e-2 if t == tf.float16 else 1e-5)
for t in (tf.int8, tf.uint8, tf.int16, tf.uint16, tf.int32, tf.uint32, tf.int64, tf.uint64):
    case("_TensorToHashBucketFast/" + short(t), lambda t=t: any_op("_TensorToHashBucketFast", input=inp(rnd((3, 4), t, -99, 99), t), num_buckets=1000))
for loc in (0, 1, -1, 5):
    case("_ParallelConcatUpdate/%d" % loc, lambda loc=loc: any_op("_ParallelConcatUpdate", value=inp(rnd((2, 3))), update=inp(rnd((1, 3))), loc=loc))
case("_ParallelConcatUpdate/shape", lambda: any_op("_ParallelConcatUpdate", value=inp(rnd((2, 3))), update=inp(rnd((3,))), loc=0))
case("_ParallelConcatStart/filled", lambda: any_op("_ParallelConcatUpdate", value=any_op("_ParallelConcatStart", shape=[1, 3], dtype=tf.float32), update=inp(rnd((1, 3))), loc=0))
for k in (0, 1, 2, 9):
    case("NearestNeighbors/%d" % k, lambda k=k: list(any_op("NearestNeighbors", points=inp(rnd((6, 3))), centers=inp(rnd((4, 3))), k=inp(k, tf.int64))), rtol=1e-4, atol=1e-4)
case("NearestNeighbors/sizes", lambda: list(any_op("NearestNeighbors", points=inp(rnd((6, 3))), centers=inp(rnd((4, 2))), k=inp(1, tf.int64))))
for t, out in ((tf.float32, tf.float32), (tf.float64, tf.float64), (tf.int32, tf.float64), (tf.int8, tf.float32), (tf.float16, tf.float16)):
    for shape in [(7,), (3, 5), (), (2, 0)]:
        case("IsotonicRegression/%s_%s" % (short(t), shape), lambda t=t, o=out, s=shape: list(any_op("IsotonicRegression", input=inp(rnd(s, t, -9, 9), t), output_dtype=o)))
for t in (tf.float32, tf.float16, tf.bfloat16):
    for k in (0, 1, 3, 5):
        case("ApproxTopK/%s_%d" % (short(t), k), lambda t=t, k=k: list(any_op("ApproxTopK", input=inp(rnd((3, 5), t, -9, 9), t, (3, 5)), k=k)))
for padding in ("SAME", "VALID"):
    for t in (tf.float32, tf.float64, tf.float16):
        few = dict(rtol=2e-2, atol=5e-2) if t == tf.float16 else dict(rtol=1e-4, atol=1e-4)
        case("Conv3DBackpropInput/%s_%s" % (short(t), padding), lambda t=t, p=padding: conv3d("Conv3DBackpropInput", t, p), **few)
        case("Conv3DBackpropFilter/%s_%s" % (short(t), padding), lambda t=t, p=padding: conv3d("Conv3DBackpropFilter", t, p), **few)
        for mode in ("REFLECT", "SYMMETRIC"):
            case("FusedPadConv2D/%s_%s_%s" % (short(t), padding, mode), lambda t=t, p=padding, m=mode: any_op(
                "FusedPadConv2D", input=inp(rnd((1, 4, 5, 3), t), t, (1, 4, 5, 3)), paddings=const([[0, 0], [1, 2], [2, 1], [0, 0]]), filter=inp(rnd((3, 2, 3, 4), t), t, (3, 2, 3, 4)), mode=m,
                strides=[1, 2, 1, 1], padding=p), **few)
            if t != tf.float64:
                case("FusedResizeAndPadConv2D/%s_%s_%s" % (short(t), padding, mode), lambda t=t, p=padding, m=mode: any_op(
                    "FusedResizeAndPadConv2D", input=inp(rnd((1, 4, 5, 3), t), t, (1, 4, 5, 3)), size=const([6, 7]), paddings=const([[0, 0], [1, 2], [2, 1], [0, 0]]),
                    filter=inp(rnd((3, 2, 3, 4), t), t, (3, 2, 3, 4)), mode=m, strides=[1, 1, 1, 1], padding=p, resize_align_corners=m == "REFLECT"), **few)


def conv3d(op, t, padding):
    x, f = (1, 4, 5, 4, 2), (2, 2, 3, 2, 3)
    out = (1, 4, 5, 4, 3) if padding == "SAME" else (1, 3, 4, 2, 3)
    graph = tf.GraphDef()
    graph.versions.producer = 9
    tensors = [inp(rnd(s, t), t) for s in (x, f, out)]
    node = graph.node.add(name="old", op=op)
    for i in range(3):
        graph.node.add(name="in%d" % i, op="Placeholder").attr["dtype"].type = t.as_datatype_enum
        node.input.append("in%d" % i)
    node.attr["T"].type = t.as_datatype_enum
    node.attr["strides"].list.i.extend([1] * 5)
    node.attr["padding"].s = padding.encode()
    return tf.import_graph_def(graph, input_map={"in%d:0" % i: v for i, v in enumerate(tensors)}, return_elements=["old:0"], name="")[0]
