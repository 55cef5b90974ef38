"""Spectra of the neural tangent kernel as they are kept in files: at initialisation, and during a run."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ntksap import models
from ntksap._base import InputError, generator_of
from ntksap.analysis import Kernel, ntk, spectrum_distance
from ntksap.data import Dataset, load
from ntksap.pruning import Masks
from ntksap.runs.settings import read_settings
from ntksap.training import read_model


def spectrum_inputs(data: Dataset | None, shape: tuple[int, ...], count: int, seed: int) -> Tensor:
    """Return the inputs that kernels are computed on: test images, or standard normal noise without data."""
    if data is None:
        return torch.randn(count, *shape, generator=generator_of(seed, "spectrum", "noise"), dtype=torch.float32)
    if count > len(data.test):
        raise InputError(f"{data.name} has {len(data.test)} test images, fewer than --inputs {count}")
    images, _ = next(data.test.batches(count, seed=seed))
    return images


def spectrum_facts(masks: Masks, kernel: Kernel, dense: Kernel) -> dict[str, Any]:
    """Return what is worth knowing of a kernel, beside the dense network's, as plain values."""
    return {
        "kept": masks.kept,
        "collapsed": masks.collapsed,
        "eigenvalues": kernel.eigenvalues.tolist(),
        "trace": kernel.trace,
        "rank": kernel.rank,
        "condition_number": kernel.condition_number if math.isfinite(kernel.condition_number) else None,
        "distance": spectrum_distance(kernel.eigenvalues, dense.eigenvalues),
        "shape_distance": spectrum_distance(kernel.eigenvalues, dense.eigenvalues, match_trace=True),
    }


def spectra_during(
    run: Path,
    data_dir: Path | None,
    inputs: int,
    norm: str,
    dtype: torch.dtype,
    on_progress: Callable[[int, int, str], object] = lambda done, total, name: None,
) -> dict[str, Any]:
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
    for index, path in enumerate(checkpoints):
        on_progress(index, len(checkpoints), path.stem)
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
