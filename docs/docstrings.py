"""Docstrings as Markdown: examples that check themselves become blocks of code."""

import re
from typing import Any

from griffe import Extension, Object

EXAMPLE = re.compile(r"(?:^>>> .*\n?)(?:^(?!\n).+\n?)*", re.MULTILINE)


class Examples(Extension):
    """Put fences around ``>>>`` examples, which Markdown would take for quotations."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring:
            text = obj.docstring.value
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found.group().rstrip()}\n```\n", text)
