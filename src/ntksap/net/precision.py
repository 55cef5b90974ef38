"""In which precision scores are computed."""

from typing import Any

import torch

from ntksap._base import unknown

PRECISIONS = {
    "auto": "bfloat16 where the device is fast at it and the method's ranking bears it, else the model's own, for one "
    "in float16 float32",
    "float32": "float32 throughout",
    "bfloat16": "products in bfloat16, weights, sums and statistics in float32",
    "float64": "float64 throughout, where float32 overflows",
}


def resolve(precision: str, own: torch.dtype, device: torch.device, *, bears_bfloat16: bool) -> str:
    """Return the precision that a name from `PRECISIONS` means for a model of dtype ``own`` on this device.

    >>> resolve("auto", torch.float64, torch.device("cpu"), bears_bfloat16=True)
    'float64'
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if precision != "auto":
        return precision
    if own == torch.float32 and bears_bfloat16 and fast_at_bfloat16(device):
        return "bfloat16"
    return str(own).removeprefix("torch.") if own != torch.float16 else "float32"  # whose range scores leave


def arithmetic(resolved: str) -> dict[str, Any]:
    """Return the keywords of `Net` for a resolved precision."""
    if resolved == "bfloat16":
        return {"dtype": torch.float32, "autocast": True}
    return {"dtype": getattr(torch, resolved)}


def fast_at_bfloat16(device: torch.device) -> bool:
    """Whether the device multiplies in bfloat16 itself; where that is emulated it is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False
