"""``ntksap cost --methods``: what pruning, inference and training cost with each method, in tables like the paper's."""

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

from rich.table import Table

from ntksap.cli.console import say, stdout
from ntksap.cli.tables import print_table
from ntksap.runs import DENSE, BudgetRow

Numbers: TypeAlias = dict[str, list[int | None]]
"""Method → a number per column; None where there is none."""


def print_budgets(rows: Sequence[BudgetRow], training: str) -> None:
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
    say(
        f"\nThe smallest in a column is bold, the largest blue. –: the paper does not count it. Training: {training}. "
        "An inference costs this little only if zeros are skipped, which the paper assumes for training too. What is "
        "evaluated here is counted as dense; on a CPU, convolutions that are sparse enough skip zeros and cost less.",
    )


def _of_paper(row: BudgetRow, part: str) -> int | None:
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
    say(f"{title}:")
    print_table(printed)


def _marked(number: int | None, column: Sequence[int | None], shown: Callable[[int], str]) -> str:
    """Return a number of a column, in bold if it is the smallest, blue if the largest, plain if all are equal."""
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
