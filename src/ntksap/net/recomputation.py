"""Activation checkpointing, while a module is evaluated with tensors that do not stay in it.

A checkpointed function runs once more in the backward pass. By then `Net` has taken the weights of that evaluation out
of its private copy again, and another evaluation may have put others in.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.utils.checkpoint as theirs
from torch import nn

from ntksap._base import InputError

_FUNCTION, _GENERATOR = theirs.CheckpointFunction, theirs._checkpoint_without_reentrant_generator
"""What ``torch.utils.checkpoint.checkpoint`` and everything built on it call, under whichever name it was imported."""

_lock = threading.Lock()
_inside = 0


@contextmanager
def uncheckpointed() -> Iterator[None]:
    """Inside the block, run checkpointed functions as plain calls: the same values and derivatives of every order.

    That takes the memory that checkpointing saves. (Another thread that checkpoints meanwhile saves none either.)
    """
    global _inside
    with _lock:
        _inside += 1
        theirs.CheckpointFunction = _Plain  # type: ignore[misc, assignment]
        theirs._checkpoint_without_reentrant_generator = _once
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                theirs.CheckpointFunction = _FUNCTION  # type: ignore[misc]
                theirs._checkpoint_without_reentrant_generator = _GENERATOR


class _Plain:
    """Stands for the autograd function of ``use_reentrant=True``."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _once(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Stands for what ``use_reentrant=False`` does before and after it calls the function."""
    yield


def refuse_recomputation(module: nn.Module) -> None:
    """Make each layer of ``module`` that has weights raise when it is called in a backward pass.

    For foreign code that recomputes in its own way (reversible layers, an autograd function that calls layers): it
    would silently find weights other than those of its forward pass.
    """
    for layer in module.modules():
        if any(parameter is not None for parameter in layer._parameters.values()):
            layer.register_forward_pre_hook(_check)


def _check(layer: nn.Module, args: Any) -> None:
    if torch._C._current_graph_task_id() != -1:  # inside a backward pass
        raise InputError(
            f"a layer ({type(layer).__name__}) is called again in the backward pass, when the weights of its forward "
            "pass are no longer in place: this module recomputes activations with code of its own. Switch that off for "
            "scoring"
        )
