"""A run: from initial weights through masks to test accuracy, in a folder of its own (see `ntksap.runs.folder`).

A run may end with its masks: to say what a pruned network would cost takes no training, and often no data.
"""

from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup

from ntksap import models
from ntksap._base import Ranks, peak_memory_mib
from ntksap.analysis import Cost, cost
from ntksap.data import Dataset, load
from ntksap.methods import method_named
from ntksap.net import prunable_names
from ntksap.pruning import Masks
from ntksap.runs.folder import (
    FINAL_MASKS,
    OnProgress,
    Place,
    Progress,
    carry_out,
    kept_name,
    read_records,
    write_records,
)
from ntksap.runs.logs import opened_logs
from ntksap.runs.masking import make_masks
from ntksap.runs.network import network_of
from ntksap.runs.settings import DENSE, THIN, Settings
from ntksap.training import TrainState, train


def run(
    settings: Settings,
    root: str | Path,
    place: Place | None = None,
    on_progress: OnProgress = lambda progress: None,
    group: ProcessGroup | None = None,
) -> dict[str, Any]:
    """Carry out a run in ``root``, or resume it, and return its result; a finished one is only read.

    With a ``group``, every process in it makes this call and they share the work; the first one writes, and all of them
    must see the folder. A run may resume with a different number of processes than it began with.

    Raises `BusyError` if another process is working on it. Any other error is also written to ``error.json``.
    """
    place, ranks = place or Place(), Ranks(group)
    result = carry_out(_work, settings, root, place, on_progress, ranks)
    if ranks.first:
        complete_logs(settings, Path(root) / settings.name, place)
    return result


def complete_logs(settings: Settings, folder: Path, place: Place) -> None:
    """Write the logs that a finished run does not have yet."""
    missing = [name for name in place.log if not (folder / name).exists()]
    if missing:
        with opened_logs(missing, folder, settings, read_records(folder / "metrics.jsonl", settings.recipe.epochs)):
            pass


def _work(settings: Settings, folder: Path, place: Place, on_progress: OnProgress, ranks: Ranks) -> dict[str, Any]:
    ranks.from_first(lambda: run_data(settings, place) and None)  # one process fetches the data, then all read it
    data = run_data(settings, place)
    shape, classes = data.input_shape, data.num_classes
    whole = models.build(settings.model, num_classes=classes, input_shape=shape, seed=settings.seed)
    masks = None
    if settings.method not in (DENSE, THIN):
        masks = _masks(settings, whole, shape, classes, data, folder, place, on_progress, ranks)
    network, attached = network_of(settings, masks, shape, classes)
    known = facts(masks, cost(network, attached, input_shape=shape))
    known["dense_flops"] = cost(whole, input_shape=shape).dense  # the network may be a smaller one
    if settings.method == THIN:
        kept, total = (sum(one.get_parameter(n).numel() for n in prunable_names(one)) for one in (network, whole))
        known |= {"kept": kept, "total": total, "density": kept / total}
    records, last = _trained(settings, folder, network, attached, data, place, on_progress, ranks)
    return {
        **{key: records[-1][key] for key in ("top1", "top5", "test_loss", "train_loss", "train_accuracy")},
        **known,
        **({"final_mask_sha256": last.sha256} if last else {}),
        "test_images": len(data.test),
        "train_seconds": sum(record["seconds"] for record in records),
        "peak_memory_mib": peak_memory_mib(),
        "threads": torch.get_num_threads(),
        "processes": ranks.size,
    }


def prune_only(
    settings: Settings,
    root: Path,
    place: Place,
    on_progress: OnProgress,
    *,
    input_shape: tuple[int, int, int],
    classes: int,
) -> dict[str, Any]:
    """Prune as `run` would, resumable in the same way, and return what is known about the masks.

    Data is read only where the method needs it; without it, the shapes say what the model looks like.
    """

    def work(settings: Settings, folder: Path, place: Place, on_progress: OnProgress, ranks: Ranks) -> dict[str, Any]:
        model = models.build(settings.model, num_classes=classes, input_shape=input_shape, seed=settings.seed)
        data = None if method_named(settings.method).data_free else run_data(settings, place)
        masks = _masks(settings, model, input_shape, classes, data, folder, place, on_progress, ranks)
        return {**facts(masks, cost(model, masks, input_shape=input_shape)), "threads": torch.get_num_threads()}

    return carry_out(work, settings, root, place, on_progress)


def facts(masks: Masks | None, flops: Cost) -> dict[str, Any]:
    """Return what a result says about its masks."""
    return {
        "kept": masks.kept if masks else None,
        "total": masks.total if masks else None,
        "density": masks.density if masks else 1.0,
        "collapsed": masks.collapsed if masks else [],
        "mask_sha256": masks.sha256 if masks else None,
        "layers": masks.layers() if masks else [],
        "inference_flops": flops.sparse,
        "dense_flops": flops.dense,
        "prune_precision": masks.info.get("precision") if masks else None,
        "prune_seconds": masks.info["seconds"] if masks else 0.0,
    }


def run_data(settings: Settings, place: Place) -> Dataset:
    """Return the data set of a run; the runs of a sweep share it."""
    return _loaded(settings.data, place.data_dir, place.download, place.workers)


def _masks(
    settings: Settings,
    model: nn.Module,
    input_shape: tuple[int, int, int],
    classes: int,
    data: Dataset | None,
    folder: Path,
    place: Place,
    on_progress: OnProgress,
    ranks: Ranks,
) -> Masks:
    return make_masks(
        settings,
        model,
        input_shape,
        data,
        recipe=settings.recipe,
        about={"model": settings.model, "classes": classes},
        folder=folder,
        place=place,
        on_progress=on_progress,
        ranks=ranks,
    )


@lru_cache(maxsize=1)
def _loaded(name: str, data_dir: Path | None, download: bool, workers: int) -> Dataset:
    return load(name, data_dir, download=download, workers=workers)


def _trained(
    settings: Settings,
    folder: Path,
    model: nn.Module,
    masks: Masks | None,
    data: Dataset,
    place: Place,
    on_progress: OnProgress,
    ranks: Ranks,
) -> tuple[list[dict[str, Any]], Masks | None]:
    """Train from the last epoch that was saved; return the records of all epochs, and the masks if they changed."""
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
        state.load(checkpoint, other_kernels=place.other_kernels)
        # The record of an epoch is written before its checkpoint, so there may be one too many, never one too few.
        records = ranks.from_first(lambda: read_records(metrics, state.epoch))
    if state.epoch == 0 and 0 in place.keep_epochs and ranks.first:
        state.save(folder / kept_name(0))
    with opened_logs(place.log if ranks.first else (), folder, settings, records) as log:
        for record in train(state, data):
            records.append(asdict(record))
            if not ranks.first:
                continue
            write_records(metrics, records)
            log(records[-1])
            if record.epoch in place.keep_epochs:
                state.save(folder / kept_name(record.epoch))
            state.save(checkpoint)  # last, since a run resumes after it
            on_progress(Progress("train", record.epoch, settings.recipe.epochs, "epoch", record.top1))
    if not state.regrows or state.masks is None:
        return records, None
    if ranks.first:
        state.masks.save(folder / FINAL_MASKS)
    return records, state.masks
