"""Progress bars, on stderr."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ntksap.cli.console import stderr
from ntksap.pruning import Round


@contextmanager
def rounds_bar(title: str) -> Iterator[Callable[[Round], None]]:
    """Show round, density and time left while the block runs; yields what to call after each round."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("round {task.completed:.0f}/{task.fields[rounds]}"),
        TextColumn("density {task.fields[density]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, transient=True) as progress:
        task = progress.add_task(title, total=None, rounds="?", density="100 %")

        def on_round(state: Round) -> None:
            density = f"{100 * state.masks.density:.3g} %"
            progress.update(task, completed=state.index, total=state.rounds, rounds=state.rounds, density=density)

        yield on_round
