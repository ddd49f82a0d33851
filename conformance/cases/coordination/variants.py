"""Variant constants inside graphs: numbers and lists that a client wrote down."""
import numpy as np

from registry import case, raw, script, tf
from tensorflow.core.framework import tensor_pb2


def constant(*values, shape=()):
    """A variant constant of (type name, metadata[, tensors])."""
    proto = tensor_pb2.TensorProto(dtype=tf.variant.as_datatype_enum, tensor_shape=tf.TensorShape(shape).as_proto(), variant_val=[
        tensor_pb2.VariantTensorDataProto(type_name=v[0], metadata=v[1], tensors=v[2] if len(v) > 2 else []) for v in values])
    return tf.constant(proto)


def number(kind, value):
    types = {"int": np.int32, "float": np.float32, "double": np.float64, "bool": np.bool_}
    return kind, np.array(value, types[kind]).tobytes()


def text(variant):
    """What a variant says of itself."""
    return raw.StringFormat(inputs=[variant], template="%s", placeholder="%s", summarize=3)


for kind, values in (("int", (3, 4, 5)), ("float", (1.5, 2.5, -8.0)), ("double", (1.5, 1e300, 2.0)), ("bool", (False, True, True))):
    case("variant_constant/%s" % kind, lambda k=kind, v=values: text(constant(number(k, v[0]))))
    case("variant_constant/%s_sum" % kind, lambda k=kind, v=values: text(raw.AddN(inputs=[constant(number(k, x)) for x in v])))
    case("variant_constant/%s_zeros" % kind, lambda k=kind, v=values: text(raw.ZerosLike(x=constant(number(k, v[1])))))
case("variant_constant/vector", lambda: text(constant(number("int", 3), number("float", 2.0), shape=(2,))))
case("variant_constant/sum_of_two_types", lambda: text(raw.AddN(inputs=[constant(number("int", 3)), constant(number("float", 2.0))])), text="TensorFlow names its C++ types")
case("variant_constant/fetched", lambda: constant(number("int", 3)).op)


def a_list(values, dtype=tf.float32):
    from tensorflow.core.framework import types_pb2
    tensors = [tf.make_tensor_proto(v, dtype) for v in values]
    def varint(n):
        n &= (1 << 64) - 1
        out = b""
        while n >= 128:
            out += bytes([n & 127 | 128])
            n >>= 7
        return out + bytes([n])
    shape = tf.TensorShape([]).as_proto().SerializeToString()
    return "tensorflow::TensorList", varint(0) + varint(dtype.as_datatype_enum) + varint(-1) + shape, tensors


case("variant_constant/list_stack", lambda: raw.TensorListStack(input_handle=constant(a_list([1.0, 2.0, 3.0])), element_shape=tf.constant([], tf.int32), element_dtype=tf.float32))
case("variant_constant/list_length", lambda: raw.TensorListLength(input_handle=constant(a_list([1.0, 2.0]))))
case("variant_constant/list_push", lambda: raw.TensorListStack(input_handle=raw.TensorListPushBack(input_handle=constant(a_list([1.0])), tensor=tf.constant(7.0)),
                                                             element_shape=tf.constant([], tf.int32), element_dtype=tf.float32))
case("variant_constant/unknown_type", lambda: text(constant(("no_such_type", b"abc"))), text="TensorFlow shows the message")
