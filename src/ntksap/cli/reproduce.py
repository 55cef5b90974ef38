"""``ntksap reproduce``."""

from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.markup import escape
from rich.table import Table

from ntksap._base import InputError, NtksapError
from ntksap.cli.console import print_json, say, stderr, stdout
from ntksap.cli.options import parse_numbers, split_list
from ntksap.cli.progress import Display
from ntksap.cli.tables import print_table
from ntksap.paper import SCALES, Comparison, Plan, plan_names, read_plan, reproduce


class IncompleteError(NtksapError):
    """Parts of a table or figure could not be carried out."""


def run_reproduce(
    name: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="NAME|PLAN.toml")]] = "",
    list: bool = False,
    scale: Literal["quick", "paper"] = "quick",
    panels: str = "",
    seeds: str = "",
    data_dir: Path | None = None,
    download: bool = False,
    workers: int = 0,
    out: Path = Path("reproduce"),
    jobs: int | None = None,
    device: str = "cpu",
    other_kernels: bool = False,
    finished: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Carry out a table or figure of the paper again and put the paper's numbers beside ours.

    Stop it whenever you like; the same command resumes it. Tables and figures that need the same runs or
    masks share them. Parts that need a data set or a method that is not here are listed as missing; the rest is
    carried out.

    Args:
        name: A table or figure (see --list), or a plan of your own as a TOML file.
        list: Name all tables and figures of the paper, and stop.
        scale: quick is a small budget for 2 CPU cores; paper is the paper's full protocol.
        panels: Only these panels (use commas): cifar10, cifar100, tiny-imagenet, imagenet-resnet18, imagenet-resnet50.
        seeds: Seeds other than the plan's, separated by commas.
        data_dir: Where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        download: Fetch a data set that is not there.
        workers: Processes that decode image files.
        out: The folder for everything; NAME-SCALE in it holds comparison.json, comparison.md, figures and report.html.
        jobs: How many runs to carry out at the same time; they share the cores; by default one per core.
        device: cpu, cuda or mps.
        other_kernels: Carry on with runs that began with other kernels (a C compiler came or went, or NTKSAP_NATIVE
            changed).
        finished: Show the finished runs of this folder, whatever their number, and carry out nothing.
        json: Print one JSON object.
        quiet: Print no progress.
    """
    if list:
        _print_list(json)
        return
    if not name:
        raise InputError("which table or figure? `ntksap reproduce --list` names them")
    with Display(quiet) as display:
        found = reproduce(
            name,
            scale=scale,
            panels=split_list(panels),
            seeds=parse_numbers(int, "seeds", seeds) if seeds else [],
            out=out,
            data_dir=data_dir,
            download=download,
            workers=workers,
            jobs=jobs,
            device=device,
            other_kernels=other_kernels,
            finished=finished,
            on_event=display.on_event,
            on_progress=display.on_progress,
        )
    folder = out / found.plan.folder
    if json:
        print_json({**found.to_json(), "out": str(folder)})
    else:
        _print(found, folder)
    if found.missing:
        raise IncompleteError(f"{len(found.missing)} parts are missing (see above); the same command tries them again")


def _print_list(json: bool) -> None:
    plans = sorted((read_plan(name, "paper") for name in plan_names()), key=_place_in_paper)
    quick = {plan.name: bool(read_plan(plan.name, "quick").panels) for plan in plans}
    if json:
        print_json(
            {
                "plans": [
                    {
                        "name": plan.name,
                        "title": plan.title,
                        "where": plan.where,
                        "kind": plan.kind,
                        "panels": [panel.name for panel in plan.panels],
                        "scales": [scale for scale in SCALES if scale == "paper" or quick[plan.name]],
                    }
                    for plan in plans
                ]
            }
        )
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("name", "in the paper", "scales", "what"):
        table.add_column(column, no_wrap=column == "name")
    for plan in plans:
        table.add_row(plan.name, plan.where, "quick, paper" if quick[plan.name] else "paper", plan.title)
    print_table(table)


def _place_in_paper(plan: Plan) -> tuple[str, int]:
    kind, number = plan.where.replace(",", "").split()[:2]
    return kind, int(number)


def _print(found: Comparison, folder: Path) -> None:
    for title, header, lines in found.tables():
        table = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
        for index, column in enumerate(header):
            table.add_column(column, justify="left" if index < 2 else "right", no_wrap=True)
        for line in lines:
            table.add_row(*(escape(text) for text in line), style="" if line[0] else "dim")
        print_table(table)
        stdout.print()
    for claim in found.plan.claims:
        say(f"The paper: {claim}")
    for sentence in found.words():
        say(sentence)
    for panel, row, reason in found.missing:
        stderr.print(f"[red]missing[/] {escape(f'{panel}, {row}: {reason}')}", highlight=False)
    say(f"\nWrote comparison.json and comparison.md in {folder}")
    if found.figures:
        say(f"Figures: {', '.join(n for n in found.figures if n.endswith('.png'))}")
    if (folder / "report.html").exists():
        say(f"The report, one page to open in a browser, is {folder / 'report.html'}")
