"""The figures of the page, in panels: what is shown together, under one choice of sparsity."""

import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from ntksap.report.charts import accuracy_chart
from ntksap.report.curves import Curve, Quantity, curve_chart
from ntksap.report.experiments import Experiment, sparsity_text
from ntksap.report.heatmap import heat_map, lowest_density
from ntksap.report.plot import looks
from ntksap.report.spectra import Spectrum
from ntksap.runs import DENSE

_EPOCH, _TOP1, _LOSS = Quantity("epoch", whole=True), Quantity("test accuracy", " %"), Quantity("training loss")
_INDEX, _EIGENVALUE = Quantity("index", whole=True), Quantity("eigenvalue", log=True)
_ZERO = 1e-12
"""An eigenvalue below this share of the largest is zero up to rounding."""


@dataclass(frozen=True)
class Figure:
    """A figure: its drawings (more than one if they are for different screens), its file name, its curves' values."""

    caption: str
    svgs: Sequence[Markup]
    file: str
    values: dict[str, Any] | None = None


@dataclass(frozen=True)
class Panel:
    """Figures that are shown together, under one choice of sparsity."""

    choice: str
    figures: Sequence[Figure]


def _file(*parts: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(parts)).strip("-.")[:120] + ".svg"


def accuracy_figure(one: Experiment) -> Figure:
    """Return accuracy against sparsity, for wide and for narrow screens."""
    look = looks(one.methods)
    svgs = [accuracy_chart(one.table, one.title, look, narrow=narrow) for narrow in (False, True)]
    bands = " Bands are one standard deviation over seeds." if any(cell.seeds > 1 for cell in one.table) else ""
    return Figure(f"Test accuracy against sparsity, {one.title}.{bands}", svgs, _file("accuracy", one.title))


def density_panels(one: Experiment) -> list[Panel]:
    """Return a heat map per sparsity, all on one scale of colours."""
    maps = {}
    for sparsity in one.sparsities:
        rows: dict[str, dict[str, float]] = {}
        for method in one.methods:
            layers = [run.layers for label, run in one.runs if label == method and run.settings["sparsity"] == sparsity]
            names = dict.fromkeys(name for layer in layers for name in layer)
            mean = {name: statistics.fmean(layer[name] for layer in layers if name in layer) for name in names}
            if mean:
                rows[method] = mean
        if rows:
            maps[sparsity] = rows
    lowest = lowest_density(list(maps.values()))
    panels = []
    for sparsity, rows in maps.items():
        choice = sparsity_text(sparsity)
        svg = heat_map(f"Layer densities at {choice} sparsity, {one.title}", rows, lowest)
        caption = f"Density of each layer in percent at {choice} sparsity, input to output; mean over seeds."
        panels.append(Panel(choice, [Figure(caption, [svg], _file("densities", one.title, choice))]))
    return panels


def learning_panels(one: Experiment) -> list[Panel]:
    """Return accuracy and loss by epoch, a panel per sparsity, all on the same axes."""
    look = looks(one.methods)
    accuracies: list[tuple[float, Curve]] = []
    losses: list[tuple[float, Curve]] = []
    for label, run in one.runs:
        if run.records:
            sparsity = run.settings["sparsity"]
            name = f"{_named(label, sparsity)}, seed {run.settings['seed']}"
            for curves, key, factor in ((accuracies, "top1", 100), (losses, "train_loss", 1)):
                points = [(record["epoch"], factor * record[key]) for record in run.records]
                curves.append((sparsity, Curve(label, name, look[label], points)))
    panels = []
    for (choice, left), (_, right) in zip(_by_sparsity(accuracies), _by_sparsity(losses), strict=True):
        figures = []
        for shown, everything, quantity in ((left, accuracies, _TOP1), (right, losses, _LOSS)):
            title = f"{quantity.name.capitalize()} by epoch, {choice}"
            chart = curve_chart(f"{title}, {one.title}", shown, _EPOCH, quantity, [curve for _, curve in everything])
            figures.append(Figure(f"{title}.", [chart.svg], _file(quantity.name, one.title, choice), chart.values))
        panels.append(Panel(choice.removesuffix(" sparsity"), figures))
    return panels


def spectra_panels(spectra: Sequence[Spectrum]) -> list[Panel]:
    """Return the spectra, a panel per sparsity, all on the same axes."""
    look = looks(list(dict.fromkeys(one.method for one in spectra if one.method != DENSE)))
    largest = max((abs(value) for one in spectra for value in one.eigenvalues), default=0.0)
    curves = []
    for one in spectra:
        points = [(rank, value) for rank, value in enumerate(one.eigenvalues, start=1) if value > _ZERO * largest]
        if points:
            curves.append((one.sparsity, Curve(one.method, _named(one.method, one.sparsity), look[one.method], points)))
    panels = []
    for choice, shown in _by_sparsity(curves):
        title = f"Spectrum of the neural tangent kernel, {choice}"
        chart = curve_chart(title, shown, _INDEX, _EIGENVALUE, [curve for _, curve in curves])
        caption = f"{title}; eigenvalues that are zero up to rounding are left out."
        figure = Figure(caption, [chart.svg], _file("spectrum", choice), chart.values)
        panels.append(Panel(choice.removesuffix(" sparsity"), [figure]))
    return panels


def _named(method: str, sparsity: float) -> str:
    return method if method == DENSE else f"{method} at {sparsity_text(sparsity)}"


def _by_sparsity(curves: Sequence[tuple[float, Curve]]) -> Iterator[tuple[str, list[Curve]]]:
    """Yield the curves of each sparsity with what it is called; the dense network's are in each, or alone."""
    dense = [curve for _, curve in curves if curve.method == DENSE]
    sparsities = sorted({sparsity for sparsity, curve in curves if curve.method != DENSE})
    for wanted in sparsities:
        own = [curve for sparsity, curve in curves if sparsity == wanted and curve.method != DENSE]
        yield f"{sparsity_text(wanted)} sparsity", own + dense
    if dense and not sparsities:
        yield DENSE, dense
