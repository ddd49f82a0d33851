"""Hosts for the rows of `--hosts`: each task in a network namespace of its own, every two of them joined by a veth cable.

Nothing is shared between the tasks but the processor: no Unix socket and, as tasks learn of each other by one, no memory. What a cable
carries by itself is measured by `stream`: one TCP connection, one program that writes and one that reads.
"""
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time

CLONE_NEWNET = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
BLOCK = 1 << 20


class NoHosts(RuntimeError):
    """This machine does not let us make network namespaces."""


def _hold():
    """Makes a namespace, and lives until its parent lets go of it."""
    LIBC.prctl(1, signal.SIGKILL)
    if LIBC.unshare(CLONE_NEWNET) != 0:
        sys.exit("unshare: " + os.strerror(ctypes.get_errno()))
    print("ready", flush=True)
    sys.stdin.read()


class Host:
    """One host; `enter` is for `preexec_fn`."""

    def __init__(self, number):
        self.number, self.address = number, "10.78.0.%d" % number
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "hold"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline().strip() != "ready":
            raise NoHosts("a network namespace cannot be made here (%s); --hosts takes root" % self.process.communicate()[1].strip())
        self.space = os.open("/proc/%d/ns/net" % self.process.pid, os.O_RDONLY | os.O_CLOEXEC)

    def enter(self):
        if LIBC.setns(self.space, CLONE_NEWNET) != 0:
            os._exit(126)

    def ip(self, *words):
        ip(*words, preexec_fn=self.enter)

    def close(self):
        self.process.kill()
        self.process.communicate()
        os.close(self.space)


def ip(*words, **how):
    try:
        done = subprocess.run(("ip",) + words, capture_output=True, text=True, **how)
    except FileNotFoundError:
        raise NoHosts("there is no `ip` (Debian: apt-get install iproute2), which --hosts joins hosts with") from None
    if done.returncode != 0:
        raise NoHosts("ip %s: %s" % (" ".join(words), done.stderr.strip()))


class Hosts:
    """So many hosts, each joined to each other."""

    def __init__(self, count):
        self.all = []
        try:
            for number in range(1, count + 1):
                self.all.append(Host(number))
            for host in self.all:
                host.ip("link", "set", "lo", "up")
            for i, a in enumerate(self.all):
                for b in self.all[i + 1:]:
                    self.join(a, b)
        except BaseException:
            self.close()
            raise

    def join(self, a, b):
        """Lays a cable: a device on either host, and the other's address behind it."""
        ends = [(a, b, "to%d" % b.number), (b, a, "to%d" % a.number)]
        ip("link", "add", ends[0][2], "netns", str(a.process.pid), "type", "veth", "peer", "name", ends[1][2], "netns", str(b.process.pid))
        for near, far, device in ends:
            near.ip("addr", "add", near.address + "/32", "dev", device)
            near.ip("link", "set", device, "up")
            near.ip("route", "add", far.address + "/32", "dev", device, "src", near.address)

    def close(self):
        for host in self.all:
            host.close()
        self.all = []


def listens(host, port):
    """Whether somebody listens there, asked on the host itself."""
    code = "import socket; socket.create_connection((%r, %d), 1)" % (host.address, port)
    return subprocess.run([sys.executable, "-c", code], preexec_fn=host.enter, stderr=subprocess.DEVNULL).returncode == 0


def stream(sender, receiver, seconds):
    """Bytes a second of one TCP connection."""
    def start(host, *words):
        argv = [sys.executable, os.path.abspath(__file__)] + [str(w) for w in words]
        return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=host.enter)
    sink = start(receiver, "sink", receiver.address)
    port = int(sink.stdout.readline())
    source = start(sender, "source", receiver.address, port, seconds)
    said, _ = sink.communicate(timeout=60 + seconds)
    source.communicate(timeout=60)
    return float(said)


def _sink(address):
    """Reads what one connection brings; prints how many bytes a second that was."""
    with socket.create_server((address, 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        connection, _ = listener.accept()
    into, total = memoryview(bytearray(BLOCK)), 0
    with connection:
        n = connection.recv_into(into)
        begin = time.perf_counter()
        while n:
            n = connection.recv_into(into)
            total += n
    print(total / (time.perf_counter() - begin), flush=True)


def _source(address, port, seconds):
    block = memoryview(bytes(BLOCK))
    with socket.create_connection((address, int(port))) as connection:
        end = time.perf_counter() + float(seconds)
        while time.perf_counter() < end:
            connection.sendall(block)


if __name__ == "__main__":
    {"hold": _hold, "sink": _sink, "source": _source}[sys.argv[1]](*sys.argv[2:])
