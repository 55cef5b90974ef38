"""A run on disk: settings, masks, metrics, checkpoint, result. It names, describes, resumes and finishes itself.

A run is a folder named by its settings:

- ``settings.toml``: the settings, the versions in use, and whose kernels the run has been computed with
- ``masks.safetensors``: the masks, and the weights to start from if the method chose some (while pruning:
  ``pruning.safetensors``, what is known after the last round)
- ``masks-final.safetensors``: the masks after training, where the recipe regrows
- ``metrics.jsonl``: one record per epoch
- ``checkpoint.safetensors``: the training after the last epoch (``epoch-N.safetensors``: after epoch N, if asked)
- ``result.json``: there exactly when the run is finished
- ``error.json``: why the last attempt failed, if it did
- ``tensorboard/``, ``wandb/``: logs, if asked for, which are made from the records
- ``lock``, ``owner``: the lock, and while it is held the number of the process that holds it

Each file is replaced as a whole, so a process that is killed at any moment leaves a folder to resume from. Only the
work since the last file is then done again, and it ends in the same bits.

Each file except ``error.json`` holds a hash of its contents. One that no longer matches is an error that says which
file to remove, so that the same command does its part of the work again. Files from before there were hashes are taken
as they are.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import torch
from filelock import FileLock, Timeout

from ntksap._base import (
    ALONE,
    TEMPORARY,
    DamageError,
    InputError,
    NtksapError,
    Ranks,
    StorageError,
    make_folder,
    sealed,
    unsealed,
    usable_device,
    write_atomically,
    write_json,
)
from ntksap.net.kernels import provenance
from ntksap.runs.logs import check_logs
from ntksap.runs.settings import Settings, read_kernels, versions

FINAL_MASKS = "masks-final.safetensors"
_NUMBERS = ("sparsity", "seed", "density", "inference_flops", "dense_flops", "prune_seconds")
_OF_TRAINING = ("top1", "top5", "test_loss", "train_loss", "train_accuracy", "train_seconds")


class BusyError(NtksapError, RuntimeError):
    """Another process is working on the run."""


@dataclass(frozen=True)
class Progress:
    """How far some work has got: ``done`` of ``total`` units of a stage, such as rounds of "prune"."""

    stage: str
    done: int
    total: int
    unit: str
    top1: float | None = None
    density: float | None = None
    name: str = ""
    """What is being worked on."""

    @property
    def note(self) -> str:
        """What else there is to say."""
        if self.top1 is not None:
            return f"test accuracy {self.top1:.2%}"
        return f"density {100 * self.density:.3g} %" if self.density is not None else self.name


@dataclass(frozen=True)
class Place:
    """Where a run works and finds its data; none of it changes the result.

    (Except that sums of floating-point numbers depend in their last bits on the device and the number of threads.)
    """

    data_dir: Path | None = None
    download: bool = False
    workers: int = 0
    device: str = "cpu"
    keep_epochs: tuple[int, ...] = ()
    """Keep the checkpoint after these epochs as ``epoch-N.safetensors``; 0 is before training."""
    sync_norm: bool = True
    """With several processes, BatchNorm takes its statistics over all of them; otherwise results differ a little."""
    micro_batch: int | None = None
    """Inputs that scores are computed on at a time; by default a whole batch, and less if memory runs out."""
    other_kernels: bool = False
    """Resume a run that began with other kernels (see `ntksap.net.kernels`). The result then says so."""
    log: tuple[str, ...] = ()
    """Where else to log training, see `ntksap.runs.logs`: "tensorboard", "wandb"."""

    def __post_init__(self) -> None:
        check_logs(self.log)


OnProgress: TypeAlias = Callable[[Progress], object]

Work: TypeAlias = Callable[[Settings, Path, Place, OnProgress, Ranks], dict[str, Any]]
"""(settings, folder, place, on_progress, ranks) → what the result says besides the settings."""


def carry_out(
    work: Work, settings: Settings, root: str | Path, place: Place, on_progress: OnProgress, ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Do ``work`` in the folder that the settings name, write and return its result; a finished one is only read.

    Of several processes, the first holds the lock and writes.
    """
    folder = Path(root) / settings.name
    usable_device(place.device)
    if (result := ranks.from_first(lambda: read_result(folder))) is not None:
        return result
    with ExitStack() as stack:
        ranks.from_first(lambda: stack.enter_context(locked(folder)))
        try:
            kernels = ranks.from_first(lambda: _kernels(folder, place))
            if (result := ranks.from_first(lambda: _begun(settings, folder, kernels))) is not None:
                return result
            result = {"name": settings.name, **settings.plain(), **work(settings, folder, place, on_progress, ranks)}
            result["versions"] = versions(kernels)
            if ranks.first:
                (folder / "error.json").unlink(missing_ok=True)
                write_json(folder / "result.json", sealed(result))
            return result
        except Exception as error:
            if ranks.first:
                with suppress(StorageError):  # on a full disk the error itself is what the caller must hear
                    write_json(folder / "error.json", {"error": str(error), "type": type(error).__name__})
            raise


def read_result(folder: Path) -> dict[str, Any] | None:
    """Return the result of a finished run, None if it is not finished; `DamageError` if the file holds no result."""
    path = folder / "result.json"
    try:
        return checked_result(path.read_bytes(), folder.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise DamageError(
            f"{path} is damaged: {error}. Remove it, and the same command makes it again from the rest of the run"
        ) from error


def checked_result(content: bytes, name: str) -> dict[str, Any]:
    """Return the result of the run ``name`` from the contents of its file; ValueError if it is not such a result."""
    try:
        result = unsealed(json.loads(content))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if result.get("name") != name:
        raise ValueError("it is not the result of this run")
    trained = _OF_TRAINING if any(key in result for key in _OF_TRAINING) else ()
    for key in (*_NUMBERS, *trained):
        if not isinstance(result.get(key), int | float):
            raise ValueError(f"{key} is missing or not a number")
    if not isinstance(result.get("method"), str) or not isinstance(result.get("mask_sha256"), str | None):
        raise ValueError("method or mask_sha256 is missing")
    if not isinstance(result.get("collapsed"), list) or not isinstance(result.get("layers"), list):
        raise ValueError("collapsed or layers is missing")
    return result


def write_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Write the records of epochs, one per line, each with its hash."""
    write_atomically(path, "".join(json.dumps(sealed(record)) + "\n" for record in records))


def read_records(path: Path, epochs: int) -> list[dict[str, Any]]:
    """Return the records of the first ``epochs`` epochs; `DamageError` if they are not there as they were written."""
    try:
        lines = path.read_bytes().splitlines()
        records = [unsealed(json.loads(line)) for line in lines[:epochs]]
        if len(records) != epochs or any(r.get("epoch") != index for index, r in enumerate(records, start=1)):
            raise ValueError(f"it does not hold the records of epochs 1 to {epochs}")
    except (OSError, ValueError, RecursionError) as error:
        raise DamageError(
            f"{path} is damaged or gone: {error}. Remove it and checkpoint.safetensors, and the same command trains "
            "again from the start, to the same result"
        ) from error
    return records


def kept_name(epoch: int) -> str:
    """Return the name of the checkpoint that is kept after an epoch; names sort like epochs."""
    return f"epoch-{epoch:04d}.safetensors"


def _kernels(folder: Path, place: Place) -> str:
    """Return whose kernels the run will have been computed with; raises `InputError` if they change without consent.

    Folders of earlier versions may not say which ones they began with; then there is no way to tell.
    """
    now, before = provenance(), read_kernels(folder / "settings.toml")
    begun = any(folder.glob("*.safetensors"))
    if not begun or before is None or before.split(_THEN)[-1] == now or torch.device(place.device).type != "cpu":
        return before if begun and before else now
    if not place.other_kernels:
        raise InputError(
            f"{folder.name} began with the kernels of {before} and would carry on with those of {now}, which round "
            "differently: the result would be that of neither. Restore them (a C compiler, NTKSAP_NATIVE), begin "
            "again elsewhere, or insist with --other-kernels"
        )
    return f"{before}{_THEN}{now}"


_THEN = ", then "


def _begun(settings: Settings, folder: Path, kernels: str) -> dict[str, Any] | None:
    """Tidy up what an earlier attempt left, and describe the run; return its result if it is finished after all."""
    for left_over in folder.glob(f"{TEMPORARY}*"):
        with suppress(OSError):  # what cannot be removed does no harm
            left_over.unlink()
    write_atomically(folder / "settings.toml", settings.to_toml(kernels))
    return read_result(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases however the process ends. Raises `BusyError` if it is held."""
    make_folder(folder)
    lock, owner = FileLock(folder / "lock"), folder / "owner"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        who = owner.read_text() if owner.exists() else "unknown"
        raise BusyError(f"{folder.name} is already being worked on, by process {who}") from None
    except (IsADirectoryError, PermissionError) as error:
        raise StorageError(
            f"cannot open {folder / 'lock'}: {error.strerror}. It must be a file that can be written: remove what is "
            "in its place, or choose another --out"
        ) from error
    except (OSError, NotImplementedError) as error:
        raise StorageError(
            f"cannot lock {folder / 'lock'}: {getattr(error, 'strerror', error)}. Runs need a file system with locks "
            "(on NFS: version 4, or version 3 with lockd); choose another --out"
        ) from error
    try:
        write_atomically(owner, str(os.getpid()))  # beside the lock, since on Windows a locked file cannot be read
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
