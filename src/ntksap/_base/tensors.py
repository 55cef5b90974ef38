"""Hashes of named tensors."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack, has_torch_function
from torch.utils._device import DeviceContext


def sha256_of(tensors: Mapping[str, Tensor]) -> str:
    """Return a hash of names, shapes and bits: equal exactly when the tensors are equal, in any order."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        digest.update(f"{name}\0{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256_of_one(name: str, tensor: Tensor) -> str:
    """Return a hash of name, dtype, shape and bits of one tensor."""
    tensor = tensor.detach().cpu().contiguous()
    digest = hashlib.sha256(f"{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
    digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def has_own_rules(*tensors: Tensor) -> bool:
    """Whether a tensor belongs to a class with rules of its own, or a mode changes what torch's functions do.

    A default device is such a mode too, but decides only where new tensors are.

    >>> with torch.device("cpu"):
    ...     has_own_rules(torch.ones(2))
    False
    """
    if not has_torch_function(tensors):
        return False
    if not all(isinstance(mode, DeviceContext) for mode in _get_current_function_mode_stack()):
        return True
    own = {type(tensor) for tensor in tensors} - {Tensor}
    return any(kind.__torch_function__ is not torch._C._disabled_torch_function_impl for kind in own)
