"""What a method is, and the table it is looked up in."""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from ntksap.errors import InputError, unknown
from ntksap.pruning import Score

METHODS: dict[str, "Method"] = {}


@dataclass(frozen=True)
class Option:
    """One keyword of a score function: its type, default, and the sentence that explains it."""

    name: str
    type: Any
    default: Any
    help: str


@dataclass(frozen=True)
class Method:
    """One line of the table.

    Args:
        name: what users write.
        score: ``score(net, masks, probe, *, options…) -> {name: tensor}``, larger = keep.
        summary: one sentence.
        rounds, schedule: the defaults; one round is one shot.
        data_free: it needs no data (else labelled batches).
        weight_agnostic: the score does not depend on the module's present weights.
        regrow: pruned weights may return in a later round.
        splits: a batch can be cut into micro-batches without changing the scores.
        bears_bfloat16: products in bfloat16 leave the masks as they are, so ``precision="auto"`` may use it. So far
            none: NTK-SAP's layer densities move by several per cent (``python -m benchmarks.rounding``).
        preset: option values that differ from the score function's own defaults.
    """

    name: str
    score: Callable[..., dict[str, Tensor]]
    summary: str
    rounds: int = 1
    schedule: str = "exponential"
    data_free: bool = False
    weight_agnostic: bool = False
    regrow: bool = False
    splits: bool = False
    bears_bfloat16: bool = False
    preset: Mapping[str, Any] = field(default_factory=dict)

    @property
    def iterative(self) -> bool:
        """Whether it scores again after removing some weights."""
        return self.rounds > 1

    @property
    def options(self) -> dict[str, Option]:
        """The options of the score function, from its own signature (``Annotated[type, "help"] = default``)."""
        hints = typing.get_type_hints(self.score, include_extras=True)
        found = {}
        for name, parameter in inspect.signature(self.score).parameters.items():
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                hint = hints[name]
                kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
                default = self.preset.get(name, parameter.default)
                found[name] = Option(name, kind, default, notes[0] if notes else "")
        return found

    def with_options(self, options: Mapping[str, Any]) -> Score:
        """Return the score function with its options filled in; an option it does not have is an error."""
        for name in options:
            if name not in self.options:
                has = ", ".join(self.options) or "none"
                raise InputError(f"method {self.name!r} has no option {name!r}; its options: {has}")
        return partial(self.score, **{**self.preset, **options})


def register(method: Method) -> Method:
    """Add a method to the table; a name that is taken is an error."""
    if method.name in METHODS:
        raise InputError(f"a method named {method.name!r} is registered already")
    METHODS[method.name] = method
    return method


def method_named(name: str) -> Method:
    """Return the method of that name; an unknown name answers with the known ones."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
