"""Weights drawn towards zero."""
from registry import any_op, case, init, rnd, steps, tf

for l1, l2 in ((0.5, 2.0), (0.0, 1.0), (3.0, 1.0)):
    def build(l1=l1, l2=l2):
        variables = [tf.get_variable("v%d" % i, initializer=tf.constant(rnd(shape)), use_resource=False) for i, shape in enumerate([(3,), (2, 2)])]
        init(*[v.initializer for v in variables])
        shrunk = any_op("SdcaShrinkL1", weights=[v._ref() for v in variables], l1=l1, l2=l2)
        return steps(variables, shrunk, variables)
    case("SdcaShrinkL1/%s_%s" % (l1, l2), build)
