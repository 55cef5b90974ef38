"""``ntksap diagnose``."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table
from tyro.conf import OmitArgPrefixes, Positional

from ntksap.cli.console import print_json, stdout
from ntksap.cli.options import ModelArguments
from ntksap.diagnosis import Diagnosis, diagnose
from ntksap.masks import Masks
from ntksap.report.figures import diagnosis_figure


def run_diagnose(
    masks: Annotated[Positional[Path], tyro.conf.arg(metavar="MASKS")],
    model: OmitArgPrefixes[ModelArguments] = ModelArguments(model=""),  # noqa: B008 (frozen)
    picture: Path | None = None,
    json: bool = False,
) -> None:
    """Look at masks before training: what is left of each layer, what of it is used, and what it will cost.

    Args:
        masks: A mask file.
        model: The model the masks are for; what is written in the file by default.
        picture: Draw the layers to this file (png, svg or pdf).
        json: Print one JSON object.
    """
    loaded = Masks.load(masks)
    chosen = model if model.model else replace(model, model=loaded.info.get("model", "resnet20"))
    shape = chosen.input_shape or loaded.info.get("input_shape")
    classes = chosen.classes or loaded.info.get("classes")
    module, shape = replace(chosen, input_shape=tuple(shape) if shape else None, classes=classes).build()
    found = diagnose(module, loaded, input_shape=shape)
    if picture is not None:
        diagnosis_figure(found, f"{chosen.model}: {masks}").savefig(picture)
    if json:
        print_json(
            {
                "model": chosen.model,
                "sparsity": found.sparsity,
                "effective_sparsity": found.effective_sparsity,
                "collapsed": found.collapsed,
                "disconnected": found.disconnected,
                "dense_flops": found.dense_flops,
                "inference_flops": found.inference_flops,
                "sentences": found.sentences(),
                "layers": [asdict(layer) for layer in found.layers],
            }
        )
        return
    stdout.print(_table(found))
    stdout.print()
    print_sentences(found)


def print_sentences(found: Diagnosis) -> None:
    """Print the diagnosis in words."""
    for sentence in found.sentences():
        stdout.print(f"• {sentence}", highlight=False)


def _table(found: Diagnosis) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("layer", no_wrap=True)
    for column in ("kept", "of", "density", "used", "live channels"):
        table.add_column(column, justify="right", no_wrap=True)
    for layer in found.layers:
        style = "red" if layer.used == 0 else "yellow" if layer.used < 0.9 * layer.kept else ""
        table.add_row(
            layer.name,
            f"{layer.kept:,}",
            f"{layer.total:,}",
            f"{layer.kept / layer.total:.2%}",
            f"{layer.used:,}",
            f"{layer.live_channels}/{layer.channels}",
            style=style,
        )
    return table
