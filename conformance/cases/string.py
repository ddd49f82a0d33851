"""String basics: AsString, StringJoin, StringFormat, Substr, lengths, case, hashing, numbers, files of names."""
import numpy as np

from registry import INTS, allowed, any_op, case, const, inp, raw, rnd, short, tf

WORDS = ["", "a", "Hello, World", "  padded\t\n", "äöü ß €", "\U0001f600 emoji", "UPPER lower 123"]

for t in allowed("AsString"):
    case("AsString/" + short(t), lambda t=t: [raw.AsString(input=inp(rnd(s, t), t)) for s in [(2, 3), (), (0,)]])
    if t.is_floating or t.is_complex:
        for kw in (dict(precision=3), dict(scientific=True), dict(shortest=True), dict(precision=2, scientific=True), dict(width=12, precision=2),
                   dict(width=12, precision=2, fill="0"), dict(width=10, fill="-"), dict(width=10, fill=" "), dict(width=10, fill="+"), dict(shortest=True, width=9)):
            case("AsString/%s_%s" % (short(t), sorted(kw.items())), lambda t=t, kw=kw: raw.AsString(
                input=inp([0, 1, -2.5, 3.14159265, 1e20, 1e-7, 123456789], t), **kw))
    elif t.is_integer:
        for kw in (dict(width=6), dict(width=6, fill="0"), dict(width=6, fill="-"), dict(fill="0"), dict(precision=3), dict(width=6, fill="ab")):
            case("AsString/%s_%s" % (short(t), sorted(kw.items())), lambda t=t, kw=kw: raw.AsString(input=inp([0, 1, 99], t), **kw))
for t in (tf.float32, tf.float64):
    case("AsString/special_" + short(t), lambda t=t: raw.AsString(input=inp([np.inf, -np.inf, np.nan, -0.0, 1e38, 1e-38], t)))
case("AsString/bad_both", lambda: raw.AsString(input=inp([1.0]), scientific=True, shortest=True))

for sep in ("", ", ", "€"):
    case("StringJoin/sep_%r" % sep, lambda sep=sep: [
        raw.StringJoin(inputs=[inp(["a", "b"]), inp("-"), inp(["x", "y"])], separator=sep),
        raw.StringJoin(inputs=[inp("a"), inp("b")], separator=sep), raw.StringJoin(inputs=[inp([["p"], ["q"]])], separator=sep)])
case("StringJoin/mismatch", lambda: raw.StringJoin(inputs=[inp(["a", "b"]), inp(["x", "y", "z"])]))
case("StringJoin/empty", lambda: raw.StringJoin(inputs=[inp(np.zeros((0,), object)), inp("x")]))
for name, inputs, kw in [("one", [[1, 2, 3]], dict(template="value %s end")), ("two", [[1.5, 2.5], "text"], dict(template="%s and %s")),
                         ("summarize", [list(range(20))], dict(template="%s", summarize=2)), ("summarize_all", [list(range(20))], dict(template="%s", summarize=-1)),
                         ("matrix", [[[1, 2], [3, 4]]], dict(template="%s")), ("placeholder", [7], dict(template="a{}b", placeholder="{}")),
                         ("scalar_bool", [True], dict(template="%s")), ("none", [], dict(template="nothing")), ("empty", [np.zeros((0, 2), np.float32)], dict(template="%s")),
                         ("floats", [[1.0, 0.1, 1e10, float("nan")]], dict(template="%s")), ("cube", [np.arange(27, dtype=np.int32).reshape(3, 3, 3)], dict(template="%s", summarize=1))]:
    case("StringFormat/" + name, lambda inputs=inputs, kw=kw: raw.StringFormat(inputs=[inp(v) for v in inputs], **kw))
for it in INTS:
    for unit in ("BYTE", "UTF8_CHAR"):
        n = "%s_%s" % (short(it), unit)
        case("Substr/" + n, lambda it=it, unit=unit: [raw.Substr(input=inp(WORDS[2:]), pos=inp(p, it), len=inp(k, it), unit=unit)
                                                     for p, k in ((0, 3), (2, 100), (-3, 2), (1, 0))])
        case("Substr/elementwise_" + n, lambda it=it, unit=unit: raw.Substr(
            input=inp(["hello", "world!"]), pos=inp([1, 2], it), len=inp([2, 3], it), unit=unit))
        case("Substr/broadcast_" + n, lambda it=it, unit=unit: raw.Substr(
            input=inp([["hello"], ["world"]]), pos=inp([0, 1, 2], it), len=inp([1, 2, 3], it), unit=unit))
        case("Substr/range_" + n, lambda it=it, unit=unit: raw.Substr(input=inp(["ab", "abcdef"]), pos=inp(4, it), len=inp(1, it), unit=unit))
        case("Substr/range_negative_" + n, lambda it=it, unit=unit: raw.Substr(input=inp(["ab"]), pos=inp(-4, it), len=inp(1, it), unit=unit))
        case("Substr/scalar_range_" + n, lambda it=it, unit=unit: raw.Substr(input=inp("ab"), pos=inp(3, it), len=inp(1, it), unit=unit))
    case("Substr/shape_%s" % short(it), lambda it=it: raw.Substr(input=inp(["ab", "cd"]), pos=inp([0, 1, 1], it), len=inp([1, 1, 1], it)))
    case("Substr/pos_len_%s" % short(it), lambda it=it: raw.Substr(input=inp(["ab", "cd"]), pos=inp([0, 1], it), len=inp([1], it)))
for unit in ("BYTE", "UTF8_CHAR"):
    case("StringLength/" + unit, lambda unit=unit: raw.StringLength(input=inp(WORDS), unit=unit))
for op in ("StringLower", "StringUpper"):
    for enc in ("", "utf-8"):
        case("%s/%r" % (op, enc), lambda op=op, enc=enc: getattr(raw, op)(input=inp(WORDS), encoding=enc))
    case("%s/bad_encoding" % op, lambda op=op: getattr(raw, op)(input=inp(["a"]), encoding="latin"))
case("StringStrip", lambda: raw.StringStrip(input=inp(WORDS)))
for op in ("StringToHashBucketFast", "StringToHashBucket"):
    arg = "input" if op.endswith("Fast") else "string_tensor"
    for n in (1, 10, 2**40):
        case("%s/%d" % (op, n), lambda op=op, arg=arg, n=n: getattr(raw, op)(**{arg: inp(WORDS + ["x" * k for k in (15, 16, 17, 33, 64, 65, 200)])}, num_buckets=n))
case("StringToHashBucketStrong", lambda: raw.StringToHashBucketStrong(input=inp(WORDS), num_buckets=1000, key=[123, 456]))
for n in (0, 1, 3, 4, 8, 15, 16, 17, 64, 127, 128, 143, 144, 300):
    case("SdcaFprint/%d" % n, lambda n=n: any_op("SdcaFprint", input=inp([bytes((i * 7 + n) % 256 for i in range(n)), b"x" * n], tf.string)))
case("SdcaFprint/scalar", lambda: any_op("SdcaFprint", input=inp(b"a", tf.string)))
for t in allowed("StringToNumber", "out_type"):
    case("StringToNumber/" + short(t), lambda t=t: raw.StringToNumber(string_tensor=inp(["0", " 12 ", "7"]), out_type=t))
    for bad in ("", "abc", "1x", "99999999999999999999999", "-5", "1.5", "1e3"):
        case("StringToNumber/%s_%r" % (short(t), bad), lambda t=t, bad=bad: raw.StringToNumber(string_tensor=inp([bad]), out_type=t))
case("StringToNumber/special", lambda: raw.StringToNumber(string_tensor=inp(["inf", "-inf", "nan", "+3", "1e-45", "3.4e39"]), out_type=tf.float32))
for axes, keep in [([0], False), ([1], False), ([0, 1], False), ([1, 0], False), ([], False), ([0], True), ([-1], False), ([2], False), ([0, 0], False)]:
    case("ReduceJoin/%s_%s" % (axes, keep), lambda axes=axes, keep=keep: raw.ReduceJoin(
        inputs=inp([["a", "b", "c"], ["d", "e", "f"]]), reduction_indices=inp(axes, tf.int32), keep_dims=keep, separator="-"))
for t in allowed("DecodeRaw", "out_type"):
    # Only 0 and 1 are booleans on the wire.
    data = [b"\0\1\1\0"] if t == tf.bool else [b"abcdefghijklmnop", b"ponmlkjihgfedcba"]
    case("DecodeRaw/" + short(t), lambda t=t, data=data: [raw.DecodeRaw(bytes=inp(data), out_type=t, little_endian=le) for le in (True, False)])
case("DecodeRaw/uneven", lambda: raw.DecodeRaw(bytes=inp(["abc"]), out_type=tf.int32))
case("DecodeRaw/different", lambda: raw.DecodeRaw(bytes=inp(["abcd", "ab"]), out_type=tf.uint8))
case("DecodeRaw/empty", lambda: raw.DecodeRaw(bytes=inp(np.zeros((0,), object)), out_type=tf.int32))
for pad in (False, True):
    case("Base64/%s" % pad, lambda pad=pad: [raw.EncodeBase64(input=inp(WORDS), pad=pad), raw.DecodeBase64(input=raw.EncodeBase64(input=inp(WORDS), pad=pad))])
case("DecodeBase64/bad", lambda: raw.DecodeBase64(input=inp(["a?b="])))
case("StringSplit", lambda: list(raw.StringSplit(input=inp(["a b  c", "", "d"]), delimiter=inp(" "))))
case("StringSplit/keep_empty", lambda: list(raw.StringSplit(input=inp(["a,b,,c", ","]), delimiter=inp(","), skip_empty=False)))
case("StringSplit/chars", lambda: list(raw.StringSplit(input=inp(["abc", ""]), delimiter=inp(""))))
case("StringSplitV2", lambda: list(raw.StringSplitV2(input=inp(["a b  c", " x "], shape=[2]), sep=inp("", shape=[]))))
case("StringSplitV2/sep", lambda: list(raw.StringSplitV2(input=inp(["a<>b<><>c", "<>"], shape=[2]), sep=inp("<>", shape=[]), maxsplit=1)))
for pattern in ("a.*", "[0-9]+", "", "(ab|cd)e?"):
    case("RegexFullMatch/%s" % pattern, lambda pattern=pattern: [raw.RegexFullMatch(input=inp(["abc", "123", "", "abe", "cd"]), pattern=inp(pattern)),
                                                               raw.StaticRegexFullMatch(input=inp(["abc", "123", "", "abe", "cd"]), pattern=pattern)])
for glob in (True, False):
    case("RegexReplace/%s" % glob, lambda glob=glob: [raw.RegexReplace(input=inp(["a1b22c", "none"]), pattern=inp("([0-9]+)"), rewrite=inp("<\\1>"), replace_global=glob),
                                                     raw.StaticRegexReplace(input=inp(["a1b22c"]), pattern="[0-9]", rewrite="", replace_global=glob)])
case("RegexReplace/invalid", lambda: raw.RegexReplace(input=inp(["a"]), pattern=inp("(("), rewrite=inp("x")), text="wording of the regular expression library")
case("ShardedFilename", lambda: [raw.ShardedFilename(basename=inp("dir/x"), shard=inp(3), num_shards=inp(12)), raw.ShardedFilespec(basename=inp("dir/x"), num_shards=inp(12))])
case("Equal/strings", lambda: [raw.Equal(x=inp(["a", "b"]), y=inp(["a", "c"])), raw.NotEqual(x=inp(["a", "b"]), y=inp("a"))])
case("const/strings_fold", lambda: raw.StringJoin(inputs=[const(["a", "b"]), const(["c", "d"])], separator="/"))



def as_bytes(values):
    return np.array([v.encode() if isinstance(v, str) else v for v in values], object)


SPACED = [" a b  c ", "", "1::2::::3", "::", "\t x\n"]
for sep in ("", " ", "::", "x"):
    for limit in (-1, 0, 1, 2):
        case("StringSplitV2/%r_%d" % (sep, limit), lambda sep=sep, limit=limit: list(raw.StringSplitV2(input=inp(SPACED), sep=inp(sep), maxsplit=limit)))
for name, value, sep in [("rank", "a", ""), ("sep", ["a"], [""])]:
    case("StringSplitV2/bad_" + name, lambda value=value, sep=sep: list(raw.StringSplitV2(input=inp(value), sep=inp(sep))))
    case("StringSplit/bad_" + name, lambda value=value, sep=sep: list(raw.StringSplit(input=inp(value), delimiter=inp(sep))))
PATTERNS = [r"\w+", r"\d", r"\s", r"\S+", r"\bab\b", r"[[:alpha:]]+", r"[^a]+", r"(?i)AB", r"a{2,3}", r"a{,2}", r"\pL+", r"\p{Greek}", r"\x41", r"\Qa.b\E", r"(?P<n>a)b",
            r"a|ab|abc", r".", r"..", r"^ab$", r"\Aab\z", r"[]a]+", r"[a\-z]+", r"\C+", r"(?s).+", r"(?U)a+", r"[&&]+", "é", r"\.", r"(|a)+"]
TEXTS = as_bytes(["ab", "aab", "aaa", "a{,2}", "Σ", "é", "\n", " ", "7", "A", "a.b", "a-", "]a", "", "&&", "a\nb", b"\xff", "abc", "٣"])
for pattern in PATTERNS:
    case("RegexFullMatch/re2_%s" % pattern, lambda p=pattern: raw.RegexFullMatch(input=inp(TEXTS), pattern=inp(p)))
    case("RegexReplace/re2_%s" % pattern, lambda p=pattern: [raw.RegexReplace(input=inp(TEXTS), pattern=inp(p), rewrite=inp(r), replace_global=g)
                                                            for r in ("<\\0>", "", "\\\\") for g in (True, False)])
for pattern in ["(", "a\\", "[a", "*a", "a**", "a{2000}", "(?<x>a)", r"\1", "(?=a)", "(?x)a", r"\Z", r"\u0061", "[z-a]", "a)", "[[:bogus:]]", "(?P<>a)", r"\pX", "a{2}{3}", "(?i"]:
    case("RegexFullMatch/bad_%s" % pattern, lambda p=pattern: raw.RegexFullMatch(input=inp(["a"]), pattern=inp(p)))
    case("StaticRegexReplace/bad_%s" % pattern, lambda p=pattern: raw.StaticRegexReplace(input=inp(["a"]), pattern=p, rewrite=""))
for rewrite in ["\\1\\2", "\\3", "\\", "\\x", "$0"]:
    case("RegexReplace/rewrite_%s" % rewrite, lambda r=rewrite: raw.RegexReplace(input=inp(["abcabc", ""]), pattern=inp("(b)(c)?"), rewrite=inp(r)))
case("RegexReplace/shapes", lambda: [raw.RegexReplace(input=inp(["a"]), pattern=inp(p), rewrite=inp(r)) for p, r in ((["a"], "b"),)])
case("RegexReplace/rewrite_shape", lambda: raw.RegexReplace(input=inp(["a"]), pattern=inp("a"), rewrite=inp(["b"])))
for t in allowed("DecodePaddedRaw", "out_type"):
    case("DecodePaddedRaw/" + short(t), lambda t=t: [raw.DecodePaddedRaw(input_bytes=inp([b"abcdefghijk", b"x", b""]), fixed_length=inp(16), out_type=t, little_endian=le)
                                                   for le in (True, False)])
for length in (0, -2, 5, [4]):
    case("DecodePaddedRaw/length_%s" % length, lambda length=length: raw.DecodePaddedRaw(input_bytes=inp([b"ab"]), fixed_length=inp(length), out_type=tf.int16))
for bad in ("a", "=", "YWJjZ", "a+/b", "YQ=", "YQ==="):
    case("DecodeBase64/bad_%s" % bad, lambda bad=bad: raw.DecodeBase64(input=inp([bad])))
for it in INTS:
    for shape, ids, n in [(["a", "b", "c"], [0, 1, 0], 3), ([["a", "b"], ["c", "d"], ["e", "f"]], [1, 0, 1], 2), ([["a", "b"], ["c", "d"]], [[0, 1], [0, 2]], 3),
                          (["a"], [-1], 3), (["a"], [3], 3), (["a"], [0, 1], 3), (["a"], [0], -3), (["a"], [0], [3]), ("a", 0, 3)]:
        case("UnsortedSegmentJoin/%s_%s_%s_%s" % (short(it), shape, ids, n), lambda shape=shape, ids=ids, n=n, it=it: raw.UnsortedSegmentJoin(
            inputs=inp(shape), segment_ids=inp(ids, it), num_segments=inp(n), separator=":"))
for it in INTS:
    for splits in ([0, 3, 5], [0, 1, 1, 5], [0, 5]):
        for widths in ([2], [3, 2], [1], [9]):
            for pad in (-1, 0, 1):
                case("StringNGrams/%s_%s_%s_%d" % (short(it), splits, widths, pad), lambda it=it, splits=splits, widths=widths, pad=pad: [
                    list(raw.StringNGrams(data=inp(["a", "b", "c", "d", "e"]), data_splits=inp(splits, it), separator="|", ngram_widths=widths, left_pad="L", right_pad="R",
                                          pad_width=pad, preserve_short_sequences=keep)) for keep in (False, True)])
for splits in ([1, 5], [0, 6], [0, 4], [0, 3, 2, 5], [0], []):
    case("StringNGrams/bad_%s" % splits, lambda splits=splits: list(raw.StringNGrams(
        data=inp(["a", "b", "c", "d", "e"]), data_splits=inp(splits, tf.int64), separator="|", ngram_widths=[2], left_pad="L", right_pad="R", pad_width=-1, preserve_short_sequences=False)))
for what, data, splits in [("no_splits", ["a", "b"], []), ("nothing", [], []), ("no_data", [], [0]), ("no_rows", ["a"], [0]), ("empty_rows", [], [0, 0, 0]), ("negative", ["a"], [-1, 1]),
                           ("splits_matrix", ["a", "b"], [[0, 2]]), ("data_matrix", [["a", "b"]], [0, 2]), ("data_scalar", "a", [0, 1]), ("splits_scalar", ["a"], 0)]:
    for it in (tf.int32, tf.int64):
        case("StringNGrams/%s_%s" % (what, short(it)), lambda data=data, splits=splits, it=it: list(raw.StringNGrams(
            data=inp(data, tf.string), data_splits=inp(splits, it), separator="|", ngram_widths=[1, 2], left_pad="L", right_pad="R", pad_width=-1, preserve_short_sequences=False)))
for widths in ([], [0], [-1], [1, 0], [5]):
    case("StringNGrams/widths_%s" % widths, lambda widths=widths: list(raw.StringNGrams(
        data=inp(["a", "b", "c"]), data_splits=inp([0, 1, 3], tf.int64), separator="|", ngram_widths=widths, left_pad="", right_pad="", pad_width=-1, preserve_short_sequences=False)))
FAULTY = as_bytes(["aé", b"\xff\xfea", "", "\U0001f600x", b"\xe2\x82", b"a\x01\x00b", b"\xed\xa0\x80", b"\xc0\x80", b"\xf0\x9f\x98", b"\xf4\x90\x80\x80", b"\xe2a\x82"])
for errors in ("replace", "ignore", "strict"):
    for encoding in ("UTF-8", "UTF-16-BE", "UTF-32-BE", "US-ASCII", "ISO-8859-1", "utf-16-le", "UTF-16", "bogus"):
        case("UnicodeDecode/%s_%s" % (errors, encoding), lambda errors=errors, encoding=encoding: [
            list(raw.UnicodeDecode(input=inp(FAULTY), input_encoding=encoding, errors=errors)),
            list(raw.UnicodeDecodeWithOffsets(input=inp(FAULTY), input_encoding=encoding, errors=errors, replacement_char=65))])
        for out in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
            case("UnicodeTranscode/%s_%s_%s" % (errors, encoding, out), lambda errors=errors, encoding=encoding, out=out: raw.UnicodeTranscode(
                input=inp(FAULTY), input_encoding=encoding, output_encoding=out, errors=errors))
    for out in ("UTF-8", "UTF-16-BE", "UTF-32-BE"):
        case("UnicodeEncode/%s_%s" % (errors, out), lambda errors=errors, out=out: raw.UnicodeEncode(
            input_values=inp([97, 233, 0x1f600, 0xfffe]), input_splits=inp([0, 1, 4], tf.int64), output_encoding=out, errors=errors))
        case("UnicodeEncode/faulty_%s_%s" % (errors, out), lambda errors=errors, out=out: raw.UnicodeEncode(
            input_values=inp([97, 0xd800, 0x110000, -1]), input_splits=inp([0, 4], tf.int64), output_encoding=out, errors=errors))
case("UnicodeDecode/control", lambda: [list(raw.UnicodeDecode(input=inp(FAULTY), input_encoding="UTF-8", replace_control_characters=True)),
                                       raw.UnicodeTranscode(input=inp(FAULTY), input_encoding="UTF-8", output_encoding="UTF-8", replace_control_characters=True)])
for splits in ([0, 5], [1], [], [0], [0, 2, 1, 2]):
    case("UnicodeEncode/splits_%s" % splits, lambda splits=splits: raw.UnicodeEncode(input_values=inp([97, 98]), input_splits=inp(splits, tf.int64), output_encoding="UTF-8"))
for key in ([1], [1, 2, 3]):
    case("StringToHashBucketStrong/key_%s" % key, lambda key=key: raw.StringToHashBucketStrong(input=inp(WORDS), num_buckets=1000, key=key))

for t in allowed("Fingerprint"):
    case("Fingerprint/" + short(t), lambda t=t: [raw.Fingerprint(data=inp(rnd(s, t), t), method=inp("farmhash64")) for s in [(3,), (2, 3), (0, 2), (2, 2, 3)]])
case("Fingerprint/scalar", lambda: raw.Fingerprint(data=inp(1.0), method=inp("farmhash64")))
case("Fingerprint/method", lambda: raw.Fingerprint(data=inp([1.0]), method=inp("md5")))
case("Fingerprint/method_rank", lambda: raw.Fingerprint(data=inp([1.0]), method=inp(["farmhash64"])))
case("UnicodeTranscode/control_elided", lambda: [raw.UnicodeTranscode(
    input=inp([b"a\x00\xffb\x1f"]), input_encoding="UTF-8", output_encoding="UTF-8", errors=e, replace_control_characters=True) for e in ("ignore", "replace")])

# Every code point where the script changes would be a long list: one of each block of 64, and what is no code point.
for name, first, last in (("basic", 0, 0x3000), ("han", 0x3000, 0x20000), ("beyond", 0x20000, 0x110000)):
    case("UnicodeScript/" + name, lambda first=first, last=last: raw.UnicodeScript(input=inp(np.arange(first, last, 7 if first else 1), tf.int32)))
case("UnicodeScript/none", lambda: raw.UnicodeScript(input=inp([-1, -2**31, 0x110000, 2**31 - 1, 0x10FFFF, 0xD800, 0xDFFF], tf.int32)))
case("UnicodeScript/shapes", lambda: (raw.UnicodeScript(input=inp(65, tf.int32)), raw.UnicodeScript(input=inp(np.zeros((2, 0), np.int32))), raw.UnicodeScript(input=inp([[65, 945], [1488, 20013]], tf.int32))))
