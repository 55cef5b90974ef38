"""``ntksap report``."""

from pathlib import Path

from tyro.conf import Positional

from ntksap.cli.console import print_json, say
from ntksap.report import read_folder, write_report


def run_report(folder: Positional[Path], out: Path | None = None, json: bool = False) -> None:
    """Make one HTML page of the runs in a folder: summary, figures, tables, settings. It can be read offline.

    Args:
        folder: Where runs are, at any depth: the --out of `ntksap compare` or `ntksap train`.
        out: The file to write; by default report.html in the folder.
        json: Print one JSON object.
    """
    found = read_folder(folder)
    path = write_report(found, folder / "report.html" if out is None else out)
    states = {
        "finished": found.count("finished"),
        "failed": found.count("failed"),
        "unfinished": found.count("unfinished"),
        "damaged": found.count("damaged"),
    }
    if json:
        print_json({"report": str(path), "runs": len(found.runs), **states})
        return
    parts = [f"{count} {state}" for state, count in states.items() if count]
    say(f"{len(found.runs)} runs ({', '.join(parts)}). The report is {path}")
