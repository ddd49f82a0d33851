"""Ops that mark values for compilers and debuggers, collectives of one device."""
import numpy as np

from registry import any_op, case, const, inp, rnd, short, tf

VALUES = [[1.5, -2.0, 0.0], [np.nan, np.inf, -np.inf]]

for op in ("XlaSharding", "Copy", "CopyHost", "DebugGradientIdentity", "DebugIdentityV2"):
    for t in (tf.float32, tf.int32, tf.string, tf.bool):
        if op != "XlaSharding" or t != tf.string:  # which XLA has not
            case("%s/%s" % (op, short(t)), lambda op=op, t=t: any_op(op, input=inp(rnd((2, 3), t), t)))
case("XlaSpmdShardToFullShape/f32", lambda: any_op("XlaSpmdShardToFullShape", input=inp(rnd((2, 3))), manual_sharding="", full_shape=[2, 3]))
case("XlaOptimizationBarrier/two", lambda: list(any_op("XlaOptimizationBarrier", input=[inp(rnd((2, 3))), inp([1, 2])])))
case("Copy/spec", lambda: any_op("Copy", input=inp(rnd((2,))), debug_ops_spec=["a"]))
case("Copy/good_spec", lambda: any_op("Copy", input=inp(rnd((2,))), debug_ops_spec=["DebugIdentity;file:///tmp/x;0"]))
case("CheckPinned/refused", lambda: any_op("CheckPinned", tensor=inp(rnd((2,)))))
case("HostConst/value", lambda: any_op("HostConst", value=tf.make_tensor_proto([1.5, 2.5]), dtype=tf.float32))
for a, b in ((tf.float32, tf.int32), (tf.int32, tf.float64), (tf.bool, tf.int64)):
    case("_HostCast/%s_%s" % (short(a), short(b)), lambda a=a, b=b: any_op("_HostCast", x=inp(rnd((2, 3), a), a), DstT=b))
for index in (0, 1, 2, 5, -1):
    case("_SwitchN/%d" % index, lambda i=index: tf.raw_ops.Merge(inputs=list(any_op("_SwitchN", data=inp(rnd((2,))), output_index=inp(i), num_outs=3))).value_index)
case("Fact/answer", lambda: any_op("Fact"))
case("SyncDevice/runs", lambda: [any_op("SyncDevice"), const(1)])

for name in ("a:0", "a", ""):
    for op in ("DebugIdentity", "DebugNanCount", "DebugNumericSummary"):
        case("%s/name_%s" % (op, name), lambda op=op, name=name: any_op(op, input=inp(VALUES), tensor_name=name))
for t in (tf.float32, tf.float64, tf.float16, tf.bfloat16, tf.int32, tf.int8, tf.uint8, tf.int64, tf.bool):
    case("DebugNanCount/" + short(t), lambda t=t: any_op("DebugNanCount", input=inp(rnd((3, 4), t), t), tensor_name="a:0"))
    case("DebugNumericSummary/" + short(t), lambda t=t: any_op("DebugNumericSummary", input=inp(rnd((3, 4), t), t), tensor_name="a:0"))
    case("DebugNumericSummary/empty_" + short(t), lambda t=t: any_op("DebugNumericSummary", input=inp(rnd((0, 4), t), t), tensor_name="a:0"))
    for mode in (2, 3, 4, 5, 8):
        for out in (tf.float32, tf.float64):
            case("DebugNumericSummaryV2/%s_%d_%s" % (short(t), mode, short(out)), lambda t=t, mode=mode, out=out: any_op(
                "DebugNumericSummaryV2", input=inp(rnd((2, 1, 3, 1, 2, 1, 2), t), t), tensor_debug_mode=mode, tensor_id=7, output_dtype=out))
case("DebugNumericSummary/odd", lambda: any_op("DebugNumericSummary", input=inp(VALUES), tensor_name="a:0"))
case("DebugNumericSummary/bounds", lambda: any_op("DebugNumericSummary", input=inp([1.0, 5.0, -7.0, 3.0, -3.0]), tensor_name="a:0", lower_bound=-3.0, upper_bound=3.0))
for mode in (-1, 0, 1, 2, 3, 4, 5, 6, 8):
    case("DebugNumericSummaryV2/odd_%d" % mode, lambda mode=mode: any_op("DebugNumericSummaryV2", input=inp(VALUES), tensor_debug_mode=mode, tensor_id=7))
case("DebugNumericSummaryV2/id", lambda: any_op("DebugNumericSummaryV2", input=inp(VALUES), tensor_debug_mode=2, tensor_id=1 << 25))

for method, bins in ((0, 0), (1, 0), (2, 0), (3, 4), (3, 16), (4, 8), (5, 8)):
    case("CustomAggregator/%d_%d" % (method, bins), lambda m=method, n=bins: list(any_op("CustomAggregator", input=inp(rnd((5, 6))), id="a", calibration_method=m, num_bins=n)))

USED = iter(range(1000, 9999))


def fresh():
    """A server remembers what an instance key was used for: each case has its own."""
    return dict(group_key=7, instance_key=next(USED))


def keys(**over):
    given = dict(group_size=1, **fresh())
    given.update(over)
    return {k: inp(v, tf.int32) for k, v in given.items()}


for t in (tf.float32, tf.float64, tf.int32, tf.int64, tf.float16):
    case("CollectiveReduceV2/" + short(t), lambda t=t: any_op("CollectiveReduceV2", input=inp(rnd((2, 3), t), t), **keys(), ordering_token=[], merge_op="Add", final_op="Div"))
    case("CollectiveGatherV2/" + short(t), lambda t=t: any_op("CollectiveGatherV2", input=inp(rnd((2, 3), t), t), **keys(), ordering_token=[]))
    case("CollectiveReduce/" + short(t), lambda t=t: any_op("CollectiveReduce", input=inp(rnd((2, 3), t), t), group_size=1, **fresh(), merge_op="Max", final_op="Id", subdiv_offsets=[0]))
    case("CollectiveGather/" + short(t), lambda t=t: any_op("CollectiveGather", input=inp(rnd((2, 3), t), t), group_size=1, **fresh(), shape=[2, 3]))
    case("CollectiveBcastSend/" + short(t), lambda t=t: any_op("CollectiveBcastSend", input=inp(rnd((2, 3), t), t), group_size=1, **fresh(), shape=[2, 3]))
    case("CollectiveBcastSendV2/" + short(t), lambda t=t: any_op("CollectiveBcastSendV2", input=inp(rnd((2, 3), t), t), **keys()))
for name, value in [("group_size", 0), ("group_size", -3), ("group_size", [1]), ("group_key", [1]), ("instance_key", [1, 2])]:
    case("CollectiveReduceV2/wrong_%s_%s" % (name, value), lambda name=name, value=value: any_op(
        "CollectiveReduceV2", input=inp(rnd((2,))), **keys(**{name: value}), ordering_token=[], merge_op="Add", final_op="Id"))
case("CollectiveReduce/size", lambda: any_op("CollectiveReduce", input=inp(rnd((2,))), group_size=0, **fresh(), merge_op="Max", final_op="Id", subdiv_offsets=[0]))
case("CollectiveBcastSend/shape", lambda: any_op("CollectiveBcastSend", input=inp(rnd((2, 3))), group_size=1, **fresh(), shape=[3]))
for groups, device in [([[0, 2], [1, 3]], 3), ([[0, 2], [1, 3]], 0), ([[0, 2], [1, 3]], 5), ([0, 1], 0), ([[0]], 0), ([[0, 1], [2, 3], [4, 5]], 4)]:
    case("CollectiveAssignGroupV2/%s_%d" % (groups, device), lambda g=groups, d=device: list(any_op(
        "CollectiveAssignGroupV2", group_assignment=inp(g), device_index=inp(d), base_key=inp(10))))
