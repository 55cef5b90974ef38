"""Spectra of the neural tangent kernel at initialisation, under masks."""

from pathlib import Path
from typing import Any

from ntksap import models
from ntksap._base import InputError, NtksapError, make_folder, read_sealed, write_json, write_sealed
from ntksap.analysis import Kernel, ntk
from ntksap.data import Dataset, load
from ntksap.net import Net
from ntksap.paper.bench import Bench, Show, Spot, pruned_masks, ready
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.plan import Panel, Plan
from ntksap.pruning import Masks
from ntksap.report import save_figure, spectra_of, spectrum_figure
from ntksap.runs import DENSE, spectrum_facts, spectrum_inputs

_DISTANCE = (
    "The numbers are distances to the spectrum of the dense network, in decades: the typical factor between "
    "eigenvalues of equal rank."
)


def at_initialisation(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Prune, and compare each spectrum with the dense network's; on noise where the data set is absent."""
    panel = only_panel(plan)
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
            return read_sealed(file)
        make_folder(self.kept)
        if self.dense is None:
            self.dense = self._kernel(None, DENSE)
        net = Net(self.model)
        masks = Masks.ones({name: net.weights[name] for name in net.prunable})
        kernel = self.dense
        if spot is not None:
            masks = Masks.load(self.masks / spot.settings.name / "masks.safetensors")
            kernel = self._kernel(masks, f"{spot.row.name} {spot.settings.sparsity:.2%}")
        facts = spectrum_facts(masks, kernel, self.dense)
        write_sealed(file, facts)
        return facts

    def _kernel(self, masks: Masks | None, name: str) -> Kernel:
        def on_progress(done: int, total: int) -> None:
            self.show(name, "step", done, total, "")

        return ntk(self.model, self.inputs, masks, norm="batch", on_progress=on_progress, device=self.device)


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
