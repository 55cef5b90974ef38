"""What run folders hold, read so that a damaged file costs its run and nothing else."""

import json
import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ntksap.errors import InputError, MaskError
from ntksap.files import TEMPORARY
from ntksap.masks import Masks
from ntksap.report.spectra import Spectrum, spectra_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Status = Literal["finished", "failed", "unfinished", "damaged"]
_T = TypeVar("_T")
_TEXTS = ("model", "data", "method", "sanity")
_RESULT = ("top1", "train_accuracy", "inference_flops", "dense_flops", "prune_seconds", "train_seconds")
_RECORD = ("epoch", "top1", "train_loss")


@dataclass(frozen=True)
class Run:
    """A run folder. ``settings`` is empty when they could not be read; ``layers`` are densities by name."""

    name: str
    status: Status
    settings: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    records: list[dict[str, Any]] = field(default_factory=list)
    layers: dict[str, float] = field(default_factory=dict)
    result: dict[str, Any] | None = None
    error: str | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def reached(self) -> str:
        """How far it is, in words."""
        if self.records:
            return f"epoch {len(self.records)} of {self.settings.get('recipe', {}).get('epochs', '?')}"
        return "pruned, no epoch yet" if self.layers else "not pruned yet"


@dataclass(frozen=True)
class Folder:
    """Everything below a folder that a report shows, and what of it could not be read outside of runs."""

    name: str
    runs: list[Run]
    spectra: list[Spectrum]
    problems: list[str]

    def count(self, status: Status) -> int:
        """Return how many runs have a status."""
        return sum(run.status == status for run in self.runs)


def read_folder(root: str | Path) -> Folder:
    """Read every run below ``root``: each folder with a settings.toml. Raises `InputError` if there is none."""
    root = Path(root)
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; give one that holds runs of `ntksap train` or `ntksap compare`")
    found = [path for path in root.rglob("settings.toml") if not _temporary(path.relative_to(root))]
    if not found:
        raise InputError(
            f"{root}: no runs here. Expected are folders that hold a settings.toml, as `ntksap train --out {root}` or "
            f"`ntksap compare --out {root}` writes them"
        )
    problems: list[str] = []
    spectra: list[Spectrum] = []
    for path in sorted(root.rglob("spectrum.json")):
        spectra += _try(path, lambda path=path: spectra_of(_json(path)), [], problems, str(path.relative_to(root)))
    resolved = root.resolve()
    return Folder(resolved.name, [_read_run(path.parent, root) for path in sorted(found)], spectra, problems)


def _temporary(path: Path) -> bool:
    return any(part.startswith(TEMPORARY) for part in path.parts)


def _read_run(folder: Path, root: Path) -> Run:
    problems: list[str] = []

    def read(name: str, how: Callable[[Path], _T], otherwise: _T) -> _T:
        return _try(folder / name, lambda: how(folder / name), otherwise, problems, name)

    text = read("settings.toml", lambda path: path.read_text(encoding="utf-8"), "")
    settings = read("settings.toml", _settings, {}) if not problems else {}
    result: dict[str, Any] | None = read("result.json", _result, None)
    if result and not settings:  # a result repeats the settings
        settings = _try(folder, lambda: _checked_settings(result), {}, problems, "result.json")
    error = read("error.json", _error, None) if result is None else None
    layers = read("masks.safetensors", _layers, {})
    if result is not None and result["densities"]:
        layers = result["densities"]  # the same numbers; they are there even if the mask file is not
    records: list[dict[str, Any]] = []
    read("metrics.jsonl", lambda path: _records(path, records), None)
    status: Status = "unfinished"
    if not settings or (result is None and (folder / "result.json").exists()):
        status = "damaged"
    elif result is not None:
        status = "finished"
    elif (folder / "error.json").exists():
        status = "failed"
    relative = folder.relative_to(root)
    name = str(relative) if relative.parts else folder.resolve().name
    return Run(name, status, settings, text, records, layers, result, error, problems)


def _try(path: Path, how: Callable[[], _T], otherwise: _T, problems: list[str], name: str) -> _T:
    """Return what ``how`` reads, or ``otherwise``: silently if the file is not there, else with a problem noted."""
    try:
        return how() if path.exists() else otherwise
    except MaskError as error:
        problems.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        problems.append(f"{name}: {error or type(error).__name__}")
    return otherwise


def number(values: Mapping[str, Any], key: str) -> float:
    """Return a finite number of ``values``, or raise ValueError that says what is wrong."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{key!r} is missing or not a finite number")
    return value


def _json(path: Path) -> dict[str, Any]:
    values = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(values, dict):
        raise ValueError("not a JSON object")
    return values


def _settings(path: Path) -> dict[str, Any]:
    return _checked_settings(tomllib.loads(path.read_text(encoding="utf-8")))


def _checked_settings(values: dict[str, Any]) -> dict[str, Any]:
    for key in _TEXTS:
        if not isinstance(values.get(key), str):
            raise ValueError(f"{key!r} is missing or not text")
    if not isinstance(values.get("recipe"), dict):
        raise ValueError("'recipe' is missing or not a table")
    if not 0 <= number(values, "sparsity") < 1:
        raise ValueError(f"'sparsity' is {values['sparsity']}, not a share below 1")
    number(values, "seed")
    return values


def _result(path: Path) -> dict[str, Any]:
    values = _json(path)
    for key in _RESULT:
        number(values, key)
    collapsed, layers = values.get("collapsed"), values.get("layers", [])
    if not isinstance(collapsed, list) or not all(isinstance(name, str) for name in collapsed):
        raise ValueError("'collapsed' is missing or not a list of names")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) and layer.get("total") for layer in layers):
        raise ValueError("'layers' is not a list of layers")
    densities = {str(layer.get("name")): number(layer, "kept") / number(layer, "total") for layer in layers}
    return {**values, "densities": densities}


def _error(path: Path) -> str:
    values = _json(path)
    return f"{values.get('type', 'error')}: {values.get('error', 'no message')}"


def _layers(path: Path) -> dict[str, float]:
    return {layer["name"]: layer["kept"] / max(layer["total"], 1) for layer in Masks.load(path).layers()}


def _records(path: Path, records: list[dict[str, Any]]) -> None:
    """Append the records up to the first line that is none."""
    for index, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            record = json.loads(line)
            for key in _RECORD:
                number(record, key)
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"line {index} is not a record of an epoch ({error})") from error
        records.append(record)
