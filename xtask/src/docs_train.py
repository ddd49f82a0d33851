"""A reader's own script, for `cargo xtask docs`: TensorFlow's old flags with tf.train.Server, or the client of DOWNPOUR_TARGET."""
import argparse
import json
import os

import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
p = argparse.ArgumentParser()
p.add_argument("--job_name")
p.add_argument("--task_index", type=int, default=0)
p.add_argument("--ps_hosts", default="")
p.add_argument("--worker_hosts", default="")
p.add_argument("--dir")
options = p.parse_args()
if options.job_name:
    cluster = {"ps": options.ps_hosts.split(","), "worker": options.worker_hosts.split(",")}
    server = tf.train.Server(tf.train.ClusterSpec(cluster), job_name=options.job_name, task_index=options.task_index)
    if options.job_name == "ps":
        server.join()
    task, target = (options.job_name, options.task_index), server.target
else:
    config = json.loads(os.environ["TF_CONFIG"])
    cluster, task, target = config["cluster"], (config["task"]["type"], config["task"]["index"]), os.environ["DOWNPOUR_TARGET"]
worker = "/job:%s/task:%d" % task
with tf.device(tf.train.replica_device_setter(cluster=tf.train.ClusterSpec(cluster), worker_device=worker)):
    slope = tf.get_variable("slope", initializer=0.0)
    step = tf.train.get_or_create_global_step()
    loss = tf.reduce_mean(tf.square(slope * [1.0, 2.0] - [3.0, 6.0]))
    train = tf.train.GradientDescentOptimizer(0.01).minimize(loss, global_step=step)
filters = tf.ConfigProto(device_filters=["/job:ps", worker])
with tf.train.MonitoredTrainingSession(target, is_chief=task[1] == 0, config=filters, hooks=[tf.train.StopAtStepHook(100)]) as session:
    while not session.should_stop():
        session.run(train)
