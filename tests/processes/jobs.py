"""Real jobs of several processes: `spawn(function, processes)` runs it in each and returns what each returned."""

import os
import pickle
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment() -> dict[str, str]:
    """One thread each: the number of threads changes the last bits of sums."""
    paths = [str(ROOT), str(ROOT / "src"), *sys.path]
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in paths if p)}


def spawn(function: str, processes: int, *arguments: object) -> list[object]:
    """Run ``function`` (a name in `work`) in ``processes`` processes of a gloo group; return their results by rank."""
    with tempfile.TemporaryDirectory() as folder:
        port = free_port()
        started = [
            subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("work.py")), function, str(Path(folder) / str(rank))],
                env={
                    **environment(),
                    "RANK": str(rank),
                    "WORLD_SIZE": str(processes),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                },
                stdin=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for rank in range(processes)
        ]
        for process in started:
            process.stdin.write(pickle.dumps(arguments))
            process.stdin.close()
            process.stdin = None
        try:
            errors = [process.communicate(timeout=300)[1].decode() for process in started]
        finally:
            for process in started:
                process.kill()
        assert all(process.returncode == 0 for process in started), "\n".join(errors)
        return [pickle.loads((Path(folder) / str(rank)).read_bytes()) for rank in range(processes)]
