"""Tensor lists, tensor maps and optionals: values that travel along edges and hold tensors."""
import numpy as np

from registry import ALL, case, inp, raw, rnd, tf

F, I, L, S, V = tf.float32, tf.int32, tf.int64, tf.string, tf.variant


def shape(dims=None):
    """A shape argument; None is the one nothing is known of."""
    return inp(-1 if dims is None else dims, I)


def empty(dims=None, most=-1, dtype=F):
    return raw.EmptyTensorList(element_shape=shape(dims), max_num_elements=inp(most), element_dtype=dtype)


def reserve(n, dims=None, dtype=F):
    return raw.TensorListReserve(element_shape=shape(dims), num_elements=inp(n), element_dtype=dtype)


def push(handle, value):
    return raw.TensorListPushBack(input_handle=handle, tensor=inp(value) if not tf.is_tensor(value) else value)


def pop(handle, dims=None, dtype=F):
    return raw.TensorListPopBack(input_handle=handle, element_shape=shape(dims), element_dtype=dtype)


def length(handle):
    return raw.TensorListLength(input_handle=handle)


def get(handle, index, dims=None, dtype=F):
    return raw.TensorListGetItem(input_handle=handle, index=inp(index), element_shape=shape(dims), element_dtype=dtype)


def put(handle, index, value, **attrs):
    return raw.TensorListSetItem(input_handle=handle, index=inp(index), item=inp(value), **attrs)


def stack(handle, dims=None, n=-1, dtype=F):
    return raw.TensorListStack(input_handle=handle, element_shape=shape(dims), element_dtype=dtype, num_elements=n)


def gather(handle, indices, dims=None, dtype=F):
    return raw.TensorListGather(input_handle=handle, indices=inp(indices, I), element_shape=shape(dims), element_dtype=dtype)


def from_tensor(value, dims=None):
    return raw.TensorListFromTensor(tensor=inp(value), element_shape=shape(dims))


def concat(handle, dims=None, leading=(), dtype=F):
    return raw.TensorListConcatV2(input_handle=handle, element_shape=shape(dims), leading_dims=inp(list(leading), L), element_dtype=dtype)


def old_concat(handle, dims=None, dtype=F):
    return raw.TensorListConcat(input_handle=handle, element_shape=dims, element_dtype=dtype)


def split(value, lengths, dims=None):
    return raw.TensorListSplit(tensor=inp(value), element_shape=shape(dims), lengths=inp(lengths, L))


def scatter(value, indices, dims=None):
    return raw.TensorListScatter(tensor=inp(value), indices=inp(indices, I), element_shape=shape(dims))


def scatter2(value, indices, dims=None, n=-1):
    return raw.TensorListScatterV2(tensor=inp(value), indices=inp(indices, I), element_shape=shape(dims), num_elements=inp(n))


def scatter_into(handle, value, indices):
    return raw.TensorListScatterIntoExistingList(input_handle=handle, tensor=inp(value), indices=inp(indices, I))


def resize(handle, n):
    return raw.TensorListResize(input_handle=handle, size=inp(n))


def join(a, b, dtype=F):
    return raw.TensorListConcatLists(input_a=a, input_b=b, element_dtype=dtype)


def push_batch(handles, value):
    return raw.TensorListPushBackBatch(input_handles=handles, tensor=inp(value))


def element_shape(handle, dtype=I):
    return raw.TensorListElementShape(input_handle=handle, shape_type=dtype)


def opaque(handle):
    """The same value, but the client no longer knows what it holds."""
    array, flow = raw.TensorArrayV3(size=1, dtype=V)
    flow = raw.TensorArrayWriteV3(handle=array, index=0, value=handle, flow_in=flow)
    return raw.TensorArrayReadV3(handle=array, index=0, flow_in=flow, dtype=V)


def two():
    return push(push(empty(), [1.0, 2.0]), [3.0, 4.0])


def holes():
    """Three places, the middle one filled."""
    return put(reserve(3), 1, [1.0, 2.0, 3.0])


def nothing(*dims):
    return np.zeros(dims, np.float32)


def all_cases(prefix, **builds):
    for name, build in builds.items():
        case("%s/%s" % (prefix, name), build)


all_cases("EmptyTensorList", length=lambda: length(empty()), scalar_shape=lambda: length(empty(5)), matrix_shape=lambda: length(empty([[1]])),
          negative_shape=lambda: length(empty([-2])), max_shape=lambda: length(empty(most=[1])))
all_cases("TensorListPushBack", stack=lambda: stack(two()), full=lambda: length(push(push(empty(most=1), 1.0), 2.0)),
          full_at_once=lambda: length(push(empty(most=0), 1.0)), shape=lambda: length(push(empty([2]), 1.0)),
          type=lambda: length(push(opaque(empty()), 1)), shared=lambda: (lambda t: [length(t), length(push(t, [5.0])), stack(t)])(two()))
all_cases("TensorListPopBack", value=lambda: (lambda p: [p.tensor, length(p.output_handle)])(pop(two())), empty=lambda: pop(empty()).tensor,
          type=lambda: pop(opaque(two()), dtype=I).tensor, other_shape=lambda: pop(two(), [3]).tensor,
          unset=lambda: pop(reserve(2)).tensor, unset_shape=lambda: pop(reserve(2), [2]).tensor,
          unset_list_shape=lambda: pop(reserve(2, [2])).tensor, unset_partial=lambda: pop(reserve(2, [-1])).tensor)
all_cases("TensorListLength", vector=lambda: length(tf.stack([empty(), empty()])), optional=lambda: length(raw.OptionalNone()),
          optional_value=lambda: length(raw.OptionalFromValue(components=[inp([1.0, 2.0]), inp(3)])), map=lambda: length(raw.EmptyTensorMap()))
all_cases("TensorListReserve", length=lambda: length(reserve(3)), negative=lambda: length(reserve(-1)), shape=lambda: length(reserve([1])))
all_cases("TensorListGetItem", value=lambda: get(two(), 1), beyond=lambda: get(two(), 2), negative=lambda: get(two(), -1),
          type=lambda: get(opaque(two()), 1, dtype=I), other_shape=lambda: get(two(), 1, [3]), unset=lambda: get(reserve(2), 1),
          unset_shape=lambda: get(reserve(2), 1, [3]), unset_merge=lambda: get(reserve(2, [3]), 1, [4]),
          unset_string=lambda: get(reserve(2, [2], S), 1, dtype=S), unset_like_others=lambda: get(holes(), 0),
          unset_others_differ=lambda: get(push(push(reserve(1), [1.0, 2.0]), 1.0), 0))
all_cases("TensorListSetItem", value=lambda: stack(put(two(), 0, [5.0, 6.0])), beyond=lambda: length(put(two(), 2, 1.0)),
          grows=lambda: length(put(two(), 4, 1.0, resize_if_index_out_of_bounds=True)), negative=lambda: length(put(two(), -1, 1.0)),
          index_shape=lambda: length(put(two(), [1], 1.0)), type=lambda: length(put(opaque(two()), 1, 1)),
          shape=lambda: length(put(reserve(2, [2]), 1, 1.0)), shared=lambda: (lambda t: [stack(t), stack(put(t, 0, [9.0, 9.0]))])(two()))
all_cases("TensorListStack", count=lambda: stack(two(), n=2), wrong_count=lambda: stack(two(), n=3), type=lambda: stack(opaque(two()), dtype=I),
          shape=lambda: stack(two(), [3]), empty=lambda: stack(empty()), empty_shape=lambda: stack(empty(), [2]),
          empty_partial=lambda: stack(empty(), [-1, 2]), differ=lambda: stack(push(two(), 1.0)), unset=lambda: stack(reserve(2)),
          unset_shape=lambda: stack(reserve(2), [2]), holes=lambda: stack(holes()), holes_partial=lambda: stack(holes(), [-1]),
          list_shape=lambda: stack(empty([2]), [3]))
all_cases("TensorListGather", value=lambda: gather(two(), [1, 0, 1]), beyond=lambda: gather(two(), [2]), negative=lambda: gather(two(), [-1]),
          none=lambda: gather(two(), []), none_shape=lambda: gather(two(), [], [2]), type=lambda: gather(opaque(two()), [0], dtype=I),
          shape=lambda: gather(two(), [0], [3]), differ=lambda: gather(push(two(), 1.0), [0, 2]), scalar=lambda: gather(two(), 0),
          unset=lambda: gather(reserve(2), [0]), unset_shape=lambda: gather(reserve(2), [0], [1]), holes=lambda: gather(holes(), [1, 0]))
all_cases("TensorListFromTensor", value=lambda: (lambda t: [length(t), get(t, 1), element_shape(t)])(from_tensor([[1.0, 2], [3, 4]])),
          scalar=lambda: length(from_tensor(1.0)), shape=lambda: length(from_tensor([1.0], [2])),
          empty=lambda: element_shape(from_tensor(nothing(0, 2), [-1])))
all_cases("TensorListConcatV2", value=lambda: concat(two()), empty=lambda: concat(empty()), empty_shape=lambda: concat(empty(), [-1, 2]),
          empty_first=lambda: concat(empty(), [3, 2]), empty_partial=lambda: concat(empty(), [-1, -1]),
          scalar=lambda: concat(push(empty(), 1.0)), scalar_shape=lambda: concat(push(empty(), 1.0), []),
          scalar_list=lambda: concat(empty([])), differ=lambda: concat(push(two(), [[1.0]])), first=lambda: concat(two(), [3]),
          type=lambda: concat(opaque(two()), dtype=I), list_shape=lambda: concat(empty([-1, 2]), [-1, 3]), holes=lambda: concat(holes()),
          holes_leading=lambda: concat(holes(), None, [5, 6, 7]), holes_some_leading=lambda: concat(holes(), [-1], [5, 6]),
          holes_differ=lambda: concat(put(holes(), 0, [1.0])), unset=lambda: concat(reserve(3)), unset_shape=lambda: concat(reserve(3, [3, 2])),
          unset_rows=lambda: concat(reserve(3, [-1, 2])), unset_leading=lambda: concat(reserve(2), [-1, 2], [1, 2]),
          unset_partial=lambda: concat(reserve(2), [-1, -1], [1, 2]))
all_cases("TensorListConcat", value=lambda: old_concat(two()), empty=lambda: old_concat(empty(), [None, 2]), first=lambda: old_concat(two(), [3]),
          holes=lambda: old_concat(holes()))
all_cases("TensorListSplit", value=lambda: (lambda t: [get(t, 0), get(t, 1), element_shape(t)])(split([1.0, 2, 3], [1, 2])),
          unused=lambda: length(split([1.0, 2, 3], [1, 1])), beyond=lambda: length(split([1.0, 2, 3], [1, 4])),
          negative=lambda: length(split([1.0, 2, 3], [-1, 4])), scalar=lambda: length(split(1.0, [1])),
          lengths_shape=lambda: length(split([1.0], [[1]])), shape=lambda: length(split([[1.0], [2.0]], [1, 1], [-1, 2])),
          first=lambda: length(split([[1.0], [2.0]], [1, 1], [1, 1])), rank=lambda: length(split([[1.0]], [1], [])))
all_cases("TensorListScatter", value=lambda: (lambda t: [length(t), get(t, 2), get(t, 1)])(scatter([1.0, 2], [2, 0])),
          negative=lambda: length(scatter([1.0, 2], [2, -1])), rows=lambda: length(scatter([1.0, 2], [2])), scalar=lambda: length(scatter(1.0, [2])),
          shape=lambda: length(scatter([1.0, 2], [1, 0], [1])), none=lambda: length(scatter(nothing(0, 2), [])))
all_cases("TensorListScatterV2", value=lambda: length(scatter2([1.0, 2], [1, 0], n=4)), small=lambda: length(scatter2([1.0, 2], [1, 0], n=1)),
          negative=lambda: length(scatter2([1.0, 2], [1, 0], n=-2)), fits=lambda: stack(scatter2([1.0, 2], [1, 0])))
all_cases("TensorListScatterIntoExistingList",
          value=lambda: (lambda t: [length(t), get(t, 1), get(t, 0)])(scatter_into(two(), [[5.0, 6], [7, 8]], [1, 3])),
          scalar=lambda: length(scatter_into(two(), 1.0, [1])), type=lambda: length(scatter_into(opaque(two()), [1], [1])),
          lengths=lambda: length(scatter_into(two(), [1.0], [1, 2])))
all_cases("TensorListResize", shorter=lambda: stack(resize(two(), 1)), longer=lambda: stack(resize(two(), 3)),
          negative=lambda: length(resize(two(), -1)), shape=lambda: length(resize(two(), [1])))
all_cases("TensorListConcatLists", value=lambda: stack(join(two(), two())), type=lambda: length(join(opaque(two()), opaque(empty(dtype=I)))),
          op_type=lambda: length(join(opaque(two()), opaque(two()), I)), shape=lambda: length(join(empty([2]), empty([3]))),
          batch=lambda: [length(t) for t in tf.unstack(join(tf.stack([two(), two()]), tf.stack([two(), empty()])), num=2)],
          not_list=lambda: length(join(two(), raw.OptionalNone())))
all_cases("TensorListPushBackBatch",
          value=lambda: [stack(t) for t in tf.unstack(push_batch(tf.stack([two(), empty()]), [[1.0, 2], [3, 4]]), num=2)],
          rows=lambda: length(push_batch(tf.stack([empty(), empty()]), [[1.0, 2]])),
          scalar=lambda: length(push_batch(tf.stack([empty(), empty()]), 1.0)),
          type=lambda: length(push_batch(opaque(tf.stack([empty(), empty()])), [1, 2])),
          shape=lambda: length(push_batch(tf.stack([empty([1]), empty()]), [1.0, 2])),
          not_list=lambda: length(push_batch(tf.stack([raw.OptionalNone(), raw.OptionalNone()]), [1.0, 2])))
all_cases("TensorListElementShape", unknown=lambda: element_shape(two()), partial=lambda: element_shape(empty([2, -1])),
          wide=lambda: element_shape(empty([2, -1]), L), scalar=lambda: element_shape(empty([])))
for dtype in ALL:
    case("TensorList/types/%s" % dtype.name, lambda dtype=dtype: (lambda t: [
        stack(t, dtype=dtype), concat(t, dtype=dtype), gather(t, [1], dtype=dtype), get(reserve(1, [2], dtype), 0, dtype=dtype)])(
            from_tensor(rnd((3, 2), dtype))))
    case("AddN/list/%s" % dtype.name, lambda dtype=dtype: stack(tf.add_n([from_tensor(rnd((3,), dtype)), from_tensor(rnd((3,), dtype))]), dtype=dtype))
    case("ZerosLike/list/%s" % dtype.name, lambda dtype=dtype: stack(tf.zeros_like(from_tensor(rnd((3,), dtype))), dtype=dtype))
for dtype in (tf.qint8, tf.qint16, tf.resource):
    case("TensorListStack/kernel_%s" % dtype.name, lambda dtype=dtype: tf.identity(stack(empty([2], dtype=dtype), dtype=dtype)).op)

some = lambda: raw.OptionalFromValue(components=[inp([1.0, 2.0]), inp(3)])
none = raw.OptionalNone


def value(optional, types=(F, I), shapes=((2,), ())):
    return raw.OptionalGetValue(optional=optional, output_types=list(types), output_shapes=list(shapes))


all_cases("AddN/variant", one=lambda: stack(tf.add_n([two()])), three=lambda: stack(tf.add_n([two(), two(), two()])),
          length=lambda: length(tf.add_n([opaque(two()), opaque(empty())])), type=lambda: length(tf.add_n([opaque(empty()), opaque(empty(dtype=I))])),
          shape=lambda: length(tf.add_n([empty([2]), empty([3])])), holes=lambda: stack(tf.add_n([holes(), holes()])),
          unset=lambda: stack(tf.add_n([two(), reserve(2)])), unset_both=lambda: stack(tf.add_n([reserve(2), reserve(2)]), [2]),
          element=lambda: stack(tf.add_n([two(), push(push(empty(), 1.0), 2.0)])),
          vector=lambda: length(tf.add_n([tf.stack([two(), two()]), tf.stack([two(), two()])])),
          mixed=lambda: length(tf.add_n([opaque(two()), opaque(none())])),
          nested=lambda: stack(get(tf.add_n([push(empty(dtype=V), two()), push(empty(dtype=V), two())]), 0, dtype=V)),
          optional=lambda: value(tf.add_n([some(), some()])), optional_none=lambda: raw.OptionalHasValue(optional=tf.add_n([none(), none()])),
          optional_one=lambda: value(tf.add_n([some(), opaque(none())])))
all_cases("ZerosLike/variant", unset=lambda: stack(tf.zeros_like(reserve(2)), [2]), nested=lambda: stack(
    get(tf.zeros_like(push(empty(dtype=V), two())), 0, dtype=V)), vector=lambda: length(tf.zeros_like(tf.stack([two(), two()]))),
          optional=lambda: value(tf.zeros_like(some())), optional_none=lambda: raw.OptionalHasValue(optional=tf.zeros_like(none())))
all_cases("Variant", select=lambda: [length(tf.where(inp(True), two(), empty())), length(raw.SelectV2(condition=inp(False), t=two(), e=empty()))],
          identity=lambda: stack(tf.identity(two())), stack=lambda: length(tf.stack([two(), empty()])[1]),
          nested=lambda: stack(get(push(push(empty(dtype=V), empty()), two()), 1, dtype=V)))
all_cases("OptionalHasValue", some=lambda: raw.OptionalHasValue(optional=some()), none=lambda: raw.OptionalHasValue(optional=none()),
          list=lambda: raw.OptionalHasValue(optional=two()), vector=lambda: raw.OptionalHasValue(optional=tf.stack([some(), some()])))
all_cases("OptionalGetValue", value=lambda: value(some()), none=lambda: value(none()), list=lambda: value(two()),
          count=lambda: value(some(), [F], [[2]]), type=lambda: value(some(), [F, F]), shape=lambda: value(some(), [F, I], [[3], []]))


def insert(handle, key, item):
    return raw.TensorMapInsert(input_handle=handle, key=inp(key), value=inp(item))


def look(handle, key, dtype=F):
    return raw.TensorMapLookup(input_handle=handle, key=inp(key), value_dtype=dtype)


def erase(handle, key):
    return raw.TensorMapErase(input_handle=handle, key=inp(key), value_dtype=F)


def has(handle, key):
    return raw.TensorMapHasKey(input_handle=handle, key=inp(key))


def keys(handle, dtype=I):
    return raw.TensorMapStackKeys(input_handle=handle, key_dtype=dtype)


def entries():
    return insert(insert(insert(raw.EmptyTensorMap(), 1, 1.0), 2, [2.0, 3.0]), 1, 4.0)


def count(handle):
    return raw.TensorMapSize(input_handle=handle)


all_cases("TensorMap", lookup=lambda: [look(entries(), 1), look(entries(), 2), count(entries())], missing=lambda: look(entries(), 3),
          missing_key=lambda: look(entries(), [1, 2, 3, 4]), type=lambda: look(entries(), 1, I), other_key=lambda: look(entries(), 1.0),
          has=lambda: [has(entries(), 1), has(entries(), 7)], erase=lambda: [count(erase(entries(), 1)), look(erase(entries(), 1), 2)],
          erase_missing=lambda: count(erase(entries(), 3)), keys_empty=lambda: keys(raw.EmptyTensorMap()), keys_type=lambda: keys(entries(), F),
          keys_shape=lambda: keys(insert(entries(), [1, 2], 1.0)), strings=lambda: look(insert(raw.EmptyTensorMap(), [b"a", b"b"], 1.0), [b"a", b"b"]),
          vector=lambda: count(tf.stack([raw.EmptyTensorMap(), raw.EmptyTensorMap()])), list=lambda: count(two()), shared=lambda: (
              lambda m: [count(m), count(insert(m, 9, 1.0)), count(erase(m, 1))])(entries()))
case("TensorMap/keys", lambda: keys(entries()), post=np.sort)
case("AddN/map", lambda: (lambda m: [look(m, 1), look(m, 2), look(m, 5), count(m)])(tf.add_n([entries(), insert(entries(), 5, 6.0)])))
case("ZerosLike/map", lambda: count(tf.zeros_like(entries())))
