"""A sweep on a Ray cluster: each run is a task. Ray decides where it runs, and again if its worker or machine dies.

A run's folder is the truth: whoever gets a task resumes from what is there, and the folder's lock keeps two apart.
"""

import platform
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ntksap._base import InputError, NtksapError, make_folder
from ntksap.runs.folder import Place, Progress
from ntksap.runs.ray_cluster import cluster
from ntksap.runs.settings import Settings, versions
from ntksap.runs.store import Store
from ntksap.runs.work import Event, Work, skip_finished

RETRIES = 5
"""How often a run is started again after its worker or machine died."""
PATIENCE = 600.0
"""Seconds to wait for a run's lock: a machine cut off from the cluster holds it until it notices and stops."""
_INTERVAL = 0.5


def sweep_ray(
    settings: Sequence[Settings],
    root: str | Path,
    place: Place | None = None,
    *,
    address: str | None = None,
    cpus: int = 1,
    gpus: float | None = None,
    store: Store | None = None,
) -> Generator[Event, None, None]:
    """Carry out the runs in ``root``, each as a Ray task with ``cpus`` threads and ``gpus``, and yield what happens.

    address: host:port of a cluster that this machine belongs to, or "auto"; None starts Ray here until the end.
    gpus: None means 1 on a cuda device, otherwise 0.

    ``root`` is a folder that all machines share, or else ``store`` brings finished runs here. Finished runs are
    skipped, unfinished ones resume. Closing the iterator cancels the tasks; nothing is lost.
    """
    place = place or Place()
    if gpus is None:
        gpus = 1 if place.device.startswith("cuda") else 0
    if cpus < 1 or gpus < 0:
        raise InputError(f"a run needs at least 1 CPU and no negative number of GPUs, not {cpus} and {gpus:g}")
    if place.data_dir is not None:
        place = replace(place, data_dir=place.data_dir.absolute())
    work = Work(Path(root).absolute(), place, cpus, store, patience=PATIENCE)
    waiting = yield from skip_finished(settings, work)
    if waiting:
        make_folder(work.root)
        with cluster(address, cpus, gpus) as ray:
            yield from _tasks(ray, waiting, work, cpus, gpus)


def _tasks(ray: Any, waiting: list[Settings], work: Work, cpus: int, gpus: float) -> Generator[Event, None, None]:
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    mailbox = ray.remote(num_cpus=0, max_restarts=-1, scheduling_strategy=here)(_Mailbox).remote()
    task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=RETRIES, scheduling_strategy="SPREAD")(_carry_out)
    running = {task.remote(one, work, mailbox, versions()): one for one in waiting}
    begun: set[str] = set()
    try:
        while running:
            done, _ = ray.wait(list(running), timeout=_INTERVAL)
            open_runs = {one.name: one for one in running.values()}
            for name, progress in _mail(ray, mailbox):
                if name in open_runs:
                    begun.add(name)
                    yield Event(open_runs[name], "progress" if progress else "started", progress=progress)
            for reference in done:
                one = running.pop(reference)
                if one.name not in begun:  # its mail was lost
                    yield Event(one, "started")
                yield _outcome(ray, reference, one, work)
    finally:
        for reference in running:
            ray.cancel(reference, force=True)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=10)


def _outcome(ray: Any, reference: Any, settings: Settings, work: Work) -> Event:
    try:
        outcome: dict[str, Any] | str = ray.get(reference)
        if isinstance(outcome, dict) and work.store is not None:
            work.store.fetch(settings.name, work.root)
    except NtksapError as error:
        outcome = str(error)
    except ray.exceptions.RayTaskError as error:  # before our code ran, such as when ntksap is not installed
        outcome = str(error).strip().splitlines()[-1]
    except ray.exceptions.RayError as error:
        outcome = f"Ray gave up on it after {RETRIES} retries ({type(error).__name__}); run again to resume"
    if isinstance(outcome, str):
        return Event(settings, "failed", error=outcome)
    return Event(settings, "finished", result=outcome)


class _Mailbox:
    """An actor beside the sweep that collects the progress of runs: if it dies, some news is lost and nothing else."""

    def __init__(self) -> None:
        self._letters: list[tuple[str, Progress | None]] = []

    def put(self, name: str, progress: Progress | None) -> None:
        self._letters.append((name, progress))

    def empty(self) -> list[tuple[str, Progress | None]]:
        letters, self._letters = self._letters, []
        return letters


def _mail(ray: Any, mailbox: Any) -> list[tuple[str, Progress | None]]:
    with suppress(ray.exceptions.RayError):
        letters: list[tuple[str, Progress | None]] = ray.get(mailbox.empty.remote(), timeout=30)
        return letters
    return []


def _carry_out(settings: Settings, work: Work, mailbox: Any, expected: dict[str, str]) -> dict[str, Any] | str:
    """Be a task: return the result of a run or the text of an error; neither makes Ray try again."""
    mailbox.put.remote(settings.name, None)
    host, found = platform.node(), versions()
    if different := [f"{name} {found[name]}" for name in found if name != "python" and found[name] != expected[name]]:
        return f"{host} has {', '.join(different)} where the sweep has {expected}; install the same everywhere"
    if work.store is None and not work.root.is_dir():
        return f"{work.root} is not a folder on {host}; let --out be one that all machines share, or give --store"
    return work.carry_out(settings, lambda progress: mailbox.put.remote(settings.name, progress))
