"""`Option`: one keyword of a method, and the values that it takes."""

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ntksap._base import Range, check_value
from ntksap.pruning import checked_whole


@dataclass(frozen=True)
class Option:
    """One keyword of a method's function: its type, default, the sentence that explains it, and which numbers it takes.

    >>> Option("draws", int, 5, "weight draws per round", Range(1)).checked(3)
    3
    """

    name: str
    type: Any
    default: Any
    help: str
    range: Range

    def checked(self, value: Any) -> Any:
        """Return a value that the option takes, a number as Python's own, or raise."""
        if self.type is int:
            value = checked_whole(self.name, value, least=self.range.least)
        elif self.type is not float:
            return check_value(value, self.type, self.name)
        self.range.check(self.name, value)
        return self.type(value)


def options_of(function: Callable[..., Any]) -> dict[str, Option]:
    """Return the options of a function, from its signature: ``Annotated[type, "help", Range(…)] = default``."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        # the arguments that every pruner is given have no default
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and parameter.default is not inspect.Parameter.empty:
            hint = hints[name]
            kind, *notes = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
            help = next((note for note in notes if isinstance(note, str)), "")
            range = next((note for note in notes if isinstance(note, Range)), Range())
            found[name] = Option(name, kind, parameter.default, help, range)
    return found
