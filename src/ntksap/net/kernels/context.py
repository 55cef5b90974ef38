"""`sparse_kernels`: a pruned module that really is faster, on a CPU."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from torch import Tensor, nn

from ntksap.net.kernels.layers import native_layers, sparse_layers
from ntksap.net.layers import unwrap


@contextmanager
def sparse_kernels(module: nn.Module, masks: Mapping[str, Tensor] | None = None) -> Iterator[bool]:
    """Inside the block, convolutions of a pruned module on the CPU multiply by their kept weights only.

    Values and gradients are those of torch but for the last bits. The block is given True where most convolutions do
    so, and images are best given with channels first, torch's default layout. It is given False where dense kernels
    are faster (this package's own among them, for which images are best given with channels last) or nothing can be
    done: another device, no C compiler, ``torch.compile``. Inside the block a module cannot be traced or exported:
    ``torch.jit.trace``, ``torch.export`` and ``torch.onnx.export`` raise `InputError`.

    Args:
        module: a module whose pruned weights are zero, to be evaluated or trained inside the block; after it, the
            module is as it was. Derivatives of second order do not exist inside.
        masks: its masks. By default, what is not zero is kept: for evaluation only, as a weight that happens to be
            zero gets no gradient.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU())
    >>> with torch.no_grad(), sparse_kernels(model) as used:
    ...     model(torch.ones(1, 3, 8, 8)).shape, used
    (torch.Size([1, 8, 6, 6]), False)
    """
    compiled = isinstance(getattr(module, "_orig_mod", None), nn.Module)
    module = unwrap(module)
    if masks is None:
        masks = {name: weight.detach() != 0 for name, weight in module.named_parameters() if weight.dim() == 4}
    if compiled or not all(parameter.is_cpu for parameter in module.parameters()):
        yield False
        return
    sparse = sparse_layers(module, masks)
    with native_layers(module, sparse):
        yield 2 * len(sparse) > sum(isinstance(part, nn.Conv2d) for part in module.modules())
