"""Which kernels torch may choose while scores are computed: those that can be differentiated in every way."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def take_experts_apart(module: nn.Module) -> None:
    """Let the mixtures of experts of transformers in ``module`` multiply by one expert at a time.

    The grouped product that they use by default exists for float32 and half precisions only.
    """
    for part in module.modules():
        config = getattr(part, "config", None)
        if getattr(config, "_experts_implementation", None) is not None:
            config._experts_implementation = "eager"  # type: ignore[union-attr]


@contextmanager
def plain_kernels(module: nn.Module) -> Iterator[None]:
    """Inside the block, compute attention as plain products, and the recurrent layers of ``module`` step by step.

    The fused attention kernels have neither second derivatives nor forward mode. Of the fused recurrent layers,
    oneDNN's has no forward mode; cuDNN's has no second derivatives, and in evaluation mode no derivatives at all.
    """
    fused: list[Any] = []  # their switches serve convolutions too, so they stay on where nothing is recurrent
    if any(isinstance(part, nn.RNNBase) for part in module.modules()):
        fused = [library for library in (torch.backends.mkldnn, torch.backends.cudnn) if library.enabled]
    try:
        for library in fused:
            library.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library in fused:
            library.enabled = True
