"""``python -m studies.growth_page``: fit exponents, draw ``growth.png``, put the tables into the page on cost."""

import json
import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from studies.growth import RESULTS

PAGE = Path(__file__).parents[1] / "docs" / "what-does-it-cost.md"
BEGIN, END = "<!-- {}: python -m studies.growth_page -->", "<!-- end of {} -->"

# What a curve is drawn against: more channels or layers mean more weights, and the promise is about those.
AGAINST = {"width": "weights", "depth": "weights", "inputs": "inputs", "rounds": "rounds", "weights": "weights"}
COLOURS = {"ntk-sap": "#0072b2", "synflow": "#d55e00", "ntk": "#009e73", "selection": "#cc79a7"}

Curve = list[tuple[float, float, float]]
"""(x, seconds, MiB), x increasing."""


def curves(found: dict[str, Any]) -> dict[tuple[str, str], Curve]:
    """Return the points of each (job, what was varied)."""
    made: dict[tuple[str, str], Curve] = {}
    for one in found.values():
        if one["along"] in AGAINST:
            point = (one[AGAINST[one["along"]]], one["seconds"], one["mib"])
            made.setdefault((one["job"], one["along"]), []).append(point)
    return {key: sorted(curve) for key, curve in made.items()}


def exponent(curve: Curve, column: int) -> float:
    """Return b of y = a·x^b, by least squares on the logarithms."""
    x = [math.log(point[0]) for point in curve]
    y = [math.log(point[column]) for point in curve]
    return statistics.linear_regression(x, y).slope


def constants(found: dict[str, Any]) -> tuple[float, float, float]:
    """Return a and b of seconds ≈ a·(multiply-adds of all inputs) + b·(weights of all draws), and the error.

    By least squares on the relative errors; the last is the largest factor between a point and the rule.
    """
    points = [one for one in found.values() if one["job"] == "ntk-sap" and one["along"] != "held out"]
    relative = np.array([_work(one) for one in points]) / [[one["seconds"]] for one in points]
    a, b = np.linalg.lstsq(relative, np.ones(len(points)))[0]
    ratios = relative @ (a, b)
    return float(a), float(b), float(max(*ratios, *(1 / ratios)))


def _work(one: dict[str, Any]) -> tuple[int, int]:
    """Return the multiply-adds of all inputs, and the weights of all draws (of 100 inputs at most)."""
    draws = -(-one["inputs"] // 100)
    return one["rounds"] * one["inputs"] * one["multiply_adds"], one["rounds"] * draws * one["weights"]


def figure(found: dict[str, Any]) -> Figure:
    drawn = Figure(figsize=(11, 6.5), layout="constrained")
    axes = drawn.subplots(2, 4, sharey="row")
    for (job, along), curve in curves(found).items():
        column = ["width", "depth", "inputs", "rounds"].index("width" if along == "weights" else along)
        for row in range(2):
            b = exponent(curve, row + 1)
            axes[row][column].loglog(
                [p[0] for p in curve],
                [p[row + 1] for p in curve],
                "o-",
                color=COLOURS[job],
                label=f"{job}: {b:.2f}",
            )
    titles = ["weights, by width", "weights, by depth", "inputs per round", "rounds"]
    for column, title in enumerate(titles):
        axes[1][column].set_xlabel(title)
        for row in range(2):
            axes[row][column].legend(title="exponent", fontsize=8, title_fontsize=8, loc="upper left")
            axes[row][column].grid(alpha=0.3)
            axes[row][column].xaxis.set_minor_formatter(NullFormatter())
    for row in range(2):
        low, high = axes[row][0].get_ylim()
        axes[row][0].set_ylim(low, high * (high / low) ** 0.4)  # room for the legends; the row shares this axis
    axes[0][0].set_ylabel("CPU seconds, one thread")
    axes[1][0].set_ylabel("peak MiB above imports and inputs")
    return drawn


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the text of each place in the page."""
    rows = [
        "| job | varied | from … to | exponent of time | its last step | of memory | its last step |",
        "|" + "---|" * 7,
    ]
    for (job, along), curve in curves(found).items():
        against = AGAINST[along]
        span = f"{curve[0][0]:,} … {curve[-1][0]:,} {against}"
        fits = [f"{exponent(part, column):.2f}" for column in (1, 2) for part in (curve, curve[-2:])]
        rows.append(f"| {job} | {along} | {span} | {' | '.join(fits)} |")
    per_product, per_weight, off = constants(found)
    held = ["| model, not in the fit | predicted s | measured s | measured ÷ predicted |", "|---|---|---|---|"]
    for one in found.values():
        if one["along"] == "held out":
            products, weights = _work(one)
            predicted = per_product * products + per_weight * weights
            held.append(
                f"| {one['value']}, {one['inputs']} inputs, {one['multiply_adds'] / 1e6:,.0f}·10⁶ multiply-adds, "
                f"{one['weights'] / 1e6:.1f}·10⁶ weights "
                f"| {predicted:.2f} | {one['seconds']:.2f} | {one['seconds'] / predicted:.2f} |"
            )
    rule = (
        f"seconds ≈ rounds × (inputs per round × multiply-adds × **{per_product * 1e9:.3f}·10⁻⁹** + draws × weights × "
        f"**{per_weight * 1e9:.0f}·10⁻⁹**), which is {1e-9 / per_product:.1f}·10⁹ multiply-adds per second for all "
        f"passes of NTK-SAP together. The fitted points are off by a factor of {off:.1f} at most: narrow nets are "
        "slower per multiply-add."
    )
    return {"exponents": "\n".join(rows), "rule": rule, "held out": "\n".join(held)}


def main() -> None:
    found = json.loads(RESULTS.read_text())
    figure(found).savefig(RESULTS.with_suffix(".png"), dpi=110)
    page = PAGE.read_text()
    for name, text in tables(found).items():
        begin, end = BEGIN.format(name), END.format(name)
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
