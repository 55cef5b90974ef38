"""What run folders hold, read so that a damaged file costs its run and nothing else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from ntksap._base import TEMPORARY, InputError, MaskError
from ntksap.report.run_files import (
    Spectrum,
    check_settings,
    read_densities,
    read_error,
    read_json_object,
    read_records,
    read_result,
    read_settings,
    read_spectra,
    read_text,
    read_timings,
)

Status = Literal["finished", "failed", "unfinished", "damaged"]
_T = TypeVar("_T")


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
        """How far it has got, in words."""
        if self.records:
            return f"epoch {len(self.records)} of {self.settings.get('recipe', {}).get('epochs', '?')}"
        return "pruned, no epoch yet" if self.layers else "not pruned yet"


@dataclass(frozen=True)
class Folder:
    """What a report shows from a folder: its runs, spectra by file, and problems with files that belong to no run."""

    name: str
    runs: list[Run]
    spectra: dict[str, list[Spectrum]]
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
            f"{root}: no runs here. A run is a folder that holds a settings.toml, as written by `ntksap train --out "
            f"{root}` or `ntksap compare --out {root}`"
        )
    problems: list[str] = []
    spectra: dict[str, list[Spectrum]] = {}
    for path in sorted(root.rglob("spectrum.json")):
        name = str(path.relative_to(root))
        if found_here := _try(path, read_spectra, None, problems, name):
            spectra[name] = found_here
    return Folder(root.resolve().name, [_read_run(path.parent, root) for path in sorted(found)], spectra, problems)


def _temporary(path: Path) -> bool:
    return any(part.startswith(TEMPORARY) for part in path.parts)


def _read_run(folder: Path, root: Path) -> Run:
    problems: list[str] = []

    def read(name: str, how: Callable[[Path], _T], otherwise: _T) -> _T:
        return _try(folder / name, how, otherwise, problems, name)

    nothing: dict[str, Any] = {}
    text = read("settings.toml", read_text, None)
    settings = nothing if text is None else read("settings.toml", read_settings, nothing)
    result = read("result.json", read_result, None)
    if result is not None and not settings:  # a result repeats the settings
        settings = read("result.json", lambda path: check_settings(read_json_object(path)), nothing)
    timings = read("timings.json", read_timings, None)
    if result is not None and timings is not None:
        result["timings"] = timings
    error = read("error.json", read_error, None) if result is None else None
    layers = read("masks.safetensors", read_densities, nothing)
    if result is not None and result["densities"]:
        layers = result["densities"]  # the same numbers; they are there even if the mask file is not
    records: list[dict[str, Any]] = []
    read("metrics.jsonl", lambda path: read_records(path, records), None)
    status: Status = "unfinished"
    if not settings or (result is None and (folder / "result.json").exists()):
        status = "damaged"
    elif result is not None:
        status = "finished"
    elif (folder / "error.json").exists():
        status = "failed"
    relative = folder.relative_to(root)
    name = str(relative) if relative.parts else folder.resolve().name
    return Run(name, status, settings, text or "", records, layers, result, error, problems)


def _try(path: Path, how: Callable[[Path], _T], otherwise: _T, problems: list[str], name: str) -> _T:
    """Return what ``how`` reads, or ``otherwise``: silently if the file is not there, else with a problem noted."""
    try:
        return how(path) if path.exists() else otherwise
    except MaskError as error:  # its message begins with the path, which only concerns this machine
        problems.append(f"{name}: {str(error).removeprefix(f'{path}: ')}")
    except (OSError, ValueError, RecursionError, OverflowError) as error:
        problems.append(f"{name}: {error or type(error).__name__}")
    return otherwise
