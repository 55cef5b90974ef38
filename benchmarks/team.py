"""Processes with one thread each that stay alive and repeat the same job, so that starting them is not timed."""

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import Any


class Team:
    """``size`` processes in a gloo group; ``team(job)`` lets all of them do it and returns what the first returned.

    A job is ``function(group) -> value`` at the top of a module of `benchmarks`; group is None in a team of one.
    """

    def __init__(self, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
        self._members = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.team"],
                env={**os.environ, **place, "RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
            for rank in range(size)
        ]

    def __call__(self, job: Callable[[Any], object]) -> object:
        for member in self._members:
            pickle.dump(job, member.stdin)
            member.stdin.flush()
        first, *_ = [pickle.load(member.stdout) for member in self._members]
        return first


def _member() -> None:
    import torch.distributed as dist

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the job prints is not its answer
    group = None
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
        group = dist.group.WORLD
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(job(group), answers)
        answers.flush()


if __name__ == "__main__":
    _member()
