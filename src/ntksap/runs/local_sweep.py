"""A sweep: many runs in a few worker processes. One that fails, or whose process dies, does not stop the others."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Generator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from ntksap._base import cores
from ntksap.runs.execution import run
from ntksap.runs.folder import Place, Progress
from ntksap.runs.settings import Settings
from ntksap.runs.store import Store
from ntksap.runs.work import Event, Task, Work, skip_finished


def sweep(
    settings: Sequence[Settings],
    root: str | Path,
    place: Place | None = None,
    jobs: int = 1,
    store: Store | None = None,
    task: Task = run,
) -> Generator[Event, None, None]:
    """Carry out the runs in ``root`` in ``jobs`` processes, which share the cores, and yield what happens.

    ``task`` is what a process does with settings: `run`, or `prune_only` with its shapes filled in. A process has no
    more threads than this one, so that OMP_NUM_THREADS and `torch.set_num_threads` hold for a sweep too.
    Finished runs are skipped, unfinished ones resume. Closing the iterator stops the processes; nothing is lost.
    """
    threads = max(1, min(torch.get_num_threads(), cores() // jobs))
    work = Work(Path(root), place or Place(), threads, store, task=task)
    waiting = deque((yield from skip_finished(settings, work)))
    workers = [_Worker(work) for _ in range(min(jobs, len(waiting)))]
    try:
        while waiting or any(worker.task for worker in workers):
            for worker in workers:
                if worker.task is None and waiting:
                    yield worker.start(waiting.popleft())
            for ready in wait([worker.connection for worker in workers if worker.task]):
                worker = next(w for w in workers if w.connection is ready)
                yield worker.receive()
                if not worker.alive:  # its end of the pipe closed: another takes its place
                    workers[workers.index(worker)] = _Worker(work)
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.join()


class _Worker:
    """A process that carries out one run at a time, seen from the sweep."""

    def __init__(self, work: Work) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=_serve, args=(theirs, work), daemon=work.place.workers == 0)
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
                task, "failed", error=f"its process died ({_cause(self.process.exitcode)}); run again to resume"
            )
        if isinstance(message, Progress):
            return Event(task, "progress", progress=message)
        self.task = None
        if isinstance(message, dict):
            return Event(task, "finished", result=message)
        return Event(task, "failed", error=message)


def _cause(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit status {code}"


def _serve(connection: Connection, work: Work) -> None:
    """Work in a process of its own: receive settings, send progress and then a result or the text of an error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the sweep decides what it means
    threading.Thread(target=_die_with_parent, daemon=True).start()
    while True:
        try:
            settings = connection.recv()
        except EOFError:
            return
        connection.send(work.carry_out(settings, connection.send))


def _die_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
