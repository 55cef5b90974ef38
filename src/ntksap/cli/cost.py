"""``ntksap cost``."""

from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap.cli.console import print_json, stdout
from ntksap.cli.options import ModelArguments
from ntksap.cost import cost
from ntksap.masks import Masks


def show_cost(model: OmitArgPrefixes[ModelArguments], masks: Path | None = None, json: bool = False) -> None:
    """Count the multiply-adds of one inference, layer by layer, in the paper's convention.

    Args:
        model: Which model.
        masks: A mask file of this model; without it the dense model is counted.
        json: Print one JSON object.
    """
    module, shape = model.build()
    kept = Masks.load(masks) if masks is not None else None
    counted = cost(module, kept, input_shape=shape)
    if json:
        print_json(
            {
                "model": model.model,
                "input_shape": list(shape),
                "dense_flops": counted.dense,
                "inference_flops": counted.sparse,
                "layers": [asdict(layer) for layer in counted.layers],
            }
        )
        return
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=True)
    table.add_column("layer", "total")
    table.add_column("kind")
    table.add_column("dense", f"{counted.dense:,}", justify="right")
    if kept is not None:
        table.add_column("under masks", f"{counted.sparse:,}", justify="right")
        table.add_column("share", f"{counted.sparse / counted.dense:.2%}", justify="right")
    for layer in counted.layers:
        row = [layer.name or "(the model)", layer.kind, f"{layer.dense:,}"]
        if kept is not None:
            row += [f"{layer.sparse:,}", f"{layer.sparse / layer.dense:.2%}" if layer.dense else "–"]
        table.add_row(*row)
    stdout.print(table)
