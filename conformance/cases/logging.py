"""Assert, Print, CheckNumerics: what passes through and how the failure reads."""
import numpy as np

from registry import ALL, allowed, case, inp, raw, rnd, short, steps, tf


def guarded(op, value):
    with tf.control_dependencies([op]):
        return tf.identity(value)


for t in ALL:
    case("Assert/true_" + short(t), lambda t=t: guarded(raw.Assert(condition=inp(True), data=[inp(rnd((2,), t), t)]), inp(1.0)))
    case("Assert/false_" + short(t), lambda t=t: raw.Assert(condition=inp(False), data=[inp(rnd((5,), t), t)]))
for summarize in (1, 3, 10, -1):
    case("Assert/summarize_%d" % summarize, lambda summarize=summarize: raw.Assert(
        condition=inp(False), data=[inp("first"), inp(np.arange(12, dtype=np.int32).reshape(3, 4)), inp(2.5), inp([True, False])], summarize=summarize))
case("Assert/condition_vector", lambda: raw.Assert(condition=inp([False]), data=[inp("x")]))
case("Assert/empty_data", lambda: raw.Assert(condition=inp(False), data=[inp(np.zeros((0, 2), np.float32))]))
for t in allowed("CheckNumerics"):
    case("CheckNumerics/ok_" + short(t), lambda t=t: raw.CheckNumerics(tensor=inp(rnd((3, 2), t), t), message="m"))
    for name, v in [("inf", [1.0, np.inf]), ("nan", [np.nan, 1.0]), ("both", [np.nan, np.inf]), ("neg_inf", [-np.inf, 0.0])]:
        case("CheckNumerics/%s_%s" % (name, short(t)), lambda t=t, v=v: raw.CheckNumerics(tensor=inp(v, t), message="here is"))
        case("CheckNumericsV2/%s_%s" % (name, short(t)), lambda t=t, v=v: raw.CheckNumericsV2(tensor=inp(v, t), message="here is"))
case("CheckNumerics/empty", lambda: raw.CheckNumerics(tensor=inp(rnd((0,))), message="m"))
case("python/check_numerics", lambda: tf.debugging.check_numerics(inp([np.nan]), "loss"))
for t in ALL:
    case("Print/" + short(t), lambda t=t: raw.Print(input=inp(rnd((2, 2), t), t), data=[inp(rnd((2,), t), t)], message="p:", first_n=0))
case("Print/no_data", lambda: raw.Print(input=inp([1.0]), data=[], message="x", first_n=0))
case("PrintV2", lambda: guarded(raw.PrintV2(input=inp("line"), output_stream="stderr"), inp(1)))
case("PrintV2/not_scalar", lambda: raw.PrintV2(input=inp(["a", "b"])))
for name, f in [("assert_equal", tf.assert_equal), ("assert_less", tf.assert_less), ("assert_greater", tf.assert_greater),
                ("assert_none_equal", tf.debugging.assert_none_equal), ("assert_less_equal", tf.assert_less_equal)]:
    for a, b in [([1, 2], [1, 2]), ([1, 2], [2, 3]), ([3, 2], [1, 2])]:
        case("python/%s_%s_%s" % (name, a, b), lambda f=f, a=a, b=b: guarded(f(inp(a), inp(b), message="told you"), inp(7)))
case("python/assert_positive", lambda: guarded(tf.assert_positive(inp([1.0, -1.0])), inp(7)))
case("python/assert_rank", lambda: guarded(tf.assert_rank(inp([1.0, -1.0]), 2), inp(7)))
case("python/assert_non_negative", lambda: guarded(tf.assert_non_negative(inp([1, 0])), inp(7)))
case("NoOp", lambda: steps(tf.no_op(), guarded(tf.group(tf.no_op(), tf.no_op()), inp(3))))
case("ControlTrigger", lambda: guarded(raw.ControlTrigger(), inp(3)))
