"""``ntksap diagnose``."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table
from tyro.conf import Positional

from ntksap._base import InputError
from ntksap.analysis import Diagnosis, KernelChange, diagnose
from ntksap.cli.console import print_json, say, stdout
from ntksap.cli.options import MODEL, ModelArguments
from ntksap.cli.tables import print_table
from ntksap.models import MODELS
from ntksap.pruning import Masks
from ntksap.report import diagnosis_figure, write_figure


def run_diagnose(
    masks: Annotated[Positional[Path], tyro.conf.arg(metavar="MASKS")],
    model: Annotated[str | None, tyro.conf.arg(metavar=MODEL)] = None,
    classes: int | None = None,
    input_shape: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="C H W")] = None,
    seed: int | None = None,
    kernel: bool = True,
    picture: Path | None = None,
    json: bool = False,
) -> None:
    """Look at masks before training: what is left of each layer, what of it is used, what it will cost, and how it
    changes the neural tangent kernel, which decides how fast training begins.

    Args:
        masks: A mask file.
        model: The model the masks are for. By default this and the next three are what is written in the file.
        classes: Number of classes.
        input_shape: Shape of one input.
        seed: Decides the initial weights that the kernel is computed at, and its noise inputs.
        kernel: Compare the neural tangent kernel with the dense network's (seconds; skipped for very large models).
        picture: Draw the layers, and the eigenvalues of both kernels, to this file (png, svg or pdf).
        json: Print one JSON object.
    """
    loaded = Masks.load(masks)
    chosen = _model_of(loaded, ModelArguments(model or "", classes, input_shape, seed or 0), seed is None)
    built = chosen.build()
    found = diagnose(built.module, loaded, **built.probe, kernel=kernel, seed=chosen.seed)
    if picture is not None:
        write_figure(diagnosis_figure(found, f"{chosen.model}: {masks}"), picture)
    if json:
        print_json(
            {
                "model": chosen.model,
                "seed": chosen.seed,
                "sparsity": found.sparsity,
                "effective_sparsity": found.effective_sparsity,
                "collapsed": found.collapsed,
                "disconnected": found.disconnected,
                "dense_flops": found.dense_flops,
                "inference_flops": found.inference_flops,
                "kernel": _facts(found.kernel),
                "sentences": found.sentences(),
                "layers": [asdict(layer) for layer in found.layers],
            }
        )
        return
    print_table(_table(found))
    stdout.print()
    print_sentences(found)


def _model_of(masks: Masks, given: ModelArguments, any_seed: bool) -> ModelArguments:
    """Return which model masks are for: what the user says, else what the file says, if that can be trusted.

    A file names models of the table only. Code to import and call comes from the user's own --model, never from a file.
    """
    info = masks.info
    name = given.model or info.get("model", "resnet20")
    if not given.model and (not isinstance(name, str) or name not in MODELS):
        own = isinstance(name, str) and ":" in name
        advice = f"If it is your own, and you trust it, add --model {name}" if own else "Say which it is: --model NAME"
        raise InputError(
            f"the mask file says that its model is {str(name)[:80]!r}, which is not one of the table. {advice[:200]}"
        )
    shape, classes, seed = given.input_shape, given.classes, given.seed
    if shape is None and (said := info.get("input_shape")) is not None:
        if not isinstance(said, list) or not 0 < len(said) <= 8 or not all(_size(size, 4096) for size in said):
            raise InputError("the mask file says no usable shape of one input: add --input-shape, such as 3 32 32")
        shape = tuple(said)
    if classes is None and (said := info.get("classes")) is not None:
        if not _size(said, 10**6):
            raise InputError("the mask file says no usable number of classes: add --classes")
        classes = said
    if any_seed:
        seed = info.get("seed", 0)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise InputError("the mask file says no usable seed: add --seed")
    chosen = ModelArguments(name, classes, shape, seed)
    if ":" not in name:  # before memory is taken for a model as large as the file may say
        masks.check(chosen.outline())
    return chosen


def _size(value: object, most: int) -> bool:
    return type(value) is int and 1 <= value <= most


def _facts(change: KernelChange | str | None) -> dict[str, Any] | None:
    if not isinstance(change, KernelChange):
        return None if change is None else {"skipped": change}
    return {
        "inputs": change.dense.num_inputs,
        "outputs": change.dense.num_outputs,
        "distance": change.distance,
        "shape_distance": change.shape_distance,
        "typical_factor": change.typical_factor,
        "dense_eigenvalues": change.dense.eigenvalues.tolist(),
        "eigenvalues": change.pruned.eigenvalues.tolist(),
    }


def print_sentences(found: Diagnosis) -> None:
    """Print the diagnosis in words."""
    for sentence in found.sentences():
        say(f"• {sentence}")


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
