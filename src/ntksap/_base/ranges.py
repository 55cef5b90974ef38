"""`Range`: the numbers that a setting takes."""

import math
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

from ntksap._base.errors import InputError


@dataclass(frozen=True)
class Range:
    """The finite numbers from ``least`` to ``most``, or only ``above`` and ``below``.

    >>> print(Range(0, below=1), Range(above=0), sep="; ")
    at least 0 and below 1; above 0
    """

    least: int | None = None
    most: int | None = None
    above: int | None = None
    below: int | None = None

    def check(self, name: str, value: Any) -> None:
        """Raise unless ``value`` is a number in the range; ``name`` is that of the setting."""
        if isinstance(value, bool) or not isinstance(value, Real) or value not in self:
            raise InputError(f"{name} is a number, {self}, not {value!r}")

    def __contains__(self, number: Any) -> bool:
        """Whether a number is in the range."""
        return (
            -math.inf < number < math.inf
            and (self.least is None or number >= self.least)
            and (self.most is None or number <= self.most)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
        )

    def __str__(self) -> str:
        """Return the bounds in words."""
        words = {"least": "at least", "most": "at most"}
        bounds = [f"{words.get(how, how)} {bound}" for how, bound in asdict(self).items() if bound is not None]
        return " and ".join(bounds) or "not infinite"
