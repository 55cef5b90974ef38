"""Output: results on stdout (tables, or one JSON object), everything else on stderr."""

import json
import sys
import textwrap
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text


class _PlainConsole(Console):
    """Prints text and nothing else: names from files may hold terminal control codes, or :factory: for an emoji."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(emoji=False, **settings)

    def render_str(self, text: str, **how: Any) -> Text:
        """Return the text as rich renders it, whether a line or a cell of a table."""
        return super().render_str("".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text), **how)


stdout = _PlainConsole(soft_wrap=True)
stderr = _PlainConsole(stderr=True)


def say(text: str) -> None:
    """Print prose on stdout: broken between words on a terminal, in one line elsewhere.

    A word that is longer than a line, such as a path, stays whole.
    """
    if stdout.is_terminal:
        text = "\n".join(broken(line, stdout.width) for line in text.split("\n"))
    stdout.print(text, highlight=False, markup=False)


def broken(text: str, width: int, indent: str = "") -> str:
    """Return a text with line breaks between its words, none within one."""
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def say_duration(seconds: float) -> str:
    """Return a duration in the unit that suits it.

    >>> say_duration(0.4), say_duration(50), say_duration(600), say_duration(9000)
    ('0.4 s', '50 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.2g} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(result, indent=2, allow_nan=False) + "\n")
