"""What is known about a sweep: done, running, waiting, failed, best so far, time left."""

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ntksap.cli.console import say_duration
from ntksap.cli.tables import shorten
from ntksap.methods import METHODS
from ntksap.runs import DENSE, Event, Settings


class Board:
    """A sweep in progress, told by its events; when one is over, the next event begins another."""

    def __init__(self) -> None:
        self._begin(0)

    def _begin(self, total: int) -> None:
        self.total = total
        self.results: list[dict[str, Any]] = []
        self.failed: list[str] = []
        self.running: dict[str, Event] = {}
        self._began: dict[str, float] = {}
        self._took: list[float] = []
        self._most = 1  # runs at the same time so far

    def add(self, event: Event) -> None:
        """Take note of an event."""
        if len(self.results) + len(self.failed) == self.total:
            self._begin(event.runs)
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
            self.failed.append(name)

    @property
    def left(self) -> str:
        """How long the rest will take, in words."""
        if not self._took:
            return "?"
        rest = self.total - len(self.results) - len(self.failed)
        return say_duration(rest * sum(self._took) / len(self._took) / self._most)

    def __rich__(self) -> RenderableType:
        """Draw it."""
        if not self.total:
            return Text()
        done, failed = len(self.results), len(self.failed)
        waiting = self.total - done - failed - len(self.running)
        head = f"[bold]done {done}[/] · running {len(self.running)} · waiting {waiting}"
        if failed:
            head += f" · [bold red]failed {failed}[/]"
        table = Table(box=None, pad_edge=False, show_header=False)
        for event in self.running.values():
            settings, progress = event.settings, event.progress
            if progress is None:
                table.add_row(name_run(settings), "starting", "", "")
                continue
            note = f"{progress.top1:.2%}" if progress.top1 is not None else ""
            bar = ProgressBar(total=progress.total, completed=progress.done, width=20)
            table.add_row(name_run(settings), bar, f"{progress.unit} {progress.done}/{progress.total}", note)
        return Group(Text.from_markup(f"{head} · left {self.left}{self._best()}"), table)

    def _best(self) -> str:
        pruned = [result for result in self.results if result["method"] != DENSE and "top1" in result]
        if not pruned:
            return ""
        extreme = max(result["sparsity"] for result in pruned)
        best = max((result for result in pruned if result["sparsity"] == extreme), key=lambda result: result["top1"])
        return f" · best at {extreme:.2%}: {best['method']} {best['top1']:.2%}"


def describe_outcome(result: dict[str, Any]) -> str:
    """Return the accuracy, or, for a run that ends with the masks, the cost of an inference under them."""
    return f"{result['top1']:.2%}" if "top1" in result else f"{shorten(result['inference_flops'])} multiply-adds"


def name_run(settings: Settings) -> str:
    """Return the name of a run for printed lines."""
    sparsity = "" if settings.method == DENSE else f" {settings.sparsity:.2%}"
    own = METHODS[settings.method].places if settings.method in METHODS else "score"
    variant = [settings.pattern, "" if settings.places in (own, "score") else f"{settings.places} places"]
    return " ".join([f"{settings.label}{sparsity}", *(word for word in variant if word), f"seed {settings.seed}"])
