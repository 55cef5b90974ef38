"""``ntksap spectrum``."""

from pathlib import Path
from typing import Any, Literal

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap.cli.console import print_json, say
from ntksap.cli.options import ModelArguments, choose_methods, parse_numbers
from ntksap.cli.overrides import MethodOptions, pick_given
from ntksap.cli.progress import Display
from ntksap.cli.tables import print_table
from ntksap.experiments import spectrum, spectrum_during
from ntksap.runs import DENSE


def run_spectrum(
    model: OmitArgPrefixes[ModelArguments],
    pruning: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    methods: str = "ntk-sap,synflow,magnitude,random",
    sparsities: str = "0.738",
    data: str | None = None,
    data_dir: Path | None = None,
    inputs: int = 100,
    norm: Literal["batch", "running"] = "batch",
    dtype: Literal["float32", "float64"] = "float32",
    memory_mib: float = 384,
    device: str = "cpu",
    during: Path | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Compare spectra of the neural tangent kernel at initialisation: dense, and pruned by each method.

    Args:
        model: Which model.
        pruning: Options of single methods, for those of the compared methods that have them.
        methods: Names from `ntksap methods`, separated by commas, or all.
        sparsities: Shares of prunable weights to remove, separated by commas.
        data: A data set: its test images are the inputs, and methods that need data prune with its training images.
            Without it the inputs are standard normal noise.
        data_dir: Where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        inputs: Inputs that the kernel is computed on (n); the kernel has n × classes rows.
        norm: BatchNorm statistics, constant in either case: those of these inputs in each net, or the running ones,
            which mean nothing before training.
        dtype: Precision of the derivatives; eigenvalues are always float64.
        memory_mib: How much of the Jacobian to hold at a time.
        device: cpu, cuda or mps.
        during: A run that kept checkpoints (`ntksap train --keep-epochs 0,40,80`): compare its own spectra during
            training instead, absolute and relative; the options for models and methods and --data are then ignored.
        out: A new folder for spectrum.json, spectrum.png and spectrum.svg (during.* with --during).
        json: Print one JSON object.
        quiet: Print no progress.
    """
    common: dict[str, Any] = {
        "data_dir": data_dir,
        "inputs": inputs,
        "norm": norm,
        "dtype": dtype,
        "memory_mib": memory_mib,
        "device": device,
        "out": out,
    }
    with Display(quiet) as display:
        if during is not None:
            result = spectrum_during(during, **common, on_progress=display.on_progress)
        else:
            result = spectrum(
                model.model,
                choose_methods(methods),
                parse_numbers(float, "sparsities", sparsities),
                data=data,
                classes=model.classes,
                input_shape=model.input_shape,
                seed=model.seed,
                options=pick_given(pruning),
                **common,
                on_progress=display.on_progress,
            )
    if json:
        print_json(result)
        return
    _print(result["spectra"]) if during is None else _print_during(result)
    if out is not None:
        name = "spectrum" if during is None else "during"
        say(f"\nWrote {name}.json, {name}.png and {name}.svg in {out}")


def _print_during(found: dict[str, Any]) -> None:
    """Print a line per checkpoint."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("epoch", "trace", "largest", "largest, relative", "distance from the first"):
        table.add_column(column, justify="right")
    for one in found["epochs"]:
        largest, relative = one["eigenvalues"][0], one["relative_eigenvalues"][0]
        table.add_row(
            str(one["epoch"]), f"{one['trace']:.4g}", f"{largest:.3g}", f"{relative:.3g}", f"{one['distance']:.3f}"
        )
    print_table(table)


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
    print_table(table)
    say(
        "\ndistance: typical factor between eigenvalues of equal rank, pruned and dense, in decades (powers of ten); "
        "shape: with equal traces",
    )
    if any(one["collapsed"] for one in pruned):
        say("* a layer was left with nothing")


def _numbers_of(one: dict[str, Any]) -> tuple[str, ...]:
    condition = one["condition_number"]
    values = f"{one['trace']:.4g}", f"{one['eigenvalues'][0]:.3g}"
    return (
        (*values, "0", "singular")
        if condition is None
        else (*values, f"{one['eigenvalues'][-1]:.3g}", f"{condition:.3g}")
    )
