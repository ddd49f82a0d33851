"""Which cards of NVIDIA's this host has, and which of them nobody computes on."""
from __future__ import annotations

import subprocess

AS_STRING = "string"
AS_LIST = "list"


def _ask(*arguments: str) -> list[str]:
    out = subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True, timeout=60)
    return [line for line in out.stdout.splitlines() if line]


def is_gpu_available() -> bool:
    """Whether there is one."""
    try:
        return bool(_ask("--list-gpus"))
    except (OSError, subprocess.SubprocessError):
        return False


def get_gpus(num_gpu: int = 1, worker_index: int = -1, format: str = AS_STRING) -> str | list[str]:
    """Numbers of free cards, those of the worker of this index on the host; raises when there are not so many."""
    cards = dict(line.split(", ") for line in _ask("--format=csv,noheader", "--query-gpu=uuid,index"))
    busy = set(_ask("--format=csv,noheader", "--query-compute-apps=gpu_uuid"))
    free = [index for uuid, index in cards.items() if uuid not in busy]
    if len(free) < num_gpu:
        raise RuntimeError(f"{num_gpu} free cards are wanted; of {len(cards)} there are {len(free)}")
    begin = max(worker_index, 0) * num_gpu
    if begin + num_gpu > len(free):
        begin = begin % (len(free) - num_gpu + 1)
    chosen = free[begin:begin + num_gpu]
    return chosen if format == AS_LIST else ",".join(chosen)
