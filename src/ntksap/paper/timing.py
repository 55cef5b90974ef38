"""Time to prune beside the time of one epoch of training, on generated inputs."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from ntksap import models
from ntksap._base import NtksapError, generator_of, make_folder, read_sealed, write_sealed
from ntksap.data import Dataset, MemorySplit
from ntksap.paper.bench import Bench, settings_at
from ntksap.paper.comparison import Comparison, Entry
from ntksap.paper.plan import Panel, Plan, Row
from ntksap.runs import make_masks
from ntksap.training import TrainState, train

EPOCH = "one epoch"
_STEP = 18
"""The sparsity that is pruned to. Rounds get faster on the way: layers with few kept weights skip the others."""


def pruning_time(plan: Plan, bench: Bench, folder: Path) -> Comparison:
    """Time an epoch and each method: in seconds, and in seconds ÷ those of an epoch."""
    entries, missing = [], []
    kept = bench.out / "times"
    make_folder(kept)
    for panel in plan.panels:
        data = generated(panel)
        epoch = _epoch_seconds(panel, data, bench, kept)
        entries += _pair(panel, EPOCH, epoch, epoch, "")
        for row in panel.rows:
            try:
                found = _prune_seconds(panel, row, data, bench, kept)
            except NtksapError as error:
                missing.append((panel.name, row.name, str(error)))
                continue
            note = "" if row.times == 1 else f"{panel.name}, {row.name}: {_timed(row)} timed, times {row.times:g}."
            entries += _pair(panel, row.name, found * row.times, epoch, note)
    by = "processor time: seconds of one core" if bench.place.device == "cpu" else f"seconds on {bench.place.device}"
    return Comparison(plan, entries, missing, remarks=[f"Measured in {by}."])


def generated(panel: Panel) -> Dataset:
    """Return images of noise with labels in turn: a pruning set's worth of each class, at least four batches."""
    count = max(panel.samples_per_class * panel.classes, 4 * panel.training.batch)
    generator = generator_of("generated", panel.name)
    images = torch.randint(0, 256, (count, *panel.input_shape), dtype=torch.uint8, generator=generator, device="cpu")
    labels = torch.arange(count, device="cpu") % panel.classes
    channels = panel.input_shape[0]
    half = {"mean": (0.5,) * channels, "std": (0.25,) * channels, "pad": 4, "flip": True}
    test = MemorySplit(images[:1], labels[:1], **half)  # type: ignore[arg-type]
    return Dataset("generated", panel.classes, panel.input_shape, MemorySplit(images, labels, **half), test)  # type: ignore[arg-type]


def _epoch_seconds(panel: Panel, data: Dataset, bench: Bench, kept: Path) -> float:
    """Return the time of one epoch over the panel's images: that of four steps, scaled up, after four to warm up."""
    file = kept / f"epoch-{panel.name}-{panel.model}-{panel.recipe}.json"
    if not file.exists():
        split = data.train
        assert isinstance(split, MemorySplit)
        few = 4 * panel.training.batch
        short = MemorySplit(split.images[:few], split.labels[:few], mean=split.mean, std=split.std, pad=4, flip=True)
        state = TrainState(_model(panel), replace(panel.training, epochs=2), device=bench.place.device)
        epochs = train(state, replace(data, train=short))
        next(epochs)
        clock = _clock(bench)
        start = clock()
        next(epochs)
        write_sealed(file, {"seconds": clock() - start, "images": few})
    measured = read_sealed(file)
    return float(measured["seconds"] / measured["images"] * panel.images)


def _prune_seconds(panel: Panel, row: Row, data: Dataset, bench: Bench, kept: Path) -> float:
    """Return the time of pruning with the row's settings."""
    settings = settings_at(panel, row, _STEP, panel.seeds[0])
    file = kept / f"{settings.name}.json"
    if not file.exists():
        model, clock = _model(panel), _clock(bench)
        start = clock()
        make_masks(settings, model, panel.input_shape, data, recipe=settings.recipe, place=bench.place)
        write_sealed(file, {"seconds": clock() - start, "rounds": settings.rounds})
    return float(read_sealed(file)["seconds"])


def _timed(row: Row) -> str:
    """Return which part of a row's work is timed, in words."""
    inputs = f" with {row.options['draws']} × {row.options['batch']} inputs" if "draws" in row.options else ""
    return f"{row.rounds} rounds{inputs}"


def _clock(bench: Bench) -> Callable[[], float]:
    """Return the clock to measure with: on a CPU the work of all cores, which other programs do not change."""
    return time.process_time if bench.place.device == "cpu" else time.perf_counter


def _pair(panel: Panel, row: str, seconds: float, epoch: float, note: str) -> list[Entry]:
    return [
        Entry(panel.name, row, "seconds", seconds, panel.paper(row, 0), note=note),
        Entry(panel.name, row, "epochs", seconds / epoch, panel.paper(row, 1), note=note),
    ]


def _model(panel: Panel) -> torch.nn.Module:
    return models.build(panel.model, num_classes=panel.classes, input_shape=panel.input_shape)
