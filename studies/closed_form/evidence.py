"""Read the training runs that the page shows, keep their numbers in evidence.json, draw accuracy.png, write the tables.

    python -m studies.closed_form.evidence runs/closed-form

The commands that make the runs are on the page. Missing runs are left out.
"""

import json
import sys
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib.pyplot as plt

Run = dict[str, Any]
HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "methods" / "ntk-sap-analytic.md"
BEGIN, END = "<!-- tables: python -m studies.closed_form.evidence RUNS -->", "<!-- end of tables -->"
NAMES = ("ntk-sap-analytic", "ntk-sap", "synflow", "ntk-sap-analytic, shuffled")
STYLES = dict(zip(NAMES, (("#0072b2", "o-"), ("#444444", "s--"), ("#d55e00", "^--"), ("#56b4e9", "o:")), strict=True))


def collect(folder: Path) -> list[Run]:
    """Return the few numbers of each finished run below ``folder`` that the page needs."""
    found = []
    for file in sorted(folder.glob("*/result.json")):
        run = json.loads(file.read_text())
        name = run["method"] + (", shuffled" if run["sanity"] == "shuffle" else "")
        keys = ("sparsity", "seed", "rounds", "top1", "train_loss", "inference_flops", "prune_seconds")
        found.append({"name": name, "noise": run["options"].get("noise", True), **{key: run[key] for key in keys}})
    return found


def spoken(values: list[float], digits: int = 2) -> str:
    """Mean ± standard deviation, and how many if there are fewer than three."""
    if not values:
        return ""
    if len(values) < 3:
        return f"{fmean(values):.{digits}f} (n = {len(values)})"
    return f"{fmean(values):.{digits}f} ± {stdev(values):.{digits}f}"


def of(runs: list[Run], name: str, sparsity: float, key: str) -> list[float]:
    """Return one number of all seeds of a method with its own settings."""
    chosen = [r for r in runs if r["name"] == name and r["sparsity"] == sparsity and r["noise"]]
    rounds = 100 if name == "synflow" else 20
    return [float(r[key]) for r in chosen if r["rounds"] == rounds]


def tables(runs: list[Run]) -> str:
    """Return the page's tables as Markdown."""
    sparsities = sorted({r["sparsity"] for r in runs})
    lines = ["| test accuracy (%) | " + " | ".join(f"{s:.2%}".replace("%", " %") for s in sparsities) + " |"]
    lines.append("|---" * (1 + len(sparsities)) + "|")
    for name in NAMES:
        cells = [spoken([100 * v for v in of(runs, name, s, "top1")]) for s in sparsities]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| multiply-adds (×10⁶) and seconds to prune | " + lines[0].split(" | ", 1)[1], lines[1]]
    for name in NAMES[:3]:
        cells = [
            f"{fmean(v / 1e6 for v in flops):.2f}, {min(of(runs, name, s, 'prune_seconds')):.0f} s" if flops else ""
            for s in sparsities
            for flops in [of(runs, name, s, "inference_flops")]
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "| ntk-sap-analytic, 98.20 %, seed 0 | accuracy (%) | multiply-adds (×10⁶) |", "|---|---|---|"]
    alone = [r for r in runs if r["name"] == NAMES[0] and r["sparsity"] == max(sparsities) and r["seed"] == 0]
    for run in sorted(alone, key=lambda r: (not r["noise"], r["rounds"])):
        label = f"{run['rounds']} round{'s' * (run['rounds'] > 1)}" + ("" if run["noise"] else ", no noise")
        lines.append(f"| {label} | {100 * run['top1']:.2f} | {run['inference_flops'] / 1e6:.2f} |")
    return "\n".join(lines)


def draw(runs: list[Run]) -> None:
    """Accuracy against sparsity: each run a dot, the means joined."""
    figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    sparsities = sorted({float(r["sparsity"]) for r in runs})
    for shift, name in enumerate(NAMES):
        colour, style = STYLES[name]
        at = [place + (shift - 1.5) * 0.06 for place in range(len(sparsities))]
        found = [[100 * v for v in of(runs, name, s, "top1")] for s in sparsities]
        pairs = [(x, fmean(v)) for x, v in zip(at, found, strict=True) if v]
        axis.plot(*zip(*pairs, strict=True), style, color=colour, label=name, lw=1.2, ms=5)
        for x, values in zip(at, found, strict=True):
            axis.plot([x] * len(values), values, ".", color=colour, ms=3, alpha=0.7)
    axis.set_xticks(range(len(sparsities)), [f"{s:.2%}" for s in sparsities])
    axis.set(xlabel="sparsity", ylabel="test accuracy (%)", title="ResNet-20 on CIFAR-10, 2 epochs, 3 seeds")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False)
    figure.savefig(PAGE.with_suffix("") / "accuracy.png", dpi=150)


if __name__ == "__main__":
    store = HERE / "evidence.json"
    if len(sys.argv) > 1:
        store.write_text(json.dumps(collect(Path(sys.argv[1])), indent=1) + "\n")
    measured = json.loads(store.read_text())
    draw(measured)
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{tables(measured)}\n{END}{rest.split(END)[1]}")
