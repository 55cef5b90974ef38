"""``ntksap spectrum --during RUN``: how the spectrum changes in training."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from rich.table import Table

from ntksap import models
from ntksap.checkpoint import read_model
from ntksap.cli.console import stdout
from ntksap.cli.progress import bars
from ntksap.data import load
from ntksap.errors import InputError
from ntksap.masks import Masks
from ntksap.ntk import ntk
from ntksap.report.figures import STYLE
from ntksap.settings import read_settings
from ntksap.spectrum import spectrum_distance


def spectra_during(run: Path, data_dir: Path | None, inputs: int, norm: str, dtype: torch.dtype) -> dict[str, Any]:
    """Return the spectra at the checkpoints that a run has kept, on the first test images of its data."""
    settings = read_settings(run / "settings.toml")
    checkpoints = sorted(run.glob("epoch-*.safetensors"))
    if not checkpoints:
        raise InputError(f"{run} kept no checkpoints on the way; train with --keep-epochs 0,1,2 into another --out")
    data = load(settings.data, data_dir)
    model = models.build(settings.model, num_classes=data.num_classes, input_shape=data.input_shape)
    masks = Masks.load(run / "masks.safetensors") if (run / "masks.safetensors").exists() else None
    images, _ = next(data.test.batches(inputs))
    first: torch.Tensor | None = None
    spectra = []
    with bars() as show:
        for index, path in enumerate(checkpoints):
            show("spectra", "checkpoint", index, len(checkpoints), path.stem)
            epoch = read_model(path, model)
            kernel = ntk(model, images, masks, norm=norm, dtype=dtype)
            first = kernel.eigenvalues if first is None else first
            spectra.append(
                {
                    "epoch": epoch,
                    "eigenvalues": kernel.eigenvalues.tolist(),
                    "relative_eigenvalues": kernel.relative_eigenvalues.tolist(),
                    "trace": kernel.trace,
                    "distance": spectrum_distance(kernel.eigenvalues, first),
                }
            )
    return {"run": run.name, "method": settings.label, "sparsity": settings.sparsity, "epochs": spectra}


def during_figure(found: dict[str, Any]) -> Figure:
    """Draw eigenvalue against index at each epoch: as they are, and divided by the mean of the smallest tenth."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.2, 3.8), layout="constrained")
        shades = mpl.colormaps["viridis"]
        count = len(found["epochs"])
        for axes, key, label in zip(
            figure.subplots(1, 2),
            ("eigenvalues", "relative_eigenvalues"),
            ("eigenvalue", "eigenvalue ÷ mean of the smallest 10 %"),
            strict=True,
        ):
            for index, one in enumerate(found["epochs"]):
                values = [value for value in one[key] if value > 0]
                colour = shades(0.9 * index / max(count - 1, 1))
                axes.plot(range(1, len(values) + 1), values, color=colour, label=f"epoch {one['epoch']}")
            axes.set_yscale("log")
            axes.set_xlabel("index of the eigenvalue")
            axes.set_ylabel(label)
        axes.legend(frameon=False, fontsize=8)
        figure.suptitle(f"NTK during training: {found['method']} at {found['sparsity']:.2%}", x=0.01, ha="left")
        return figure


def print_during(found: dict[str, Any]) -> None:
    """Print a line per checkpoint."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("epoch", "trace", "largest", "largest, relative", "distance from the first"):
        table.add_column(column, justify="right")
    for one in found["epochs"]:
        largest, relative = one["eigenvalues"][0], one["relative_eigenvalues"][0]
        table.add_row(
            str(one["epoch"]), f"{one['trace']:.4g}", f"{largest:.3g}", f"{relative:.3g}", f"{one['distance']:.3f}"
        )
    stdout.print(table)
