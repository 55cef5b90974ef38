"""In which precision scores are computed."""

from typing import Any

import torch

from ntksap._base import unknown

PRECISIONS = {
    "auto": "the model's own; float32 for one in float16",
    "float32": "float32 throughout",
    "bfloat16": "products in bfloat16, weights, sums and statistics in float32",
    "float64": "float64 throughout, where float32 overflows",
}


def resolve(precision: str, own: torch.dtype) -> str:
    """Return the precision that a name from `PRECISIONS` means for a model of dtype ``own``.

    "auto" is never bfloat16: it moves NTK-SAP's layer densities by several per cent (``python -m studies.rounding``).

    >>> resolve("auto", torch.float64)
    'float64'
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if precision != "auto":
        return precision
    return str(own).removeprefix("torch.") if own != torch.float16 else "float32"  # scores leave the range of float16


def arithmetic(resolved: str) -> dict[str, Any]:
    """Return the keywords of `Net` for a resolved precision."""
    if resolved == "bfloat16":
        return {"dtype": torch.float32, "autocast": True}
    return {"dtype": getattr(torch, resolved)}
