"""A run on disk: settings, masks, metrics, checkpoint, result. It names, describes, resumes and finishes itself.

A run is a folder named by its settings:

- ``settings.toml``: the settings, and the versions in use
- ``masks.safetensors``: the masks, and the weights to start from if the method chose some (while pruning:
  ``pruning.safetensors``, what is known after the last round)
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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup

from ntksap import models
from ntksap.api import precision_of, prune_steps
from ntksap.cost import cost
from ntksap.data import Dataset, load
from ntksap.errors import NtksapError, StorageError
from ntksap.files import TEMPORARY, write_atomically, write_json
from ntksap.machine import peak_memory_mib
from ntksap.masks import Masks
from ntksap.methods import method_named
from ntksap.pruning import Round
from ntksap.pruning_data import pruning_data
from ntksap.ranks import Ranks
from ntksap.sanity import shuffled
from ntksap.seeds import seed_of
from ntksap.settings import DENSE, Settings, versions
from ntksap.training import TrainState, train

_STATE = "state/"  # stands before the names of what a pruner needs to go on


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
    sync_norm: bool = True
    """With several processes, BatchNorm takes its statistics over all of them. Without, the result changes a little."""


def run(
    settings: Settings,
    root: str | Path,
    place: Place | None = None,
    on_progress: Callable[[Progress], object] = lambda progress: None,
    group: ProcessGroup | None = None,
) -> dict[str, Any]:
    """Carry out a run in ``root``, or go on with it, and return its result; a finished one is only read.

    With a ``group``, every process of it makes this call and they share the work; the first one writes, all of them
    must see the folder. A run may go on with another number of processes than it began with.

    Raises `BusyError` if another process is at it. Any other error is also written to ``error.json``.
    """
    folder, ranks = Path(root) / settings.name, Ranks(group)
    if (result := ranks.from_first(lambda: read_result(folder))) is not None:
        return result
    with ExitStack() as stack:
        ranks.from_first(lambda: stack.enter_context(locked(folder)))
        try:
            return _work(settings, folder, place or Place(), on_progress, ranks)
        except Exception as error:
            if ranks.first:
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


def _work(
    settings: Settings, folder: Path, place: Place, on_progress: Callable[[Progress], object], ranks: Ranks
) -> dict[str, Any]:
    if (result := ranks.from_first(lambda: _begun(settings, folder))) is not None:
        return result
    ranks.from_first(lambda: _data(settings, place) and None)  # one process fetches and checks the data, then all read
    data = _data(settings, place)
    model = _model(settings, data, settings.seed)
    masks = None
    if settings.method != DENSE:
        masks = _pruned(settings, folder, model, data, place, on_progress, ranks)
    if settings.sanity == "reinit":
        model = _model(settings, data, seed_of(settings.seed, "reinit"))
    elif masks is not None and masks.weights:
        masks.load_weights(model)
    flops = cost(model, masks, input_shape=data.input_shape)
    records = _trained(settings, folder, model, masks, data, place, on_progress, ranks)
    result = {
        "name": settings.name,
        **settings.plain(),
        **{key: records[-1][key] for key in ("top1", "top5", "test_loss", "train_loss", "train_accuracy")},
        "kept": masks.kept if masks else None,
        "total": masks.total if masks else None,
        "density": masks.density if masks else 1.0,
        "collapsed": masks.collapsed if masks else [],
        "mask_sha256": masks.sha256 if masks else None,
        "layers": masks.layers() if masks else [],
        "inference_flops": flops.sparse,
        "dense_flops": flops.dense,
        "precision": masks.info.get("precision") if masks else None,
        "prune_seconds": masks.info["seconds"] if masks else 0.0,
        "train_seconds": sum(record["seconds"] for record in records),
        "peak_memory_mib": peak_memory_mib(),
        "threads": torch.get_num_threads(),
        "processes": ranks.size,
        "versions": versions(),
    }
    if ranks.first:
        (folder / "error.json").unlink(missing_ok=True)
        write_json(folder / "result.json", result)
    return result


def _begun(settings: Settings, folder: Path) -> dict[str, Any] | None:
    """Tidy up what an earlier attempt left, and describe the run; return its result if it is finished after all."""
    for left_over in folder.glob(f"{TEMPORARY}*"):
        left_over.unlink()
    write_atomically(folder / "settings.toml", settings.to_toml())
    return read_result(folder)


def _pruned(
    settings: Settings,
    folder: Path,
    model: nn.Module,
    data: Dataset,
    place: Place,
    on_progress: Callable[[Progress], object],
    ranks: Ranks,
) -> Masks:
    """Return the masks of the run: read them, or prune from the last round that was saved."""
    final, partial = folder / "masks.safetensors", folder / "pruning.safetensors"
    if (found := ranks.from_first(lambda: Masks.load(final) if final.exists() else None)) is not None:
        return found
    after, seconds = None, 0.0
    if (saved := ranks.from_first(lambda: Masks.load(partial) if partial.exists() else None)) is not None:
        state = {name.removeprefix(_STATE): t for name, t in saved.weights.items() if name.startswith(_STATE)}
        weights = {name: t for name, t in saved.weights.items() if not name.startswith(_STATE)}
        after = Round(saved.info["round"], settings.rounds, saved, weights, state)
        seconds = saved.info["seconds"]
    batches = pruning_data(
        method_named(settings.method),
        data,
        seed=settings.seed,
        per_class=settings.samples_per_class,
        batch=settings.prune_batch,
        train_batch=settings.recipe.batch,
        augment=settings.recipe.augment,
    )
    about = {key: getattr(settings, key) for key in ("method", "model", "seed", "sparsity")}
    about |= {"input_shape": list(data.input_shape), "classes": data.num_classes}
    about["precision"] = precision_of(model, settings.method, device=place.device)
    start = time.perf_counter() - seconds
    masks = after.masks if after else None
    for round_ in prune_steps(
        model,
        settings.sparsity,
        settings.method,
        input_shape=data.input_shape,
        data=batches,
        seed=settings.seed,
        rounds=settings.rounds,
        schedule=settings.schedule,
        scope=settings.scope,
        floor=settings.floor,
        init=settings.init,
        precision=about["precision"],
        device=place.device,
        invert=settings.sanity == "invert",
        after=after,
        group=ranks.group,
        **settings.options,
    ):
        info = {**about, **round_.facts, "round": round_.index, "seconds": time.perf_counter() - start}
        masks = Masks(round_.masks, info, round_.weights)
        if round_.index < round_.rounds and ranks.first:
            state = {f"{_STATE}{name}": tensor for name, tensor in round_.state.items()}
            Masks(masks, info, {**round_.weights, **state}).save(partial)
        on_progress(Progress("prune", round_.index, round_.rounds))
    assert masks is not None
    if settings.sanity == "shuffle":
        masks = shuffled(masks, settings.seed)
    if ranks.first:
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
    ranks: Ranks,
) -> list[dict[str, Any]]:
    """Train from the last epoch that was saved and return the records of all epochs."""
    metrics, checkpoint = folder / "metrics.jsonl", folder / "checkpoint.safetensors"
    state = TrainState(
        model,
        settings.recipe,
        masks=masks,
        seed=settings.seed,
        device=place.device,
        group=ranks.group,
        sync_norm=place.sync_norm,
    )
    records: list[dict[str, Any]] = []
    if ranks.from_first(checkpoint.exists):
        state.load(checkpoint)
        # The record of an epoch is written before its checkpoint, so there may be one too many, never one too few.
        records = [json.loads(line) for line in metrics.read_text().splitlines()][: state.epoch]
    if state.epoch == 0 and 0 in place.keep_epochs and ranks.first:
        state.save(folder / kept_name(0))
    for record in train(state, data):
        records.append(asdict(record))
        if not ranks.first:
            continue
        write_atomically(metrics, "".join(json.dumps(r) + "\n" for r in records))
        if record.epoch in place.keep_epochs:
            state.save(folder / kept_name(record.epoch))
        state.save(checkpoint)  # last, since a run goes on behind it
        on_progress(Progress("train", record.epoch, settings.recipe.epochs, record.top1))
    return records


def _model(settings: Settings, data: Dataset, seed: int) -> nn.Module:
    return models.build(settings.model, num_classes=data.num_classes, input_shape=data.input_shape, seed=seed)


@lru_cache(maxsize=1)  # the runs of a sweep share their data
def _loaded(name: str, data_dir: Path | None, download: bool, workers: int) -> Dataset:
    return load(name, data_dir, download=download, workers=workers)


def _data(settings: Settings, place: Place) -> Dataset:
    return _loaded(settings.data, place.data_dir, place.download, place.workers)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases however the process ends. Raises `BusyError` if it is held."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip()
            raise BusyError(f"{folder.name} is being worked on already, by process {owner or 'unknown'}") from None
        except OSError as error:
            raise StorageError(
                f"cannot lock {folder / 'lock'}: {error.strerror}. Runs need a file system with locks (on NFS: "
                "version 4, or version 3 with lockd); choose another --out"
            ) from error
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield
