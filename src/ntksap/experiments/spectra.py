"""`spectrum` and `spectrum_during`: spectra of the neural tangent kernel, as values and as files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from torch import nn

from ntksap import models
from ntksap._base import new_folder, require_new, write_json
from ntksap.data import load
from ntksap.report import during_figure, save_figure, spectra_of, spectrum_figure
from ntksap.runs import OnProgress, Place, prunings, spectra_at_init, spectra_during, spectrum_inputs


def spectrum(
    model: str | nn.Module = "resnet20",
    methods: Sequence[str] = ("ntk-sap", "synflow", "magnitude", "random"),
    sparsities: Sequence[float] = (0.738,),
    *,
    data: str | None = None,
    data_dir: str | Path | None = None,
    classes: int | None = None,
    input_shape: Sequence[int] | None = None,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    inputs: int = 100,
    norm: Literal["batch", "running"] = "batch",
    dtype: Literal["float32", "float64"] = "float32",
    memory_mib: float = 384,
    device: str = "cpu",
    out: str | Path | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> dict[str, Any]:
    """Compare spectra of the neural tangent kernel at initialisation: dense, and pruned by each method.

    This is what ``ntksap spectrum`` does. Returns plain values: the settings, and under ``"spectra"``, for the dense
    network and then for each method at each sparsity, the eigenvalues, trace, rank, condition number (None where
    singular) and the distance to the dense network's spectrum, see `ntksap.spectrum_distance`.

    Args:
        model: a name from the table, "package.module:factory", or a module with its initial weights.
        methods: names from ``ntksap.methods.METHODS``.
        sparsities: shares of prunable weights to remove.
        data: a data set: its test images are the inputs, and methods that need data prune with its training images.
            Without it the inputs are standard normal noise.
        data_dir: where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        classes: number of classes of a model from the table.
        input_shape: the shape of one input; needed for a model of your own, unless there is data.
        seed: decides initial weights, draws and inputs.
        options: options of single methods, for those that have them.
        inputs: how many inputs the kernel is computed on.
        norm: BatchNorm statistics, constant in either case: those of these inputs in each net, or the running ones.
        dtype: precision of the derivatives; eigenvalues are always float64.
        memory_mib: how much of the Jacobian to hold at a time.
        device: cpu, cuda or mps.
        out: a new folder for spectrum.json, spectrum.png and spectrum.svg.
        on_progress: told how far it has got.
    """
    wanted = prunings(methods, sparsities, seed=seed, options=options, data=data)
    if out is not None:
        require_new(out)
    loaded = load(data, data_dir) if data else None
    built = models.model_for(
        model,
        num_classes=loaded.num_classes if classes is None and loaded else classes,
        input_shape=input_shape or (loaded.input_shape if loaded else None),
        seed=seed,
    )
    module, shape = built.numbers("spectrum")
    batch = spectrum_inputs(loaded, shape, inputs, seed)
    spectra = spectra_at_init(
        wanted,
        module,
        batch,
        loaded,
        norm=norm,
        dtype=getattr(torch, dtype),
        memory_mib=memory_mib,
        place=Place(device=device),
        on_progress=on_progress,
    )
    name = model if isinstance(model, str) else type(model).__name__
    settings = {"model": name, "data": data, "seed": seed, "inputs": inputs, "norm": norm, "dtype": dtype}
    result = {**settings, "spectra": list(spectra)}
    if out is not None:
        on = f"{inputs} test images of {data}" if data else f"{inputs} inputs of noise"
        _write(out, "spectrum", result, spectrum_figure(spectra_of(result), f"NTK of {name} at initialisation, {on}"))
    return result


def spectrum_during(
    run: str | Path,
    *,
    data_dir: str | Path | None = None,
    inputs: int = 100,
    norm: Literal["batch", "running"] = "batch",
    dtype: Literal["float32", "float64"] = "float32",
    memory_mib: float = 384,
    device: str = "cpu",
    out: str | Path | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> dict[str, Any]:
    """Compare the spectra at the checkpoints of a run (``ntksap train --keep-epochs 0,40,80``) with the first one's.

    This is what ``ntksap spectrum --during RUN`` does. ``run`` is the folder of the run, ``out`` a new one for
    during.json, during.png and during.svg; the other arguments are as in `spectrum`.
    """
    if out is not None:
        require_new(out)
    found = spectra_during(
        Path(run),
        data_dir=Path(data_dir) if data_dir is not None else None,
        inputs=inputs,
        norm=norm,
        dtype=getattr(torch, dtype),
        memory_mib=memory_mib,
        device=device,
        on_progress=on_progress,
    )
    if out is not None:
        _write(out, "during", found, during_figure(found))
    return found


def _write(out: str | Path, name: str, result: dict[str, Any], figure: Figure) -> None:
    with new_folder(out) as folder:
        write_json(folder / f"{name}.json", result)
        save_figure(figure, folder, name)
