"""``ntksap compare``."""

import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap._base import NtksapError, make_folder, usable_device, write_atomically, write_json
from ntksap.cli.console import print_json, stderr, stdout
from ntksap.cli.engines import EngineArguments
from ntksap.cli.live import Board, follow
from ntksap.cli.options import DataArguments, KeepArguments, listed, numbers
from ntksap.cli.overrides import MethodOptions, RecipeOverrides, fitting, recipe_overrides
from ntksap.methods import METHODS
from ntksap.report import Cell, Mark, accuracy_figure, build_report, cells, formatted, marks, save_figure, to_csv
from ntksap.runs import DENSE, Place, Settings, settings_for
from ntksap.training import load_recipe


class SweepError(NtksapError):
    """Some runs of a sweep failed."""


def run_compare(
    data: OmitArgPrefixes[DataArguments],
    engine: OmitArgPrefixes[EngineArguments],
    method_options: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    recipe_settings: OmitArgPrefixes[RecipeOverrides],  # type: ignore[valid-type]
    keep: OmitArgPrefixes[KeepArguments],
    model: str = "resnet20",
    methods: str = "ntk-sap,synflow,snip",
    sparsities: str = "0.9",
    seeds: str = "0",
    recipe: str = "quick",
    sanity: str = "",
    out: Path = Path("runs"),
    device: str = "cpu",
    other_kernels: bool = False,
    json: bool = False,
) -> None:
    """Compare methods: accuracy against sparsity, mean ± std over seeds, with the dense network as the reference.

    Stop it whenever you like; the same command goes on where it was.

    Args:
        data: Which data.
        engine: Where the runs are carried out.
        method_options: Options of single methods, for those of the compared methods that have them.
        recipe_settings: Settings of the recipe to replace.
        keep: How many weights each layer keeps, which of them, and in which pattern; the same for all methods.
        model: A model from the table.
        methods: Names from `ntksap methods` with commas between them, or all.
        sparsities: Shares of prunable weights to remove, with commas between them.
        seeds: Seeds, with commas between them.
        recipe: How to train: a name from the package (quick, cifar10-resnet20, …), or your own TOML file.
        sanity: Variants to add for each method, with commas: shuffle, reinit, invert.
        out: The folder for runs, table, figure and report.
        device: cpu, cuda or mps.
        other_kernels: Go on with runs that began with other kernels (a C compiler came or went, NTKSAP_NATIVE).
        json: Print one JSON object.
    """
    names = list(METHODS) if methods == "all" else listed(methods)
    chosen = load_recipe(recipe, recipe_overrides(recipe_settings))
    common: dict[str, Any] = {"model": model, "data": data.data, "recipe": chosen}
    checks = ["none", *listed(sanity)]
    plan = [settings_for(method=DENSE, sparsity=0.0, seed=seed, **common) for seed in numbers(int, "seeds", seeds)] + [
        settings_for(
            method=name,
            sparsity=sparsity,
            seed=seed,
            sanity=check,
            options=fitting(name, method_options),
            **common,
            **keep.settings(),
        )
        for name, check, sparsity, seed in itertools.product(
            names, checks, numbers(float, "sparsities", sparsities), numbers(int, "seeds", seeds)
        )
    ]
    usable_device(device)
    board = Board(len(plan))
    place = Place(data.data_dir, data.download, data.workers, device, other_kernels=other_kernels)
    events = engine.sweep(plan, out / "runs", place)
    make_folder(out)
    try:
        follow(events, board)
    except KeyboardInterrupt:
        stderr.print(f"stopped after {len(board.results)} of {len(plan)} runs; the same command goes on")
        raise
    finally:
        events.close()
    order = {settings.name: index for index, settings in enumerate(plan)}
    results = sorted(board.results, key=lambda result: order[result["name"]])
    table = cells(results)
    _write(out, table, results, board.failed, f"{model} on {data.data}, {chosen.epochs} epochs")
    if json:
        failed = [{"run": settings.name, "error": error} for settings, error in board.failed]
        print_json({"table": [asdict(cell) for cell in table], "results": results, "failed": failed, "out": str(out)})
    else:
        _print(table, out)
    if board.failed:
        raise SweepError(f"{len(board.failed)} of {len(plan)} runs failed; run the same command to try them again")


def _write(
    out: Path, table: list[Cell], results: list[dict[str, Any]], failed: list[tuple[Settings, str]], title: str
) -> None:
    make_folder(out)
    write_atomically(out / "table.csv", to_csv(table))
    errors = [{"run": settings.name, "error": error} for settings, error in failed]
    write_json(out / "results.json", {"results": results, "failed": errors})
    if any(out.glob("runs/*/settings.toml")):  # not when all failed on machines that do not see this folder
        build_report(out)
    if table:
        save_figure(accuracy_figure(table, title), out, "accuracy")


def _print(table: list[Cell], out: Path) -> None:
    """Print methods × sparsities: the best in bold, also what three or more seeds cannot tell from it."""
    sparsities = sorted({cell.sparsity for cell in table if cell.method != DENSE})
    marked = marks(table)
    by_key = {(cell.method, cell.sparsity): cell for cell in table}
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("test accuracy (%)", no_wrap=True)
    for sparsity in sparsities:
        shown.add_column(f"{100 * sparsity:.4g} %", justify="right", no_wrap=True)
    for method in dict.fromkeys(cell.method for cell in table):
        if method == DENSE:
            row = [formatted(by_key[DENSE, 0.0]), *[""] * (len(sparsities) - 1)]
        else:
            row = [_marked(by_key.get((method, s)), marked.get((method, s))) for s in sparsities]
        shown.add_row(method, *row)
    stdout.print(shown)
    if any(cell.collapsed for cell in table):
        stdout.print("* a layer was left with nothing", highlight=False)
    stdout.print(f"\nThe figure is {out / 'accuracy.png'}, the table {out / 'table.csv'}", highlight=False)
    stdout.print(f"The report, one page to open in a browser, is {out / 'report.html'}", highlight=False)


def _marked(cell: Cell | None, mark: Mark | None) -> str:
    if cell is None:
        return "–"
    text = formatted(cell) + ("*" if cell.collapsed else "")
    return {"best": f"[bold]{text}[/]", "second": f"[underline]{text}[/]", None: text}[mark]
