"""A variable of 68 MiB that every step pulls (bigvar_pull), adds to (bigvar_push) or both (bigvar): more than one
message of gRPC's usual size, and than the 64 MB at which protobuf used to stop."""
from train import Model, tf

STEPS = 4
SYNC = False
FREE = {}
ELEMENTS = 17 << 20


def build(run):
    pull, push = run.program != "bigvar_push", run.program != "bigvar_pull"
    scale = tf.placeholder(tf.float32, [], name="scale")
    big = run.variable("big", [ELEMENTS], tf.ones_initializer())
    last = run.variable("last", [], tf.zeros_initializer())
    worker = tf.device("/job:worker/task:%d" % run.worker)
    with worker:
        # Every value depends on the feed, so that nothing can be made on the ps instead.
        update = tf.fill([ELEMENTS], scale)
        pulled = tf.reduce_max(tf.identity(big) * scale) if pull else scale
    done = [last.assign(pulled)]
    if push:
        with tf.control_dependencies(done):
            done = [big.assign_add(update)]
    return Model(feed=lambda worker, i: {scale: 2.0 ** -(1 + worker + i)}, grow=tf.group(done))


