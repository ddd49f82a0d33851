"""TensorBoard (from PyPI) reads what a Rust program writes: through its EventAccumulator, and through its server's HTTP API.

  python tensorboard_reads.py --trial target/debug/downpour-trial --work target/tensorboard_reads

Run by a python that has the package `tensorboard` (`cargo xtask tensorboard` makes one); TensorFlow is not needed.
"""
import argparse
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import servers

# What `downpour-trial events` computes.
STEPS = 5
LOSSES = [sum(v * v for v in (4, -4, 2, 0.5)) * 0.64 ** i for i in range(STEPS)]
# Each is labelled with the count after its step, as TensorFlow labels them.
COUNTS = list(range(1, STEPS + 1))
SCALARS = {"train/loss", "twice", "global_step/sec", "by_hand"}
IMAGES = {"pixels/image/0", "pixels/image/1"}


def near(a, b):
    return abs(a - b) <= 1e-4 * max(1, abs(b))


class Checks:
    """Counts what holds, and shows what does not."""

    def __init__(self):
        self.passed = self.failed = 0

    def __call__(self, name, got, holds):
        if holds(got) if callable(holds) else got == holds:
            self.passed += 1
        else:
            self.failed += 1
            print("FAIL %s: %r" % (name, got), flush=True)


def png_size(data):
    return struct.unpack(">II", data[16:24]) if data[:8] == b"\x89PNG\r\n\x1a\n" else None


def accumulated(check, folder):
    """What TensorBoard's own reader finds in the file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    guidance = dict.fromkeys(("scalars", "images", "histograms", "audio", "tensors"), 0)
    events = EventAccumulator(folder, size_guidance=guidance)
    events.Reload()
    tags = events.Tags()
    check("tags of scalars", set(tags["scalars"]), SCALARS)
    check("tags of histograms", tags["histograms"], ["weights"])
    check("tags of images", set(tags["images"]), IMAGES)
    check("tags of sounds", tags["audio"], ["waves/audio/0"])
    check("tags of tensors", set(tags["tensors"]), {"note", "table", "_hparams_/session_start_info"})
    check("tags of runs", tags["run_metadata"], ["loss_traced"])
    losses = events.Scalars("train/loss")
    check("steps", [e.step for e in losses], COUNTS)
    check("losses", [e.value for e in losses], lambda got: all(near(a, b) for a, b in zip(got, LOSSES)))
    check("times", [e.wall_time for e in losses], lambda t: t == sorted(t) and abs(time.time() - t[-1]) < 3600)
    check("twice", [e.value for e in events.Scalars("twice")], [2 * e.value for e in losses])
    check("by hand", [(e.step, e.value) for e in events.Scalars("by_hand")], [(STEPS, 0.25)])
    weights = events.Histograms("weights")[0].histogram_value
    check("histogram", (weights.min, weights.max, weights.num, weights.sum), (-4.0, 4.0, 4.0, 2.5))
    check("its buckets", (len(weights.bucket), sum(weights.bucket)),
          lambda got: got[0] == len(weights.bucket_limit) and got[1] == 4)
    image = events.Images("pixels/image/1")[0]
    check("image", (image.width, image.height, png_size(image.encoded_image_string)), (6, 4, (6, 4)))
    sound = events.Audio("waves/audio/0")[0]
    check("sound", (sound.sample_rate, sound.length_frames, sound.content_type, sound.encoded_audio_string[:4]),
          (8000.0, 800, "audio/wav", b"RIFF"))
    for tag, want, shape in (("note", [b"a **note**"], []), ("table", [b"a", b"b", b"c", b"d"], [2, 2])):
        tensor = events.Tensors(tag)[-1].tensor_proto
        check(tag, (list(tensor.string_val), [d.size for d in tensor.tensor_shape.dim]), (want, shape))
        check("plugin of " + tag, events.SummaryMetadata(tag).plugin_data.plugin_name, "text")
    nodes = {n.name: n for n in events.Graph().node}
    check("graph", nodes.get("layer/w").op if "layer/w" in nodes else sorted(nodes), "VarHandleOp")
    run = events.RunMetadata("loss_traced")
    check("run", [d.device for d in run.step_stats.dev_stats], lambda got: any("CPU:0" in d for d in got))
    check("its nodes", [n.node_name for d in run.step_stats.dev_stats for n in d.node_stats], lambda got: "Sum" in got)


class Board:
    """TensorBoard's server."""

    def __init__(self, folder, log):
        self.port = servers.free_port()
        argv = [sys.executable, "-m", "tensorboard.main", "--logdir", folder, "--port", str(self.port), "--host", "127.0.0.1",
                "--load_fast", "false"]
        with open(log, "wb") as out:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def __enter__(self):
        servers.wait_port(self.port, self.process, 120)
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()

    def get(self, path, **query):
        url = "http://127.0.0.1:%d/data/%s?%s" % (self.port, path, urllib.parse.urlencode(query))
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.headers.get_content_type(), answer.read()

    def json(self, path, **query):
        return json.loads(self.get(path, **query)[1])

    def post(self, path, body):
        url = "http://127.0.0.1:%d/data/%s" % (self.port, path)
        request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


def served(check, board):
    """What the server shows of it."""
    run = "trial"
    end = time.time() + 120
    # It reads in the background.
    while "by_hand" not in board.json("plugin/scalars/tags").get(run, {}):
        if time.time() > end:
            raise RuntimeError("TensorBoard does not find the run: %s" % board.json("runs"))
        time.sleep(0.1)
    check("runs", board.json("runs"), [run])
    active = board.json("plugins_listing")
    for plugin in ("scalars", "histograms", "distributions", "images", "audio", "text", "graphs"):
        check("plugin " + plugin, active.get(plugin, {}).get("enabled"), True)
    check("scalars", set(board.json("plugin/scalars/tags")[run]), SCALARS)
    losses = board.json("plugin/scalars/scalars", run=run, tag="train/loss")
    check("losses", [(s, v) for _, s, v in losses],
          lambda got: len(got) == STEPS and all(s == i + 1 and near(v, LOSSES[i]) for i, (s, v) in enumerate(got)))
    check("histograms", list(board.json("plugin/histograms/tags")[run]), ["weights"])
    weights = board.json("plugin/histograms/histograms", run=run, tag="weights")
    check("histogram", [(step, sum(count for _, _, count in buckets)) for _, step, buckets in weights],
          lambda got: [s for s, _ in got] == COUNTS and all(near(n, 4) for _, n in got))
    images = board.json("plugin/images/tags")[run]
    check("images", set(images), IMAGES)
    found = board.json("plugin/images/images", run=run, tag="pixels/image/0", sample=0)
    check("image", [i["step"] for i in found], lambda got: got[-1:] == [STEPS])
    kind, data = board.get("plugin/images/individualImage", **dict(urllib.parse.parse_qsl(found[-1]["query"])))
    check("its bytes", (kind, png_size(data)), ("image/png", (6, 4)))
    sounds = board.json("plugin/audio/audio", run=run, tag="waves/audio/0", sample=0)
    check("sound", len(sounds), lambda n: n >= 1)
    check("texts", set(board.json("plugin/text/tags")[run]), {"note", "table"})
    note = board.json("plugin/text/text", run=run, tag="note")
    check("note", [(n["step"], n["text"]) for n in note][-1:],
          lambda got: got and got[0][0] == STEPS and "<strong>note</strong>" in got[0][1])
    table = board.json("plugin/text/text", run=run, tag="table")
    check("table", table[-1]["text"], lambda t: "<table>" in t and t.count("<td>") == 4)
    info = board.json("plugin/graphs/info")[run]
    check("graph", (info["run_graph"], info["tags"]["loss_traced"]["profile"]), (True, True))
    drawn = board.get("plugin/graphs/graph", run=run)[1].decode()
    check("its nodes", drawn, lambda text: 'name: "layer/w"' in text)
    stats = board.get("plugin/graphs/run_metadata", run=run, tag="loss_traced")[1].decode()
    check("its run", stats, lambda text: "node_stats" in text and "CPU:0" in text)
    groups = board.post("plugin/hparams/session_groups", {"experimentName": "", "allowedStatuses": ["STATUS_UNKNOWN", "STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING"],
                                                          "colParams": [], "startIndex": 0, "sliceSize": 10})["sessionGroups"]
    check("hyperparameters", [g["hparams"] for g in groups], [{"optimizer": "sgd", "rate": 0.1, "sync": False}])


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--trial", required=True, help="the Rust program")
    p.add_argument("--work", required=True)
    options = p.parse_args()
    work, start, check = os.path.abspath(options.work), time.time(), Checks()
    shutil.rmtree(work, ignore_errors=True)
    folder = os.path.join(work, "logs", "trial")
    os.makedirs(folder)
    subprocess.run([options.trial, "events", folder], check=True)
    accumulated(check, folder)
    with Board(os.path.dirname(folder), os.path.join(work, "board.log")) as board:
        try:
            served(check, board)
        except (urllib.error.URLError, KeyError, RuntimeError) as e:
            check("server", "%s: %s (see %s)" % (type(e).__name__, e, os.path.join(work, "board.log")), False)
    print("board: %d passed, %d failed in %.0f s" % (check.passed, check.failed, time.time() - start))
    sys.exit(1 if check.failed else 0)


if __name__ == "__main__":
    main()
