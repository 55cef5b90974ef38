"""The method for whoever names none."""

import warnings
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ntksap.methods.layer_densities import scores_of
from ntksap.methods.moments import module_rules
from ntksap.methods.registry import METHODS
from ntksap.net import Initialiser, Net, has_attention
from ntksap.pruning import CHANNEL, MakeInputs, Probe, one_input

CLOSED_FORM, SAMPLED, FOR_ATTENTION = "ntk-sap-analytic", "ntk-sap", "random-erk-logits"


def default_method(
    module: nn.Module,
    *,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
    init: str | Initialiser = "kaiming_normal",
    scope: str | None = None,
    pattern: str | None = None,
    options: Collection[str] = (),
) -> str:
    """Return the method of a `prune` that names none.

    - ``random-erk-logits`` for a module with attention. Methods that rank all weights together starve queries and keys,
      of which the kernel, the gradient and the paths see next to nothing before training, and nearly always do
      worse there than a random mask; docs/allocation.md has the numbers.
    - ``ntk-sap-analytic`` for any other module that the closed form can follow: as accurate as sampling in all that was
      measured (docs/which-method.md), and it takes a second instead of a minute.
    - ``ntk-sap``, which samples, for the rest: modules with attention whose layers a scope or whole channels decide
      about, modules that cannot be evaluated without values, and whoever gives ``options`` that only sampling has.
    """
    if input_shape is None and inputs is None:
        return SAMPLED  # which says what is missing
    try:
        if has_attention(module, one_input(module, input_shape, inputs), output):
            return FOR_ATTENTION if scope is None and pattern != CHANNEL else SAMPLED
        known = METHODS[CLOSED_FORM].options.keys() >= set(options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pruning itself will warn
            return CLOSED_FORM if known and _has_closed_form(module, input_shape, inputs, output, init) else SAMPLED
    except Exception:  # pruning itself explains what is wrong with the module or its inputs
        return SAMPLED


def _has_closed_form(
    module: nn.Module,
    input_shape: Sequence[int] | None,
    inputs: MakeInputs | None,
    output: Callable[[Any], Tensor] | None,
    init: str | Initialiser,
) -> bool:
    """Whether the scores of whole layers can be computed, at the cost of one evaluation of the module on one input."""
    with torch.inference_mode(False), torch.enable_grad():
        net = Net(module, output=output, init=init)
        probe = Probe.of(net, input_shape=input_shape, inputs=inputs)
        with module_rules(net._skeleton):
            return bool(np.isfinite(scores_of(net, probe)(np.ones(len(net.prunable)))).all())
