"""The tables of the page; each is also available as LaTeX and CSV."""

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ntksap.report.differences import Difference, Mark, marks
from ntksap.report.experiments import Experiment, sparsity_text
from ntksap.report.rows import to_csv
from ntksap.report.run_files import Spectrum
from ntksap.report.table import Cell, formatted
from ntksap.runs import DENSE

LONG = 20
"""A table with more rows is folded."""
_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--", "−": "$-$", "×": r"$\times$",
    "<": r"\textless{}", ">": r"\textgreater{}", "\n": " ",
}  # fmt: skip
_AROUND = {"best": r"\textbf{%s}", "second": r"\underline{%s}", None: "%s"}


@dataclass(frozen=True)
class Entry:
    """One entry: what is shown, the number behind it (by which rows are sorted), and how it stands out."""

    text: str
    value: float | None = None
    mark: Mark | None = None
    star: bool = False


@dataclass(frozen=True)
class Table:
    """A table: the first column holds names, the others numbers. ``csv`` may hold more than is shown."""

    title: str
    head: list[str]
    rows: list[tuple[str, list[Entry]]]
    foot: str = ""
    csv: str = ""

    @property
    def long(self) -> bool:
        """Whether the page folds it."""
        return len(self.rows) > LONG

    @property
    def latex(self) -> str:
        """The table as a LaTeX tabular that uses the booktabs package."""
        lines = [
            r"% needs \usepackage{booktabs}",
            rf"\begin{{tabular}}{{l{'r' * (len(self.head) - 1)}}}",
            r"\toprule",
            " & ".join(_escaped(text) for text in self.head) + r" \\",
            r"\midrule",
        ]
        for name, row in self.rows:
            shown = [_AROUND[entry.mark] % _escaped(entry.text) + ("*" if entry.star else "") for entry in row]
            lines.append(" & ".join([_escaped(name), *shown]) + r" \\")
        if self.foot:
            lines += [r"\midrule", rf"\multicolumn{{{len(self.head)}}}{{l}}{{{_escaped(self.foot)}}} \\"]
        return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def accuracy_table(one: Experiment) -> Table:
    """Return methods × sparsities. Its CSV has a row per method and sparsity, with all that is known about it."""
    pruned = {(cell.method, cell.sparsity): cell for cell in one.table if cell.method != DENSE}
    sparsities = sorted({sparsity for _, sparsity in pruned})
    marked = marks(one.table)

    def entry(method: str, sparsity: float) -> Entry:
        cell = pruned.get((method, sparsity))
        if cell is None:
            return Entry("–")
        return Entry(formatted(cell), cell.mean, marked.get((method, sparsity)), bool(cell.collapsed))

    dense = next((cell for cell in one.table if cell.method == DENSE), None)
    return Table(
        f"Test accuracy of {one.title}",
        ["method", *(sparsity_text(s) for s in sparsities)],
        [(method, [entry(method, s) for s in sparsities]) for method in dict.fromkeys(method for method, _ in pruned)],
        f"The dense network, at 0 % sparsity: {formatted(dense)}" if dense else "",
        to_csv(one.table),
    )


def cost_table(one: Experiment) -> Table:
    """Return seconds and multiply-adds of each method and sparsity."""

    def row(cell: Cell) -> list[Entry]:
        share = cell.inference_flops / one.dense_flops if one.dense_flops else None
        return [
            Entry(sparsity_text(cell.sparsity), cell.sparsity),
            Entry(str(cell.seeds), cell.seeds),
            Entry(f"{cell.prune_seconds:.2f}" if cell.method != DENSE else "–", cell.prune_seconds),
            Entry(f"{cell.train_seconds:.1f}", cell.train_seconds),
            Entry(f"{cell.inference_flops:,.0f}", cell.inference_flops),
            Entry("–") if share is None else Entry(f"{100 * share:.1f} %", share),
        ]

    head = ["method", "sparsity", "seeds", "prune (s)", "train (s)", "multiply-adds", "share of dense"]
    return _with_csv(f"Time and multiply-adds of {one.title}", head, [(cell.method, row(cell)) for cell in one.table])


def measured_table(one: Experiment) -> Table | None:
    """Return the measurements of each method and sparsity beside the dense network, None if there are none."""
    if not any(cell.bytes for cell in one.table):
        return None

    def milliseconds(seconds: float | None, speedup: float | None) -> list[Entry]:
        if seconds is None or speedup is None:
            return [Entry("–"), Entry("–")]
        return [Entry(f"{1000 * seconds:.1f}", 1000 * seconds), Entry(f"{speedup:.2f}×", speedup)]

    def row(cell: Cell) -> list[Entry]:
        return [
            Entry(sparsity_text(cell.sparsity), cell.sparsity),
            *milliseconds(cell.inference_1, cell.speedup_inference_1),
            *milliseconds(cell.inference_64, cell.speedup_inference_64),
            *milliseconds(cell.step_64, cell.speedup_step_64),
            Entry("–") if cell.bytes is None else Entry(f"{cell.bytes / 1000:,.0f}", cell.bytes),
        ]

    times = ("batch 1", "batch 64", "training step of 64")
    head = ["method", "sparsity", *(text for what in times for text in (f"{what} (ms)", "× dense")), "file (kB)"]
    return _with_csv(f"Measured, {one.title}", head, [(cell.method, row(cell)) for cell in one.table])


def difference_table(one: Experiment, found: Sequence[Difference]) -> Table:
    """Return how far each method is behind the best at its sparsity."""

    def row(gap: Difference) -> list[Entry]:
        return [
            Entry(sparsity_text(gap.sparsity), gap.sparsity),
            Entry(gap.best),
            Entry(f"{gap.mean:.2f}", gap.mean),
            Entry(f"{gap.low:.2f} to {gap.high:.2f}".replace("-", "−"), gap.low),
            Entry(str(gap.seeds), gap.seeds),
            Entry("yes" if gap.significant else "no", float(gap.significant)),
        ]

    head = ["method", "sparsity", "best", "behind it (points)", "95 % interval", "seeds", "significant"]
    ordered = sorted(found, key=lambda gap: (gap.sparsity, gap.mean))
    return _with_csv(f"Differences from the best of {one.title}", head, [(gap.method, row(gap)) for gap in ordered])


def spectra_table(name: str, spectra: Sequence[Spectrum]) -> Table:
    """Return the largest eigenvalue of each network and its distance to the dense one."""

    def number(value: float | None) -> Entry:
        return Entry("–") if value is None else Entry(f"{value:.4g}", value)

    rows = [
        (
            one.method,
            [
                Entry(sparsity_text(one.sparsity), one.sparsity),
                number(one.eigenvalues[0] if one.eigenvalues else None),
                number(one.distance),
            ],
        )
        for one in spectra
    ]
    return _with_csv(f"Spectra of {name}", ["method", "sparsity", "largest eigenvalue", "distance to dense"], rows)


def _with_csv(title: str, head: list[str], rows: list[tuple[str, list[Entry]]]) -> Table:
    """Return a table whose CSV holds what is shown, numbers in full."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(
        [name, *(entry.text if entry.value is None else entry.value for entry in row)] for name, row in rows
    )
    return Table(title, head, rows, csv=text.getvalue())


def _escaped(text: str) -> str:
    return re.sub(r"[\\&%$#_{}~^±–−×<>\n]", lambda found: _LATEX[found.group()], text)
