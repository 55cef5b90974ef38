"""What every engine of sweeps has in common: the events it yields, the runs it skips, what its workers do."""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from ntksap._base import NtksapError, keep_memory, share_cores
from ntksap.runs.execution import complete_logs, run
from ntksap.runs.folder import BusyError, OnProgress, Place, Progress, read_result
from ntksap.runs.settings import Settings
from ntksap.runs.store import Store


@dataclass(frozen=True)
class Event:
    """Something happened to a run."""

    settings: Settings
    kind: Literal["skipped", "started", "progress", "finished", "failed"]
    progress: Progress | None = None
    result: dict[str, Any] | None = None
    error: str | None = None
    runs: int = 0
    """How many runs the sweep has; filled in by `ntksap.runs.comparison.collect`."""


Task: TypeAlias = Callable[[Settings, Path, Place, OnProgress], dict[str, Any]]
"""(settings, root, place, on_progress) → result, written to a folder in root; it must be picklable."""


@dataclass(frozen=True)
class Work:
    """What is needed to carry out runs besides their settings; it can be sent to another process."""

    root: Path
    place: Place
    threads: int
    store: Store | None = None
    task: Task = run
    patience: float = 0.0
    """Seconds to wait for a run that another process is working on."""

    def carry_out(self, settings: Settings, on_progress: OnProgress) -> dict[str, Any] | str:
        """Return the result of a run, or the text of the error that ended it."""
        torch.set_num_threads(self.threads)
        keep_memory()
        share_cores()
        try:
            deadline = time.monotonic() + self.patience
            while time.monotonic() < deadline:
                with suppress(BusyError):
                    return self._attempt(settings, on_progress)
                time.sleep(1.0)
            return self._attempt(settings, on_progress)
        except NtksapError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    def _attempt(self, settings: Settings, on_progress: OnProgress) -> dict[str, Any]:
        if self.store is None:
            return self.task(settings, self.root, self.place, on_progress)
        self.store.fetch(settings.name, self.root)  # another machine may have finished it by now
        result = self.task(settings, self.root, self.place, on_progress)
        self.store.publish(self.root / settings.name)
        return result


def skip_finished(settings: Sequence[Settings], work: Work) -> Generator[Event, None, list[Settings]]:
    """Yield an event for each run that is finished, here or in the store, and return the others, each once.

    Afterwards the folder and the store both hold the runs that were skipped.
    """
    stored = work.store.finished() if work.store is not None else set()
    waiting = []
    for one in {one.name: one for one in settings}.values():
        try:
            result = read_result(work.root / one.name)
            if work.store is not None:
                if result is not None and one.name not in stored:
                    work.store.publish(work.root / one.name)
                elif result is None and one.name in stored:
                    with suppress(BusyError):  # whoever is working on it here will find it, too
                        result = work.store.fetch(one.name, work.root)
            if result is not None and work.task is run:
                complete_logs(one, work.root / one.name, work.place)
        except NtksapError as error:  # a damaged file concerns its run alone
            yield Event(one, "failed", error=str(error))
            continue
        if result is not None:
            yield Event(one, "skipped", result=result)
        else:
            waiting.append(one)
    return waiting
