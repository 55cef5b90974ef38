"""Tables on stdout that can be read at any width."""

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from ntksap.cli.console import broken, stdout

_LEAST = 16
"""A column of prose that is narrower than this has a word per line, which nobody reads."""


def print_table(table: Table) -> None:
    """Print a table on stdout; where the terminal is too narrow for it, a paragraph per row: ``column: value · …``.

    Columns whose contents may be broken into lines are prose and need space for a few words, others for all they hold.
    """
    widths = [
        (most if column.no_wrap or column.justify != "left" else min(most, max(least, _LEAST)))
        for column in table.columns
        for least, most in [_measured(column)]
    ]
    if sum(widths) + 2 * (len(widths) - 1) <= stdout.width:
        stdout.print(table)
        return
    if table.title:
        stdout.print(table.title, style="italic", highlight=False)
    first, *others = table.columns
    rows = [list(column.cells) for column in table.columns]
    for index, row in enumerate(table.rows):
        values = [(column, cells[index]) for column, cells in zip(others, rows[1:], strict=True)]
        _print_row(rows[0][index], values, str(row.style or ""))
    if table.show_footer:
        _print_row(first.footer, [(column, column.footer) for column in others], "")


def print_layers(layers: Iterable[Mapping[str, Any]]) -> None:
    """Print shape, kept and density of each layer, and of all together; ``layers`` is what `Masks.layers` returns."""
    rows = list(layers)
    kept, total = (sum(row[key] for row in rows) for key in ("kept", "total"))
    table = Table(box=None, header_style="bold", footer_style="bold", pad_edge=False, show_footer=True)
    table.add_column("layer", "total", no_wrap=True)
    table.add_column("shape", justify="right", no_wrap=True)
    table.add_column("kept/total", f"{kept:,}/{total:,}", justify="right", no_wrap=True)
    table.add_column("density", _share(kept, total), justify="right", no_wrap=True)
    for row in rows:
        shape = "×".join(map(str, row["shape"]))
        counts = f"{row['kept']:,}/{row['total']:,}"
        table.add_row(escape(row["name"]), shape, counts, _share(row["kept"], row["total"]))
    print_table(table)


def shorten(number: float) -> str:
    """Return a large number in a few characters.

    >>> shorten(41_291_274), shorten(14_490), shorten(512)
    ('41.3 M', '14.5 k', '512')
    """
    for unit, size in (("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number:.0f}"


def _share(kept: int, total: int) -> str:
    return f"{kept / total:.2%}" if total else "–"


def _measured(column: Column) -> tuple[int, int]:
    """Return the longest word and the longest line of a column."""
    cells: Iterable[RenderableType] = [column.header, *column.cells, column.footer]
    found = [Measurement.get(stdout, stdout.options, cell) for cell in cells]
    return max(one.minimum for one in found), max(one.maximum for one in found)


def _print_row(name: RenderableType, values: list[tuple[Column, RenderableType]], style: str) -> None:
    parts = [f"{_plain(column.header)}: {_plain(value)}" for column, value in values if str(value)]
    if _plain(name):
        stdout.print(f"[bold]{escape(_plain(name))}[/]", style=style, highlight=False)
    if parts:
        # A part is not broken up, unless it is prose: non-breaking spaces hold it together until it is printed.
        held = [part.replace(" ", "\u00a0") if len(part) < 2 * _LEAST else part for part in parts]
        text = broken(" · ".join(held), stdout.width, indent="  ").replace("\u00a0", " ")
        stdout.print(text, style=style, highlight=False, markup=False)


def _plain(cell: RenderableType) -> str:
    """Return a cell without markup, in one line."""
    return " ".join(Text.from_markup(str(cell)).plain.replace("-\n", "-").split())
