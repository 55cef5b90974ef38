"""`allocate`: how many weights each layer of a module keeps, in one call."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ntksap._base import InputError
from ntksap._prune.pruning import allocation_by_method
from ntksap._prune.rules import Rule, allocation_for, is_method
from ntksap.net import Initialiser, Selectors
from ntksap.pruning import Allocation, Floor, MakeInputs


def allocate(
    model: nn.Module,
    sparsity: float | None,
    rule: Rule = "erk",
    *,
    floor: Floor = 1,
    block_floor: Floor = 0,
    blocks: Sequence[str] | None = None,
    rest: str = "uniform",
    rescale: bool = False,
    rounds: int | None = None,
    schedule: str | None = None,
    input_shape: Sequence[int] | None = None,
    inputs: MakeInputs | None = None,
    output: Callable[[Any], Tensor] | None = None,
    init: str | Initialiser = "kaiming_normal",
    include: Selectors = None,
    exclude: Selectors = None,
    **settings: Any,
) -> Allocation:
    """Decide how many weights each layer keeps: exactly round((1 − sparsity) · total) in all, for ``allocation=``.

    Weights are not looked at (except by a method as the rule), so the model may be on the meta device.

    Args:
        model: any ``nn.Module``.
        sparsity: the share of prunable weights to remove; None where a mapping names every layer.
        rule: a name from `ntksap.ALLOCATIONS`: ``"uniform"``, ``"equal"``, ``"erk"``, ``"erk+"``, ``"erk-logits"`` (for
            transformers), or ``"ntk-sap"``, its closed form with one number per layer. Or a mapping from names or
            patterns (``"*.q_proj.weight"``) to a density (a float) or a number (an int). Or masks or an allocation,
            whose counts are taken, scaled in proportion if the sparsity differs. Or the name of a method, for the
            counts of its masks.
        floor: the least that each layer keeps, as a number or, below 1, as a share; 0 lets layers be empty.
        block_floor, blocks: the least that each block keeps, and patterns of names, one for each block; by default
            the numbered parts of the module, such as ``layers.3``, which are the residual blocks of most networks.
        rest: the rule for the layers that a mapping does not name: ``"uniform"``, ``"equal"`` or ``"erk"``.
        rescale: the closed form assumes that kept weights are rescaled, as `Masks.attach` does on request.
        rounds, schedule: those of the closed form, by default 20 and ``"exponential"``, or of the method that is the
            rule.
        input_shape, inputs, output, init: what ``"ntk-sap"`` and ``"erk-logits"`` need to know, as in `prune`.
        include, exclude: what is prunable, see `Net`.
        settings: for a method as the rule, the other keywords of `prune`.

    >>> model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    >>> print(allocate(model, 0.75, "erk"))
    layer     shape  kept/total  density
    ────────────────────────────────────
    0.weight   16×8      23/128   17.97%
    2.weight   2×16       17/32   53.12%
    ────────────────────────────────────
    total                40/160   25.00%
    """
    same: dict[str, Any] = {"floor": floor, "block_floor": block_floor, "blocks": blocks, "rounds": rounds}
    same |= {"schedule": schedule, "input_shape": input_shape, "inputs": inputs, "output": output, "init": init}
    same |= {"include": include, "exclude": exclude}
    if is_method(rule):
        if sparsity is None:
            raise InputError(f"the counts of {rule} need a sparsity")
        return allocation_by_method(model, sparsity, rule, **same, **settings)
    if settings:
        raise InputError(f"{', '.join(settings)}: only a rule that is a method takes such settings, not {rule!r}")
    return allocation_for(model, sparsity, rule, rest=rest, rescale=rescale, **same)
