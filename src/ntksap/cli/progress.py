"""Progress on stderr: bars and the board of a sweep, in place, on a terminal; lines elsewhere; or nothing."""

import sys
import time
from contextlib import ExitStack, redirect_stdout
from types import TracebackType

from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ntksap.cli.board import Board, describe_outcome, name_run
from ntksap.cli.console import say_duration, stderr
from ntksap.runs import Event, Progress

_SECONDS = 1.0
"""Pause between two lines about the same work, except for epochs, each of which has its own line."""


class Display:
    """Shows what it is told while its block runs. Results never go through it: they belong to stdout.

    >>> with Display(quiet=True) as display:
    ...     display.on_progress(Progress("train", 1, 2, "epoch"))
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._in_place = stderr.is_terminal and not quiet
        self._board = Board()
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}  {task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=stderr,
        )
        self._tasks: dict[str, TaskID] = {}
        self._clock = Clock()
        self._stack = ExitStack()

    def __enter__(self) -> "Display":
        if self._in_place:
            self._stack.enter_context(Live(Group(self._board, self._bars), console=stderr, transient=True))
        # Ray prints messages of its own; stdout is for results
        self._stack.enter_context(redirect_stdout(sys.stderr))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if kind is KeyboardInterrupt and self._board.total:
            done = len(self._board.results)
            stderr.print(f"stopped after {done} of {self._board.total} runs; the same command resumes them")

    def on_progress(self, progress: Progress) -> None:
        """Show how far some work has got."""
        if self._in_place:
            self._move_bar(progress)
        else:
            self._print_line(progress.stage, progress)

    def on_event(self, event: Event) -> None:
        """Show what happened to a run of a sweep."""
        self._board.add(event)
        title = name_run(event.settings)
        if event.kind == "failed" and not self._quiet:
            stderr.print(f"[red]failed[/] {title}: {escape(event.error or '')}", highlight=False)
        elif self._in_place:
            return
        elif event.kind == "started":
            self._clock.begin(f"{title}: prune")
        elif event.kind == "progress" and event.progress is not None:
            self._print_line(f"{title}: {event.progress.stage}", event.progress)
        elif event.kind == "finished" and event.result is not None:
            count = f"{len(self._board.results)}/{self._board.total}"
            self._print(f"{count} {title}: {describe_outcome(event.result)}, {self._board.left} left")

    def _move_bar(self, progress: Progress) -> None:
        stage, done, total = progress.stage, progress.done, progress.total
        if done >= total:
            if stage in self._tasks:
                self._bars.remove_task(self._tasks.pop(stage))
            return
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total, unit=progress.unit, note="")
        self._bars.update(self._tasks[stage], completed=done, note=progress.note)

    def _print_line(self, stage: str, progress: Progress) -> None:
        left = self._clock.left(stage, progress.done, progress.total)
        whole = progress.unit == "epoch" or progress.done in (0, progress.total)
        if not self._clock.due(stage, always=whole, rarely=progress.unit == "step"):
            return
        parts = [f"{stage}: {progress.unit} {progress.done}/{progress.total}", progress.note]
        if progress.done < progress.total and left is not None:
            parts.append(f"{say_duration(left)} left")
        self._print(", ".join(part for part in parts if part))

    def _print(self, text: str) -> None:
        if not self._quiet:
            stderr.print(text, highlight=False, markup=False, soft_wrap=True)


class Clock:
    """How long pieces of work will still take, judging by their units so far, and when the next line is due."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._began: dict[str, tuple[float, int]] = {}
        self._spoke: dict[str, float] = {}

    def begin(self, key: str) -> None:
        """Take note that some work begins now."""
        self._last = time.monotonic()
        self._began[key] = (self._last, 0)

    def left(self, key: str, done: int, total: int) -> float | None:
        """Return the seconds that the rest will take at the pace so far; None before anything is done.

        Where work is first reported with something already done, one unit is taken to have been done since the last
        news of any work: the others may be from before, as in a run that is resumed.
        """
        now = time.monotonic()
        began, before = self._began.setdefault(key, (self._last if done else now, max(done - 1, 0)))
        self._last = now
        return (now - began) / (done - before) * (total - done) if done > before else None

    def due(self, key: str, *, always: bool = False, rarely: bool = False) -> bool:
        """Whether it is time for another line: after a second, or (``rarely``) a twentieth of the time so far."""
        now = time.monotonic()
        pause = max(_SECONDS, (now - self._began[key][0]) / 20) if rarely else _SECONDS
        if not always and now - self._spoke.get(key, -pause) < pause:
            return False
        self._spoke[key] = now
        return True
