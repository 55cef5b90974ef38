"""A sweep as it goes, on stderr: a table that stays in place on a terminal, a line per finished run elsewhere."""

import sys
import time
from collections.abc import Iterable
from contextlib import redirect_stdout
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ntksap.cli.console import stderr
from ntksap.runs import DENSE, Event, Settings


class Board:
    """What is known of a sweep: done, running, waiting, failed, best so far, time left."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.results: list[dict[str, Any]] = []
        self.failed: list[tuple[Settings, str]] = []
        self.running: dict[str, Event] = {}
        self._began: dict[str, float] = {}
        self._took: list[float] = []
        self._most = 1  # runs at the same time so far

    def add(self, event: Event) -> None:
        """Take note of an event."""
        name = event.settings.name
        if event.kind in ("started", "progress"):
            self.running[name] = event
            self._began.setdefault(name, time.monotonic())
            self._most = max(self._most, len(self.running))
            return
        self.running.pop(name, None)
        if name in self._began:  # not if it was skipped, or could not even begin
            self._took.append(time.monotonic() - self._began[name])
        if event.result is not None:
            self.results.append(event.result)
        else:
            self.failed.append((event.settings, event.error or ""))

    def __rich__(self) -> RenderableType:
        """Draw it."""
        done, failed = len(self.results), len(self.failed)
        waiting = self.total - done - failed - len(self.running)
        head = f"[bold]done {done}[/] · running {len(self.running)} · waiting {waiting}"
        if failed:
            head += f" · [bold red]failed {failed}[/]"
        table = Table(box=None, pad_edge=False, show_header=False)
        for event in self.running.values():
            settings, progress = event.settings, event.progress
            if progress is None:
                table.add_row(_title(settings), "starting", "", "")
                continue
            note = f"{progress.top1:.2%}" if progress.top1 is not None else ""
            bar = ProgressBar(total=progress.total, completed=progress.done, width=20)
            table.add_row(_title(settings), bar, f"{progress.unit} {progress.done}/{progress.total}", note)
        return Group(Text.from_markup(f"{head} · left {self._left()}{self._best()}"), table)

    def _left(self) -> str:
        if not self._took:
            return "?"
        rest = self.total - len(self.results) - len(self.failed)
        seconds = int(rest * sum(self._took) / len(self._took) / self._most)
        return f"{seconds // 3600}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"

    def _best(self) -> str:
        pruned = [result for result in self.results if result["method"] != DENSE and "top1" in result]
        if not pruned:
            return ""
        extreme = max(result["sparsity"] for result in pruned)
        best = max((result for result in pruned if result["sparsity"] == extreme), key=lambda result: result["top1"])
        return f" · best at {extreme:.2%}: {best['method']} {best['top1']:.2%}"


def follow(events: Iterable[Event], board: Board) -> None:
    """Show a sweep until it ends; the board holds its outcome."""
    live = Live(board, console=stderr, transient=True, refresh_per_second=4)
    with redirect_stdout(sys.stderr), live:  # Ray prints what it thinks; stdout is for results
        for event in events:
            board.add(event)
            if event.kind == "failed":
                live.console.print(f"[red]failed[/] {_title(event.settings)}: {escape(event.error or '')}")
            elif event.kind == "finished" and not stderr.is_terminal and event.result is not None:
                stderr.print(f"{len(board.results)}/{board.total} {_title(event.settings)}: {_outcome(event.result)}")


def _outcome(result: dict[str, Any]) -> str:
    """Return the accuracy, or of a run that ends with the masks what they cost."""
    return f"{result['top1']:.2%}" if "top1" in result else f"{result['inference_flops'] / 1e6:.2f}·10⁶ multiply-adds"


def _title(settings: Settings) -> str:
    sparsity = "" if settings.method == DENSE else f" {settings.sparsity:.2%}"
    return f"{settings.label}{sparsity} seed {settings.seed}"
