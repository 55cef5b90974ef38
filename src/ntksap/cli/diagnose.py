"""``ntksap diagnose``."""

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.table import Table
from tyro.conf import Positional

from ntksap._base import InputError
from ntksap.analysis import Diagnosis, KernelChange, diagnose
from ntksap.cli.console import print_json, say, stdout
from ntksap.cli.mask_model import model_of
from ntksap.cli.options import MODEL, ModelArguments
from ntksap.cli.tables import print_table
from ntksap.pruning import Masks
from ntksap.report import diagnosis_figure, mask_labels, node_path_figure, write_figure


def run_diagnose(
    masks: Annotated[Positional[tuple[Path, ...]], tyro.conf.arg(metavar="MASKS …")],
    model: Annotated[str | None, tyro.conf.arg(metavar=MODEL)] = None,
    classes: int | None = None,
    input_shape: Annotated[tuple[int, ...] | None, tyro.conf.arg(metavar="C H W")] = None,
    seed: int | None = None,
    kernel: bool = True,
    picture: Path | None = None,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Look at masks before training: what is left of each layer, how much of it is used, what it will cost, and how it
    changes the neural tangent kernel, which decides how fast training begins.

    Args:
        masks: A mask file, or several to compare side by side.
        model: The model the masks are for. By default this and the next three are read from the file.
        classes: Number of classes.
        input_shape: Shape of one input.
        seed: Decides the initial weights that the kernel is computed at, and its noise inputs.
        kernel: For one file: compare the neural tangent kernel with the dense network's (takes seconds; skipped for
            large models).
        picture: For one file: draw the layers, and the eigenvalues of both kernels, to this file (png, svg or pdf).
        plot: Draw the number of paths from input to output against the channels on one, for each file, to this file.
        json: Print one JSON object; for several files, one that lists them.
    """
    if not masks or (picture is not None and len(masks) > 1):
        raise InputError("diagnose takes at least one mask file, and --picture exactly one; --plot compares several")
    named = []
    for path in masks:
        loaded = Masks.load(path)
        chosen = model_of(loaded, ModelArguments(model or "", classes, input_shape, seed or 0), seed is None)
        built = chosen.build()
        found = diagnose(built.module, loaded, **built.probe, kernel=kernel and len(masks) == 1, seed=chosen.seed)
        named.append((path, chosen, loaded, found))
    labels = mask_labels([loaded for *_, loaded, _ in named])
    if picture is not None:
        write_figure(diagnosis_figure(named[0][-1], f"{named[0][1].model}: {masks[0]}"), picture)
    if plot is not None:
        models = ", ".join(dict.fromkeys(chosen.model for _, chosen, _, _ in named))
        labelled = [(label, found) for label, (*_, found) in zip(labels, named, strict=True)]
        write_figure(node_path_figure(labelled, models), plot)
    if json:
        facts = [{"masks": str(path), **_facts(chosen, found)} for path, chosen, _, found in named]
        print_json(facts[0] if len(facts) == 1 else {"masks": facts})
        return
    if len(named) > 1:
        shared = os.path.commonpath([path.absolute().parent for path in masks])
        names = [os.path.relpath(path, shared) for path in masks]
        print_table(_comparison(list(zip(names, labels, [found for *_, found in named], strict=True))))
        return
    print_table(_table(named[0][-1]))
    stdout.print()
    print_sentences(named[0][-1])


def _facts(chosen: ModelArguments, found: Diagnosis) -> dict[str, Any]:
    counted = isinstance(found.log10_paths, float) and math.isfinite(found.log10_paths)
    return {
        "model": chosen.model,
        "seed": chosen.seed,
        "sparsity": found.sparsity,
        "effective_sparsity": found.effective_sparsity,
        "collapsed": found.collapsed,
        "disconnected": found.disconnected,
        "units": list(found.units),
        "kernels": list(found.kernels),
        "log10_paths": found.log10_paths if counted else None,
        "dense_flops": found.dense_flops,
        "inference_flops": found.inference_flops,
        "kernel": _kernel_facts(found.kernel),
        "sentences": found.sentences(),
        "layers": [asdict(layer) for layer in found.layers],
    }


def _kernel_facts(change: KernelChange | str | None) -> dict[str, Any] | None:
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


def _comparison(named: list[tuple[str, str, Diagnosis]]) -> Table:
    """Return a row for each file."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("masks", "method"):
        table.add_column(column, overflow="fold")
    for column in ("sparsity", "effective", "channels", "kernels", "log₁₀ paths"):
        table.add_column(column, justify="right", no_wrap=True)
    for path, label, found in named:
        paths = found.log10_paths
        table.add_row(
            path,
            label,
            f"{found.sparsity:.2%}",
            f"{found.effective_sparsity:.2%}",
            f"{found.units[0]:,}",
            f"{found.kernels[0]:,}",
            "not counted" if isinstance(paths, str) else f"{paths:.1f}" if math.isfinite(paths) else "none",
        )
    return table
