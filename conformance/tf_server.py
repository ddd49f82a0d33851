"""A real TensorFlow gRPC task as one process, through the C function that tf.train.Server wraps.

Loading the library with ctypes leaves python's own import of tensorflow out of start-up time and
memory, so the comparison is with the server alone. Run by harness.py and bench/run.py:

  python tf_server.py --port 2222
  python tf_server.py --job ps --task 0 --cluster '{"ps": ["127.0.0.1:2222"]}'
"""
import argparse
import ctypes
import json
import os
import sys
import sysconfig

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")


def varint(n):
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes(out + bytes([n]))


def field(number, data):
    """A length-delimited protobuf field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


def server_def(cluster, job, task):
    """A ServerDef of one task of `cluster`, {job: [address, ...]}."""
    jobs = b""
    for name, addresses in cluster.items():
        tasks = b"".join(field(2, varint(1 << 3) + varint(i) + field(2, a.encode())) for i, a in enumerate(addresses))
        jobs += field(1, field(1, name.encode()) + tasks)
    return field(1, jobs) + field(2, job.encode()) + varint(3 << 3) + varint(task) + field(5, b"grpc")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, help="be the only task of job localhost")
    parser.add_argument("--cluster", type=json.loads, help="or a task of this cluster: JSON {job: [address, ...]}")
    parser.add_argument("--job", default="localhost")
    parser.add_argument("--task", type=int, default=0)
    args = parser.parse_args()
    data = server_def(args.cluster or {"localhost": ["localhost:%d" % args.port]}, args.job, args.task)
    base = os.path.join(sysconfig.get_paths()["purelib"], "tensorflow")
    ctypes.CDLL(os.path.join(base, "libtensorflow_framework.so.2"), mode=ctypes.RTLD_GLOBAL)
    lib = ctypes.CDLL(os.path.join(base, "libtensorflow_cc.so.2"), mode=ctypes.RTLD_GLOBAL)
    pointer = ctypes.c_void_p
    lib.TF_NewStatus.restype = pointer
    lib.TF_GetCode.argtypes = [pointer]
    lib.TF_Message.restype, lib.TF_Message.argtypes = ctypes.c_char_p, [pointer]
    lib.TF_NewServer.restype = pointer
    lib.TF_NewServer.argtypes = [ctypes.c_char_p, ctypes.c_size_t, pointer]
    lib.TF_ServerStart.argtypes = lib.TF_ServerJoin.argtypes = [pointer, pointer]
    lib.TF_ServerStart.restype = lib.TF_ServerJoin.restype = None
    status = lib.TF_NewStatus()

    def check():
        if lib.TF_GetCode(status):
            sys.exit(lib.TF_Message(status).decode(errors="replace"))

    server = lib.TF_NewServer(data, len(data), status)
    check()
    lib.TF_ServerStart(server, status)
    check()
    lib.TF_ServerJoin(server, status)


if __name__ == "__main__":
    main()
