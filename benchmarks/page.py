"""``python -m benchmarks.page``: draw ``benchmarks.png`` and put the table into ``benchmarks.md``, from the JSON."""

import json
from typing import Any

from matplotlib.figure import Figure

from benchmarks.__main__ import RESULTS, cells
from benchmarks.jobs import JOBS

BEGIN, END = "<!-- table: python -m benchmarks.page -->", "<!-- end of table -->"


def figure(found: dict[str, Any]) -> Figure:
    """Return one bar per job: how many times as fast as the textbook version the product is."""
    drawn = Figure(figsize=(11, 1.2 + 0.4 * len(found)), layout="constrained")
    axes = drawn.add_subplot()
    bars = axes.barh([result["title"] for result in found.values()], [result["ratio"] for result in found.values()])
    axes.bar_label(bars, [f"{result['ratio']:.2f}×" for result in found.values()], padding=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.invert_yaxis()
    axes.set_xscale("log")  # from equal speed to a hundredfold
    axes.set_xlim(0.5, 2.5 * max(result["ratio"] for result in found.values()))  # room for the last label
    axes.set_xticks([1, 3, 10, 30, 100], [f"{ratio}×" for ratio in (1, 3, 10, 30, 100)])
    axes.set_xlabel("textbook ÷ product, seconds")
    return drawn


def table(found: dict[str, Any]) -> str:
    """Return the results as a Markdown table."""
    head = (
        "job | target | textbook s, least (median) | product s | ratio | peak MiB, textbook | product | agreement | at"
    )
    rows = [head.split(" | "), ["---"] * (head.count(" | ") + 1)]
    for name, result in found.items():
        at = ", ".join(str(result[key]) for key in ("commit", "torch", "machine"))
        at += f", threads: {result['threads']}"
        rows.append([f"{result['title']} (`{name}`)", result["target"], *cells(result), at])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    saved = json.loads(RESULTS.read_text())
    found = {name: saved[name] for name in JOBS if name in saved}
    figure({name: result for name, result in found.items() if "ratio" in result}).savefig(
        RESULTS.with_suffix(".png"), dpi=120
    )
    page = RESULTS.with_suffix(".md")
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table(found)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
