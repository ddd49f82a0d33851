"""Training functions of the tests on Spark; executors import them."""
import os
import time


def doubles(args, ctx):
    """Gives twice each number it is fed."""
    if ctx.job_name == "ps":
        ctx.keeper.wait("stop")
        return
    feed = ctx.get_data_feed(train_mode=False)
    while not feed.should_stop():
        batch = feed.next_batch(7)
        if batch:
            feed.batch_results([2 * (row[0] if isinstance(row, tuple) else row) for row in batch])


def fails(args, ctx):
    if ctx.job_name == "worker" and ctx.task_index == 0:
        raise ValueError("no such luck")
    time.sleep(600)


def fails_when_fed(args, ctx):
    ctx.get_data_feed().next_batch(1)
    raise ValueError("bad row")


def hangs(args, ctx):
    time.sleep(600)


def board(args, ctx):
    """Waits until its TensorBoard answers."""
    from urllib.request import urlopen

    while not os.path.exists(os.path.join(args["dir"], "url")):
        time.sleep(0.2)
    with open(os.path.join(args["dir"], "url"), encoding="utf-8") as file:
        url = file.read()
    for _ in range(300):
        try:
            with urlopen(url, timeout=5) as page, open(os.path.join(args["dir"], "page"), "wb") as out:
                out.write(page.read())
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"{url} does not answer")


def line(args, ctx):
    """Fits y = w x + b to what it is fed, on servers of the cluster, and saves it to score with."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    cluster, server = ctx.start_cluster_server()
    if ctx.job_name == "ps":
        server.join()
        return
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device="/job:chief/task:0")):
        x, y = tf.placeholder(tf.float32, [None], "x"), tf.placeholder(tf.float32, [None], "y")
        w = tf.get_variable("w", [], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [], initializer=tf.zeros_initializer())
        fit = tf.identity(w * x + b, "fit")
        loss = tf.reduce_mean(tf.square(fit - y))
        train = tf.train.GradientDescentOptimizer(0.3).minimize(loss)
        # What is fed goes through a queue on the servers.
        queue = tf.queue.FIFOQueue(64, [tf.float32, tf.float32], name="rows", shared_name="rows")
        put = queue.enqueue([x, y])
        take = queue.dequeue()
    feed = ctx.get_data_feed(input_mapping={"feature": "x", "target": "y"})
    with tf.Session(server.target) as session:
        session.run(tf.global_variables_initializer())
        while not feed.should_stop():
            batch = feed.next_batch(args.batch_size)
            if len(batch["x"]):
                session.run(put, {x: batch["x"], y: batch["y"]})
                xs, ys = session.run(take)
                session.run(train, {x: np.asarray(xs), y: np.asarray(ys)})
        ctx.export_saved_model(session, args.export_dir, "serve", {
            "score": {"inputs": {"feature": x}, "outputs": {"fit": fit}, "method_name": "predict"}})
