"""Small things that programs for TensorFlowOnSpark import."""
from __future__ import annotations

import os
import socket

from . import gpu_info


def single_node_env(num_gpus: int = 1, worker_index: int = -1, nodes: list[str] | tuple = ()) -> None:
    """Lets TensorFlow in this process see so many free cards, or none where there are none."""
    if num_gpus < 1 or not gpu_info.is_gpu_available():
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        return
    if worker_index >= 0 and nodes:
        host = nodes[worker_index].split(":")[0]
        near = [i for i, node in enumerate(nodes) if node.split(":")[0] == host]
        worker_index = near.index(worker_index)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu_info.get_gpus(num_gpus, worker_index)


def get_ip_address() -> str:
    """The address from which this host reaches others."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            # Nothing is sent; any address outside will do.
            sock.connect(("192.0.2.1", 9))
            return sock.getsockname()[0]
        except OSError:
            return socket.gethostbyname(socket.gethostname())


def find_in_path(path: str, file: str) -> str | bool:
    """The first file of this name in folders that are listed as in PATH."""
    for folder in path.split(os.pathsep):
        candidate = os.path.join(folder, file)
        if os.path.isfile(candidate):
            return candidate
    return False
