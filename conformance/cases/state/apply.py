"""Every optimizer update op, generated from its signature: dense, sparse, ref and resource."""
from tensorflow.python.framework import op_def_registry

from registry import FLOATS, INTS, SMALL_FLOATS, case, init, inp, raw, rnd, short, steps, tf

DENSE = """AdaMax Adadelta Adagrad AdagradDA AdagradV2 Adam AddSign CenteredRMSProp Ftrl FtrlV2 GradientDescent Momentum
PowerSign ProximalAdagrad ProximalGradientDescent RMSProp""".split()
SPARSE = """Adadelta Adagrad AdagradDA AdagradV2 CenteredRMSProp Ftrl FtrlV2 Momentum ProximalAdagrad ProximalGradientDescent
RMSProp""".split()
OPS = (["Apply" + n for n in DENSE] + ["SparseApply" + n for n in SPARSE]
       + ["ResourceApply" + n for n in DENSE + ["AdamWithAmsgrad", "KerasMomentum"]]
       + ["ResourceSparseApply" + n for n in SPARSE + ["KerasMomentum"]])
SCALARS = dict(lr=0.1, alpha=0.3, beta1=0.9, beta2=0.99, beta1_power=0.81, beta2_power=0.97, epsilon=1e-3, rho=0.9, momentum=0.8, l1=0.02, l2=0.03,
               l2_shrinkage=0.1, lr_power=-0.5, logbase=2.0, sign_decay=0.9, beta=0.9)
FLAGS = ("use_nesterov", "update_slots", "multiply_linear_by_lr")


def slot(kind, name, shape, t, static=True, value=None):
    """A variable for one slot argument, initialised to values every update accepts unless one is given."""
    value = inp(rnd(shape, t, 0.5, 2) if value is None else value, t)
    known = tf.TensorShape(shape if static else None)
    if kind == "resource":
        h = raw.VarHandleOp(dtype=t, shape=known, shared_name=name, name=name)
        init(raw.AssignVariableOp(resource=h, value=value))
        return h
    v = raw.VariableV2(shape=known, dtype=t, name=name)
    init(raw.Assign(ref=v, value=value, validate_shape=static).op)
    return v


def build(op, t, shape=(4, 3), indices=(2, 0), index_type=tf.int32, change=None, uninitialized=None, runs=2, step=None, **attrs):
    """The op on fresh slots, then every slot's value. `change` replaces one input's value or shape."""
    args, slots = {}, []
    is_resource = op.startswith("Resource")
    change = change or {}
    for a in op_def_registry.get(op).input_arg:
        if a.is_ref or a.type == tf.resource.as_datatype_enum:
            s = change.get(a.name, shape)
            if a.name == uninitialized:
                args[a.name] = (raw.VarHandleOp(dtype=t, shape=s, shared_name=a.name, name=a.name) if is_resource
                                else raw.VariableV2(shape=s, dtype=t, name=a.name))
                continue
            args[a.name] = slot("resource" if is_resource else "ref", a.name, s, t, static=a.name not in change)
            slots.append(args[a.name])
        elif a.name == "indices":
            args[a.name] = inp(change.get("indices", list(indices)), index_type)
        elif a.name == "global_step":
            args[a.name] = inp(change.get("global_step", 3), tf.int64) if step is None else step
        elif a.name in ("grad", "delta"):
            rows = len(indices) if "Sparse" in op else shape[0]
            args[a.name] = inp(rnd(change.get(a.name, (rows,) + tuple(shape[1:])), t, -1, 1), t)
        else:
            args[a.name] = inp(change.get(a.name, SCALARS[a.name]), t)
    update = getattr(raw, op)(**args, **attrs)
    reads = [raw.ReadVariableOp(resource=s, dtype=t) if is_resource else raw.Identity(input=s) for s in slots]
    return steps(*([update] * runs + [reads]))


def attrs_of(op):
    return {a.name for a in op_def_registry.get(op).attr}


for op in OPS:
    for t in FLOATS + SMALL_FLOATS + [tf.complex64, tf.int32]:
        tol = dict(rtol=3e-2, atol=1e-2) if t in SMALL_FLOATS else dict(rtol=2e-5, atol=2e-6) if t == tf.float32 else {}
        if t in FLOATS + SMALL_FLOATS:
            case("%s/%s" % (op, short(t)), lambda op=op, t=t: build(op, t), **tol)
        elif op.replace("Resource", "") in ("ApplyGradientDescent", "ApplyMomentum"):
            # One dtype without a kernel (or with one, for complex) shows the registration.
            case("%s/%s" % (op, short(t)), lambda op=op, t=t: build(op, t, change={k: 1 for k in SCALARS}, runs=1))
    for flag in FLAGS:
        if flag in attrs_of(op):
            for value in (False, True):
                case("%s/%s_%s" % (op, flag, value), lambda op=op, flag=flag, value=value: build(op, tf.float32, **{flag: value}))
    case("%s/locked" % op, lambda op=op: build(op, tf.float32, use_locking=True))
    case("%s/vector" % op, lambda op=op: build(op, tf.float32, shape=(7,)))
    case("%s/big" % op, lambda op=op: build(op, tf.float32, shape=(65, 33), indices=(64, 1, 30)))
    grad = "delta" if op.endswith("ApplyGradientDescent") or (op.endswith("ProximalGradientDescent") and "Sparse" not in op) else "grad"
    case("%s/wrong_grad" % op, lambda op=op, grad=grad: build(op, tf.float32, change={grad: (3, 3)}, runs=1))
    scalar = "alpha" if "GradientDescent" in op else "lr"
    case("%s/wrong_scalar" % op, lambda op=op, scalar=scalar: build(op, tf.float32, change={scalar: [0.1, 0.2]}, runs=1))
    slots = [a.name for a in op_def_registry.get(op).input_arg if a.is_ref or a.type == tf.resource.as_datatype_enum]
    case("%s/uninitialized_var" % op, lambda op=op: build(op, tf.float32, uninitialized="var", runs=1), oracle="server")
    if len(slots) > 1:
        case("%s/uninitialized_slot" % op, lambda op=op, name=slots[1]: build(op, tf.float32, uninitialized=name, runs=1), oracle="server")
        case("%s/wrong_slot" % op, lambda op=op, name=slots[1]: build(op, tf.float32, change={name: (3, 4)}, runs=1))
    if "Sparse" in op:
        for it in INTS:
            case("%s/index_%s" % (op, short(it)), lambda op=op, it=it: build(op, tf.float32, index_type=it))
        case("%s/duplicates" % op, lambda op=op: build(op, tf.float32, indices=(1, 1, 3)))
        case("%s/no_rows" % op, lambda op=op: build(op, tf.float32, indices=()))
        case("%s/range" % op, lambda op=op: build(op, tf.float32, indices=(0, 4), runs=1))
        case("%s/negative" % op, lambda op=op: build(op, tf.float32, indices=(0, -1), runs=1))
        case("%s/index_rank" % op, lambda op=op: build(op, tf.float32, change=dict(indices=[[0], [1]]), runs=1))
        case("%s/single_column" % op, lambda op=op: build(op, tf.float32, shape=(5, 1)))
    else:
        case("%s/empty" % op, lambda op=op: build(op, tf.float32, shape=(0, 3)))
        case("%s/scalar" % op, lambda op=op: build(op, tf.float32, shape=(1,)))
for op in [o for o in OPS if "Ftrl" in o]:
    case("%s/power_half" % op, lambda op=op: build(op, tf.float32, change=dict(lr_power=-0.3)))
    case("%s/power_zero" % op, lambda op=op: build(op, tf.float32, change=dict(lr_power=0.0)))
    case("%s/power_positive" % op, lambda op=op: build(op, tf.float32, change=dict(lr_power=0.5), runs=1))
    case("%s/strong_l1" % op, lambda op=op: build(op, tf.float32, change=dict(l1=10.0)))
    case("%s/lr_zero" % op, lambda op=op: build(op, tf.float32, change=dict(lr=0.0), runs=1))
    case("%s/l1_negative" % op, lambda op=op: build(op, tf.float32, change=dict(l1=-1.0), runs=1))
for op in [o for o in OPS if "Proximal" in o]:
    case("%s/no_l1" % op, lambda op=op: build(op, tf.float32, change=dict(l1=0.0)))
    case("%s/negative_l1" % op, lambda op=op: build(op, tf.float32, change=dict(l1=-1.0)))
for op in [o for o in OPS if "AdagradDA" in o]:
    case("%s/no_l1" % op, lambda op=op: build(op, tf.float32, change=dict(l1=0.0)))
    case("%s/step_vector" % op, lambda op=op: build(op, tf.float32, change=dict(global_step=[3]), runs=1))
    # The sums, the variable and the step of both signs: the answer is recomputed from the step alone.
    for step in (0, 1, 2, 1000, -4, 1 << 40):
        case("%s/step_%d" % (op, step), lambda op=op, step=step: build(op, tf.float32, change=dict(global_step=step)), rtol=2e-5, atol=2e-6)
        case("%s/step_%d_f64" % (op, step), lambda op=op, step=step: build(op, tf.float64, change=dict(global_step=step), indices=(1, 1, 3)))

    def changing(op=op):
        """Three updates, each at a step of its own."""
        step = inp(3, tf.int64)
        update, reads = build(op, tf.float32, runs=1, step=step)
        return steps(*[(update, {step: n}) for n in (1, 7, 2)], reads)
    case("%s/step_changes" % op, changing, rtol=2e-5, atol=2e-6)

SPECIAL = [float("nan"), float("inf"), -float("inf"), 0.0, 1.0, -2.0]


def special(op, **change):
    """Every special value in the variable, in each slot and in the gradient, one of them at a time."""
    out = []
    names = [a.name for a in op_def_registry.get(op).input_arg if a.is_ref or a.type == tf.resource.as_datatype_enum] + ["grad"]
    for which in names:
        args, slots = {}, []
        is_resource = op.startswith("Resource")
        for a in op_def_registry.get(op).input_arg:
            values = SPECIAL if a.name == which else [0.5, 1.5, 0.7, 2.0, 0.3, 1.1]
            if a.name in names[:-1]:
                args[a.name] = slot("resource" if is_resource else "ref", "%s_%s" % (which, a.name), (6, 1), tf.float32, value=[[v] for v in values])
                slots.append(args[a.name])
            elif a.name == "indices":
                args[a.name] = inp([0, 1, 2, 3, 4, 5])
            elif a.name == "grad":
                args[a.name] = inp([[v] for v in values])
            elif a.name == "global_step":
                args[a.name] = inp(3, tf.int64)
            else:
                args[a.name] = inp(change.get(a.name, SCALARS[a.name]))
        out.append(getattr(raw, op)(**args))
        out.append([raw.ReadVariableOp(resource=s, dtype=tf.float32) if is_resource else raw.Identity(input=s) for s in slots])
    return steps(*out)


for op in OPS:
    if any(word in op for word in ("Ftrl", "AdagradDA", "Proximal", "Adam", "AdaMax", "Sign")) and "GradientDescent" not in op:
        case("%s/special" % op, lambda op=op: special(op))
    if "Ftrl" in op:
        case("%s/special_power" % op, lambda op=op: special(op, lr_power=-0.3))
        case("%s/special_l1" % op, lambda op=op: special(op, l1=0.0))
