"""A run on disk: settings, masks, metrics, checkpoint, result. It names, describes, resumes and finishes itself.

A run is a folder named by its settings:

- ``settings.toml``: the settings, and the versions in use
- ``masks.safetensors``: the masks (while pruning: ``pruning.safetensors``, the masks after the last round)
- ``metrics.jsonl``: one record per epoch
- ``checkpoint.safetensors``: the training after the last epoch (``epoch-N.safetensors``: after epoch N, if asked)
- ``result.json``: there exactly when the run is finished
- ``error.json``: why the last attempt failed, if it did

Each file is replaced as a whole, so a process that is killed at any moment leaves a folder to go on from. What is done
again after that is the work since the last file, and it ends in the same bits.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ntksap import models
from ntksap.api import prune_steps
from ntksap.cost import Cost, cost
from ntksap.data import Dataset, load, pruning_batches
from ntksap.errors import NtksapError, StorageError
from ntksap.files import TEMPORARY, write_atomically, write_json
from ntksap.machine import peak_memory_mib
from ntksap.masks import Masks
from ntksap.probe import Batch
from ntksap.pruning import Round
from ntksap.sanity import shuffled
from ntksap.seeds import seed_of
from ntksap.settings import DENSE, Settings, versions
from ntksap.training import TrainState, train


class BusyError(NtksapError, RuntimeError):
    """Another process works on the run."""


@dataclass(frozen=True)
class Progress:
    """How far a run is: ``done`` of ``total`` rounds of "prune" or epochs of "train"."""

    stage: str
    done: int
    total: int
    top1: float | None = None

    @property
    def unit(self) -> str:
        """What is counted."""
        return "round" if self.stage == "prune" else "epoch"


@dataclass(frozen=True)
class Place:
    """Where a run finds its data and works; none of it changes the result.

    (Except that sums of floating-point numbers depend in their last bits on the device and the number of threads.)
    """

    data_dir: Path | None = None
    download: bool = False
    workers: int = 0
    device: str = "cpu"
    keep_epochs: tuple[int, ...] = ()
    """Keep the checkpoint after these epochs as ``epoch-N.safetensors``; 0 is before training."""


def run(
    settings: Settings,
    root: str | Path,
    place: Place | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
) -> dict[str, Any]:
    """Carry out a run in ``root``, or go on with it, and return its result; a finished one is only read.

    Raises `BusyError` if another process is at it. Any other error is also written to ``error.json``.
    """
    return carry_out(_work, settings, root, place or Place(), on_progress)


def carry_out(
    work: Callable[[Settings, Path, Place, Callable[[Progress], object]], dict[str, Any]],
    settings: Settings,
    root: str | Path,
    place: Place,
    on_progress: Callable[[Progress], object],
) -> dict[str, Any]:
    """Do ``work`` in the folder that the settings name, write and return its result; what is finished is only read."""
    folder = Path(root) / settings.name
    if (result := read_result(folder)) is not None:
        return result
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder):
        try:
            for left_over in folder.glob(f"{TEMPORARY}*"):
                left_over.unlink()
            if (result := read_result(folder)) is not None:  # finished while we waited for the lock
                return result
            write_atomically(folder / "settings.toml", settings.to_toml())
            result = {"name": settings.name, **settings.plain(), **work(settings, folder, place, on_progress)}
            (folder / "error.json").unlink(missing_ok=True)
            write_json(folder / "result.json", result)
            return result
        except Exception as error:
            with suppress(StorageError):  # on a full disk the error itself is what the caller must hear
                write_json(folder / "error.json", {"error": str(error), "type": type(error).__name__})
            raise


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the result of a finished run, None if it is not finished."""
    try:
        result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    except FileNotFoundError:
        return None
    return result


def kept_name(epoch: int) -> str:
    """Return the name of the checkpoint that is kept after an epoch; names sort like epochs."""
    return f"epoch-{epoch:04d}.safetensors"


def _work(settings: Settings, folder: Path, place: Place, on_progress: Callable[[Progress], object]) -> dict[str, Any]:
    data = _data(settings.data, place.data_dir, place.download, place.workers)
    model = _model(settings, data, settings.seed)
    masks = None
    if settings.method != DENSE:
        batches = pruning_batches(
            data, per_class=settings.samples_per_class, batch_size=settings.prune_batch, seed=settings.seed
        )
        masks = pruned(settings, folder, model, data.input_shape, batches, place, on_progress)
    if settings.sanity == "reinit":
        model = _model(settings, data, seed_of(settings.seed, "reinit"))
    flops = cost(model, masks, input_shape=data.input_shape)
    records = _trained(settings, folder, model, masks, data, place, on_progress)
    return {
        **{key: records[-1][key] for key in ("top1", "top5", "test_loss", "train_loss", "train_accuracy")},
        **facts(masks, flops),
        "train_seconds": sum(record["seconds"] for record in records),
        "peak_memory_mib": peak_memory_mib(),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def facts(masks: Masks | None, flops: Cost) -> dict[str, Any]:
    """Return what a result says of its masks."""
    return {
        "kept": masks.kept if masks else None,
        "total": masks.total if masks else None,
        "density": masks.density if masks else 1.0,
        "collapsed": masks.collapsed if masks else [],
        "mask_sha256": masks.sha256 if masks else None,
        "layers": masks.layers() if masks else [],
        "inference_flops": flops.sparse,
        "dense_flops": flops.dense,
        "prune_seconds": masks.info["seconds"] if masks else 0.0,
    }


def pruned(
    settings: Settings,
    folder: Path,
    model: nn.Module,
    input_shape: tuple[int, ...],
    batches: Sequence[Batch],
    place: Place,
    on_progress: Callable[[Progress], object],
) -> Masks:
    """Return the masks of the run: read them, or prune from the last round that was saved."""
    final, partial = folder / "masks.safetensors", folder / "pruning.safetensors"
    if final.exists():
        return Masks.load(final)
    after, seconds = None, 0.0
    if partial.exists():
        saved = Masks.load(partial)
        after = Round(saved.info["round"], settings.rounds, saved)
        seconds = saved.info["seconds"]
    start = time.perf_counter() - seconds
    masks = after.masks if after else None
    for state in prune_steps(
        model,
        settings.sparsity,
        settings.method,
        input_shape=input_shape,
        data=batches,
        seed=settings.seed,
        rounds=settings.rounds,
        schedule=settings.schedule,
        scope=settings.scope,
        floor=settings.floor,
        init=settings.init,
        device=place.device,
        invert=settings.sanity == "invert",
        after=after,
        **settings.options,
    ):
        masks = Masks(state.masks, {"round": state.index, "seconds": time.perf_counter() - start})
        if state.index < state.rounds:
            masks.save(partial)
        on_progress(Progress("prune", state.index, state.rounds))
    assert masks is not None
    if settings.sanity == "shuffle":
        masks = shuffled(masks, settings.seed)
    masks.save(final)
    partial.unlink(missing_ok=True)
    return masks


def _trained(
    settings: Settings,
    folder: Path,
    model: nn.Module,
    masks: Masks | None,
    data: Dataset,
    place: Place,
    on_progress: Callable[[Progress], object],
) -> list[dict[str, Any]]:
    """Train from the last epoch that was saved and return the records of all epochs."""
    metrics, checkpoint = folder / "metrics.jsonl", folder / "checkpoint.safetensors"
    state = TrainState(model, settings.recipe, masks=masks, seed=settings.seed, device=place.device)
    records: list[dict[str, Any]] = []
    if checkpoint.exists():
        state.load(checkpoint)
        # The record of an epoch is written before its checkpoint, so there may be one too many, never one too few.
        records = [json.loads(line) for line in metrics.read_text().splitlines()][: state.epoch]
    if state.epoch == 0 and 0 in place.keep_epochs:
        state.save(folder / kept_name(0))
    for record in train(state, data):
        records.append(asdict(record))
        write_atomically(metrics, "".join(json.dumps(r) + "\n" for r in records))
        if record.epoch in place.keep_epochs:
            state.save(folder / kept_name(record.epoch))
        state.save(checkpoint)  # last, since a run goes on behind it
        on_progress(Progress("train", record.epoch, settings.recipe.epochs, record.top1))
    return records


def _model(settings: Settings, data: Dataset, seed: int) -> nn.Module:
    return models.build(settings.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=seed)


@lru_cache(maxsize=1)  # the runs of a sweep share their data
def _data(name: str, data_dir: Path | None, download: bool, workers: int) -> Dataset:
    return load(name, data_dir, download=download, workers=workers)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases however the process ends."""
    with open(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.seek(0)
            owner = file.read().strip()
            raise BusyError(f"{folder.name} is being worked on already, by process {owner or 'unknown'}") from None
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
