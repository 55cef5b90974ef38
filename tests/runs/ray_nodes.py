"""Ray nodes as real processes on the loopback interface, which can be killed like machines and never stay behind."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

LONG = 600.0  # seconds; a busy machine needs a minute to start a worker
MARK = b"NTKSAP_TEST_NODE="


def until(what, found, process=None):
    """Wait until ``found`` returns something true, and return that."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        if result := found():
            return result
        assert process is None or process.poll() is None, f"the command ended before: {what}"
        time.sleep(0.05)
    return pytest.fail(f"not within {LONG:.0f} s: {what}")


def node_of(pid):
    """The mark in the environment of a process, which its children inherit; empty if it is gone."""
    with suppress(OSError):
        for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if entry.startswith(MARK):
                return entry.removeprefix(MARK).decode()
    return ""


def kill_node(prefix):
    """Kill -9 all processes whose mark begins so, and their descendants, as when a machine loses power."""

    def none_left():
        victims = {int(path.name) for path in Path("/proc").glob("[0-9]*") if node_of(path.name).startswith(prefix)}
        found = len(victims)
        waiting = list(victims)
        while waiting:  # some change their title and lose their environment with it
            children = set()
            with suppress(OSError):
                parent = waiting.pop()
                children = {int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()}
            waiting += children - victims
            victims |= children
        for pid in victims:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found == 0

    until(f"no process of {prefix} is left", none_left)


class Cluster:
    """Nodes with a token, so that nobody else gets in, and commands that may join them."""

    def __init__(self):
        self.name = secrets.token_hex(8)
        self.folder = tempfile.mkdtemp(prefix="ray-")  # the paths of sockets must be short
        self.processes = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    def popen(self, node, command, **options):
        environment = {
            **os.environ,
            MARK.decode().removesuffix("="): f"{self.name}-{node}",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": self.name * 4,
        }
        self.processes.append(subprocess.Popen(command, env=environment, text=True, **options))
        return self.processes[-1]

    def python(self, node, *arguments):
        """Start Python with these arguments, as part of a node."""
        return self.popen(node, [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def start(self, node, cpus=1, before=()):
        """Start a node and wait until it has joined; the first one is the head."""
        command = [*before, sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--num-cpus={cpus}"]
        command += ["--node-ip-address=127.0.0.1", f"--object-store-memory={80 * 2**20}", "--disable-usage-stats"]
        if node == "head":
            command += ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        else:
            command += [f"--address={self.address}"]
        self.popen(node, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        code = (
            f"import ray; ray.init(address='{self.address}', logging_level='ERROR'); "
            "print(sum(node['Alive'] for node in ray.nodes()))"
        )
        nodes = sum("ray.scripts.scripts" in process.args for process in self.processes)

        def joined():
            probe = self.python("probe", "-W", "ignore", "-c", code)
            printed, _ = probe.communicate(timeout=LONG)
            return probe.returncode == 0 and int(printed) == nodes

        until(f"{node} has joined", joined)

    def end(self):
        kill_node(self.name)
        for process in self.processes:
            process.communicate()
        shutil.rmtree(self.folder, ignore_errors=True)
