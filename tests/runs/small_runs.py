"""A run that takes about a second, and what of it must not depend on interruptions."""

import json
from pathlib import Path
from typing import Any

import torch

from ntksap.runs.execution import run
from ntksap.runs.folder import Place
from ntksap.runs.settings import DENSE, THIN, Settings, settings_for
from ntksap.training.recipe import load_recipe


def small_settings(method: str = "synflow", *, epochs: int = 5, training: Any = None, **changes: Any) -> Settings:
    recipe = load_recipe("quick", {"epochs": epochs, "channels_last": False, **(training or {})})
    values = {"model": "lenet-300-100", "data": "digits", "sparsity": 0.9, "seed": 0, **changes}
    values |= {} if method in (DENSE, THIN) else {"rounds": 5, **changes}
    return settings_for(method=method, recipe=recipe, **values)


def carry_out(settings: Settings, root: Path, file_size_limit: int | None = None) -> None:
    """Run in a process of its own; exit status 3 stands for a StorageError."""
    import resource
    import sys

    from ntksap._base.errors import StorageError

    torch.set_num_threads(1)
    if file_size_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_size_limit, file_size_limit))
    try:
        run(settings, root, Place())
    except StorageError as error:
        print(error)
        sys.exit(3)


def outcome(folder: Path) -> dict[str, Any]:
    """All of a finished run that is not a measurement of time or memory, or a hash of one."""
    measured = {"seconds", "images_per_second", "prune_seconds", "train_seconds", "peak_memory_mib", "sha256"}
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    return {
        "checkpoint": (folder / "checkpoint.safetensors").read_bytes(),
        "settings": (folder / "settings.toml").read_text(),
        "records": [{key: value for key, value in record.items() if key not in measured} for record in records],
        "result": {key: value for key, value in result.items() if key not in measured},
    }
