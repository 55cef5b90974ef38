"""Learning curves and spectra: a line per run or network, a panel per sparsity, all on the same axes."""

import math
from collections.abc import Iterator, Sequence

from ntksap.report.charts.chart import (
    Chart,
    Panel,
    Trace,
    axis,
    file_name,
    line,
    look_of,
    once_in_legend,
    plain,
    spread,
)
from ntksap.report.experiments import Experiment, sparsity_text
from ntksap.report.figures import ZERO, Look, looks
from ntksap.report.run_files import Spectrum
from ntksap.runs import DENSE

_LEARNING = (("test accuracy", " %", "top1", 100), ("training loss", "", "train_loss", 1))
Curve = tuple[float, Trace]  # the sparsity, and the line


def learning_panels(one: Experiment) -> list[Panel]:
    """Return accuracy and loss by epoch, a panel per sparsity."""
    look = looks(one.methods)
    drawn = [_quantity(one, *quantity, look) for quantity in _LEARNING]
    return [Panel(charts[0][0], [chart for _, chart in charts]) for charts in zip(*drawn, strict=True)]


def _quantity(
    one: Experiment, name: str, unit: str, key: str, factor: float, look: dict[str, Look]
) -> list[tuple[str, Chart]]:
    curves: list[Curve] = []
    for label, run in one.runs:
        if run.records:
            sparsity = run.settings["sparsity"]
            x, y = ([record[what] for record in run.records] for what in ("epoch", key))
            meta = f"{_named(label, sparsity)}, seed {run.settings['seed']}"
            hover = f"%{{meta}}<br>epoch %{{x}}: {name} %{{y:.4~g}}{unit}<extra></extra>"
            made = line(label, look_of(label, look), x, [factor * value for value in y], meta=meta, hovertemplate=hover)
            made["mode"] = "lines" if len(x) > 1 else "markers"
            curves.append((sparsity, made))
    if not curves:
        return []
    epochs = [epoch for _, curve in curves for epoch in curve["x"]]
    step = max(1, math.ceil(max(epochs) / 8))  # whole epochs
    layout = {
        "xaxis": axis("epoch", range=spread(epochs, 0.03), dtick=step, tick0=0, showgrid=False),
        "yaxis": axis(f"{name} ({unit.strip()})" if unit else name, range=_range(curves)),
    }
    charts = []
    for choice, shown in _by_sparsity(curves):
        title = f"{name.capitalize()} by epoch, {choice}"
        file = file_name(name, one.title, choice)
        chart = Chart(f"{title}, {one.title}", f"{title}.", file, once_in_legend(shown), layout, 300)
        charts.append((choice.removesuffix(" sparsity"), chart))
    return charts


def spectra_panels(spectra: Sequence[Spectrum]) -> list[Panel]:
    """Return the spectra, a panel per sparsity."""
    look = looks(list(dict.fromkeys(one.method for one in spectra if one.method != DENSE)))
    largest = max((abs(value) for one in spectra for value in one.eigenvalues), default=0.0)
    curves: list[Curve] = []
    for one in spectra:
        points = [(rank, value) for rank, value in enumerate(one.eigenvalues, start=1) if value > ZERO * largest]
        if points:
            x, y = zip(*points, strict=True)
            hover = "%{meta}<br>index %{x}: eigenvalue %{y:.4~g}<extra></extra>"
            meta = _named(one.method, one.sparsity)
            made = line(one.method, look_of(one.method, look), x, y, meta=meta, hovertemplate=hover)
            made["mode"] = "lines" if len(points) > 1 else "markers"
            curves.append((one.sparsity, made))
    panels = []
    for choice, shown in _by_sparsity(curves):
        layout = {
            "xaxis": axis("index", showgrid=False),
            "yaxis": axis("eigenvalue", type="log", range=_range(curves, log=True), exponentformat="power"),
        }
        title = f"Spectrum of the neural tangent kernel, {choice}"
        caption = f"{title}; eigenvalues that are zero up to rounding are left out."
        chart = Chart(title, caption, file_name("spectrum", choice), once_in_legend(shown), layout, 340)
        panels.append(Panel(choice.removesuffix(" sparsity"), [chart]))
    return panels


def _named(method: str, sparsity: float) -> str:
    return method if method == DENSE else f"{plain(method)} at {sparsity_text(sparsity)}"


def _range(curves: Sequence[Curve], *, log: bool = False) -> list[float]:
    """Return a range for all curves, so that panels can be compared."""
    return spread([math.log10(value) if log else value for _, curve in curves for value in curve["y"]])


def _by_sparsity(curves: Sequence[Curve]) -> Iterator[tuple[str, list[Trace]]]:
    """Yield the curves of each sparsity with its name; the dense network's are in each, or alone."""
    dense = [curve for _, curve in curves if curve["legendgroup"] == DENSE]
    sparsities = sorted({sparsity for sparsity, curve in curves if curve["legendgroup"] != DENSE})
    for wanted in sparsities:
        own = [curve for sparsity, curve in curves if sparsity == wanted and curve["legendgroup"] != DENSE]
        yield f"{sparsity_text(wanted)} sparsity", own + dense
    if dense and not sparsities:
        yield DENSE, dense
