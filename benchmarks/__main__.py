"""``python -m benchmarks [JOB …]``: measure jobs, print a table, and add them to a JSON file."""

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import SIDES, measure, run_one_side
from benchmarks.jobs import JOBS
from ntksap._base.files import write_json
from ntksap._base.machine import keep_memory

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "benchmarks.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"which jobs; all by default: {', '.join(JOBS)}")
    parser.add_argument("--repeats", type=int, help="how often each side runs, instead of the job's own number")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file; results of other jobs stay in it")
    parser.add_argument("--memory-of", choices=SIDES, help="run this side of one job and print its peak memory in MiB")
    given = parser.parse_args()
    keep_memory()  # as the command does, for both sides
    if unknown := [name for name in given.jobs if name not in JOBS]:
        parser.error(f"unknown job {unknown[0]!r}; known: {', '.join(JOBS)}")
    if given.repeats is not None and given.repeats < 1:
        parser.error("--repeats is at least 1")
    if given.memory_of:
        if len(given.jobs) != 1:
            parser.error("--memory-of is for one job")
        print(run_one_side(JOBS[given.jobs[0]](), given.memory_of))
        return
    console, progress = Console(width=200), Console(stderr=True)
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    chosen = given.jobs or list(JOBS)
    for name in chosen:
        found[name] = measure(JOBS[name](), given.repeats, lambda text, name=name: progress.print(f"{name}: {text}"))
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_json(given.out, found)
    console.print(table({name: found[name] for name in chosen}))


def table(found: dict[str, Any]) -> Table:
    """Return the results as a table: least and median seconds, ratio of the least, peak memory above imports."""
    shown = Table("job", "target", "textbook s", "product s", "ratio", "textbook MiB", "product MiB", "agreement")
    for result in found.values():
        shown.add_row(result["title"], result["target"], *cells(result))
    return shown


def cells(result: dict[str, Any]) -> list[str]:
    """Return the numbers of one row as text; empty where a side did not run or its memory was not measured."""
    sides = [result.get(side, {}) for side in SIDES]
    return [
        *(f"{side['min']:.3g} ({side['median']:.3g})" if side else "" for side in sides),
        f"{result['ratio']:.2f}×" if "ratio" in result else "",
        *(f"{side['peak_mib']:.0f}" if "peak_mib" in side else "" for side in sides),
        ", ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in result["agreement"].items()),
    ]


if __name__ == "__main__":
    main()
