"""A network whose cables can be cut: each host is a network namespace, the switch between them is this process.

Every host has one TUN device; what it sends is read here and written to the host it is for, unless the way is cut, the
packet is one of those that are lost, or the link has no time left for it. A cut drops packets without a word, either way
or one way only, as a broken cable does; no firewall, bridge or traffic control of the system is needed.

The namespaces belong to processes that this one started and end with them: nothing is left behind, whatever happens.
"""
import collections
import ctypes
import fcntl
import os
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

CLONE_NEWNET, CLONE_NEWUSER = 0x40000000, 0x10000000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 1, 0x1000
SIOCSIFADDR, SIOCSIFNETMASK, SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFTXQLEN = 0x8916, 0x891C, 0x8913, 0x8914, 0x8943
IFF_UP = 1
LIBC = ctypes.CDLL(None, use_errno=True)


class NoNamespaces(RuntimeError):
    """This machine does not let us make a network namespace with a TUN device."""


def _check(value, what):
    if value != 0:
        error = ctypes.get_errno()
        raise OSError(error, "%s: %s" % (what, os.strerror(error)))


def _up(name, address=None):
    """Brings an interface up, with an address in 10.77.0.0/24 if it is given one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        def said(request, value):
            return fcntl.ioctl(s, request, struct.pack("16s24s", name.encode(), value))
        if address:
            for request, text in ((SIOCSIFADDR, address), (SIOCSIFNETMASK, "255.255.255.0")):
                said(request, struct.pack("HH4s", socket.AF_INET, 0, socket.inet_aton(text)).ljust(24, b"\0"))
            said(SIOCSIFTXQLEN, struct.pack("i", 2000).ljust(24, b"\0"))
        flags, = struct.unpack("H", said(SIOCGIFFLAGS, b"\0" * 24)[16:18])
        said(SIOCSIFFLAGS, struct.pack("H", flags | IFF_UP).ljust(24, b"\0"))


def _hold(address, link):
    """A host: makes the namespace and its device, hands the device over, and lives until its parent lets go of it."""
    LIBC.prctl(1, signal.SIGKILL)
    flags = CLONE_NEWNET if os.geteuid() == 0 else CLONE_NEWNET | CLONE_NEWUSER
    _check(LIBC.unshare(flags), "unshare")
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"wire", IFF_TUN | IFF_NO_PI))
    _up("lo")
    _up("wire", address)
    socket.send_fds(link, [b"ready"], [tun])
    os.close(tun)
    link.recv(1)


class Host:
    """One host; `enter` is for `preexec_fn`."""

    def __init__(self, number):
        self.address = "10.77.0.%d" % number
        self.number = number
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            code = "import sys, socket; sys.path.insert(0, %r); import wires; wires._hold(%r, socket.socket(fileno=%d))" % (
                os.path.dirname(os.path.abspath(__file__)), self.address, theirs.fileno())
            self.process = subprocess.Popen([sys.executable, "-c", code], pass_fds=[theirs.fileno()],
                                            stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.link = ours
        ours.settimeout(20)
        said, fds, _, _ = socket.recv_fds(ours, 16, 1)
        if said != b"ready":
            _, why = self.process.communicate(timeout=20)
            last = why.decode(errors="replace").strip().splitlines()[-1:] or ["no reason"]
            raise NoNamespaces("a network namespace cannot be made here (%s); it takes root, or user namespaces, and "
                               "/dev/net/tun" % last[0])
        self.tun, = fds
        os.set_blocking(self.tun, False)
        self.spaces = [os.open("/proc/%d/ns/%s" % (self.process.pid, kind), os.O_RDONLY | os.O_CLOEXEC)
                       for kind in (["net"] if os.geteuid() == 0 else ["user", "net"])]

    def enter(self):
        for space in self.spaces:
            if LIBC.setns(space, 0) != 0:
                os._exit(126)

    def close(self):
        self.link.close()
        self.process.stderr.close()
        self.process.kill()
        self.process.wait()
        for fd in self.spaces + [self.tun]:
            os.close(fd)


class Network:
    """Hosts, and the switch between them."""

    def __init__(self, count):
        self.hosts = []
        self.cuts, self.loss, self.rate, self.queue = set(), 0.0, None, 48 << 10
        self.dropped = collections.Counter()
        self.random = random.Random(7)
        self.is_over = False
        try:
            for number in range(1, count + 1):
                self.hosts.append(Host(number))
        except BaseException:
            self._close_hosts()
            raise
        self.thread = threading.Thread(target=self._forward, daemon=True, name="switch")
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_over = True
        self.thread.join()
        self._close_hosts()

    def _close_hosts(self):
        for host in self.hosts:
            host.close()
        self.hosts = []

    def cut(self, senders, receivers):
        """What these send to those is dropped from now on."""
        self.cuts = self.cuts | {(a.number, b.number) for a in senders for b in receivers}

    def heal(self):
        self.cuts = set()

    def worsen(self, loss, bits_per_second):
        """Every link loses so many of its packets, and carries no more than that each way."""
        self.loss, self.rate = loss, bits_per_second and bits_per_second / 8

    def _forward(self):
        by_number = {h.number: h for h in self.hosts}
        poll = select.poll()
        for host in self.hosts:
            poll.register(host.tun, select.POLLIN)
        by_fd = {h.tun: h for h in self.hosts}
        # What waits on each slow link, in bytes, and when its last packet will have left.
        free_at, waiting = {}, []
        while not self.is_over:
            now = time.monotonic()
            while waiting and waiting[0][0] <= now:
                _, to, packet = waiting.pop(0)
                self._deliver(to, packet)
            rest = min(100, max(0, (waiting[0][0] - now) * 1000)) if waiting else 100
            for fd, _ in poll.poll(rest):
                host = by_fd[fd]
                for _ in range(64):
                    try:
                        packet = os.read(fd, 1 << 16)
                    except BlockingIOError:
                        break
                    if len(packet) < 20 or packet[0] >> 4 != 4:
                        continue
                    to = by_number.get(packet[19])
                    if to is None:
                        continue
                    way = (host.number, to.number)
                    if way in self.cuts or (self.loss and self.random.random() < self.loss):
                        self.dropped[way] += 1
                        continue
                    if not self.rate:
                        self._deliver(to, packet)
                        continue
                    now = time.monotonic()
                    start = max(now, free_at.get(way, 0))
                    if (start - now) * self.rate > self.queue:
                        self.dropped[way] += 1
                        continue
                    free_at[way] = start + len(packet) / self.rate
                    waiting.append((free_at[way], to, packet))
                    waiting.sort(key=lambda w: w[0])

    def _deliver(self, to, packet):
        try:
            os.write(to.tun, packet)
        except OSError:
            self.dropped[to.number] += 1
