"""A grid of short runs whose results stand in one file, a line of JSON each; what is missing is carried out."""

import argparse
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ntksap._base import keep_memory

Run = Mapping[str, Any]


@dataclass(frozen=True)
class Grid:
    """All runs, in the order of their importance, and where their results stand."""

    runs: Iterable[Run]
    name_of: Callable[[Run], str]
    table: Callable[[Iterable[Run]], str]
    """Returns what was found as tables in Markdown."""
    results: Path

    def parser(self, description: str | None) -> argparse.ArgumentParser:
        """Return a parser for the options of `main`, to which a study may add its own."""
        form = argparse.RawDescriptionHelpFormatter
        parser = argparse.ArgumentParser(description=description, formatter_class=form)
        parser.add_argument("--out", type=Path, default=self.results, help="the file of results")
        parser.add_argument("--only", default="", metavar="TEXT", help="only runs whose name contains this")
        parser.add_argument("--list", action="store_true", help="print the names of the runs, and end")
        parser.add_argument("--table", action="store_true", help="print what was found, and end")
        return parser

    def main(self, given: argparse.Namespace, carry_out: Callable[[Run], Run], headline: str) -> None:
        """Carry out the runs without a result on one thread; ``headline`` is a format of what to say of each."""
        torch.set_num_threads(1)
        keep_memory()
        runs = {self.name_of(run): run for run in self.runs if given.only in self.name_of(run)}
        lines = given.out.read_text().splitlines() if given.out.exists() else []
        found = {self.name_of(run): run for run in map(json.loads, lines)}
        if given.list or given.table:
            print("\n".join(runs) if given.list else self.table(found.values()))
            return
        for name in [name for name in runs if name not in found]:
            result = carry_out(runs[name])
            with given.out.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print(f"{name}: {headline.format_map(result)}", flush=True)
