"""The expected trace of the neural tangent kernel: what the moments of a network's output come to."""

from collections.abc import Mapping

from torch import Tensor

from ntksap._base import ScoreError
from ntksap.methods.moments.tensor import MomentTensor, checked, refusal
from ntksap.net import Inputs, Net


def trace_of(net: Net, parameters: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    """Return K = Σ E ẏ² over the outputs y, one number; to be called inside `module_rules`.

    Raises `InputError` for what cannot be followed and for the function whose moments are NaN or infinite, `ScoreError`
    if only their sum is.
    """
    trace = _sum(net, parameters, inputs)
    if not trace.isfinite():
        with checked():  # once more, to name the source
            _sum(net, parameters, inputs)
        raise ScoreError("the expected trace of the neural tangent kernel overflows; ntk-sap samples it instead")
    return trace


def _sum(net: Net, parameters: Mapping[str, Tensor], inputs: Inputs) -> Tensor:
    output = net(parameters, inputs)
    if not isinstance(output, MomentTensor):
        raise refusal("the output", "it depends on no weight, input or function that has a rule")
    return output.moments.tangent.sum()
