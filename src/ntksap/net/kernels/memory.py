"""What this machine found to be faster, kept from one process to the next.

A choice is made once: whoever measures first decides, even for processes that measure the same thing at the same time,
so that runs that start again on one machine go the same ways and end in the same bits. Remove the file to measure
again; ``NTKSAP_CHOICES`` names another file, such as one copied from a machine whose bits are wanted.
"""

import functools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from ntksap.net.kernels.cache import private_folders
from ntksap.net.kernels.compiler import library


@dataclass(frozen=True)
class Choice:
    """The way that was chosen, and the seconds that each took when it was."""

    way: str
    seconds: Mapping[str, float]


def recall(key: str) -> Choice | None:
    """Return what was chosen in this situation, by this process or an earlier one."""
    return _known(memory_file()).get(key)


def remember(key: str, choice: Choice) -> Choice:
    """Keep a choice and return the one that counts: the first that was made."""
    path = memory_file()
    known = _known(path)
    if path is not None:
        line = json.dumps({"key": key, "way": choice.way, "seconds": dict(choice.seconds)}) + "\n"
        with suppress(OSError):  # a disk that is full: this process still knows
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, line.encode())  # in one piece, so that lines of several processes do not mix
            finally:
                os.close(file)
            for other, found in _read(path).items():
                known.setdefault(other, found)
    return known.setdefault(key, choice)


@functools.cache
def memory_file() -> Path | None:
    """Return the file of ``NTKSAP_CHOICES``, or that of these kernels and this torch; None without a folder for it."""
    given = os.environ.get("NTKSAP_CHOICES")
    if given:
        return Path(given).absolute()
    kernels = library()
    folder = next(private_folders(), None)
    if kernels is None or folder is None or not folder.exists():
        return None
    return folder / f"choices-{Path(kernels._name).stem[:24]}-torch-{torch.__version__}.jsonl"


@functools.cache
def _known(path: Path | None) -> dict[str, Choice]:
    return {} if path is None else _read(path)


def _read(path: Path) -> dict[str, Choice]:
    """Return the first choice for each key; lines that are not choices, such as one that is cut off, are skipped."""
    found: dict[str, Choice] = {}
    with suppress(OSError):
        for line in path.read_text(errors="replace").splitlines():
            with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                held = json.loads(line)
                seconds = {str(way): float(value) for way, value in held["seconds"].items()}
                found.setdefault(str(held["key"]), Choice(str(held["way"]), seconds))
    return found
