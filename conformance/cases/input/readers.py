"""Readers that take their files from a queue: every kind, in bits and batches, counted, saved, reset."""
import os

from registry import raw, script, tf

S = tf.string


def files(env):
    """Three files of lines, three of records; the second of each is empty."""
    lines, records = [], []
    for i, rows in enumerate((["a", "bb", ""], [], ["ccc", "d"])):
        lines.append(os.path.join(env.tmp, "lines%d" % i))
        with open(lines[-1], "w") as f:
            f.write("".join(r + "\n" for r in rows))
        records.append(os.path.join(env.tmp, "records%d" % i))
        with tf.io.TFRecordWriter(records[-1]) as w:
            for r in rows:
                w.write(r.encode())
    return lines, records


KINDS = {
    "TextLineReaderV2": (lambda: raw.TextLineReaderV2(skip_header_lines=1), 0),
    "TFRecordReaderV2": (lambda: raw.TFRecordReaderV2(), 1),
    "FixedLengthRecordReaderV2": (lambda: raw.FixedLengthRecordReaderV2(record_bytes=2, header_bytes=1), 0),
    "WholeFileReaderV2": (lambda: raw.WholeFileReaderV2(), 0),
    "IdentityReaderV2": (lambda: raw.IdentityReaderV2(), 0),
}


def plain(env, got):
    """Keys name files in a folder that differs from run to run."""
    if isinstance(got, (list, tuple)):
        return [plain(env, g) for g in got]
    if hasattr(got, "kind"):
        return got.kind
    if hasattr(got, "tolist"):
        return plain(env, got.tolist())
    return got.replace(env.tmp.encode(), b"TMP") if isinstance(got, bytes) else got


def use(env, kind, steps):
    make, which = KINDS[kind]
    queue = tf.FIFOQueue(10, [S], shapes=[[]])
    reader = make()
    names = files(env)[which]
    fill = [queue.enqueue_many([names]), queue.close()]
    counts = [raw.ReaderNumRecordsProducedV2(reader_handle=reader), raw.ReaderNumWorkUnitsCompletedV2(reader_handle=reader)]
    ops = {"one": list(raw.ReaderReadV2(reader_handle=reader, queue_handle=queue.queue_ref)),
           "some": list(raw.ReaderReadUpToV2(reader_handle=reader, queue_handle=queue.queue_ref, num_records=3)),
           "reset": raw.ReaderResetV2(reader_handle=reader), "counts": counts,
           "save": raw.ReaderSerializeStateV2(reader_handle=reader)}
    state = tf.placeholder(S, [])
    restore = raw.ReaderRestoreStateV2(reader_handle=reader, state=state)
    out, saved = [], b""
    with env.session() as sess:
        for op in fill:
            sess.run(op)
        for step in steps.split():
            if step == "restore":
                got = env.error(lambda: sess.run(restore, {state: saved}))
            else:
                got = env.error(lambda step=step: sess.run(ops[step]))
            if step == "save" and isinstance(got, bytes):
                saved, got = got, b"saved"
            out.append(plain(env, got))
    return out


for kind in KINDS:
    script("%s/one_by_one" % kind)(lambda env, kind=kind: use(env, kind, "one counts " * 7))
    script("%s/up_to" % kind)(lambda env, kind=kind: use(env, kind, "some counts " * 4))
    script("%s/save_and_reset" % kind)(lambda env, kind=kind: use(env, kind, "one save one counts restore counts one reset counts one restore"))
