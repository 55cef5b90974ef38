"""The file that masks are kept in: a safetensors file of bits, each tensor with its hash.

- ``masks/NAME``: uint8, the mask's entries in row-major order, 8 to a byte, the first in the lowest bit; the bits that
  are left over are 0.
- ``weights/NAME``: weights that training is to start from, if the method chose some, unchanged; ``state/NAME``:
  whatever else a pruning that is under way needs to resume.
- metadata, under the one key ``ntksap-masks-2``: a JSON object with ``masks``, {name: [shape, hash]} in the order of
  the layers, ``weights`` and ``state``, {name: hash}, ``info``, and a hash of all that (`ntksap._base.seals`).

Equal masks give equal bytes. Since each tensor has a hash of its own, of fixed length, a file can be written one layer
at a time: the header's size is known from names and shapes, and hashes are filled in at the end.

Files of the first format (a bool tensor per mask, no hash) can still be read.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ntksap._base import MaskError, new_file, sealed, sha256_of_one, unsealed

_FORMAT = "ntksap-masks-2"
_FIRST_FORMAT = "ntksap-masks"
_MASK, _WEIGHT, _STATE = "masks/", "weights/", "state/"
_AGAIN = "copy it again, or remove it and prune again"

_DTYPES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}
"""What safetensors calls them."""

Contents: TypeAlias = tuple[dict[str, Tensor], dict[str, Any], dict[str, Tensor], dict[str, Tensor]]
"""Masks, info, weights, state."""


def write_mask_file(
    path: str | Path,
    shapes: Mapping[str, tuple[int, ...]],
    mask_of: Callable[[str], Tensor],
    info: Mapping[str, Any],
    weights: Mapping[str, Tensor] | None = None,
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Write bool masks, plain values, weights and state, all of it or nothing.

    Masks, of these shapes, are asked for one after another, so that memory need only hold one at a time. The length of
    the header is known beforehand, since all hashes are equally long; it is written last.
    """
    whole = {prefix: dict(own or {}) for prefix, own in ((_WEIGHT, weights), (_STATE, state))}
    sizes: dict[tuple[str, str], tuple[tuple[int, ...], torch.dtype]] = {}  # shape and dtype of each tensor
    sizes |= {(_MASK, name): ((-(-math.prod(shape) // 8),), torch.uint8) for name, shape in shapes.items()}
    sizes |= {(prefix, n): (tuple(t.shape), t.dtype) for prefix, own in whole.items() for n, t in own.items()}
    hashes = dict.fromkeys(sizes, "0" * 64)

    def header() -> bytes:
        facts = {prefix[:-1]: {name: hashes[prefix, name] for name in own} for prefix, own in whole.items()}
        masks = {name: [list(shape), hashes[_MASK, name]] for name, shape in shapes.items()}
        try:
            about = json.dumps(sealed({"masks": masks, **facts, "info": dict(info)}))
        except (TypeError, ValueError) as error:
            raise MaskError(f"info of masks is saved as JSON, which cannot hold this: {error}") from error
        text = json.dumps({"__metadata__": {_FORMAT: about}, **places}, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return len(text).to_bytes(8, "little") + text

    order = sorted(sizes, key=lambda key: (-sizes[key][1].itemsize, "".join(key)))  # so that numbers are aligned
    places, end = {}, 0
    for key in order:
        shape, dtype = sizes[key]
        start, end = end, end + math.prod(shape) * dtype.itemsize
        places["".join(key)] = {"dtype": _DTYPES[dtype], "shape": shape, "data_offsets": [start, end]}
    with new_file(path) as file:
        file.seek(len(header()))
        for prefix, name in order:
            tensor = pack(mask_of(name)) if prefix == _MASK else whole[prefix][name].contiguous()
            hashes[prefix, name] = sha256_of_one(name, tensor)
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)
        file.seek(0)
        file.write(header())


def read_mask_file(path: str | Path) -> Contents:
    """Read what `write_mask_file` wrote and check every hash; no code in the file can run."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if _FORMAT in metadata:
                return _read(file, unsealed(json.loads(metadata[_FORMAT])))
            if metadata.get("format") == _FIRST_FORMAT:
                return _read_first_format(file, metadata)
        raise MaskError(f"{path}: a safetensors file, but it holds no masks of ours (format {_FORMAT!r})")
    except MaskError:
        raise
    except FileNotFoundError:
        raise MaskError(f"{path}: no such file; masks are written by Masks.save or `ntksap prune --out`") from None
    except OSError as error:
        if Path(path).is_dir():  # what safetensors says about a folder helps nobody
            raise MaskError(f"{path} is a folder: give the file, such as {Path(path) / 'masks.safetensors'}") from None
        raise MaskError(f"{path}: cannot be read as a mask file ({error})") from error
    except (SafetensorError, KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise MaskError(f"{path}: not a mask file, or damaged ({_reason(error)}); {_AGAIN}") from error


def pack(mask: Tensor) -> Tensor:
    """Return a bool tensor as bytes of 8 entries each.

    >>> pack(torch.tensor([[True, False], [False, False], [False, True]])).tolist()
    [33]
    """
    return torch.from_numpy(np.packbits(mask.contiguous().numpy().reshape(-1), bitorder="little"))


def unpack(bits: Tensor, shape: list[int]) -> Tensor:
    """Return the mask that `pack` turned into bytes; ValueError if they cannot have this shape."""
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("a shape in it is not valid")
    count = math.prod(shape)  # with Python's integers, which do not overflow, before anything is allocated
    if bits.dtype != torch.uint8 or bits.dim() != 1 or bits.numel() != -(-count // 8):
        raise ValueError(f"a mask of shape {tuple(shape)} does not have {bits.numel()} bytes")
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=count, bitorder="little").view(np.bool_)).view(shape)


def _read(file: Any, header: dict[str, Any]) -> Contents:
    masks = {}
    for name, (shape, expected) in header["masks"].items():
        bits = file.get_tensor(_MASK + name)
        masks[name] = unpack(bits, shape)
        _check(name, bits, expected)
    weights, state = (
        {name: _check(name, file.get_tensor(prefix + name), expected) for name, expected in header[key].items()}
        for key, prefix in (("weights", _WEIGHT), ("state", _STATE))
    )
    return masks, _info(header["info"]), weights, state


def _check(name: str, tensor: Tensor, expected: str) -> Tensor:
    if sha256_of_one(name, tensor) != expected:
        raise ValueError(f"{name!r} does not have the hash that it was written with")
    return tensor


def _read_first_format(file: Any, metadata: Mapping[str, str]) -> Contents:
    masks = {name: file.get_tensor(name) for name in json.loads(metadata["order"])}
    if any(mask.dtype != torch.bool for mask in masks.values()):
        raise ValueError("a mask in it is not bool")
    others = {name.removeprefix(_WEIGHT): name for name in file.keys() if name not in masks}  # noqa: SIM118
    weights = {name: file.get_tensor(full) for name, full in others.items() if not name.startswith(_STATE)}
    state = {name.removeprefix(_STATE): file.get_tensor(full) for name, full in others.items() if name not in weights}
    return masks, _info(json.loads(metadata["info"])), weights, state


def _info(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValueError("its info is not a JSON object")
    return values


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "its metadata is nested too deeply"
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)
