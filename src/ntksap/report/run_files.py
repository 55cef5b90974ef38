"""The files of a run, each read and checked; what is wrong is a ValueError (or OSError) that says so."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ntksap._base import toml, unsealed
from ntksap.pruning import Masks
from ntksap.runs import Settings, checked_timings

_LARGEST = 1e30  # beyond this, sums and axes overflow
_LARGEST_EIGENVALUE = 1e100  # these are drawn on logarithmic axes
_TEXTS = ("model", "data", "method", "sanity")
_RESULT = ("top1", "train_accuracy", "inference_flops", "dense_flops", "prune_seconds", "train_seconds")
_OPTIONAL = ("kept", "total", "test_images")  # not every result has them
_RECORD = ("epoch", "top1", "train_loss")


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of one pruned network's kernel, largest first, and their distance to the dense network's."""

    method: str
    sparsity: float
    eigenvalues: tuple[float, ...]
    distance: float | None


def number(values: Mapping[str, Any], key: str) -> float:
    """Return a number from ``values``, or raise ValueError if there is none that could be drawn."""
    value = values.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= _LARGEST:
        raise ValueError(f"{key!r} is missing or not a usable number")
    return value


def read_text(path: Path) -> str:
    """Return the text of a file."""
    return path.read_text(encoding="utf-8")


def read_json_object(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds."""
    return unsealed(json.loads(read_text(path)))


def read_spectra(path: Path) -> list[Spectrum]:
    """Return the spectra of a spectrum.json."""
    return spectra_of(read_json_object(path))


def read_settings(path: Path) -> dict[str, Any]:
    """Return the settings of a settings.toml."""
    return check_settings(unsealed(toml.loads(read_text(path))))


def check_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``values`` that are settings; the ones that the report needs must be there."""
    for key in _TEXTS:
        if not isinstance(values.get(key), str):
            raise ValueError(f"{key!r} is missing or not text")
    if not isinstance(values.get("recipe"), dict):
        raise ValueError("'recipe' is missing or not a table")
    if not 0 <= number(values, "sparsity") < 1:
        raise ValueError(f"'sparsity' is {values['sparsity']}, not a share below 1")
    number(values, "seed")
    return {field.name: values[field.name] for field in fields(Settings) if field.name in values}


def read_result(path: Path) -> dict[str, Any]:
    """Return a result.json, and the densities of its layers as ``densities``."""
    values = read_json_object(path)
    for key in _RESULT:
        number(values, key)
    if not (0 <= values["top1"] <= 1 and 0 <= values["train_accuracy"] <= 1):
        raise ValueError("an accuracy is not a share")
    collapsed, layers = values.get("collapsed"), values.get("layers", [])
    if not isinstance(collapsed, list) or not all(isinstance(name, str) for name in collapsed):
        raise ValueError("'collapsed' is missing or not a list of names")
    if not isinstance(layers, list) or not all(isinstance(layer, dict) and layer.get("total") for layer in layers):
        raise ValueError("'layers' is not a list of layers")
    for key in _OPTIONAL:
        if values.get(key) is not None:
            number(values, key)
    densities = {str(layer.get("name")): number(layer, "kept") / number(layer, "total") for layer in layers}
    return {**values, "densities": densities}


def read_timings(path: Path) -> dict[str, Any]:
    """Return a timings.json."""
    return checked_timings(path.read_bytes())


def read_error(path: Path) -> str:
    """Return type and message of an error.json."""
    values = read_json_object(path)
    return f"{values.get('type', 'error')}: {values.get('error', 'no message')}"


def read_densities(path: Path) -> dict[str, float]:
    """Return the density of each layer of a mask file."""
    return {layer["name"]: layer["kept"] / max(layer["total"], 1) for layer in Masks.load(path).layers()}


def read_records(path: Path, records: list[dict[str, Any]]) -> None:
    """Append the records up to the first line that is not one."""
    for index, line in enumerate(read_text(path).splitlines(), start=1):
        try:
            record = unsealed(json.loads(line))
            for key in _RECORD:
                number(record, key)
        except (ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"line {index} is not a record of an epoch ({error})") from error
        records.append(record)


def spectra_of(values: Mapping[str, Any]) -> list[Spectrum]:
    """Return the spectra of a parsed ``spectrum.json``; raises ValueError if it has another form."""
    spectra = values.get("spectra")
    if not isinstance(spectra, list):
        raise ValueError("'spectra' is missing or not a list")
    return [_spectrum(one, index) for index, one in enumerate(spectra, start=1)]


def _spectrum(values: Any, index: int) -> Spectrum:
    try:
        distance = values.get("distance")
        made = Spectrum(
            method=str(values["method"]),
            sparsity=float(values["sparsity"]),
            eigenvalues=tuple(sorted((float(value) for value in values["eigenvalues"]), reverse=True)),
            distance=None if distance is None else float(distance),
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"spectrum {index} is malformed ({error!r})") from error
    if not all(abs(value) <= _LARGEST_EIGENVALUE for value in (made.sparsity, *made.eigenvalues, made.distance or 0.0)):
        raise ValueError(f"spectrum {index} holds numbers that cannot be drawn")
    return made
