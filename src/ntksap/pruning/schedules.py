"""Density after round t of T."""

from collections.abc import Callable
from numbers import Real
from typing import Any, TypeAlias

from ntksap._base import InputError, unknown

Schedule: TypeAlias = Callable[[float, int, int], float]
"""(final density d, round t, rounds T) → density after round t; d itself at t = T."""


def exponential(density: float, round: int, rounds: int) -> float:
    """d^(t/T): each round keeps the same share of what is left.

    >>> [exponential(0.25, t, 2) for t in (0, 1, 2)]
    [1.0, 0.5, 0.25]
    """
    return float(density ** (round / rounds))


def linear(density: float, round: int, rounds: int) -> float:
    """1 − (1 − d)·t/T: each round removes the same number of weights.

    >>> [linear(0.5, t, 2) for t in (0, 1, 2)]
    [1.0, 0.75, 0.5]
    """
    return density if round == rounds else 1 - (1 - density) * round / rounds


def one_shot(density: float, round: int, rounds: int) -> float:
    """d from the first round on: later rounds may exchange weights, if the method lets them return.

    >>> [one_shot(0.25, t, 2) for t in (1, 2)]
    [0.25, 0.25]
    """
    return density if round else 1.0


SCHEDULES: dict[str, Schedule] = {"exponential": exponential, "linear": linear, "one-shot": one_shot}


def schedule_named(name: str) -> Schedule:
    """Return the schedule of that name."""
    if name not in SCHEDULES:
        raise unknown("schedule", name, SCHEDULES)
    return SCHEDULES[name]


def density_of(sparsity: float) -> float:
    """Return 1 − sparsity, or raise if it is not a valid sparsity."""
    given: Any = sparsity
    if isinstance(given, bool) or not isinstance(given, Real):
        raise InputError(f"sparsity is a number, 0 ≤ sparsity < 1, not {sparsity!r}")
    if not 0 <= sparsity < 1:
        percent = f" If {sparsity} means percent, write {sparsity / 100:g}." if 1 <= sparsity < 100 else ""
        raise InputError(f"sparsity is the share of weights to remove, 0 ≤ sparsity < 1, not {sparsity}.{percent}")
    return 1 - float(sparsity)


def kept_of(density: float, total: int) -> int:
    """Return how many of ``total`` weights a density keeps: round(density · total), at least one."""
    return max(1, round(density * total))
