"""``ntksap allocate``."""

from pathlib import Path

from tyro.conf import OmitArgPrefixes

from ntksap._base import write_json
from ntksap._prune import allocate
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
    json: bool = False,
) -> None:
    """Decide how many weights each layer keeps, from the shapes of the model alone.

    Args:
        model: Which model.
        sparsity: Share of prunable weights to remove, 0 ≤ sparsity < 1.
        rule: uniform, equal, erk, erk+, ntk-sap (its closed form with one number per layer), or a method that needs no
            data, for the counts of its masks.
        floor: What each layer keeps at least, as a number of weights or, below 1, as a share.
        block_floor: What each block keeps at least, likewise.
        blocks: Patterns of names with commas, one for each block; by default the numbered parts of the model.
        rescale: Take kept weights to be rescaled before training (ntk-sap).
        rounds: Rounds of ntk-sap (20 by default) or of the method.
        out: Write the result to this JSON file.
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
    if json:
        print_json(result)
        return
    print_layers(plan.layers())
    if out is not None:
        say(f"Wrote {out}")
