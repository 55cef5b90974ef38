"""``ntksap spectrum --during RUN``: how the spectrum changes in training."""

from typing import Any

from rich.table import Table

from ntksap.cli.console import stdout


def print_during(found: dict[str, Any]) -> None:
    """Print a line per checkpoint."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("epoch", "trace", "largest", "largest, relative", "distance from the first"):
        table.add_column(column, justify="right")
    for one in found["epochs"]:
        largest, relative = one["eigenvalues"][0], one["relative_eigenvalues"][0]
        table.add_row(
            str(one["epoch"]), f"{one['trace']:.4g}", f"{largest:.3g}", f"{relative:.3g}", f"{one['distance']:.3f}"
        )
    stdout.print(table)
