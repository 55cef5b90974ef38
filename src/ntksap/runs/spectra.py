"""Spectra of the neural tangent kernel: at initialisation under the masks of each method, and during a run."""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import InputError, generator_of
from ntksap.analysis import Kernel, ntk, spectrum_distance
from ntksap.data import Dataset, load
from ntksap.net import Net
from ntksap.pruning import Masks
from ntksap.runs.folder import OnProgress, Place, Progress
from ntksap.runs.masking import make_masks
from ntksap.runs.network import network_of
from ntksap.runs.settings import DENSE, Pruning, Settings, read_settings
from ntksap.training import read_model


def spectrum_inputs(data: Dataset | None, shape: tuple[int, ...], count: int, seed: int | None) -> Tensor:
    """Return the inputs that kernels are computed on: test images, or standard normal noise without data.

    The seed decides which test images; without one, the first.
    """
    if count < 1:
        raise InputError(f"--inputs must be at least 1, not {count}")
    if data is None:
        return torch.randn(
            count, *shape, generator=generator_of(seed or 0, "spectrum", "noise"), dtype=torch.float32, device="cpu"
        )
    if count > len(data.test):
        raise InputError(f"{data.name} has {len(data.test)} test images, fewer than --inputs {count}")
    images, _ = next(data.test.batches(count, seed=seed))
    return images


def spectra_at_init(
    prunings: Sequence[Pruning],
    model: nn.Module,
    inputs: Tensor,
    data: Dataset | None = None,
    *,
    masks_in: Path | None = None,
    norm: str = "batch",
    dtype: torch.dtype = torch.float32,
    memory_mib: float = 384,
    place: Place | None = None,
    on_progress: OnProgress = lambda progress: None,
) -> Iterator[dict[str, Any]]:
    """Yield the spectrum of ``model`` as it is, then one for each pruning: plain values, each when it is computed.

    A method that also chooses weights (NTT) has its spectrum at those; every distance is to the dense network at its
    own weights.

    Args:
        prunings: settings of masks; those of runs will do.
        model: the model, with its initial weights; it is not changed.
        inputs: what the kernels are computed on.
        data: a data set, for the methods that need one.
        masks_in: a folder with a folder of masks for each run (`prune_only` makes them); without it, or where masks are
            missing, they are made.
        norm, dtype, memory_mib: see `ntksap.ntk`.
        place: the device.
        on_progress: told before each network, and how far each kernel has got.
    """
    place, shape = place or Place(), tuple(inputs.shape[1:])
    dense: Kernel | None = None
    jobs: list[Pruning | None] = [None, *prunings]
    for index, pruning in enumerate(jobs):
        label = f"{pruning.method} at {100 * pruning.sparsity:.4g} %" if pruning else DENSE
        on_progress(Progress("spectra", index, len(jobs), "net", name=label))
        start = time.perf_counter()
        if pruning is None:
            net = Net(model)
            masks = Masks.ones({name: net.weights[name] for name in net.prunable})
        else:
            folder = masks_in / pruning.name if masks_in and isinstance(pruning, Settings) else None
            recipe = pruning.recipe if isinstance(pruning, Settings) else None
            masks = make_masks(pruning, model, shape, data, recipe=recipe, folder=folder, place=place)
        pruned = time.perf_counter()
        initial = copy.deepcopy(model)
        if masks.weights:
            masks.load_weights(initial)

        def on_step(done: int, total: int, label: str = label) -> None:
            on_progress(Progress(label, done, total, "step"))

        settings: dict[str, Any] = {"norm": norm, "dtype": dtype, "memory_mib": memory_mib, "device": place.device}
        kernel = ntk(initial, inputs, masks, on_progress=on_step, **settings)
        dense = dense or kernel
        yield {
            "method": pruning.method if pruning else DENSE,
            "sparsity": pruning.sparsity if pruning else 0.0,
            **_describe(masks, kernel, dense),
            "prune_seconds": pruned - start,
            "kernel_seconds": time.perf_counter() - pruned,
        }
    on_progress(Progress("spectra", len(jobs), len(jobs), "net"))


def spectra_during(
    run: Path,
    *,
    data_dir: Path | None = None,
    inputs: int = 100,
    norm: str = "batch",
    dtype: torch.dtype = torch.float32,
    memory_mib: float = 384,
    device: str = "cpu",
    on_progress: OnProgress = lambda progress: None,
) -> dict[str, Any]:
    """Return the spectra at the checkpoints that a run has kept, on the first test images of its data."""
    settings = read_settings(run / "settings.toml")
    checkpoints = sorted(run.glob("epoch-*.safetensors"))
    if not checkpoints:
        raise InputError(f"{run} kept no checkpoints in training; train with --keep-epochs 0,1,2 into another --out")
    data = load(settings.data, data_dir)
    found = Masks.load(run / "masks.safetensors") if (run / "masks.safetensors").exists() else None
    model, masks = network_of(settings, found, data.input_shape, data.num_classes)
    images = spectrum_inputs(data, data.input_shape, inputs, None)
    first: Tensor | None = None
    spectra = []
    for index, path in enumerate(checkpoints):
        on_progress(Progress(settings.label, index, len(checkpoints), "checkpoint", name=path.stem))
        epoch, regrown = read_model(path, model)
        kernel = ntk(model, images, regrown or masks, norm=norm, dtype=dtype, memory_mib=memory_mib, device=device)
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
    on_progress(Progress(settings.label, len(checkpoints), len(checkpoints), "checkpoint"))
    return {"run": run.name, "method": settings.label, "sparsity": settings.sparsity, "epochs": spectra}


def _describe(masks: Masks, kernel: Kernel, dense: Kernel) -> dict[str, Any]:
    """Return what is worth knowing about a kernel, compared with the dense network's, as plain values."""
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
