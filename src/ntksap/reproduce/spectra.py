"""Spectra of the neural tangent kernel: at initialisation under masks, and during training."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ntksap import models
from ntksap.data import Dataset, load
from ntksap.errors import InputError, NtksapError
from ntksap.files import write_json
from ntksap.masks import Masks
from ntksap.net import Net
from ntksap.ntk import ntk
from ntksap.report.during_figure import epochs_figure, methods_figure
from ntksap.report.figures import save_figure
from ntksap.report.spectra import spectra_of
from ntksap.report.spectrum_figure import spectrum_figure
from ntksap.reproduce.bench import Bench, Show, Spot, pruned_masks, ready, spots
from ntksap.reproduce.comparison import Comparison, Entry
from ntksap.reproduce.plan import Panel, Plan, Row, sparsity_at
from ntksap.runs import run
from ntksap.settings import DENSE
from ntksap.spectra import spectra_during, spectrum_facts, spectrum_inputs
from ntksap.spectrum import Kernel

_DISTANCE = (
    "The numbers are distances to the spectrum of the dense network, in decades: the typical factor between "
    "eigenvalues of equal rank."
)
_RATIO = (
    "The numbers are condition numbers in the paper's sense: the largest eigenvalue ÷ the mean of the smallest tenth."
)


def at_initialisation(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Prune, and compare each spectrum with the dense network's; on noise where the data set is absent."""
    panel = _only_panel(plan)
    rows, reasons = ready(panel, bench.place, training=False)
    missing = [(panel.name, row, reason) for row, reason in reasons.items()]
    found, outcome = pruned_masks(bench, panel, rows)
    data = _data_or_none(panel, bench)
    on = f"{panel.inputs} test images of {panel.data}" if data else f"{panel.inputs} inputs of noise"
    spectra: list[dict[str, Any]] = []
    entries: list[Entry] = []
    with bench.bars() as show:
        dense = _Spectra(panel, panel.seeds[0], data, bench, show)
        spectra.append({"method": DENSE, "sparsity": 0.0, **dense.of(None)})
        for index, spot in enumerate(one for one in found if one.seed == panel.seeds[0]):
            name = spot.settings.name
            if name not in outcome.results:
                missing.append((panel.name, spot.title, outcome.failed[name]))
                continue
            show("spectra", "net", index, len(found), spot.row.name)
            values = dense.of(spot)
            sparsity = spot.settings.sparsity
            spectra.append({"method": spot.row.name, "sparsity": sparsity, **values})
            entries.append(Entry(panel.name, spot.row.name, f"{100 * sparsity:.2f} %", values["distance"]))
    write_json(folder / "spectrum.json", {"model": panel.model, "inputs": on, "spectra": spectra})
    title = f"Neural tangent kernel of {panel.model} at initialisation, {on}"
    figures = save_figure(spectrum_figure(spectra_of({"spectra": spectra}), title), folder, "spectrum")
    return Comparison(plan, entries, missing, figures, [_DISTANCE, f"Kernels are computed on {on}."])


class _Spectra:
    """Kernels of one network; each spectrum is a file, so that a command that is killed goes on."""

    def __init__(self, panel: Panel, seed: int, data: Dataset | None, bench: Bench, show: Show) -> None:
        self.model = models.build(panel.model, num_classes=panel.classes, input_shape=panel.input_shape, seed=seed)
        self.inputs = spectrum_inputs(data, panel.input_shape, panel.inputs, seed)
        self.kept = bench.out / "spectra"
        self.masks = bench.out / "masks"
        self.tag = f"{panel.data if data else 'noise'}-{panel.model}-{panel.inputs}-seed{seed}"
        self.device, self.show = bench.place.device, show
        self.dense: Kernel | None = None

    def of(self, spot: Spot | None) -> dict[str, Any]:
        """Return the facts of a spectrum, of the dense network for None."""
        file = self.kept / f"{self.tag}-{spot.settings.name if spot else DENSE}.json"
        if file.exists():
            kept: dict[str, Any] = json.loads(file.read_text())
            return kept
        self.kept.mkdir(parents=True, exist_ok=True)
        if self.dense is None:
            self.dense = self._kernel(None, DENSE)
        net = Net(self.model)
        masks = Masks.ones({name: net.weights[name] for name in net.prunable})
        kernel = self.dense
        if spot is not None:
            masks = Masks.load(self.masks / spot.settings.name / "masks.safetensors")
            kernel = self._kernel(masks, f"{spot.row.name} {spot.settings.sparsity:.2%}")
        facts = spectrum_facts(masks, kernel, self.dense)
        write_json(file, facts)
        return facts

    def _kernel(self, masks: Masks | None, name: str) -> Kernel:
        def on_progress(done: int, total: int) -> None:
            self.show(name, "step", done, total, "")

        return ntk(self.model, self.inputs, masks, norm="batch", on_progress=on_progress, device=self.device)


def _only_panel(plan: Plan) -> Panel:
    if len(plan.panels) != 1:
        raise InputError(f"{plan.name}: a plan of spectra has one panel, not {len(plan.panels)}; make a plan for each")
    return plan.panels[0]


def _data_or_none(panel: Panel, bench: Bench) -> Dataset | None:
    try:
        return load(panel.data, bench.place.data_dir, download=bench.place.download)
    except NtksapError:
        return None


def during_training(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Train, and compare spectra on the way with the dense network's at the same epoch."""
    return _during(plan, bench, folder, "eigenvalues")


def relative_during_training(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """The same, each eigenvalue divided by the mean of the smallest tenth; a panel per method."""
    return _during(plan, bench, folder, "relative_eigenvalues")


def _during(plan: Plan, bench: Bench, folder: Path, key: str) -> Comparison:
    panel = _only_panel(plan)
    rows, reasons = ready(panel, bench.place, training=True)
    missing = [(panel.name, row, reason) for row, reason in reasons.items()]
    wanted = (
        list(spots(replace(panel, seeds=panel.seeds[:1], steps=panel.steps[:1]), [Row(DENSE), *rows])) if rows else []
    )
    # Not where other plans keep their runs: those have no checkpoints on the way.
    runs, place = bench.out / "runs-with-checkpoints", replace(bench.place, keep_epochs=panel.epochs)
    outcome = bench.execute([spot.settings for spot in wanted], runs, place, run)
    found: dict[str, dict[str, Any]] = {}
    with bench.bars() as show:
        for spot in wanted:
            name = spot.settings.name
            if name not in outcome.results:
                missing.append((panel.name, spot.title, outcome.failed[name]))
                continue
            on_progress: Callable[[int, int, str], object] = partial(_forward, show, spot.row.name)
            found[spot.row.name] = _kept_during(runs / name, panel, bench, on_progress)
    if not found:
        return Comparison(plan, [], missing)
    write_json(folder / "spectra.json", {"model": panel.model, "runs": found})
    draw = epochs_figure if key == "eigenvalues" else methods_figure
    title = f"{panel.model} on {panel.data}, sparsity {sparsity_at(panel.steps[0]):.2%}"
    figures = save_figure(draw(found, key, title), folder, "spectra")
    entries = [
        Entry(panel.name, name, f"epoch {one['epoch']}", _largest_ratio(one))
        for name, spectra in found.items()
        for one in spectra["epochs"]
    ]
    return Comparison(plan, entries, missing, figures, [_RATIO])


def _forward(show: Show, stage: str, done: int, total: int, note: str) -> None:
    show(stage, "checkpoint", done, total, note)


def _largest_ratio(one: dict[str, Any]) -> float:
    return float(one["relative_eigenvalues"][0])


def _kept_during(folder: Path, panel: Panel, bench: Bench, on_progress: Callable[..., object]) -> dict[str, Any]:
    file = folder / f"spectra-{panel.inputs}.json"
    if file.exists():
        kept: dict[str, Any] = json.loads(file.read_text())
        return kept
    found = spectra_during(folder, bench.place.data_dir, panel.inputs, "batch", torch.float32, on_progress)
    write_json(file, found)
    return found
