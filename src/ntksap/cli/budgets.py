"""``ntksap cost --methods``: what pruning, inference and training cost by each method, in tables like the paper's."""

import csv
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from rich.table import Table
from torch import nn

from ntksap.analysis import PAPER_PASSES, Budget, cost, measured_budget, paper_budget
from ntksap.cli.console import stdout
from ntksap.cli.progress import bars
from ntksap.data import Dataset
from ntksap.runs import DENSE, make_masks, pruning_data, pruning_for

Numbers: TypeAlias = dict[str, list[int | None]]
"""Method → a number per column; None where there is none."""


@dataclass(frozen=True)
class Row:
    """One method at one sparsity; ``paper`` is None where the paper does not say how to count it."""

    method: str
    sparsity: float
    inference: int
    paper: Budget | None
    evaluated: Budget

    def values(self) -> dict[str, Any]:
        """Return it as plain values, one per column."""
        found: dict[str, Any] = {"method": self.method, "sparsity": self.sparsity, "inference_flops": self.inference}
        for name, budget in (("paper", self.paper), ("evaluated", self.evaluated)):
            for part in ("pruning", "training", "total"):
                found[f"{name}_{part}_flops"] = getattr(budget, part) if budget else None
        return found


def budget_rows(
    model: nn.Module,
    methods: Sequence[str],
    sparsities: Sequence[float],
    *,
    epochs: int,
    images: int,
    options: Callable[[str], Mapping[str, Any]],
    data: Dataset | None,
    input_shape: tuple[int, ...],
    seed: int,
) -> list[Row]:
    """Prune by each method to each sparsity and count; the first row is the dense net.

    ``options`` returns those of a method; ``data`` is for the methods that need some.
    """
    plan: dict[str, Any] = {"epochs": epochs, "images": images}
    shape = input_shape
    dense = cost(model, input_shape=shape).dense
    evaluated = measured_budget(model, "random", **plan, input_shape=shape)
    rows = [Row(DENSE, 0.0, dense, paper_budget("random", dense, dense, **plan), evaluated)]
    total = len(methods) * len(sparsities)
    with bars() as show:
        for method in methods:
            show("pruning", "mask", len(rows) - 1, total, method)
            own = [pruning_for(method=method, sparsity=s, seed=seed, options=options(method)) for s in sparsities]
            batches = pruning_data(own[0], data) if data else None
            evaluated = measured_budget(
                model, method, **plan, input_shape=shape, seed=seed, data=batches, **own[0].options
            )
            for pruning in own:
                sparsity = pruning.sparsity
                show("pruning", "mask", len(rows) - 1, total, f"{method} at {100 * sparsity:.4g} %")
                sparse = cost(model, make_masks(pruning, model, shape, data), input_shape=shape).sparse
                paper = paper_budget(method, dense, sparse, **plan) if method in PAPER_PASSES else None
                rows.append(Row(method, sparsity, sparse, paper, evaluated))
    return rows


def to_csv(rows: Sequence[Row]) -> str:
    """Return the rows as text, a line each."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].values(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(row.values() for row in rows)
    return text.getvalue()


def print_budgets(rows: Sequence[Row], training: str) -> None:
    """Print the paper's three tables: pruning, one inference, pruning and training together."""
    dense, *pruned = rows
    sparsities = sorted({row.sparsity for row in pruned})
    methods = {
        method: [row for sparsity in sparsities for row in pruned if (row.method, row.sparsity) == (method, sparsity)]
        for method in dict.fromkeys(row.method for row in pruned)
    }
    shares = [f"{100 * sparsity:.4g} %" for sparsity in sparsities]
    heads = ["pruning,\npaper's counting", "pruning,\nevaluated here", "and training,\nevaluated here"]
    costs: Numbers = {DENSE: [0, 0, dense.evaluated.total]}
    inference: Numbers = {DENSE: [dense.inference]}
    total: Numbers = {DENSE: [_of_paper(dense, "total")]}
    for method, own in methods.items():
        one = own[0]  # what pruning costs does not depend on the sparsity
        costs[method] = [_of_paper(one, "pruning"), one.evaluated.pruning, one.evaluated.total]
        inference[method] = [row.inference for row in own]
        total[method] = [_of_paper(row, "total") for row in own]
    _print("multiply-adds", heads, costs, _scientific)
    _print_scaled("one inference", shares, inference)
    _print_scaled("pruning + training, paper's counting", shares, total)
    stdout.print(
        f"\nThe smallest of a column is bold, the largest blue. –: the paper does not count it. Training: {training}. "
        "An inference costs so little if zeros are skipped, which the paper supposes of training too. What is "
        "evaluated here is counted as dense; on a CPU, convolutions that are sparse enough skip zeros and cost less.",
        highlight=False,
    )


def _of_paper(row: Row, part: str) -> int | None:
    return getattr(row.paper, part) if row.paper else None


def _print_scaled(title: str, heads: Sequence[str], table: Numbers) -> None:
    """Print a table in units of the power of a thousand that suits the dense net."""
    power = 3 * int(math.log10(table[DENSE][0] or 1) / 3)
    stdout.print()
    _print(f"{title} (×10{_superscript(power)})", heads, table, lambda n: _three_digits(n / 10**power))


def _print(title: str, heads: Sequence[str], table: Numbers, shown: Callable[[int], str]) -> None:
    """Print a line per method; the dense net comes first and is compared with nothing."""
    printed = Table(box=None, header_style="bold", pad_edge=False)
    printed.add_column("method", no_wrap=True)
    for head in heads:
        printed.add_column(head, justify="right", no_wrap=True)
    columns = list(zip(*(numbers for method, numbers in table.items() if method != DENSE), strict=True))
    for method, numbers in table.items():
        if method == DENSE:
            printed.add_row(method, *(shown(number or 0) for number in numbers))
        else:
            printed.add_row(method, *(_marked(n, column, shown) for n, column in zip(numbers, columns, strict=True)))
    stdout.print(f"{title}:", highlight=False)
    stdout.print(printed)


def _marked(number: int | None, column: Sequence[int | None], shown: Callable[[int], str]) -> str:
    """Return a number of a column, its smallest in bold and its largest in blue; nothing is marked among equals."""
    if number is None:
        return "–"
    known = [other for other in column if other is not None]
    text = shown(number)
    if min(known) == max(known):
        return text
    return f"[bold]{text}[/]" if number == min(known) else f"[blue]{text}[/]" if number == max(known) else text


def _three_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 999.5 else f"{number:#.3g}".removesuffix(".")


def _scientific(number: int) -> str:
    if number == 0:
        return "0"
    digits, _, power = f"{number:.2e}".partition("e+")
    return f"{digits}×10{_superscript(int(power))}"


def _superscript(power: int) -> str:
    return str(power).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))
