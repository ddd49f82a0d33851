"""Sparse inputs: embeddings whole and in shards, sampled losses, wide and deep."""
import os

import numpy as np

from cases.models._common import TOLERANCE, train, var
from registry import script, tf

F, I, L, S = tf.float32, tf.int32, tf.int64, tf.string


def shards(name, rows, width, count, res):
    """A table in `count` parts, rows dealt out in turn."""
    return [var("%s_%d" % (name, i), [rows // count + (i < rows % count), width], res) for i in range(count)]


def lookup(count, strategy):
    def build(res):
        r = np.random.RandomState(1)
        ids, y = r.randint(0, 13, (16, 3)).astype(np.int64), r.randn(16).astype(np.float32)
        pi, py = tf.placeholder(L, [None, 3]), tf.placeholder(F, [None])
        table = shards("table", 13, 4, count, res)
        e = tf.nn.embedding_lookup(table, pi, partition_strategy=strategy, max_norm=1.5)
        p = tf.reduce_sum(e, [1, 2])
        loss = tf.reduce_mean(tf.square(p - py))
        return loss, tf.train.AdagradOptimizer(0.2).minimize(loss), {pi: ids, py: y}, [p]
    return build


def sparse(combiner, count):
    def build(res):
        r = np.random.RandomState(2)
        rows = np.sort(r.randint(0, 6, 14))
        indices = np.array([[row, i] for i, row in enumerate(rows)], np.int64)
        ids, weights = r.randint(0, 10, 14).astype(np.int64), r.rand(14).astype(np.float32) + 0.1
        y = r.randn(6).astype(np.float32)
        pi, pv, pw, py = tf.placeholder(L, [None, 2]), tf.placeholder(L, [None]), tf.placeholder(F, [None]), tf.placeholder(F, [None])
        shape = tf.constant([6, 14], L)
        table = shards("table", 10, 4, count, res)
        e = tf.nn.safe_embedding_lookup_sparse(table, tf.SparseTensor(pi, pv, shape), tf.SparseTensor(pi, pw, shape), combiner=combiner)
        p = tf.reduce_sum(e, 1)
        loss = tf.reduce_mean(tf.square(p - py))
        return loss, tf.train.AdamOptimizer(0.05).minimize(loss), {pi: indices, pv: ids, pw: weights, py: y}, [p]
    return build


def word2vec(kind):
    def build(res):
        r = np.random.RandomState(3)
        words, context = r.randint(0, 40, 12).astype(np.int64), r.randint(0, 40, (12, 1)).astype(np.int64)
        pw, pc = tf.placeholder(L, [None]), tf.placeholder(L, [None, 1])
        table, nce_w, nce_b = var("table", [40, 6], res), var("nce_w", [40, 6], res), var("nce_b", [40], res)
        e = tf.nn.embedding_lookup(table, pw)
        sampled = tf.random.fixed_unigram_candidate_sampler(pc, 1, 8, True, 40, unigrams=list(range(1, 41)), distortion=0.75, seed=5) if kind == "unigram" else \
            tf.random.log_uniform_candidate_sampler(pc, 1, 8, True, 40, seed=6)
        f = tf.nn.sampled_softmax_loss if kind == "softmax" else tf.nn.nce_loss
        loss = tf.reduce_mean(f(nce_w, nce_b, pc, e, 8, 40, sampled_values=sampled))
        norm = tf.sqrt(tf.reduce_sum(tf.square(table), 1, keepdims=True))
        near = tf.nn.top_k(tf.matmul(e / tf.sqrt(tf.reduce_sum(tf.square(e), 1, keepdims=True)), table / norm, transpose_b=True), 3)
        return loss, tf.train.GradientDescentOptimizer(0.5).minimize(loss), {pw: words, pc: context}, [near.indices]
    return build


MODELS = {"embedding_mod": lookup(3, "mod"), "embedding_div": lookup(3, "div"), "embedding_whole": lookup(1, "mod"), "embedding_sparse_mean": sparse("mean", 1),
          "embedding_sparse_sum": sparse("sum", 1), "embedding_sparse_sqrtn_parts": sparse("sqrtn", 3), "word2vec_nce": word2vec("nce"),
          "word2vec_unigram": word2vec("unigram"), "word2vec_softmax": word2vec("softmax")}
for res in (False, True):
    for name, build in MODELS.items():
        script("%s_%s" % (name, "resource" if res else "ref"), **TOLERANCE)(lambda env, build=build, res=res: train(env, build, res))


def people(seed=4, n=24):
    r = np.random.RandomState(seed)
    return dict(age=r.uniform(18, 70, (n, 1)).astype(np.float32), job=r.choice([b"cook", b"clerk", b"farmer", b"pilot", b"poet"], (n, 1)),
                town=r.choice([b"Bern", b"Oslo", b"Rome", b"Lima"], (n, 1)), hours=r.randint(0, 60, (n, 1)).astype(np.int64),
                label=r.randint(0, 2, (n, 1)).astype(np.float32))


def wide_and_deep(env, res):
    fc = tf.feature_column
    vocabulary = os.path.join(env.tmp, "towns.txt")
    with open(vocabulary, "w") as f:
        f.write("Bern\nOslo\nRome\n")

    def build(res):
        rows = people()
        age, hours = fc.numeric_column("age", normalizer_fn=lambda x: (x - 40.0) / 20.0), fc.numeric_column("hours", dtype=L)
        job = fc.categorical_column_with_vocabulary_list("job", ["cook", "clerk", "farmer"], num_oov_buckets=2)
        town = fc.categorical_column_with_vocabulary_file("town", vocabulary, 3, default_value=0)
        hashed = fc.categorical_column_with_hash_bucket("job", 7)
        ages = fc.bucketized_column(fc.numeric_column("age"), [25.0, 35.0, 50.0])
        crossed = fc.crossed_column([ages, "town"], 11)
        hours_id = fc.categorical_column_with_identity("hours", 60)
        seeded = tf.truncated_normal_initializer(stddev=0.3, seed=9)
        deep_columns = [age, fc.embedding_column(hashed, 3, initializer=seeded), fc.embedding_column(town, 2, combiner="sqrtn", initializer=seeded),
                        fc.indicator_column(job), hours]
        features = {k: tf.placeholder(tf.string if v.dtype.kind in "SO" else v.dtype, [None, 1]) for k, v in rows.items() if k != "label"}
        label = tf.placeholder(F, [None, 1])
        wide = fc.linear_model(features, [job, town, ages, crossed, hours_id], sparse_combiner="sum")
        net = fc.input_layer(features, deep_columns)
        width = int(net.shape[1])
        net = tf.nn.relu(tf.matmul(net, var("h1", [width, 8], res)) + var("c1", [8], res))
        logits = tf.matmul(net, var("h2", [8, 1], res)) + wide
        loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=logits))
        wide_vars = tf.trainable_variables("m/linear_model")
        deep_vars = [v for v in tf.trainable_variables() if v not in wide_vars] if not res else [
            v for v in tf.trainable_variables() if v.name not in {w.name for w in wide_vars}]
        step = tf.group(tf.train.FtrlOptimizer(0.1, l1_regularization_strength=0.01).minimize(loss, var_list=wide_vars),
                        tf.train.AdagradOptimizer(0.05).minimize(loss, var_list=deep_vars))
        feeds = {features[k]: v for k, v in rows.items() if k != "label"}
        feeds[label] = rows["label"]
        return loss, step, feeds, [logits]
    return train(env, build, res)


for res in (False, True):
    script("wide_and_deep_%s" % ("resource" if res else "ref"), **TOLERANCE)(lambda env, res=res: wide_and_deep(env, res))
