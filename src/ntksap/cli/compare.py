"""``ntksap compare``."""

from pathlib import Path

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap._base import NtksapError
from ntksap.cli.console import print_json, say
from ntksap.cli.options import ChooseArguments, DataArguments, choose_methods, parse_numbers, split_list
from ntksap.cli.overrides import MethodOptions, RecipeOverrides, pick_given, pick_recipe_settings
from ntksap.cli.progress import Display
from ntksap.cli.tables import print_table, shorten
from ntksap.experiments import compare
from ntksap.report import Cell, Mark, formatted, marks, verdicts
from ntksap.runs import DENSE, Engine


class SweepError(NtksapError):
    """Some runs of a sweep failed."""


def run_compare(
    data: OmitArgPrefixes[DataArguments],
    engine: OmitArgPrefixes[Engine],
    pruning: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    training: OmitArgPrefixes[RecipeOverrides],  # type: ignore[valid-type]
    mask: OmitArgPrefixes[ChooseArguments],
    model: str = "resnet20",
    methods: str = "ntk-sap,synflow,snip",
    sparsities: str = "0.9",
    patterns: str = "unstructured",
    thin: bool = False,
    seeds: str = "0",
    recipe: str = "quick",
    sanity: str = "",
    out: Path = Path("runs"),
    device: str = "cpu",
    log: str = "",
    other_kernels: bool = False,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Compare methods: accuracy against sparsity, mean ± std over seeds, with the dense network as the reference.

    Stop it whenever you like; the same command resumes it.

    Args:
        data: Which data.
        engine: Where the runs are carried out.
        pruning: Options of single methods, for those of the compared methods that have them.
        training: Settings of the recipe to replace.
        mask: How many weights each layer keeps, and which of them; the same for all methods.
        model: A model from the table.
        methods: Names from `ntksap methods`, separated by commas, or all (except imp, which trains again and again).
        sparsities: Shares of prunable weights to remove, separated by commas.
        patterns: Patterns, separated by commas: unstructured,channel,block:16x16,2:4. With several, or --thin, the
            seconds of an inference and of a training step and the file sizes are measured after the runs.
        thin: Add the thin network at each sparsity: fewer channels in every layer, and as many weights as the masks (or
            multiply-adds, with --budget); and, with the pattern channel, random channels at the same widths.
        seeds: Seeds, separated by commas.
        recipe: How to train: a name from the package (quick, cifar10-resnet20, …), or your own TOML file.
        sanity: Variants to add for each method, separated by commas: shuffle, reinit, invert.
        out: The folder for runs, table, figure and report.
        device: cpu, cuda or mps.
        log: Where else to log training, separated by commas: tensorboard, wandb (offline); in each run's folder.
        other_kernels: Carry on with runs that began with other kernels (a C compiler came or went, or NTKSAP_NATIVE
            changed).
        json: Print one JSON object.
        quiet: Print no progress.
    """
    with Display(quiet) as display:
        found = compare(
            model,
            data.data,
            choose_methods(methods),
            parse_numbers(float, "sparsities", sparsities),
            parse_numbers(int, "seeds", seeds),
            recipe=recipe,
            recipe_settings=pick_recipe_settings(training),
            sanity=split_list(sanity),  # type: ignore[arg-type]  # settings are checked there
            options=pick_given(pruning),
            **mask.settings(),
            patterns=split_list(patterns),
            thin=thin,
            out=out,
            device=device,
            log=split_list(log),
            other_kernels=other_kernels,
            data_dir=data.data_dir,
            download=data.download,
            workers=data.workers,
            **vars(engine),
            on_event=display.on_event,
            on_progress=display.on_progress,
        )
    if json:
        print_json({**found.to_json(), "out": str(out)})
    else:
        _print(found.table, out)
    if found.failed:
        total = len(found.failed) + len(found.results)
        raise SweepError(f"{len(found.failed)} of {total} runs failed; run the same command to try them again")


def _print(table: list[Cell], out: Path) -> None:
    """Print methods × sparsities, in bold the best and those that three or more seeds cannot tell from it; verdicts."""
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
    print_table(shown)
    for sentence in verdicts(table):
        say(f"\n{sentence.about}: {sentence.text}")
    if any(cell.bytes for cell in table):
        say("")
        print_table(_costs(table))
    if any(cell.collapsed for cell in table):
        say("* a layer was left with nothing")
    say(f"\nThe figure is {out / 'accuracy.png'}, the table {out / 'table.csv'}")
    say(f"The report, one page to open in a browser, is {out / 'report.html'}")


def _costs(table: list[Cell]) -> Table:
    """Return what was measured: how many times faster than the dense network, in the same process, and bytes."""
    shown = Table(box=None, header_style="bold", pad_edge=False)
    shown.add_column("× dense speed", no_wrap=True)
    for head in ("sparsity", "weights", "mult-adds", "batch 1", "batch 64", "training", "kB"):
        shown.add_column(head, justify="right", no_wrap=True)
    for cell in table:
        speed = (cell.speedup_inference_1, cell.speedup_inference_64, cell.speedup_step_64)
        shown.add_row(
            cell.method,
            "" if cell.method == DENSE else f"{100 * cell.sparsity:.4g} %",
            "" if cell.kept is None else f"{cell.kept:,.0f}",
            shorten(cell.inference_flops),
            *("–" if value is None else f"{value:.2f}×" for value in speed),
            "–" if cell.bytes is None else f"{cell.bytes / 1000:,.0f}",
        )
    return shown


def _marked(cell: Cell | None, mark: Mark | None) -> str:
    if cell is None:
        return "–"
    text = formatted(cell) + ("*" if cell.collapsed else "")
    return {"best": f"[bold]{text}[/]", "second": f"[underline]{text}[/]", None: text}[mark]
