"""`sparse_kernels`: a pruned module that really is faster, on a CPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ntksap.net.kernels.choice import Choices
from ntksap.net.kernels.choosing import chosen_layers
from ntksap.net.kernels.compiler import library
from ntksap.net.kernels.layers import mostly_sparse, native_layers, sparse_layers, with_narrow
from ntksap.net.layers import unwrap


@contextmanager
def sparse_kernels(
    module: nn.Module, masks: Mapping[str, Tensor] | None = None, *, choices: Choices | None = None
) -> Iterator[Choices]:
    """Inside the block, layers of a pruned module on the CPU multiply by their kept weights only, where that is faster.

    The first time that a layer meets inputs of some size, torch's kernels and those of this package are timed on them,
    and the fastest does the work from then on. The machine remembers what it found (see
    `ntksap.net.kernels.memory`). Convolutions, linear layers (also those of torch's attention and transformers) and
    BatchNorm2d take part. Values and gradients are those of torch up to the last bits.

    The block receives the `Choices`, which print as a table. They are True where most convolutions have so few kept
    weights that images are best given with channels first, torch's default layout. They are False where dense kernels
    will be faster, for which images are best given with channels last, or where nothing can be done: another device, no
    C compiler, ``torch.compile``. Inside the block a module cannot be traced, scripted or exported: ``torch.jit``,
    ``torch.fx``, ``torch.export`` and ``torch.onnx.export`` raise `InputError`.

    Args:
        module: a module whose pruned weights are zero, to be evaluated or trained inside the block; after it, the
            module is as it was. Second derivatives do not exist inside.
        masks: its masks. By default, every weight that is not zero is kept: for evaluation only, as a weight that
            happens to be zero gets no gradient.
        choices: those of an earlier block, which then hold, and to which new ones are added.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU())
    >>> with torch.no_grad(), sparse_kernels(model) as choices:
    ...     model(torch.ones(1, 3, 8, 8)).shape, bool(choices)
    (torch.Size([1, 16, 6, 6]), False)
    """
    choices = Choices() if choices is None else choices
    compiled = isinstance(getattr(module, "_orig_mod", None), nn.Module)
    module = unwrap(module)
    if compiled or library() is None or not all(parameter.is_cpu for parameter in module.parameters()):
        choices.channels_first = False
        yield choices
        return
    if masks is None:
        masks = {name: weight.detach() != 0 for name, weight in module.named_parameters() if weight.dim() in (2, 4)}
    masks = with_narrow(module, masks)
    choices.channels_first = mostly_sparse(module, masks)
    with chosen_layers(module, masks, choices):
        yield choices


@contextmanager
def ruled_kernels(module: nn.Module, masks: Mapping[str, Tensor]) -> Iterator[bool]:
    """Inside the block, convolutions of a pruned module on the CPU are faster by a rule, which measures nothing.

    The block receives the truth value that `Choices` would have. For those who need the same bits without the same
    measurements.
    """
    sparse = sparse_layers(module, masks)
    with native_layers(module, sparse):
        yield mostly_sparse(module, masks)
