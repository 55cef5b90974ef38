"""``ntksap spectrum``."""

import copy
import itertools
import time
from pathlib import Path
from typing import Any, Literal

import torch
from matplotlib.figure import Figure
from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap._base import InputError, new_folder, write_json
from ntksap.analysis import Kernel, ntk
from ntksap.cli.console import print_json, stdout
from ntksap.cli.during import print_during
from ntksap.cli.options import ModelArguments, chosen_methods, fresh_folder, numbers
from ntksap.cli.overrides import MethodOptions, fitting
from ntksap.cli.progress import bars
from ntksap.data import load
from ntksap.net import Net
from ntksap.pruning import Masks, density_of
from ntksap.report import during_figure, save_figure, spectra_of, spectrum_figure
from ntksap.runs import DENSE, make_masks, pruning_for, spectra_during, spectrum_facts, spectrum_inputs


def run_spectrum(
    model: OmitArgPrefixes[ModelArguments],
    method_options: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    methods: str = "ntk-sap,synflow,magnitude,random",
    sparsities: str = "0.738",
    data: str | None = None,
    data_dir: Path | None = None,
    inputs: int = 100,
    norm: Literal["batch", "running"] = "batch",
    dtype: Literal["float32", "float64"] = "float32",
    memory_mib: float = 384,
    during: Path | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Compare spectra of the neural tangent kernel at initialisation: dense, and pruned by each method.

    Args:
        model: Which model.
        method_options: Options of single methods, for those of the compared methods that have them.
        methods: Names from `ntksap methods` with commas between them, or all.
        sparsities: Shares of prunable weights to remove, with commas between them.
        data: A data set: its test images are the inputs, and methods that need data prune by its training images.
            Without it the inputs are standard normal noise.
        data_dir: Where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        inputs: Inputs that the kernel is computed on (n); the kernel has n times the number of classes rows.
        norm: BatchNorm statistics, constant in either case: of these inputs in each net, or the running ones, which
            mean nothing before training.
        dtype: Precision of the derivatives; eigenvalues are always float64.
        memory_mib: How much of the Jacobian to hold at a time.
        during: A run that kept checkpoints (`ntksap train --keep-epochs 0,40,80`): compare its own spectra on the way
            instead, absolute and relative; only --inputs, --data-dir, --norm, --dtype, --out and --json matter then.
        out: A new folder for spectrum.json, spectrum.png and spectrum.svg (during.* with --during).
        json: Print one JSON object.
    """
    if during is not None:
        if out is not None:
            fresh_folder(out)
        with bars() as show:
            found = spectra_during(
                during,
                data_dir,
                inputs,
                norm,
                getattr(torch, dtype),
                on_progress=lambda done, total, name: show("spectra", "checkpoint", done, total, name),
            )
        _write(out, "during", found, during_figure(found))
        print_json(found) if json else print_during(found)
        return
    names = chosen_methods(methods, data)
    shares = numbers(float, "sparsities", sparsities)
    _check(shares, inputs)
    if out is not None:
        fresh_folder(out)
    loaded = load(data, data_dir) if data else None
    module, shape = model.build(loaded)
    batch = spectrum_inputs(loaded, shape, inputs, model.seed)
    reference: Kernel | None = None
    spectra: list[dict[str, Any]] = []
    jobs = [(DENSE, 0.0), *itertools.product(names, shares)]
    with bars() as show:
        for index, (method, sparsity) in enumerate(jobs):
            label = method if method == DENSE else f"{method} at {100 * sparsity:.4g} %"
            show("spectra", "net", index, len(jobs), label)
            start = time.perf_counter()
            if method == DENSE:
                net = Net(module)
                masks = Masks.ones({name: net.weights[name] for name in net.prunable})
            else:
                options = fitting(method, method_options)
                pruning = pruning_for(method=method, sparsity=sparsity, seed=model.seed, options=options)
                masks = make_masks(pruning, module, shape, loaded)
            pruned = time.perf_counter()
            start_from = copy.deepcopy(module)
            if masks.weights:
                masks.load_weights(start_from)

            def on_progress(done: int, total: int, label: str = label) -> None:
                show(label, "step", done, total, "")

            kernel = ntk(
                start_from,
                batch,
                masks,
                norm=norm,
                dtype=getattr(torch, dtype),
                memory_mib=memory_mib,
                on_progress=on_progress,
            )
            reference = reference or kernel
            seconds = {"prune_seconds": pruned - start, "kernel_seconds": time.perf_counter() - pruned}
            spectra.append(
                {"method": method, "sparsity": sparsity, **spectrum_facts(masks, kernel, reference), **seconds}
            )
    result: dict[str, Any] = {
        "model": model.model,
        "data": data,
        "seed": model.seed,
        "inputs": inputs,
        "norm": norm,
        "dtype": dtype,
        "spectra": spectra,
    }
    if out is not None:
        on = f"{inputs} test images of {data}" if data else f"{inputs} inputs of noise"
        figure = spectrum_figure(spectra_of(result), f"NTK of {model.model} at initialisation, {on}")
        _write(out, "spectrum", result, figure)
    if json:
        print_json(result)
        return
    _print(spectra)
    if out is not None:
        stdout.print(f"\nWrote spectrum.json, spectrum.png and spectrum.svg in {out}", highlight=False)


def _write(out: Path | None, name: str, result: dict[str, Any], figure: Figure) -> None:
    if out is None:
        return
    with new_folder(out) as folder:
        write_json(folder / f"{name}.json", result)
        save_figure(figure, folder, name)


def _check(sparsities: list[float], inputs: int) -> None:
    """Raise before the work begins, not after the first kernels."""
    for sparsity in sparsities:
        density_of(sparsity)
    if inputs < 1:
        raise InputError(f"--inputs must be at least 1, not {inputs}")


def _print(spectra: list[dict[str, Any]]) -> None:
    """Print a line per net; the nearest to the dense net at each sparsity in bold."""
    dense, *pruned = spectra
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("method", no_wrap=True)
    for column in ("sparsity", "trace", "largest", "smallest", "condition", "distance", "shape"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_row(DENSE, "", *_numbers_of(dense))
    for one in pruned:
        nearest = min(other["distance"] for other in pruned if other["sparsity"] == one["sparsity"])
        distance = f"{one['distance']:.3f}"
        table.add_row(
            one["method"] + ("*" if one["collapsed"] else ""),
            f"{100 * one['sparsity']:.4g} %",
            *_numbers_of(one),
            f"[bold]{distance}[/]" if one["distance"] == nearest else distance,
            f"{one['shape_distance']:.3f}",
        )
    stdout.print(table)
    stdout.print(
        "\ndistance: typical factor between eigenvalues of equal rank, pruned and dense, in decades (powers of ten); "
        "shape: with equal traces",
        highlight=False,
    )
    if any(one["collapsed"] for one in pruned):
        stdout.print("* a layer was left with nothing", highlight=False)


def _numbers_of(one: dict[str, Any]) -> tuple[str, ...]:
    condition = one["condition_number"]
    values = f"{one['trace']:.4g}", f"{one['eigenvalues'][0]:.3g}"
    return (
        (*values, "0", "singular")
        if condition is None
        else (*values, f"{one['eigenvalues'][-1]:.3g}", f"{condition:.3g}")
    )
