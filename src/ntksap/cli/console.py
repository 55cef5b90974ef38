"""Output: results on stdout (tables, or one JSON object), everything else on stderr."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from rich.console import Console

stdout = Console(soft_wrap=True)
stderr = Console(stderr=True)


def print_json(result: Mapping[str, Any]) -> None:
    """Print one JSON object on stdout."""
    sys.stdout.write(json.dumps(result, indent=2, allow_nan=False) + "\n")
