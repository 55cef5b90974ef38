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

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from ntksap._base import ALONE, TEMPORARY, NtksapError, Ranks, StorageError, write_atomically, write_json
from ntksap.runs.settings import Settings


class BusyError(NtksapError, RuntimeError):
    """Another process works on the run."""


@dataclass(frozen=True)
class Progress:
    """How far some work is: ``done`` of ``total`` units of a stage, such as rounds of "prune" or epochs of "train"."""

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
    """Where a run finds its data and works; none of it changes the result.

    (Except that sums of floating-point numbers depend in their last bits on the device and the number of threads.)
    """

    data_dir: Path | None = None
    download: bool = False
    workers: int = 0
    device: str = "cpu"
    keep_epochs: tuple[int, ...] = ()
    """Keep the checkpoint after these epochs as ``epoch-N.safetensors``; 0 is before training."""
    micro_batch: int | None = None
    """Inputs that scores are computed on at a time; by default a whole batch, and less if memory runs out."""
    sync_norm: bool = True
    """With several processes, BatchNorm takes its statistics over all of them. Without, the result changes a little."""


OnProgress: TypeAlias = Callable[[Progress], object]

Work: TypeAlias = Callable[[Settings, Path, Place, OnProgress, Ranks], dict[str, Any]]
"""(settings, folder, place, on_progress, ranks) → what the result says besides the settings."""


def carry_out(
    work: Work, settings: Settings, root: str | Path, place: Place, on_progress: OnProgress, ranks: Ranks = ALONE
) -> dict[str, Any]:
    """Do ``work`` in the folder that the settings name, write and return its result; what is finished is only read.

    Of several processes the first holds the lock and writes.
    """
    folder = Path(root) / settings.name
    if (result := ranks.from_first(lambda: read_result(folder))) is not None:
        return result
    with ExitStack() as stack:
        ranks.from_first(lambda: stack.enter_context(locked(folder)))
        try:
            if (result := ranks.from_first(lambda: _begun(settings, folder))) is not None:
                return result
            result = {"name": settings.name, **settings.plain(), **work(settings, folder, place, on_progress, ranks)}
            if ranks.first:
                (folder / "error.json").unlink(missing_ok=True)
                write_json(folder / "result.json", result)
            return result
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


def _begun(settings: Settings, folder: Path) -> dict[str, Any] | None:
    """Tidy up what an earlier attempt left, and describe the run; return its result if it is finished after all."""
    for left_over in folder.glob(f"{TEMPORARY}*"):
        left_over.unlink()
    write_atomically(folder / "settings.toml", settings.to_toml())
    return read_result(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases however the process ends. Raises `BusyError` if it is held."""
    folder.mkdir(parents=True, exist_ok=True)
    lock, owner = FileLock(folder / "lock"), folder / "owner"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        who = owner.read_text() if owner.exists() else "unknown"
        raise BusyError(f"{folder.name} is being worked on already, by process {who}") from None
    except (OSError, NotImplementedError) as error:
        raise StorageError(
            f"cannot lock {folder / 'lock'}: {getattr(error, 'strerror', error)}. Runs need a file system with locks "
            "(on NFS: version 4, or version 3 with lockd); choose another --out"
        ) from error
    try:
        owner.write_text(str(os.getpid()))  # beside the lock, since on Windows a locked file cannot be read
        yield
    finally:
        owner.unlink(missing_ok=True)
        lock.release()
