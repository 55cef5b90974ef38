"""What can go wrong, as types a caller can catch."""

import difflib
from collections.abc import Iterable


class NtksapError(Exception):
    """Base of every error that the caller can fix; its message says how."""


class InputError(NtksapError, ValueError):
    """An argument that cannot be used."""


class ScoreError(NtksapError, ArithmeticError):
    """A method produced scores that cannot be ranked (NaN, infinite, or all 0)."""


class MaskError(NtksapError, ValueError):
    """A mask file that is damaged or not ours, or masks that belong to another model."""


class StorageError(NtksapError, OSError):
    """A file could not be written; what was there before is intact."""


class DamageError(NtksapError, ValueError):
    """A file of a run does not hold what was written to it; the message says which, and what to do."""


class CollapseError(NtksapError, RuntimeError):
    """Layers lost all their weights and the caller asked for that to be an error."""


class CollapseWarning(UserWarning):
    """Layers lost all their weights."""


class NotPrunableWarning(UserWarning):
    """Tensors shaped like weight matrices are not prunable by default and stay dense."""


class ApproximationWarning(UserWarning):
    """A score that is exact on some nets only was computed on another one."""


class MemoryWarning(UserWarning):
    """A batch was too large for memory and is processed in slices, with the same result."""


def unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    """Return the error for a name that is not in a table: the nearest name first, then all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return InputError(f"unknown {what} {name!r}.{hint} Known: {', '.join(names)}.")
