"""CSV records, raw bytes and compressed strings."""
import gzip
import zlib

import numpy as np

from registry import case, inp, raw, tf

TYPES = [tf.float32, tf.float64, tf.int32, tf.int64, tf.string]


def csv(records, defaults, **attrs):
    """DecodeCSV; a default of None is a required field, given as its dtype."""
    empty = lambda t: np.array([], object if t == tf.string else t.as_numpy_dtype)
    return raw.DecodeCSV(records=inp(records, tf.string), record_defaults=[inp(empty(d), d) if isinstance(d, tf.DType) else inp(*d) for d in defaults], **attrs)


S, I = tf.string, tf.int32
case("DecodeCSV/types", lambda: csv(["1,2,3,4,x", "-1.5e3, 2.5 ,-7,9223372036854775807,", "nan,inf,+4,-0,\"q\"\"q\""], [([9.0], tf.float32), ([8.0], tf.float64), ([7], I), ([6], tf.int64), (["d"], S)]))
case("DecodeCSV/defaults", lambda: csv([",,,,"], [([9.0], tf.float32), ([8.0], tf.float64), ([7], I), ([6], tf.int64), (["d"], S)]))
case("DecodeCSV/scalar_default", lambda: csv([","], [(7, I), ("d", S)]))
case("DecodeCSV/scalar", lambda: csv("1,a", [I, S]))
case("DecodeCSV/matrix", lambda: csv([["1,a"], ["2,b"]], [I, S]))
case("DecodeCSV/none", lambda: csv(np.array([], object), [I, S]))
case("DecodeCSV/na_value", lambda: csv(["NA,NA", "1,\"NA\""], [([7], I), (["d"], S)], na_value="NA"))
case("DecodeCSV/na_required", lambda: csv(["NA"], [I], na_value="NA"))
case("DecodeCSV/tab", lambda: csv(["1\ta,b", "2\t\"x\ty\""], [I, S], field_delim="\t"))
case("DecodeCSV/no_quotes", lambda: csv(['1,"a', '2,b"c"'], [I, S], use_quote_delim=False))
case("DecodeCSV/newlines", lambda: csv(["\n1,\r\na", "\"1\",\"a\nb\r\n\""], [I, S]))
case("DecodeCSV/select", lambda: csv(["1,2,3,4", "5,6,\"7\",8"], [I, I], select_cols=[1, 3]))
case("DecodeCSV/select_skips_rest", lambda: csv(["1,2,\"bad"], [I], select_cols=[0]))
case("DecodeCSV/select_last_empty", lambda: csv(["1,2,"], [([9], I)], select_cols=[2]))
case("DecodeCSV/select_beyond", lambda: csv(["1,2"], [I], select_cols=[2]))
for name, cols in dict(order=[1, 0], count=[0], negative=[-1, 0], same=[1, 1]).items():
    case("DecodeCSV/select_" + name, lambda cols=cols: csv(["1,2"], [I, I], select_cols=cols))
for name, record in dict(quote_inside='1,a"b', quote_open='1,"a', quote_end='1,"a"b', lone='"', crlf_inside="1,a\nb", fields_few="1", fields_many="1,a,b", nothing="", only_newlines="\r\n", missing=",a",
                         int="x,a", int_float="1.0,a", int_big="2147483648,a", int_space=" 1 ,a", int_hex="0x10,a", int_nul="1\0,a", utf8=b"1,\xff\xfe", digits="9" * 1000 + ",a", trailing="1,a,", quotes_only='1,""', quotes_many='1,""""').items():
    case("DecodeCSV/record/" + name, lambda record=record: csv(["1,a", record], [I, S]))
for name, record in dict(huge="1e999999", tiny="1e-999999", hex="0x1p3", words="infinity", nan="-nan", junk="1.5x", comma="1,5", space=" ", denormal="1e-40", digits="1" * 400, empty_exponent="1e").items():
    for t in (tf.float32, tf.float64):
        case("DecodeCSV/float/%s/%s" % (name, t.name), lambda record=record, t=t: csv([record], [t]))
case("DecodeCSV/default_rank", lambda: csv(["1"], [([[7]], I)]))
case("DecodeCSV/default_count", lambda: csv(["1"], [([7, 8], I)]))
case("DecodeCSV/delim", lambda: csv(["1"], [I], field_delim="ab"))
case("DecodeCSV/delim_empty", lambda: csv(["1"], [I], field_delim=""))
case("DecodeCSV/many", lambda: csv(["%d,%f,w%d" % (i, i / 7, i % 9) for i in range(5000)], [I, tf.float64, S]))
case("DecodeCSV/many_first_error", lambda: csv(["x" if i in (4000, 3000) else "1" for i in range(5000)], [I]))

for t in [tf.uint8, tf.int16, tf.uint16, tf.int32, tf.int64, tf.float16, tf.float32, tf.float64, tf.complex64, tf.complex128, tf.bool, tf.int8]:
    for little in (True, False):
        case("DecodeRaw/%s/%s" % (t.name, little), lambda t=t, little=little: raw.DecodeRaw(bytes=inp([bytes(i % 2 if t == tf.bool else i for i in range(1, 17)), bytes(16)], S), out_type=t, little_endian=little))
case("DecodeRaw/sizes", lambda: raw.DecodeRaw(bytes=inp(["ab", "abcd"], S), out_type=tf.uint8))
case("DecodeRaw/multiple", lambda: raw.DecodeRaw(bytes=inp(["abc"], S), out_type=tf.int16))
case("DecodeRaw/none", lambda: raw.DecodeRaw(bytes=inp(np.zeros([0], object), S), out_type=tf.int16))
case("DecodeRaw/empty", lambda: raw.DecodeRaw(bytes=inp(["", ""], S), out_type=tf.int16))

TEXT = b"hello " * 1000
for kind, data in dict(ZLIB=zlib.compress(TEXT), GZIP=gzip.compress(TEXT, mtime=0)).items():
    dc = lambda b, kind=kind: raw.DecodeCompressed(bytes=inp(b, S), compression_type=kind)
    case("DecodeCompressed/%s/values" % kind, lambda dc=dc, data=data: dc([[data], [data]]))
    case("DecodeCompressed/%s/garbage" % kind, lambda dc=dc: dc(b"this is no stream"))
    case("DecodeCompressed/%s/empty" % kind, lambda dc=dc: dc(b""))
    case("DecodeCompressed/%s/cut" % kind, lambda dc=dc, data=data: dc(data[:-6]))
    case("DecodeCompressed/%s/trailing" % kind, lambda dc=dc, data=data: dc(data + b"trailing bytes"))
    case("DecodeCompressed/%s/two" % kind, lambda dc=dc, data=data: dc(data + data))
    case("DecodeCompressed/%s/damaged" % kind, lambda dc=dc, data=data: dc(data[:15] + b"\xff\xff\xff" + data[18:]))
    case("DecodeCompressed/%s/checksum" % kind, lambda dc=dc, data=data: dc(data[:-4] + b"\x00\x00\x00\x00"))
    other = dict(ZLIB="GZIP", GZIP="ZLIB")[kind]
    case("DecodeCompressed/%s/other" % kind, lambda data=data, other=other: raw.DecodeCompressed(bytes=inp(data, S), compression_type=other))
case("DecodeCompressed/none", lambda: raw.DecodeCompressed(bytes=inp([b"abc", b""], S)))
case("DecodeCompressed/unknown", lambda: raw.DecodeCompressed(bytes=inp(b"abc", S), compression_type="SNAPPY"))
