"""What a run's network costs, measured: seconds of inference and of a training step beside the dense one, and bytes.

This is a step of its own after the runs, never part of training. ``timings.json`` in a run's folder holds what was
measured, so that it is measured only once. A network with whole channels removed is the plain smaller module that
`ntksap.compact` makes of it; other masks run under `ntksap.sparse_kernels`; dense and thin networks are plain torch.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ntksap import models
from ntksap._base import DamageError, generator_of, sealed, unsealed, write_json
from ntksap.net.kernels import sparse_kernels
from ntksap.pruning import Masks, save_sparse
from ntksap.runs.execution import run_data
from ntksap.runs.folder import OnProgress, Place, Progress, locked
from ntksap.runs.network import network_of
from ntksap.runs.settings import DENSE, THIN, Settings

_MEASURED = ("inference_1", "inference_64", "step_64")
"""What is measured: inference of 1 and of 64 inputs, a training step of 64."""
_LEAST, _MOST, _SECONDS = 3, 31, 5.0
"""The least and the most turns of each, and how long those beyond the least may take."""

Deed = Callable[[], object]


def measure(
    plan: list[Settings], root: Path, place: Place, on_progress: OnProgress = lambda progress: None
) -> dict[str, dict[str, Any]]:
    """Return the timings of these finished runs by name: those that were measured before are only read."""
    found = {}
    for index, settings in enumerate(plan):
        folder = root / settings.name
        timings = read_timings(folder)
        if timings is None:
            on_progress(Progress("measure", index, len(plan), "run", name=settings.name))
            with locked(folder):
                timings = _measured(settings, folder, place)
                write_json(folder / "timings.json", sealed(timings))
        found[settings.name] = timings
    on_progress(Progress("measure", len(plan), len(plan), "run"))
    return found


def read_timings(folder: Path) -> dict[str, Any] | None:
    """Return the timings of a run, None if there are none; `DamageError` if the file holds something else."""
    path = folder / "timings.json"
    try:
        return checked_timings(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise DamageError(f"{path} is damaged: {error}. Remove it, and the same command measures again") from error


def checked_timings(content: bytes) -> dict[str, Any]:
    """Return the timings that a file holds; ValueError if it holds none."""
    timings = unsealed(json.loads(content))
    for key in (
        "bytes",
        "dense_bytes",
        *(f"{kind}{what}" for what in _MEASURED for kind in ("", "dense_", "speedup_")),
    ):
        value = timings.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise ValueError(f"{key} is missing or not a usable number")
    return timings


def _measured(settings: Settings, folder: Path, place: Place) -> dict[str, Any]:
    data = run_data(settings, place)
    shape, classes = data.input_shape, data.num_classes
    dense = models.build(settings.model, num_classes=classes, input_shape=shape, seed=settings.seed)
    found = None if settings.method in (DENSE, THIN) else Masks.load(folder / "masks.safetensors")
    own, masks = network_of(settings, found, shape, classes)
    return compared(own, masks, dense, shape, classes)


def compared(
    own: nn.Module, masks: Masks | None, dense: nn.Module, shape: tuple[int, ...], classes: int
) -> dict[str, Any]:
    """Return seconds and bytes of a network beside those of the dense one, and how many times faster it is.

    Args:
        own: the network; masks are attached to it, and a few steps of training change its weights.
        masks: its masks, None if it has none or they were cut out.
        dense: the dense network, which is trained a little as well.
        shape, classes: the shape of one input, and the number of outputs.
    """
    timings: dict[str, Any] = {"threads": torch.get_num_threads(), "dense_bytes": file_bytes(dense, None)}
    images = torch.randn(64, *shape, generator=generator_of("timings"), device="cpu")
    labels = torch.arange(64, device="cpu") % classes
    with _at_work(own, masks) as last:
        timings["bytes"] = file_bytes(own, masks)
        before, now = _deeds(dense, images, labels, False), _deeds(own, images, labels, last)
        for what in _MEASURED:
            dense_seconds, seconds, ratio = interleaved(before[what], now[what])
            timings |= {what: seconds, f"dense_{what}": dense_seconds, f"speedup_{what}": ratio}
    return timings


@contextmanager
def _at_work(module: nn.Module, masks: Masks | None) -> Iterator[bool]:
    """Attach masks and put them to work inside the block; yield whether channels are best last, as weights then are."""
    if masks is None:
        yield False
        return
    masks.attach(module)
    with sparse_kernels(module, masks) as most:
        if not most:
            module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        yield not most


def _deeds(module: nn.Module, images: Tensor, labels: Tensor, last: bool) -> dict[str, Deed]:
    """Return the deeds of a module to be timed; ``last``: on images with channels last."""
    images = images.contiguous(memory_format=torch.channels_last) if last else images
    optimizer = torch.optim.SGD(module.parameters(), 1e-3, momentum=0.9)

    @torch.no_grad()
    def infer(given: Tensor) -> None:
        module.eval()(given)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(module.train()(images), labels).backward()
        optimizer.step()

    return {"inference_1": partial(infer, images[:1]), "inference_64": partial(infer, images), "step_64": step}


def interleaved(first: Deed, second: Deed) -> tuple[float, float, float]:
    """Return the median seconds of two deeds that take turns, and the median of first ÷ second over the turns.

    Whatever else the machine does meanwhile slows down both, so that the ratio is known better than the seconds.
    """
    both = (first, second)
    for deed in (*both, *both):  # memory, caches, choices of kernels
        deed()
    seconds: tuple[list[float], list[float]] = ([], [])
    begin = time.perf_counter()
    for turn in range(_MOST):
        if turn >= _LEAST and time.perf_counter() - begin > _SECONDS:
            break
        for which in (0, 1) if turn % 2 == 0 else (1, 0):
            start = time.perf_counter()
            both[which]()
            seconds[which].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(*seconds, strict=True)]
    return statistics.median(seconds[0]), statistics.median(seconds[1]), statistics.median(ratios)


def file_bytes(module: nn.Module, masks: Masks | None) -> int:
    """Return the bytes of the safetensors file of a module; of a module with masks attached, `save_sparse`'s."""
    if masks is None:
        return len(save({name: tensor.detach().clone().contiguous() for name, tensor in module.state_dict().items()}))
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_sparse(module, masks, path)
        return path.stat().st_size
