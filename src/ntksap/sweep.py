"""A sweep: many runs in a few worker processes. One that fails, or whose process dies, does not stop the others."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from ntksap.errors import NtksapError
from ntksap.runs import Place, Progress, read_result, run
from ntksap.settings import Settings

Work: TypeAlias = Callable[[Settings, Path, Place, Callable[[Progress], object]], dict[str, Any]]
"""(settings, root, place, on_progress) → result, written to a folder in root; it must survive pickling."""


@dataclass(frozen=True)
class Event:
    """Something happened to a run."""

    settings: Settings
    kind: Literal["skipped", "started", "progress", "finished", "failed"]
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    error: str | None = None


def sweep(
    settings: Sequence[Settings], root: str | Path, place: Place | None = None, jobs: int = 1, work: Work = run
) -> Generator[Event, None, None]:
    """Carry out the runs in ``root`` in ``jobs`` processes, which share the cores, and yield what happens.

    ``work`` is what a process does with settings: `run`, or `ntksap.mask_runs.prune_only` with its shapes filled in.
    Finished runs are skipped, begun ones go on. Closing the iterator stops the processes; nothing is lost by that.
    """
    waiting: deque[Settings] = deque()
    for one in {one.name: one for one in settings}.values():
        if (result := read_result(Path(root) / one.name)) is not None:
            yield Event(one, "skipped", result=result)
        else:
            waiting.append(one)
    threads = max(1, cores() // jobs)
    workers = [_Worker(work, root, place or Place(), threads) for _ in range(min(jobs, len(waiting)))]
    try:
        while waiting or any(worker.task for worker in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    yield worker.start(waiting.popleft())
            for ready in wait([worker.connection for worker in workers if worker.task]):
                worker = next(w for w in workers if w.connection is ready)
                yield worker.receive()
                if not worker.alive:  # its end of the pipe closed: another takes its place
                    workers[workers.index(worker)] = _Worker(work, root, place or Place(), threads)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """A process that carries out one run at a time, seen from the sweep."""

    def __init__(self, work: Work, root: str | Path, place: Place, threads: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(theirs, work, Path(root), place, threads), daemon=place.workers == 0
        )
        self.process.start()
        theirs.close()
        self.task: Settings | None = None
        self.alive = True

    def start(self, task: Settings) -> Event:
        self.task = task
        self.connection.send(task)
        return Event(task, "started")

    def receive(self) -> Event:
        task = self.task
        assert task is not None
        try:
            message: Progress | dict[str, Any] | str = self.connection.recv()
        except (EOFError, ConnectionResetError):
            self.process.join()
            self.task, self.alive = None, False
            return Event(
                task, "failed", error=f"its process died ({_cause(self.process.exitcode)}); run again to go on"
            )
        if isinstance(message, Progress):
            return Event(task, "progress", progress=message)
        self.task = None
        if isinstance(message, dict):
            return Event(task, "finished", result=message)
        return Event(task, "failed", error=message)


def _cause(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


def _serve(connection: Connection, work: Work, root: Path, place: Place, threads: int) -> None:
    """Work in a process of its own: receive settings, send progress and then a result or the text of an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sweep decides what it means
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    while True:
        try:
            settings = connection.recv()
        except EOFError:
            return
        try:
            connection.send(work(settings, root, place, connection.send))
        except NtksapError as error:
            connection.send(str(error))
        except Exception as error:
            connection.send(f"{type(error).__name__}: {error}")


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
