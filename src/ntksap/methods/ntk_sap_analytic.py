"""NTK-SAP with its expectation in closed form."""

from collections.abc import Mapping
from typing import Annotated
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ntksap._base import threads_for
from ntksap.methods import moments
from ntksap.methods.moments import MomentTensor, module_rules, trace_of
from ntksap.net import Net, map_tensors
from ntksap.pruning import Probe

_DRAWS, _NUMBERS = 64, 4_000_000
"""Draws of the initialiser from which the moments of each parameter are taken; two for nets with many parameters."""

_PARAMETERS: "WeakKeyDictionary[Net, dict[str, tuple[Tensor, Tensor]]]" = WeakKeyDictionary()


def ntk_sap_analytic(
    net: Net,
    masks: Mapping[str, Tensor],
    probe: Probe,
    *,
    noise: Annotated[bool, "multiply scores by |ξ|, ξ ~ N(0, 1), which breaks the ties of equal weights"] = True,
) -> dict[str, Tensor]:
    """Score a weight by its influence on the expected trace of the neural tangent kernel: S = ∂(log K)/∂m · |ξ|.

        K(m) = E_{θ,z} Σ_w m_w ‖∂f(z; θ⊙m)/∂w‖²,   θ of mean 0 and its initialiser's variance, z ~ N(0, 1)

    computed by one pass of moments through the module (`moments`) and one backward pass. By symmetry all weights of a
    dense layer have one score. Ties by index would remove whole channels; ξ, seeded by (seed, round, name),
    spreads what is removed over the layer, as the sampling noise of NTK-SAP does.
    """
    with threads_for(net.weights):
        trace, leaves = expected_trace(net, masks, probe)
        # Those of the logarithm are of order 1/(size of the layer) whatever the trace, so single precision suffices.
        scores = net.gradient(trace / torch.where(trace > 0, trace, 1).detach(), leaves)
        if noise:
            for name, score in scores.items():
                xi = torch.randn(
                    score.shape, generator=probe.generator("ties", name), dtype=torch.float32, device="cpu"
                )
                score *= xi.abs_().to(score.device)
    return scores


def expected_trace(net: Net, masks: Mapping[str, Tensor], probe: Probe) -> tuple[Tensor, dict[str, Tensor]]:
    """Return K(m), one number that can be differentiated, and its leaves m by name."""
    dtype = torch.float32 if net.device.type == "mps" else torch.float64
    leaves = {name: masks[name].to(net.device, torch.float32, copy=True).requires_grad_() for name in net.prunable}
    parameters = {}
    for name, (square, mean) in parameter_moments(net).items():
        square, mean = square.to(net.device, dtype), mean.to(net.device, dtype)
        known = moments.Weight(leaves[name], square) if name in leaves else moments.fixed(square, mean)
        parameters[name] = MomentTensor(known)
    inputs = map_tensors(probe.ones(dtype), lambda t: MomentTensor(moments.noise(t)) if t.is_floating_point() else t)
    with module_rules(net._skeleton):
        return trace_of(net, parameters, inputs), leaves


def parameter_moments(net: Net) -> dict[str, tuple[Tensor, Tensor]]:
    """Return E θ² and E θ of each parameter under the initialiser: two numbers for a prunable one, whose mean is 0.

    They are exact for what a known initialiser draws, otherwise estimated from some draws. A parameter that the
    initialiser leaves as it is, or sets to fixed values, keeps these values; one that it draws has two numbers over all
    its entries, expanded to its shape.
    """
    if net not in _PARAMETERS:
        known = net.variances()
        count = sum(tensor.numel() for tensor in net.weights.values())
        draws = [net.draw("moments", index) for index in range(2)]
        if not all(name in known or draws[0][name].equal(draws[1][name]) for name in net.weights):
            draws += [net.draw("moments", index) for index in range(2, min(_DRAWS, _NUMBERS // count))]
        _PARAMETERS[net] = {
            name: _exact(known[name], weight, name in net.prunable)
            if name in known
            else _two([draw[name].cpu() for draw in draws], name in net.prunable)
            for name, weight in net.weights.items()
        }
    return _PARAMETERS[net]


def _exact(variance: float, weight: Tensor, prunable: bool) -> tuple[Tensor, Tensor]:
    square = torch.tensor(variance, dtype=torch.float64, device="cpu")
    zero = torch.zeros_like(square)
    return (square, zero) if prunable else (square.expand(weight.shape), zero.expand(weight.shape))


def _two(drawn: list[Tensor], prunable: bool) -> tuple[Tensor, Tensor]:
    if prunable:
        norms = torch.stack([torch.linalg.vector_norm(one, dtype=torch.float64) for one in drawn])
        square = norms.square().mean() / drawn[0].numel()
        return square, torch.zeros_like(square)
    draws = torch.stack(drawn).double()
    square = draws.square().mean()
    if (draws == draws[0]).all():
        return draws[0].square(), draws[0]
    return square.expand(draws.shape[1:]), draws.mean().expand(draws.shape[1:])
