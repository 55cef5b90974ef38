"""Spectra of the neural tangent kernel, as ``spectrum.json`` holds them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LARGEST = 1e100  # beyond this, axes overflow


@dataclass(frozen=True)
class Spectrum:
    """The eigenvalues of one pruned network's kernel, largest first, and their distance to the dense network's."""

    method: str
    sparsity: float
    eigenvalues: tuple[float, ...]
    distance: float | None


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
    if not all(abs(value) <= _LARGEST for value in (made.sparsity, *made.eigenvalues, made.distance or 0.0)):
        raise ValueError(f"spectrum {index} holds numbers that cannot be drawn")
    return made
