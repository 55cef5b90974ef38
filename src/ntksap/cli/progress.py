"""Progress bars, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ntksap.cli.console import stderr


@contextmanager
def bars(visible: bool = True) -> Iterator[Callable[[str, str, int, int, str], None]]:
    """Show one bar per stage while the block runs; yields ``show(stage, unit, done, total, note)``."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}  {task.fields[note]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True, disable=not visible) as progress:
        tasks = {}

        def show(stage: str, unit: str, done: int, total: int, note: str) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, unit=unit, note=note)
            progress.update(tasks[stage], completed=done, note=note)

        yield show
