"""Hashes of named tensors."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


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
