"""Check the arguments of `prune` before the work, and trace failures of the work back to them."""

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ntksap._base import InputError, NtksapError, ScoreError
from ntksap.net import Inputs, Net, summed_cross_entropy
from ntksap.pruning.masks import Masks
from ntksap.pruning.probe import Batch, Probe

_IGNORED = -100  # the label that torch's cross-entropy leaves out


def check_module(model: Any) -> None:
    """Raise unless ``model`` is a module that has weights."""
    if not isinstance(model, nn.Module):
        raise InputError(
            f"model is {_described(model)}, not an nn.Module: build the module, load its weights into it if they are "
            "in a file (module.load_state_dict), and pass that"
        )
    if any(tensor.is_meta for tensor in model.parameters()):
        raise InputError(
            "the module is on the meta device, so its weights have no values: move it (module.to_empty(device='cpu')) "
            "and initialise it or load its weights first"
        )


def checked_shape(input_shape: Any) -> tuple[int, ...] | None:
    """Return ``input_shape`` as a tuple of sizes, or raise."""
    if input_shape is None:
        return None
    sizes = input_shape if isinstance(input_shape, Sequence) and not isinstance(input_shape, str) else None
    if sizes is None or not all(_whole(size) and size > 0 for size in sizes):
        example = f"({input_shape},)" if _whole(input_shape) else "(3, 32, 32)"
        raise InputError(
            f"input_shape is the shape of one input without the batch, such as {example}, not {_described(input_shape)}"
        )
    return tuple(int(size) for size in sizes)


def check_inputs(inputs: Any) -> None:
    """Raise unless ``inputs`` is a function or None."""
    if inputs is not None and not callable(inputs):
        raise InputError(
            f"inputs= is a function (batch size, generator) -> the module's arguments, not {_described(inputs)}; for "
            "noise pass input_shape=, for inputs of your own data=[(inputs, labels)]"
        )


def check_data(data: Any) -> None:
    """Raise unless ``data`` is iterable, a function or None."""
    if data is not None and not callable(data) and not hasattr(data, "__iter__"):
        raise InputError(f"data= is an iterable of (inputs, labels) batches, not {_described(data)}")


def checked_whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number as Python's own int (numpy's would seed different draws), or raise."""
    if not _whole(value) or (least is not None and value < least):
        bound = "" if least is None else f" of at least {least}"
        raise InputError(f"{name} is a whole number{bound}, not {_described(value)}")
    return operator.index(value)


@torch.inference_mode(False)
@torch.enable_grad()
def explain_input_failures(states: Iterator[Masks], net: Net, probe: Probe) -> Iterator[Masks]:
    """Yield the masks of the rounds, with gradients enabled whatever the caller's mode; explain a failure."""
    with explained(net, probe):
        yield from states


@contextmanager
def explained(net: Net, probe: Probe) -> Iterator[None]:
    """Inside the block, explain a failure that comes from the weights, the inputs or the data.

    Nothing extra is evaluated unless something fails: then one input, by itself.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        if isinstance(error, ScoreError):
            _check_finite(net, probe)
        elif not isinstance(error, NtksapError) or error.__cause__ is not None:  # something failed beneath
            for inputs, labels in _batch(net, probe):
                _check_batch(net, inputs, labels)
        raise


def _check_finite(net: Net, probe: Probe) -> None:
    """Raise if the fault is in the weights or inputs that scores were computed from."""
    for name, tensor in {**net.weights, **net.buffers}.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ScoreError(
                f"{name!r} of the model holds NaN or infinite values, so there are no scores: they were there before "
                "pruning. Load its weights again or initialise it"
            )
    for inputs, _ in probe.batches:
        if any(t.is_floating_point() and not t.isfinite().all() for t in _tensors(inputs)):
            raise ScoreError("a batch of data= holds NaN or infinite inputs, so there are no scores: clean the data")


def _check_batch(net: Net, inputs: Inputs, labels: Any) -> None:
    """Raise if the model, or its loss, fails on a batch all by itself."""
    try:
        output = net(net.weights, inputs)
    except NtksapError:
        raise
    except Exception as error:
        shapes = " and ".join(str(tuple(tensor.shape)) for tensor in _tensors(inputs)) or "no tensor"
        raise InputError(
            f"the model cannot be evaluated on inputs of shape {shapes}, the batch first: {_first_line(error)}. Check "
            "input_shape=, inputs= or data="
        ) from error
    if labels is None:
        return
    classes = output.shape[-1]
    if net.loss is summed_cross_entropy and isinstance(labels, Tensor) and not labels.is_floating_point():
        wrong = labels[((labels < 0) | (labels >= classes)) & (labels != _IGNORED)]
        if wrong.numel():
            raise InputError(
                f"a label of data= is {int(wrong[0])}, but the model has {classes} outputs, for labels from 0 to "
                f"{classes - 1}"
            )
    try:
        net.loss(output, labels)
    except Exception as error:
        raise InputError(
            f"the loss of the model's output {tuple(output.shape)} and the labels of data= cannot be computed: "
            f"{_first_line(error)}. Check the labels, or pass loss="
        ) from error


def _batch(net: Net, probe: Probe) -> Iterator[Batch]:
    """Yield what there is to try: noise, and a batch of the data."""
    if probe.input_shape is not None or probe.make_inputs is not None:
        yield probe.noise(0, 2), None
    if probe.batches:
        yield from probe.batches
    elif probe.source is not None:
        yield next(probe.epoch(0, labelled=False))


def _tensors(inputs: Inputs) -> list[Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(inputs) if isinstance(leaf, Tensor)]


def _whole(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, bool | Tensor)


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    text = repr(value)
    return text if len(text) <= 60 else f"{type(value).__name__} {text[:60]}…"


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
