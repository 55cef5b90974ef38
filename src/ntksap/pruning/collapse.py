"""A word about layers with nothing left."""

import warnings

from ntksap._base import CollapseError, CollapseWarning
from ntksap.pruning.masks import Masks


def warn_of_collapse(masks: Masks, *, strict: bool = False) -> None:
    """Warn of layers with nothing left; `CollapseError` if ``strict``."""
    if not masks.collapsed:
        return
    text = (
        f"nothing is left of {', '.join(masks.collapsed)}: no signal passes through these layers. Lower the sparsity, "
        "keep some weights in each layer (floor=), or do not let one ranking decide for all of them (allocation='erk', "
        "for transformers 'erk-logits')"
    )
    if strict:
        raise CollapseError(text)
    warnings.warn(text, CollapseWarning, stacklevel=3)
