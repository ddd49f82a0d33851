"""Batch normalisation, bias, local response normalisation, L2 loss."""
from registry import FLOATS, SMALL_FLOATS, allowed, case, inp, raw, rnd, short, tf

TOL = dict(rtol=1e-4, atol=1e-5)
# In inference and for an empty batch TensorFlow leaves the reserve outputs uninitialised: not compared.


def params(n, t=tf.float32):
    return dict(scale=inp(rnd((n,), t, 0.5, 2), t), offset=inp(rnd((n,), t), t))


for shape in [(2, 3, 3, 4), (4, 1, 1, 5), (1, 2, 2, 3), (3, 5, 4, 1)]:
    n = shape[-1]
    for training in (True, False):
        for op in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"):
            case("%s/%s_%s" % (op, shape, training), lambda op=op, shape=shape, n=n, training=training: list(getattr(raw, op)(
                x=inp(rnd(shape)), **params(n), mean=inp(rnd((0 if training else n,))),
                variance=inp(rnd((0 if training else n,), lo=0.5, hi=2)), epsilon=0.001, is_training=training))[:5 if training else 3], **TOL)
    for factor in (1.0, 0.9, 0.5):
        case("FusedBatchNormV3/average_%s_%s" % (shape, factor), lambda shape=shape, n=n, factor=factor: list(raw.FusedBatchNormV3(
            x=inp(rnd(shape)), **params(n), mean=inp(rnd((n,))), variance=inp(rnd((n,), lo=0.5, hi=2)), epsilon=0.001,
            exponential_avg_factor=factor, is_training=True))[:5], **TOL)
    for training in (True, False):
        for op in ("FusedBatchNormGrad", "FusedBatchNormGradV2", "FusedBatchNormGradV3"):
            def grad(op=op, shape=shape, n=n, training=training):
                extra = dict(reserve_space_3=inp(rnd((0,)))) if op.endswith("V3") else {}
                return list(getattr(raw, op)(
                    y_backprop=inp(rnd(shape)), x=inp(rnd(shape)), scale=inp(rnd((n,), lo=0.5, hi=2)),
                    reserve_space_1=inp(rnd((n,))), reserve_space_2=inp(rnd((n,), lo=0.5, hi=2)), epsilon=0.001,
                    is_training=training, **extra))[:3]
            case("%s/%s_%s" % (op, shape, training), grad, **TOL)
for t in allowed("FusedBatchNormV3"):
    case("FusedBatchNormV3/type_" + short(t), lambda t=t: list(raw.FusedBatchNormV3(
        x=inp(rnd((2, 3, 3, 2), t), t), **params(2), mean=inp(rnd((0,))), variance=inp(rnd((0,))), is_training=True))[:5],
        rtol=2e-2, atol=2e-2)
case("FusedBatchNormV3/NCHW", lambda: list(raw.FusedBatchNormV3(
    x=inp(rnd((2, 3, 4, 4))), **params(3), mean=inp(rnd((0,))), variance=inp(rnd((0,))), is_training=True, data_format="NCHW"))[:5], **TOL)
case("FusedBatchNormV3/NCHW_inference", lambda: list(raw.FusedBatchNormV3(
    x=inp(rnd((2, 3, 4, 4))), **params(3), mean=inp(rnd((3,))), variance=inp(rnd((3,), lo=1, hi=2)), is_training=False,
    data_format="NCHW"))[:3], **TOL)
case("FusedBatchNormV3/empty", lambda: list(raw.FusedBatchNormV3(
    x=inp(rnd((0, 4, 4, 3))), **params(3), mean=inp(rnd((0,))), variance=inp(rnd((0,))), is_training=True))[:3], **TOL)
for name, kw in [("rank", dict(x=(3, 4))), ("scale", dict(scale=(2,))), ("offset", dict(offset=(4,))),
                 ("scale_rank", dict(scale=(3, 1))), ("mean", dict(mean=(2,), is_training=False)),
                 ("missing_mean", dict(mean=(0,), is_training=False))]:
    def wrong(kw=kw):
        shapes = dict(x=(2, 2, 2, 3), scale=(3,), offset=(3,), mean=(0,), variance=(0,), is_training=True)
        shapes.update(kw)
        training = shapes.pop("is_training")
        if not training:
            shapes.setdefault("variance", (3,))
            shapes["variance"] = (3,)
        return list(raw.FusedBatchNormV3(**{k: inp(rnd(v)) for k, v in shapes.items()}, is_training=training))[:3]
    case("FusedBatchNormV3/wrong_" + name, wrong)
case("batch_normalization/python", lambda: tf.nn.batch_normalization(
    inp(rnd((4, 3))), inp(rnd((3,))), inp(rnd((3,), lo=1, hi=2)), inp(rnd((3,))), inp(rnd((3,))), 1e-3), **TOL)
case("moments/python", lambda: list(tf.nn.moments(inp(rnd((4, 3, 2)), shape=[4, 3, 2]), [0, 1])), **TOL)

for t in allowed("BiasAdd"):
    case("BiasAdd/" + short(t), lambda t=t: [raw.BiasAdd(value=inp(rnd(s, t), t), bias=inp(rnd((3,), t), t))
                                            for s in [(2, 3), (2, 4, 3), (2, 2, 2, 3), (0, 3), (2, 1, 2, 2, 3)]])
    case("BiasAddV1/" + short(t), lambda t=t: raw.BiasAddV1(value=inp(rnd((2, 3), t), t), bias=inp(rnd((3,), t), t)))
    case("BiasAddGrad/" + short(t), lambda t=t: [raw.BiasAddGrad(out_backprop=inp(rnd(s, t), t)) for s in
                                                [(2, 3), (2, 4, 3), (0, 3), (2, 2, 2, 3)]],
         **(dict(rtol=3e-2, atol=3e-2) if t in SMALL_FLOATS else {}))
for shape in [(2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)]:
    case("BiasAdd/NCHW_%s" % (shape,), lambda shape=shape: raw.BiasAdd(value=inp(rnd(shape)), bias=inp(rnd((3,))), data_format="NCHW"))
    case("BiasAddGrad/NCHW_%s" % (shape,), lambda shape=shape: raw.BiasAddGrad(out_backprop=inp(rnd(shape)), data_format="NCHW"), **TOL)
for v, b in [((3,), (3,)), ((2, 3), (2,)), ((2, 3), (3, 1)), ((), (1,))]:
    case("BiasAdd/wrong_%s_%s" % (v, b), lambda v=v, b=b: raw.BiasAdd(value=inp(rnd(v)), bias=inp(rnd(b))))
case("BiasAddGrad/wrong", lambda: raw.BiasAddGrad(out_backprop=inp(rnd((3,)))))

for t in allowed("L2Loss"):
    case("L2Loss/" + short(t), lambda t=t: [raw.L2Loss(t=inp(rnd(s, t), t)) for s in [(5,), (3, 4), (), (0,)]],
         **(dict(rtol=2e-2, atol=2e-2) if t in SMALL_FLOATS else {}))
for t in allowed("LRN"):
    for kw in [{}, dict(depth_radius=1, bias=2.0, alpha=0.5, beta=0.75), dict(depth_radius=2, beta=1.0), dict(depth_radius=0)]:
        loose = dict(rtol=2e-2, atol=2e-2) if t in SMALL_FLOATS else TOL
        case("LRN/%s_%s" % (short(t), kw), lambda t=t, kw=kw: raw.LRN(input=inp(rnd((2, 2, 3, 7), t), t), **kw), **loose)
        case("LRNGrad/%s_%s" % (short(t), kw), lambda t=t, kw=kw: [raw.LRNGrad(
            input_grads=inp(rnd((1, 2, 2, 6), t), t), input_image=x, output_image=raw.LRN(input=x, **kw), **kw)
            for x in [inp(rnd((1, 2, 2, 6), t), t)]], **loose)
case("LRN/rank", lambda: raw.LRN(input=inp(rnd((2, 3)))))
case("l2_normalize/python", lambda: tf.nn.l2_normalize(inp(rnd((3, 4))), 1), **TOL)
