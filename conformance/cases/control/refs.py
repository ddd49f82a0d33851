"""Control flow over references: the value that arrives is the variable itself."""
import tensorflow.compat.v1 as tf

from registry import case, init, inp, raw, steps

F = tf.float32


def variable(name, values):
    v = raw.VariableV2(shape=[len(values)], dtype=F, name=name)
    init(raw.Assign(ref=v, value=values))
    return v


def switched(p):
    v = variable("v", [1.0, 2.0])
    no, yes = raw.RefSwitch(data=v, pred=inp(p))
    changed = raw.RefMerge(inputs=[raw.AssignAdd(ref=no, value=[10.0, 10.0]), raw.AssignSub(ref=yes, value=[1.0, 1.0])])
    return steps([changed.output, changed.value_index], raw.Identity(input=v))


def selected(index, n=3):
    vs = [variable("v%d" % i, [float(i), 2.0 * i]) for i in range(n)]
    chosen = raw.RefSelect(index=inp(index, tf.int32), inputs=vs)
    return steps(raw.AssignAdd(ref=chosen, value=[100.0, 100.0]), [raw.Identity(input=v) for v in vs])


def looped(n):
    """Adds to a variable once per turn; the reference goes round."""
    v = variable("v", [0.0, 1.0])
    enter = raw.RefEnter(data=v, frame_name="turns")
    count = raw.Enter(data=inp(n, tf.int32), frame_name="turns")
    # The ends of both circles are known only later.
    merge = raw.RefMerge(inputs=[enter, enter])
    counter = raw.Merge(inputs=[count, count])
    more = raw.LoopCond(input=raw.Greater(x=counter.output, y=raw.Enter(data=inp(0, tf.int32), frame_name="turns", is_constant=True)))
    out, again = raw.RefSwitch(data=merge.output, pred=more)
    _, counted = raw.Switch(data=counter.output, pred=more)
    one = raw.Enter(data=inp([1.0, 1.0], F), frame_name="turns", is_constant=True)
    less = raw.Enter(data=inp(1, tf.int32), frame_name="turns", is_constant=True)
    back = raw.RefNextIteration(data=raw.AssignAdd(ref=again, value=one))
    merge.output.op._update_input(1, back)
    counter.output.op._update_input(1, raw.NextIteration(data=raw.Sub(x=counted, y=less)))
    return steps(raw.Identity(input=raw.RefExit(data=out)), raw.Identity(input=v))


for p in (True, False):
    case("RefSwitch/%s" % p, lambda p=p: switched(p))
for index in (0, 2, 3, -1, [1]):
    case("RefSelect/%s" % str(index).replace("[1]", "vector"), lambda index=index: selected(index))
for n in (0, 1, 5):
    case("RefEnter/loop_%d" % n, lambda n=n: looped(n))
case("RefIdentity/assign", lambda: steps(raw.AssignAdd(ref=raw.RefIdentity(input=variable("v", [1.0, 2.0])), value=[1.0, 1.0])))


def read_behind_loop():
    """A variable's plain reading that waits for a loop, and one inside it."""
    v = variable("v", [1.0, 2.0])

    def body(i, total):
        with tf.control_dependencies([i]):
            return i + 1, total + raw.Identity(input=v)
    i, total = tf.while_loop(lambda i, total: i < 3, body, [inp(0, tf.int32), inp([0.5, 0.5], F)], shape_invariants=[tf.TensorShape(None)] * 2)
    with tf.control_dependencies([i]):
        return [total, raw.FloorMod(x=raw.Identity(input=v), y=[2.0, 2.0])]


case("Identity/read_behind_loop", read_behind_loop)
