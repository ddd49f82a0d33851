"""Names and other string attributes that are no UTF-8: TensorFlow takes any bytes."""
from registry import case, const, inp, raw, steps, tf

F, I = tf.float32, tf.int32
NAMES = dict(one=b"\xff\xfe", other=b"\xff\xfd", cut="\u20ac".encode()[:2], mixed=b"a\xffb", text="\u20ac".encode())


def variable(**attrs):
    h = raw.VarHandleOp(dtype=F, shape=[2], **attrs)
    return steps(raw.AssignVariableOp(resource=h, value=inp([1.0, 2.0])), raw.ReadVariableOp(resource=h, dtype=F))


def reference(**attrs):
    v = raw.VariableV2(shape=[2], dtype=F, **attrs)
    return steps(raw.Assign(ref=v, value=inp([1.0, 2.0])).op, raw.Identity(input=v))


def queue(**attrs):
    q = raw.FIFOQueueV2(component_types=[F], **attrs)
    return steps(raw.QueueEnqueueV2(handle=q, components=[inp(1.0)]), raw.QueueSizeV2(handle=q))


for what, name in NAMES.items():
    case("VarHandleOp/shared_" + what, lambda name=name: variable(shared_name=name))
    case("VarHandleOp/container_" + what, lambda name=name: variable(shared_name="v", container=name))
    case("VariableV2/shared_" + what, lambda name=name: reference(shared_name=name))
    case("FIFOQueueV2/shared_" + what, lambda name=name: queue(shared_name=name))
    case("MutableHashTableV2/shared_" + what, lambda name=name: raw.LookupTableSizeV2(table_handle=raw.MutableHashTableV2(key_dtype=tf.int64, value_dtype=tf.int64, shared_name=name)))
    case("Stage/shared_" + what, lambda name=name: steps(raw.Stage(values=[inp(1)], shared_name=name), raw.StageSize(dtypes=[I], shared_name=name)))
    case("TextLineReaderV2/shared_" + what, lambda name=name: raw.ReaderNumRecordsProducedV2(reader_handle=raw.TextLineReaderV2(shared_name=name)))
    case("ConditionalAccumulator/shared_" + what, lambda name=name: raw.AccumulatorNumAccumulated(handle=raw.ConditionalAccumulator(dtype=F, shape=[1], shared_name=name)))
    case("TensorArrayV3/name_" + what, lambda name=name: raw.TensorArraySizeV3(handle=(a := raw.TensorArrayV3(size=inp(3), dtype=F, tensor_array_name=name))[0], flow_in=a[1]))


def apart():
    """Two variables whose names differ in a byte that is no text."""
    a, b = [raw.VarHandleOp(dtype=I, shape=[], shared_name=NAMES[n]) for n in ("one", "other")]
    return steps(raw.AssignVariableOp(resource=a, value=inp(1)), raw.AssignVariableOp(resource=b, value=inp(2)), [raw.ReadVariableOp(resource=h, dtype=I) for h in (a, b)])


case("VarHandleOp/apart", apart)
case("Einsum/bytes", lambda: raw.Einsum(inputs=[inp([[1.0, 2.0], [3.0, 4.0]])], equation=b"\xff\xfe->\xfe\xff"))
case("MatrixDiagPartV3/padding_vector", lambda: [f(input=inp([[[3, 1], [1, -2]]]), k=inp([-1, 1]), padding_value=inp(p)) for f in (raw.MatrixDiagPartV2, raw.MatrixDiagPartV3) for p in ([-2], [[-2]])])
case("MatrixDiagPartV3/padding_two", lambda: raw.MatrixDiagPartV3(input=inp([[[3, 1], [1, -2]]]), k=inp([-1, 1]), padding_value=inp([-2, 3])))
