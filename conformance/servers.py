"""Starting and stopping the servers a run needs. Ends only processes it started."""
import os
import random
import shlex
import signal
import socket
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# The same server TensorFlow users run, as the oracle of some cases and the opponent of the bench.
TF_TASK = "%s %s" % (shlex.quote(sys.executable), shlex.quote(os.path.join(HERE, "tf_server.py")))
TF_SERVER = TF_TASK + " --port {port}"


def free_port():
    """Not one the system would give out: it might do so again, to a connection, before the port is used."""
    while True:
        port = random.randrange(10000, 30000)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                pass


class Server:
    """One server process; `target` is where a session connects."""

    def __init__(self, command, log_path, start_timeout=60, port=None):
        self.command, self.log_path, self.start_timeout, self.fixed_port = command, log_path, start_timeout, port
        self.process = None
        self.start()

    def start(self):
        self.port = self.fixed_port or free_port()
        self.target = "grpc://127.0.0.1:%d" % self.port
        argv = [a.replace("{port}", str(self.port)) for a in shlex.split(self.command)]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_port(self.port, self.process, self.start_timeout)

    def is_dead(self):
        return self.process.poll() is not None

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self.process = None

    def restart(self):
        self.stop()
        self.start()


def wait_port(port, process, timeout):
    """Returns once the port accepts; raises when the process ends or the time is over."""
    end = time.time() + timeout
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if process.poll() is not None:
                raise RuntimeError("the server ended with code %s before it listened" % process.returncode)
            if time.time() > end:
                raise RuntimeError("the server does not listen on port %d after %d s" % (port, timeout))
            time.sleep(0.005)
