"""How OpenMP's threads wait for each other while other programs use the machine too."""

import atexit
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

import torch

CROWDED, QUIET = 0.3, 0.15
"""Seconds for which our threads waited for a core, per second, above which cores are shared, and below which they are
not. Measured with two threads on two cores: 0.14 or less alone, 0.43 or more beside a program that keeps one busy."""
PERIOD, REST = 0.05, 1.0
"""Seconds between two looks, and for which there must be quiet before threads spin again."""

_TASKS = Path("/proc/self/task")


class Sharing(threading.Thread):
    """Watches whether other programs want the cores, and if so lets the threads of OpenMP sleep while they wait.

    GNU's OpenMP, which torch uses on Linux, lets a thread that waits for the others spin for 3 ms before it sleeps.
    That is best on a machine of our own: waking up takes time. Beside another program it takes the core from the very
    thread that is waited for, and makes small operations 5 to 20 times slower. How long to spin is settled when OpenMP
    is loaded, but it only spins for 1 µs while it has more threads than there are cores. So while the machine is
    crowded, one more team of threads exists, which has nothing to do.
    """

    def __init__(self) -> None:
        super().__init__(name="ntksap-sharing", daemon=True)
        self._stopped = threading.Event()
        self._team: _Team | None = None
        self._disturbed = 0.0

    @property
    def crowded(self) -> bool:
        """Whether other programs want the cores."""
        return self._team is not None

    def run(self) -> None:
        """Look every now and then, until it is stopped."""
        waited, then = _waited(), time.monotonic()
        while not self._stopped.wait(PERIOD):
            since, at = _waited(), time.monotonic()
            self.notice((since - waited) / (at - then), at)
            waited, then = since, at

    def notice(self, share: float, now: float) -> None:
        """Act on the seconds for which threads waited for a core, per second; ``now`` in seconds."""
        if share > QUIET:
            self._disturbed = now
        if self._team is None and share > CROWDED and torch.get_num_threads() > 1:
            self._team = _Team()
            self._team.start()
        elif self._team is not None and now - self._disturbed >= REST:
            self._end_team()

    def stop(self) -> None:
        """End all threads: one that is inside torch while Python ends would end the process with an error."""
        self._stopped.set()
        if self.is_alive():
            self.join()
        self._end_team()

    def _end_team(self) -> None:
        if self._team is not None:
            self._team.over.set()
            self._team.join()
            self._team = None


class _Team(threading.Thread):
    """A thread that has a team of its own, as each has that uses OpenMP, until it is over."""

    def __init__(self) -> None:
        super().__init__(name="ntksap-idle", daemon=True)
        self.over = threading.Event()

    def run(self) -> None:
        torch.zeros(2**18, device="cpu").add_(1)  # more than the 2**15 numbers that torch leaves to one thread
        self.over.wait()


def share_cores() -> Sharing | None:
    """Let this process give way to others from now on, where that can be done; for processes that are ours alone.

    A user's own ``OMP_WAIT_POLICY`` or ``GOMP_SPINCOUNT`` wins, and then nothing happens.
    """
    global _sharing
    settled = os.environ.keys() & {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    alive = _sharing is not None and _sharing.is_alive()  # not in a process that was forked
    if not alive and not settled and _TASKS.with_name("schedstat").exists():
        _sharing = Sharing()
        _sharing.start()
        atexit.register(_sharing.stop)
    return _sharing


_sharing: Sharing | None = None


def _waited() -> float:
    """Return the seconds for which threads of this process were ready to run, and had no core."""
    total = 0
    for task in _TASKS.iterdir():
        with suppress(OSError, IndexError):  # the thread has ended
            total += int((task / "schedstat").read_text().split()[1])
    return total / 1e9
