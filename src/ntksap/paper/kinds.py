"""The kinds of tables and figures: one line each, and how a plan is carried out."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from ntksap._base import InputError, make_folder, unknown, write_atomically, write_json
from ntksap.paper.accuracy import accuracy
from ntksap.paper.bench import Bench
from ntksap.paper.comparison import Comparison
from ntksap.paper.facts import overview, recipes
from ntksap.paper.flops import inference_flops, pruning_flops, total_flops
from ntksap.paper.plan import Plan
from ntksap.paper.spectra_at_init import at_initialisation
from ntksap.paper.spectra_during import during_training, relative_during_training
from ntksap.paper.timing import pruning_time

Kind: TypeAlias = Callable[[Plan, Bench, Path], Comparison]
"""(plan, bench, folder for figures) → comparison."""

KINDS: dict[str, Kind] = {
    "accuracy": accuracy,
    "inference-flops": inference_flops,
    "pruning-flops": pruning_flops,
    "total-flops": total_flops,
    "pruning-time": pruning_time,
    "spectrum": at_initialisation,
    "spectrum-during": during_training,
    "relative-spectrum-during": relative_during_training,
    "overview": overview,
    "recipes": recipes,
}

TRAINING = ("accuracy", "spectrum-during", "relative-spectrum-during")
"""Kinds whose numbers come from trained networks."""

_RUN = ("model", "data", "recipe", "steps")
_NET = ("model", "input_shape", "classes")
_NEEDS: dict[str, tuple[str, ...]] = {
    "accuracy": _RUN,
    "inference-flops": (*_RUN, *_NET),
    "pruning-flops": (*_NET, "columns"),
    "total-flops": (*_RUN, *_NET, "images"),
    "pruning-time": (*_NET, "data", "recipe", "images"),
    "spectrum": (*_RUN, *_NET),
    "spectrum-during": (*_RUN, "epochs"),
    "relative-spectrum-during": (*_RUN, "epochs"),
    "overview": ("columns",),
    "recipes": ("columns",),
}
"""Kind → what each panel of such a plan must say."""


def carry_out(plan: Plan, bench: Bench) -> Comparison:
    """Carry out a plan; return the comparison, which ``out/NAME-SCALE`` holds as comparison.json and comparison.md."""
    if plan.kind not in KINDS:
        raise unknown("kind of plan", plan.kind, KINDS)
    if not plan.panels:
        reasons = "; ".join(dict.fromkeys(plan.left_out.values()))
        raise InputError(f"{plan.name} has nothing at the scale {plan.scale}: {reasons}. Use --scale paper")
    for panel in plan.panels:
        lacking = [key for key in _NEEDS[plan.kind] if not getattr(panel, key) or getattr(panel, key) == (0, 0, 0)]
        if lacking:
            raise InputError(f"{plan.name}: a panel of a plan of {plan.kind} must say {', '.join(lacking)}")
    folder = bench.out / plan.folder
    make_folder(folder)
    found = KINDS[plan.kind](plan, bench, folder)
    write_json(folder / "comparison.json", found.to_json())
    write_atomically(folder / "comparison.md", found.to_markdown())
    return found
