"""Spectra of the neural tangent kernel at initialisation, under masks."""

from pathlib import Path
from typing import Any

from ntksap import models
from ntksap._base import InputError, NtksapError, make_folder, read_sealed, write_json, write_sealed
from ntksap.data import Dataset, load
from ntksap.paper.bench import Bench, Spot, pruned_masks, ready
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.plan import Panel, Plan
from ntksap.report import save_figure, spectra_of, spectrum_figure
from ntksap.runs import DENSE, spectra_at_init, spectrum_inputs

_DISTANCE = (
    "The numbers are distances to the spectrum of the dense network, in decades: the typical factor between "
    "eigenvalues of equal rank."
)


def at_initialisation(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Prune, and compare each spectrum with the dense network's; on noise where the data set is absent."""
    panel = only_panel(plan)
    rows, reasons = ready(panel, bench, training=False)
    missing = [(panel.name, row, reason) for row, reason in reasons.items()]
    found, outcome = pruned_masks(bench, panel, rows)
    data = _data_or_none(panel, bench)
    on = f"{panel.inputs} test images of {panel.data}" if data else f"{panel.inputs} inputs of noise"
    first = [spot for spot in found if spot.seed == panel.seeds[0]]
    missing += [
        (panel.name, spot.title, outcome.failed[spot.settings.name])
        for spot in first
        if spot.settings.name not in outcome.results
    ]
    made = [spot for spot in first if spot.settings.name in outcome.results]
    dense, *pruned = _kept_spectra(panel, made, data, bench)
    spectra = [{**dense, "method": DENSE, "sparsity": 0.0}]
    for spot, one in zip(made, pruned, strict=True):
        spectra.append({**one, "method": spot.row.name, "sparsity": spot.settings.sparsity})
    entries = [
        Entry(panel.name, one["method"], f"{100 * one['sparsity']:.2f} %", one["distance"]) for one in spectra[1:]
    ]
    write_json(folder / "spectrum.json", {"model": panel.model, "inputs": on, "spectra": spectra})
    title = f"Neural tangent kernel of {panel.model} at initialisation, {on}"
    figures = []
    if entries:  # else there is only the dense network
        figures = save_figure(spectrum_figure(spectra_of({"spectra": spectra}), title), folder, "spectrum")
    return Comparison(plan, entries, missing, figures, [_DISTANCE, f"Kernels are computed on {on}."])


def _kept_spectra(panel: Panel, spots: list[Spot], data: Dataset | None, bench: Bench) -> list[dict[str, Any]]:
    """Return the dense network's spectrum and one for each spot; each is a file, so that nothing is computed twice."""
    seed, kept = panel.seeds[0], bench.out / "spectra"
    tag = f"{panel.data if data else 'noise'}-{panel.model}-{panel.inputs}-seed{seed}"
    files = [kept / f"{tag}-{name}.json" for name in (DENSE, *(spot.settings.name for spot in spots))]
    absent = [spot.settings for spot, file in zip(spots, files[1:], strict=True) if not file.exists()]
    if absent or not files[0].exists():
        make_folder(kept)
        spectra = spectra_at_init(
            absent,
            models.build(panel.model, num_classes=panel.classes, input_shape=panel.input_shape, seed=seed),
            spectrum_inputs(data, panel.input_shape, panel.inputs, seed),
            data,
            masks_in=bench.out / "masks",
            place=bench.place,
            on_progress=bench.on_progress,
        )
        for name, one in zip((DENSE, *(settings.name for settings in absent)), spectra, strict=True):
            write_sealed(kept / f"{tag}-{name}.json", one)
    return [read_sealed(file) for file in files]


def only_panel(plan: Plan) -> Panel:
    """Return the panel of a plan of spectra."""
    if len(plan.panels) != 1:
        raise InputError(f"{plan.name}: a plan of spectra has one panel, not {len(plan.panels)}; make a plan for each")
    return plan.panels[0]


def _data_or_none(panel: Panel, bench: Bench) -> Dataset | None:
    try:
        return load(panel.data, bench.place.data_dir, download=bench.place.download)
    except NtksapError:
        return None
