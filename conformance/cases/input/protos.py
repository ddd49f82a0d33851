"""Messages of types given as descriptors: DecodeProtoV2, EncodeProto."""
import numpy as np
from google.protobuf import descriptor_pb2

from registry import any_op, case, const, inp, raw, tf

T = descriptor_pb2.FieldDescriptorProto
KINDS = [("d", T.TYPE_DOUBLE, tf.float64), ("f", T.TYPE_FLOAT, tf.float32), ("i64", T.TYPE_INT64, tf.int64), ("u64", T.TYPE_UINT64, tf.uint64), ("i32", T.TYPE_INT32, tf.int32),
         ("x64", T.TYPE_FIXED64, tf.uint64), ("x32", T.TYPE_FIXED32, tf.uint32), ("b", T.TYPE_BOOL, tf.bool), ("s", T.TYPE_STRING, tf.string), ("y", T.TYPE_BYTES, tf.string),
         ("u32", T.TYPE_UINT32, tf.uint32), ("e", T.TYPE_ENUM, tf.int32), ("sx32", T.TYPE_SFIXED32, tf.int32), ("sx64", T.TYPE_SFIXED64, tf.int64),
         ("s32", T.TYPE_SINT32, tf.int32), ("s64", T.TYPE_SINT64, tf.int64), ("m", T.TYPE_MESSAGE, tf.string)]
WIDER = [("f", tf.float64), ("i32", tf.int64), ("x32", tf.uint64), ("u32", tf.uint64), ("sx32", tf.int64), ("s32", tf.int64)]


def files(syntax="proto2"):
    out = descriptor_pb2.FileDescriptorSet()
    f = out.file.add(name="t.proto", package="t", syntax=syntax)
    e = f.enum_type.add(name="E")
    for name, number in (("ZERO", 0), ("ONE", 1), ("LESS", -3)):
        e.value.add(name=name, number=number)
    m = f.message_type.add(name="M")
    for n, (name, kind, _) in enumerate(KINDS, 1):
        where = dict(type_name=".t.E" if kind == T.TYPE_ENUM else ".t.M") if kind in (T.TYPE_ENUM, T.TYPE_MESSAGE) else {}
        m.field.add(name=name, number=n, type=kind, label=T.LABEL_OPTIONAL, **where)
        m.field.add(name="r_" + name, number=n + 20, type=kind, label=T.LABEL_REPEATED, **where)
    p = m.field.add(name="p", number=60, type=T.TYPE_INT32, label=T.LABEL_REPEATED)
    p.options.packed = True
    if syntax == "proto2":
        for n, (name, kind, value) in enumerate([("df", T.TYPE_FLOAT, "-inf"), ("di", T.TYPE_INT64, "-5"), ("du", T.TYPE_UINT64, "70000000000"), ("ds", T.TYPE_STRING, "x y"),
                                                 ("dy", T.TYPE_BYTES, "a\\000b\\n"), ("db", T.TYPE_BOOL, "true")], 70):
            m.field.add(name=name, number=n, type=kind, label=T.LABEL_OPTIONAL, default_value=value)
        m.field.add(name="de", number=80, type=T.TYPE_ENUM, type_name="E", label=T.LABEL_OPTIONAL, default_value="LESS")
        m.oneof_decl.add(name="either")
        m.field.add(name="left", number=81, type=T.TYPE_INT32, label=T.LABEL_OPTIONAL, oneof_index=0)
        m.field.add(name="right", number=82, type=T.TYPE_STRING, label=T.LABEL_OPTIONAL, oneof_index=0)
        entry = m.nested_type.add(name="MapEntry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, type=T.TYPE_STRING, label=T.LABEL_OPTIONAL)
        entry.field.add(name="value", number=2, type=T.TYPE_INT32, label=T.LABEL_OPTIONAL)
        m.field.add(name="map", number=83, type=T.TYPE_MESSAGE, type_name=".t.M.MapEntry", label=T.LABEL_REPEATED)
        m.extension_range.add(start=100, end=200)
        f.extension.add(name="ext", number=100, type=T.TYPE_INT32, label=T.LABEL_OPTIONAL, extendee=".t.M")
        need = f.message_type.add(name="Need")
        need.field.add(name="a", number=1, type=T.TYPE_INT32, label=T.LABEL_REQUIRED)
    return out


PROTO2, PROTO3 = (b"bytes://" + files(s).SerializeToString() for s in ("proto2", "proto3"))


def varint(v):
    v &= (1 << 64) - 1
    out = b""
    while v >= 128:
        out, v = out + bytes([v & 127 | 128]), v >> 7
    return out + bytes([v])


def tag(number, wire):
    return varint(number * 8 + wire)


def number(n, v):
    return tag(n, 0) + varint(v)


def blob(n, b):
    return tag(n, 2) + varint(len(b)) + b


def decode(messages, fields, types, source=PROTO2, name="t.M", **attrs):
    out = any_op("DecodeProtoV2", bytes=inp(messages, tf.string), message_type=name, field_names=fields, output_types=types, descriptor_source=source, **attrs)
    return [out[0]] + list(out[1])


def whole(message, source=PROTO2, **attrs):
    names = [k[0] for k in KINDS] + ["r_" + k[0] for k in KINDS]
    return decode([message], names, [k[2] for k in KINDS] * 2, source, **attrs)


NUMBERS = [n for n, (_, kind, _) in enumerate(KINDS, 1) if kind in (T.TYPE_INT64, T.TYPE_UINT64, T.TYPE_INT32, T.TYPE_BOOL, T.TYPE_UINT32, T.TYPE_ENUM, T.TYPE_SINT32, T.TYPE_SINT64)]
ODD = b"".join(number(n, v) for n in NUMBERS for v in (1, 0, 3, -1, 1 << 31, (1 << 40) + 7))
MANY = b"".join(number(n + 20, v) for n in NUMBERS for v in (1, 0, 3, -1, 1 << 31, (1 << 40) + 7))
PACKED = b"".join(blob(n + 20, b"".join(varint(v) for v in (1, 0, 3, -1, 1 << 31, (1 << 40) + 7))) for n in NUMBERS)
FIXED = np.array([1.5, -2.5]).tobytes()
FIXES = b"".join(tag(n + 20, 1) + FIXED[:8] + blob(n + 20, FIXED) for n in (1, 6, 14)) + b"".join(tag(n + 20, 5) + FIXED[4:8] + blob(n + 20, FIXED) for n in (2, 7, 13))
TEXTS = blob(9, b"one") + blob(9, b"two") + blob(29, b"a") + blob(29, b"") + blob(30, b"\xff\x00") + blob(17, number(5, 7)) + blob(37, number(25, 7)) + blob(37, b"")
for name, message in [("nothing", b""), ("odd", ODD), ("many", MANY), ("packed", PACKED), ("fixed", FIXES), ("texts", TEXTS), ("backwards", MANY[::-1][:0] + number(25, 5) + number(5, 6) + number(25, 7)),
                      ("unknown", number(300, 5) + blob(301, b"abc") + tag(302, 3) + number(1, 1) + tag(302, 4) + number(5, 9))]:
    case("DecodeProtoV2/" + name, lambda m=message: whole(m))
    case("DecodeProtoV2/sanitize_" + name, lambda m=message: whole(m, sanitize=True))
    if name != "texts":
        case("DecodeProtoV2/proto3_" + name, lambda m=message: whole(m, PROTO3, sanitize=True))
for name, t in WIDER:
    n = [k[0] for k in KINDS].index(name) + 21
    fixed = name in ("f", "x32", "sx32")
    one = tag(n, 5) + FIXED[4:8] if fixed else number(n, -2)
    some = blob(n, FIXED if fixed else varint(-2) + varint(5))
    case("DecodeProtoV2/wider_%s" % name, lambda n=name, t=t, m=[one, some, one + some]: decode(m, ["r_" + n], [t]))
case("DecodeProtoV2/batch", lambda: decode([[number(25, 1), b""], [number(25, 1) * 3, blob(29, b"x")]], ["r_s", "r_i32", "i32"], [tf.string, tf.int32, tf.int32]))
case("DecodeProtoV2/scalar", lambda: decode(number(5, 1), ["i32"], [tf.int32]))
case("DecodeProtoV2/defaults", lambda: decode([b""], ["df", "di", "du", "ds", "dy", "db", "de"], [tf.float32, tf.int64, tf.uint64, tf.string, tf.string, tf.bool, tf.int32]))
case("DecodeProtoV2/twice", lambda: decode([number(5, 1)], ["i32", "i32"], [tf.int32, tf.int64]))
case("DecodeProtoV2/extension", lambda: decode([number(100, 7)], ["t.ext"], [tf.int32]))
case("DecodeProtoV2/oneof", lambda: decode([number(81, 7) + blob(82, b"x"), blob(82, b"x") + number(81, 7)], ["left", "right"], [tf.int32, tf.string], sanitize=True))
case("DecodeProtoV2/map", lambda: decode([blob(83, blob(1, b"k") + number(2, 5)) + blob(83, b"") + blob(83, blob(1, b"k"))], ["map"], [tf.string]))
case("DecodeProtoV2/local", lambda: decode([tf.train.Example(features=tf.train.Features(feature={"a": tf.train.Feature(int64_list=tf.train.Int64List(value=[5]))})).SerializeToString()],
                                           ["features"], [tf.string], "local://", "tensorflow.Example"))
for name, message in [("cut", b"\x28"), ("end", b"\x2c"), ("zero", b"\x00"), ("number", b"\x02\x00"), ("length", tag(9, 2) + b"\x05ab"), ("group", tag(300, 3) + number(1, 1)), ("varint", b"\x28" + b"\xff" * 11),
                      ("packed_cut", tag(25, 2) + b"\x09\x01"), ("packed_varint", blob(25, b"\x81")), ("packed_fixed", blob(27, b"abc")), ("empty_after", number(25, 1) + blob(25, b"")),
                      ("one_packed", blob(5, b"\x01\x02")), ("one_packed_after", number(5, 7) + blob(5, b"\x01")), ("other_wire", tag(5, 5) + b"abcd"), ("wire", b"\x2e")]:
    case("DecodeProtoV2/broken_" + name, lambda m=message: whole(m))
    case("DecodeProtoV2/broken_sanitize_" + name, lambda m=message: whole(m, sanitize=True))
for name, text in [("plain", "i32: 5 r_i32: [1, 2, 0x10] r_i32: 017 u64: 18446744073709551615"), ("floats", "f: 1e3 d: -inf r_f: [1, .5, 2.5f, nan] r_d: -1e-3"), ("bools", "b: true r_b: [t, false, 0, 1, True]"),
                   ("strings", "s: 'a' \"b\\n\\x41\\101\" r_s: ['x', 'y']"), ("enums", "e: LESS r_e: [ONE, 0, -3]"), ("messages", "m { i32: 1 m < i32: 2 > } r_m: [{i32: 1}, {}] r_m {}"),
                   ("marks", "i32: 1; # comment\n s: 'x', r_i32: []"), ("extension", "[t.ext]: 5"), ("map", "map { key: 'a' value: 1 } map { key: 'b' }"), ("oneof", "left: 1 right: 'x'"),
                   ("twice", "i32: 1 i32: 2"), ("unknown", "nope: 1"), ("range", "i32: 2147483648"), ("negative", "u32: -1"), ("unclosed", "m { i32: 1"), ("kind", "i32: 'x'"), ("colon", "i32 5"),
                   ("enum", "e: NOPE"), ("enum_number", "e: 17"), ("empty", ""), ("float_as_int", "i32: 1.5"), ("quote", "s: 'abc")]:
    case("DecodeProtoV2/text_" + name, lambda m=text: whole(m.encode(), message_format="text"))
case("DecodeProtoV2/required", lambda: decode([b""], ["a"], [tf.int32], name="t.Need", sanitize=True))
for name, kw in [("field", dict(fields=["nope"])), ("type", dict(types=[tf.float32])), ("message", dict(name="t.N")), ("length", dict(types=[tf.int32, tf.int32])), ("format", dict(message_format="xml")),
                 ("source", dict(source="nosuch://x")), ("bytes", dict(source=b"bytes://\x05")), ("none", dict(messages=[]))]:
    case("DecodeProtoV2/wrong_" + name, lambda kw=kw: decode(**{**dict(messages=[b""], fields=["i32"], types=[tf.int32]), **kw}))


def encode(sizes, values, fields, source=PROTO2, name="t.M"):
    return any_op("EncodeProto", sizes=inp(sizes, tf.int32), values=[inp(v, t) for v, t in values], field_names=fields, message_type=name, descriptor_source=source)


SAMPLE = {tf.string: [[b"one", b"two"], [b"", b"\xff"]], tf.bool: [[True, False], [False, True]]}
for name, kind, t in KINDS:
    values = SAMPLE.get(t) or ([[1, 2], [0, 300]] if name in ("u64", "x64", "x32", "u32", "e") else [[1, -2], [0, 300]])
    case("EncodeProto/" + name, lambda n=name, t=t, v=values: encode([[1], [2]], [(v, t)], ["r_" + n]))
for name, t in WIDER:
    case("EncodeProto/wider_" + name, lambda n=name, t=t: encode([[2]], [([[1, 1 << 33]], t)], ["r_" + n]))
case("EncodeProto/packed", lambda: encode([[2], [0]], [([[1, -2], [3, 4]], tf.int32)], ["p"]))
case("EncodeProto/order", lambda: encode([[1, 1, 1]], [([[1]], tf.int32), ([[b"x"]], tf.string), ([[2.5]], tf.float32)], ["r_i32", "s", "f"]))
case("EncodeProto/proto3", lambda: encode([[2]], [([[1, 2]], tf.int32)], ["r_i32"], PROTO3))
for name, args in [("long", ([[3]], [([[1, 2]], tf.int64)], ["i64"])), ("negative", ([[-1]], [([[1, 2]], tf.int64)], ["i64"])), ("vector", ([[1]], [([1], tf.int64)], ["i64"])), ("type", ([[1]], [([[1.0]], tf.float32)], ["i64"])),
                   ("sizes", ([[1, 1]], [([[1]], tf.int64)], ["i64"])), ("batch", ([[1, 1]], [([[1]], tf.int64), ([[1], [2]], tf.int64)], ["i64", "r_i64"])), ("field", ([[1]], [([[1]], tf.int64)], ["nope"])),
                   ("count", ([[1]], [([[1]], tf.int64)], ["i64", "s64"]))]:
    case("EncodeProto/wrong_" + name, lambda a=args: encode(*a))
