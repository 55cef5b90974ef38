"""The records of training for those who watch it in TensorBoard or Weights & Biases.

A log is made from the records alone: each time it is opened it is rewritten from those that exist, so that a run that
was killed and resumed has each epoch once. ``metrics.jsonl`` stays the truth.
"""

import importlib.util
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from ntksap._base import InputError, unknown
from ntksap.runs.settings import Settings

Record: TypeAlias = Mapping[str, Any]
Add: TypeAlias = Callable[[Record], object]


def check_logs(names: Sequence[str]) -> None:
    """Raise `InputError` for an unknown log, or one whose package is not installed."""
    for name in names:
        if name not in LOGS:
            raise unknown("log", name, LOGS)
        if importlib.util.find_spec(name) is None:
            raise InputError(f"--log {name} needs a package that is not installed: pip install 'ntksap[{name}]'")


@contextmanager
def opened_logs(names: Sequence[str], folder: Path, settings: Settings, records: Sequence[Record]) -> Iterator[Add]:
    """Begin the logs of a run in its folder with the records so far; yield a function that adds a record to each."""
    with ExitStack() as stack:
        logs = []
        for name in names:
            shutil.rmtree(folder / name, ignore_errors=True)
            logs.append(stack.enter_context(LOGS[name](folder, settings, sum(record["seconds"] for record in records))))

        def add(record: Record) -> None:
            for log in logs:
                log(record)

        for record in records:
            add(record)
        yield add


@contextmanager
def _tensorboard(folder: Path, settings: Settings, seconds: float) -> Iterator[Add]:
    """``tensorboard/`` in the folder: a scalar per number of a record, at the time of its epoch."""
    from torch.utils.tensorboard import SummaryWriter

    now = time.time() - seconds  # when the run would have begun, had it never been interrupted
    with SummaryWriter(str(folder / "tensorboard")) as writer:
        writer.add_text("settings", f"```\n{settings.to_toml()}```", 0, now)

        def add(record: Record) -> None:
            nonlocal now
            now += record["seconds"]
            for key, value in _numbers(record).items():
                writer.add_scalar(key, value, record["epoch"], now)
            writer.flush()

        yield add


@contextmanager
def _wandb(folder: Path, settings: Settings, seconds: float) -> Iterator[Add]:
    """``wandb/`` in the folder, offline; ``wandb sync`` uploads it if its owner wants that."""
    import wandb

    log = wandb.init(
        mode="offline",
        dir=str(folder),
        project="ntksap",
        id=settings.name,
        name=settings.name,
        config=settings.plain(),
        settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False, x_disable_stats=True),
    )
    try:
        yield lambda record: log.log(_numbers(record), step=record["epoch"])
    finally:
        log.finish()


def _numbers(record: Record) -> dict[str, float]:
    return {key: value for key, value in record.items() if key != "epoch" and isinstance(value, int | float)}


LOGS = {"tensorboard": _tensorboard, "wandb": _wandb}
"""Name (of the package, and of what it leaves in the folder) → how it is opened."""
