"""Trains a digit classifier on Spark executors, with the API of TensorFlowOnSpark.

  spark-submit --master spark://HOST:7077 examples/mnist_spark.py --input spark          # Spark feeds an RDD
  spark-submit --master spark://HOST:7077 examples/mnist_spark.py --input dataframe      # a DataFrame, as Arrow batches
  spark-submit --master spark://HOST:7077 examples/mnist_spark.py --input tensorflow     # workers read the files
  python3 examples/mnist_spark.py --connect sc://HOST:15002 --input tensorflow           # over Spark Connect

Needs `pip install downpour-spark tensorflow-cpu` where the driver and the executors run. Two ps and two workers want four task
slots at once (fed over Spark Connect: five). Parameters lie on `downpour serve`, which the package brings; what is killed comes back,
from the last checkpoint in --dir, which all nodes must see.
"""
import argparse
import gzip
import os


def mnist(folder, name):
    """Images between 0 and 1, and labels."""
    import numpy as np

    def idx(kind, header):
        with gzip.open(os.path.join(folder, "%s-%s-ubyte.gz" % (name, kind))) as f:
            return np.frombuffer(f.read(), np.uint8, offset=header)
    return idx("images-idx3", 16).reshape(-1, 784).astype(np.float32) / 255, idx("labels-idx1", 8).astype(np.int64)


PARTS = 8  # partitions of the training images


def rows(folder, part):
    """Rows of one partition, as (list, number)."""
    images, labels = mnist(folder, "train")
    return ((image.tolist(), int(label)) for image, label in zip(images[part::PARTS], labels[part::PARTS]))


def batches(folder, parts):
    """The same as Arrow batches."""
    import pyarrow as pa

    for part in (row for batch in parts for row in batch.column(0).to_pylist()):
        images, labels = mnist(folder, "train")
        images, labels = images[part::PARTS], labels[part::PARTS]
        values = pa.FixedSizeListArray.from_arrays(images.reshape(-1), 784).cast(pa.list_(pa.float32()))
        yield pa.RecordBatch.from_arrays([values, pa.array(labels)], names=["image", "label"])


def map_fun(args, ctx):
    """What each node of the cluster runs."""
    import numpy as np
    import tensorflow.compat.v1 as tf

    tf.disable_v2_behavior()
    tf.logging.set_verbosity(tf.logging.ERROR)
    cluster, server = ctx.start_cluster_server()
    if ctx.job_name == "ps":
        server.join()
        return
    # TensorFlow looks only every 30 s whether the chief has initialised the variables.
    manager = tf.train.SessionManager.__init__
    tf.train.SessionManager.__init__ = lambda *a, **more: manager(*a, **{**more, "recovery_wait_secs": 1})
    task = "/job:worker/task:%d" % ctx.task_index
    with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=task)):
        x, y = tf.placeholder(tf.float32, [None, 784], "x"), tf.placeholder(tf.int64, [None], "y")
        w = tf.get_variable("w", [784, 10], initializer=tf.zeros_initializer())
        b = tf.get_variable("b", [10], initializer=tf.zeros_initializer())
        logits = tf.matmul(x, w) + b
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
        step = tf.train.get_or_create_global_step()
        train = tf.train.AdagradOptimizer(0.3).minimize(loss, global_step=step)
        accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32))

    if args.input == "tensorflow":
        images, labels = mnist(args.data, "train")
        share = np.arange(ctx.task_index, len(images), ctx.num_workers)
        draws = np.random.RandomState(ctx.task_index)
        feed = None
    else:
        feed = ctx.get_data_feed(train_mode=True)

    def batch():
        if feed is None:
            rows = draws.choice(share, 100)
            return images[rows], labels[rows]
        rows = feed.next_batch(100)
        return np.array([r[0] for r in rows], np.float32).reshape(-1, 784), np.array([r[1] for r in rows], np.int64)

    done, filters = 0, tf.ConfigProto(device_filters=["/job:ps", task])
    with tf.train.MonitoredTrainingSession(
            server.target, is_chief=ctx.task_index == 0, checkpoint_dir=args.dir, save_checkpoint_secs=args.save_secs,
            save_summaries_steps=None, save_summaries_secs=None, log_step_count_steps=None, config=filters) as session:
        while done < args.steps and not (feed and feed.should_stop()):
            xs, ys = batch()
            if len(xs):
                _, done = session.run([train, step], {x: xs, y: ys})
                if done % 500 < 2:
                    print("%s:%d step %d" % (ctx.job_name, ctx.task_index, done), flush=True)
        if feed and not feed.should_stop():
            feed.terminate()
        if ctx.task_index == 0:
            score = session.run(accuracy, dict(zip((x, y), mnist(args.data, "t10k"))))
            with open(os.path.join(args.dir, "accuracy"), "w") as f:
                f.write("%.4f after %d steps" % (score, done))


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    here = os.path.dirname(os.path.abspath(__file__))
    p.add_argument("--input", choices=["spark", "dataframe", "tensorflow"], default="spark")
    p.add_argument("--data", default=os.path.join(here, "..", "data", "mnist"), help="folder of the four MNIST files")
    p.add_argument("--dir", default="mnist_model", help="where checkpoints go: a folder that all nodes see")
    p.add_argument("--steps", type=int, default=4000)
    p.add_argument("--epochs", type=int, default=20, help="how often Spark feeds the images, at most")
    p.add_argument("--save_secs", type=int, default=5, help="seconds between checkpoints")
    p.add_argument("--cluster_size", type=int, default=4)
    p.add_argument("--num_ps", type=int, default=2)
    p.add_argument("--driver_ps_nodes", action="store_true", help="run ps beside the driver")
    p.add_argument("--tensorboard", action="store_true")
    p.add_argument("--connect", help="a server of Spark Connect, as in sc://host:15002")
    args = p.parse_args()
    args.data, args.dir = os.path.abspath(args.data), os.path.abspath(args.dir)
    os.makedirs(args.dir, exist_ok=True)

    from pyspark.sql import SparkSession
    from downpour_spark import TFCluster

    builder = SparkSession.builder.appName("mnist")
    spark = (builder.remote(args.connect) if args.connect else builder).getOrCreate()
    mode = TFCluster.InputMode.TENSORFLOW if args.input == "tensorflow" else TFCluster.InputMode.SPARK
    cluster = TFCluster.run(spark, map_fun, args, args.cluster_size, args.num_ps, args.tensorboard, mode,
                            log_dir=args.dir, driver_ps_nodes=args.driver_ps_nodes, reservation_timeout=120)
    print("the cluster runs", flush=True)
    if args.input != "tensorflow":
        folder = args.data
        if args.input == "spark":
            data = spark.sparkContext.parallelize(range(PARTS), PARTS).flatMap(lambda part: rows(folder, part))
        else:
            data = spark.range(0, PARTS, 1, PARTS).mapInArrow(
                lambda parts: batches(folder, parts), "image array<float>, label long")
        cluster.train(data, args.epochs, feed_timeout=120)
    cluster.shutdown()
    with open(os.path.join(args.dir, "accuracy")) as f:
        print("test accuracy " + f.read(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
