"""What masks are called in tables and figures: as runs are, as far as their files say how they were made."""

from collections.abc import Sequence
from typing import Any

from ntksap.methods import METHODS
from ntksap.pruning import Masks
from ntksap.report.labels import method_labels

_SAID = ("pattern", "scope", "places", "degree_decay", "rescale")
_LONGEST = 60


def mask_labels(every: Sequence[Masks]) -> list[str]:
    """Return the label of each of the masks that are compared: the method, and what is not usual about it."""
    return method_labels([_settings(masks) for masks in every])


def _settings(masks: Masks) -> dict[str, Any]:
    """Return what masks say of themselves as settings of a run; what they do not say is as usual."""
    info = masks.info
    method = str(info.get("method") or "masks")[:_LONGEST]
    sparsity = info.get("sparsity")
    sparsity = sparsity if isinstance(sparsity, float) and 0 <= sparsity < 1 else min(masks.sparsity, 1 - 1e-9)
    chosen = METHODS.get(method)
    said = {key: info[key] for key in _SAID if info.get(key) is not None}
    scored = said.get("places", "score") == "score"
    if chosen is not None:
        usual = {"scope": "layer" if said.get("pattern") == "channel" else chosen.scope, "schedule": chosen.schedule}
        rounds = info.get("rounds") if scored else None  # without scores there is one round, whatever was asked for
        said = {**usual, "rounds": rounds or chosen.rounds_at(1 - sparsity), **said}
    regrown = info.get("regrown")  # earlier files do not say how
    return {
        "method": method,
        "sanity": "none",
        "sparsity": sparsity,
        "allocation": "own allocation"
        if isinstance(info.get("allocation"), dict)
        else str(info.get("allocation") or ""),
        "recipe": {"regrow": "regrown" if regrown is True else regrown or "none"},
        **said,
    }
