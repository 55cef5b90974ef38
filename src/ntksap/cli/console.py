"""Output: results on stdout (tables, or one JSON object), everything else on stderr."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

# Without emoji, which would turn the :factory: of a name into a picture.
stdout = Console(soft_wrap=True, emoji=False)
stderr = Console(stderr=True, emoji=False)


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
