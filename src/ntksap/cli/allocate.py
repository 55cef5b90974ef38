"""``ntksap allocate``."""

from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from ntksap._base import write_json
from ntksap._prune import allocate, write_masks
from ntksap.cli.console import print_json, say
from ntksap.cli.options import ModelArguments, split_list
from ntksap.cli.tables import print_layers


def run_allocate(
    model: OmitArgPrefixes[ModelArguments],
    sparsity: float = 0.9,
    rule: str = "erk",
    floor: int | float = 1,
    block_floor: int | float = 0,
    blocks: str = "",
    rescale: bool = False,
    rounds: int | None = None,
    out: Path | None = None,
    masks: Path | None = None,
    places: Literal["random", "balanced"] = "random",
    json: bool = False,
) -> None:
    """Decide how many weights each layer keeps, from the shapes of the model alone.

    Args:
        model: Which model.
        sparsity: Share of prunable weights to remove, 0 ≤ sparsity < 1.
        rule: uniform, equal, erk, erk+, erk-logits (for transformers), ntk-sap (its closed form with one number per
            layer), or a method that needs no data, for the counts of its masks.
        floor: The least that each layer keeps, as a number of weights or, below 1, as a share.
        block_floor: The least that each block keeps, likewise.
        blocks: Patterns of names, separated by commas, one for each block; by default the numbered parts of the model.
        rescale: Kept weights will be rescaled before training: ntk-sap assumes it, and masks ask for it.
        rounds: Rounds of ntk-sap (20 by default) or of the method.
        out: Write the result to this JSON file.
        masks: Also draw masks that keep these numbers of weights, and write them to this file layer by layer.
        places: Which weights these keep: random ones, or the same number in every output and input.
        json: Print one JSON object.
    """
    built = model.build()
    plan = allocate(
        built.module,
        sparsity,
        rule,
        floor=floor,
        block_floor=block_floor,
        blocks=split_list(blocks) or None,
        rescale=rescale,
        rounds=rounds,
        **built.probe,
    )
    result = {
        "model": model.model,
        "sparsity": sparsity,
        **plan.info,
        "kept": plan.kept,
        "total": plan.total,
        "density": plan.density,
        "layers": plan.layers(),
    }
    if out is not None:
        write_json(out, result)
    if masks is not None:
        write_masks(masks, built.module, plan, places=places, seed=model.seed, rescale=rescale)
    if json:
        print_json(result)
        return
    print_layers(plan.layers())
    for written in filter(None, (out, masks)):
        say(f"Wrote {written}")
