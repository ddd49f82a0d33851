"""The training process of one node: `python -m downpour_spark.trainer SPEC`, started by the node's keeper.

It runs the user's `map_fun(args, ctx)` and tells the keeper how it ended. It ends with its keeper.
"""
from __future__ import annotations

import json
import os
import pickle
import socket
import sys
import threading
import traceback
from typing import Any

from .coordinator import Line
from .inbox import FeedServer
from .keeper import die_with_parent


class Keeper:
    """The keeper, as the training process sees it."""

    def __init__(self, line: Line):
        self._line = line
        self._changed = threading.Condition()
        self._heard: dict[str, Any] = {}

    def ask(self, question: str, answer: str) -> None:
        """Asks for something, and waits until it is done."""
        self._line.send({question: True})
        self.wait(answer)

    def tell(self, message: dict) -> None:
        """Says something."""
        self._line.send(message)

    def wait(self, what: str) -> None:
        """Waits until the keeper has said so."""
        with self._changed:
            self._changed.wait_for(lambda: what in self._heard)

    def listen(self, feed: FeedServer | None) -> None:
        """Hears the keeper to its end, which is this process's too."""
        while (message := self._line.receive()) is not None:
            with self._changed:
                self._heard.update(message)
                self._changed.notify_all()
            if feed is not None and ("end_of_feed" in message or "stop" in message):
                feed.end()
        os._exit(1)


def main() -> int:
    """Runs the user's function; the exit code."""
    die_with_parent()
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    line = Line(socket.socket(fileno=spec["control"]))
    keeper = Keeper(line)
    listeners = [socket.socket(fileno=fd) for fd in spec["listeners"]]
    feed = FeedServer(listeners, spec["token"], spec["queues"], keeper.tell) if listeners else None
    if feed is not None and spec["is_feed_ended"]:
        feed.end()
    threading.Thread(target=keeper.listen, args=(feed,), daemon=True).start()
    try:
        _run(spec, keeper, feed)
    except SystemExit as e:
        if e.code in (None, 0):
            return 0
        keeper.tell({"failed": f"map_fun called sys.exit({e.code!r})"})
        return 1
    except BaseException as e:  # Whatever it was, the user wants to read it.
        last = traceback.format_exception_only(e)[-1].strip()
        keeper.tell({"failed": f"{last}\n{traceback.format_exc()}"})
        traceback.print_exc()
        return 1
    return 0


def _run(spec: dict, keeper: Keeper, feed: FeedServer | None) -> None:
    for entry in reversed(spec["sys_path"]):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    os.environ["TF_CONFIG"] = json.dumps({
        "cluster": spec["cluster_spec"], "task": {"type": spec["job_name"], "index": spec["task_index"]},
        "environment": "cloud"})
    os.environ.update(spec.get("env") or {})
    from .TFSparkNode import TFNodeContext

    with open(os.path.join(spec["dir"], "payload"), "rb") as file:
        payload = file.read()
    try:
        # What the driver pickled with Spark's own pickler needs it here.
        import pyspark.cloudpickle  # noqa: F401
    except ImportError:
        pass
    function, arguments = pickle.loads(payload)
    if isinstance(arguments, list):
        sys.argv = arguments
    context = TFNodeContext(
        executor_id=spec["index"], job_name=spec["job_name"], task_index=spec["task_index"],
        cluster_spec=spec["cluster_spec"], defaultFS=spec["default_fs"], working_dir=spec["working_dir"], mgr=feed)
    context.keeper = keeper
    context.start = spec["start"]
    context.is_port_held = not spec["release_port"] and not spec["serve"]
    if spec["serve"]:
        os.environ["DOWNPOUR_TARGET"] = context.target
    function(arguments, context)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads that the user has left behind do not keep the node.
    os._exit(code)
