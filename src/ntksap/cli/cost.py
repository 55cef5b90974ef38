"""``ntksap cost``."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap.budget import PAPER_PASSES, Budget, measured_budget, paper_budget
from ntksap.cli.console import print_json, stdout
from ntksap.cli.options import ModelArguments
from ntksap.cost import Cost, cost
from ntksap.data import load
from ntksap.masks import Masks
from ntksap.methods import method_named
from ntksap.pruning_data import pruning_data
from ntksap.recipe import load_recipe


def show_cost(
    model: OmitArgPrefixes[ModelArguments],
    masks: Path | None = None,
    method: str | None = None,
    recipe: str = "cifar10-resnet20",
    images: int = 50_000,
    data: str | None = None,
    data_dir: Path | None = None,
    json: bool = False,
) -> None:
    """Count multiply-adds: of one inference, layer by layer; with --method also of pruning and training.

    Args:
        model: Which model.
        masks: A mask file of this model; without it the dense model is counted.
        method: Also count pruning by this method and then training, in the paper's counting and as really evaluated.
        recipe: How many epochs training takes.
        images: How many images an epoch has.
        data: A data set, for methods that need one to prune.
        data_dir: Where data sets are.
        json: Print one JSON object.
    """
    loaded = load(data, data_dir) if data else None
    module, shape = model.build(loaded)
    kept = Masks.load(masks) if masks is not None else None
    counted = cost(module, kept, input_shape=shape)
    budgets: dict[str, Budget] = {}
    if method is not None:
        epochs = load_recipe(recipe).epochs
        if method in PAPER_PASSES:
            budgets["paper"] = paper_budget(method, counted.dense, counted.sparse, epochs=epochs, images=images)
        batches = pruning_data(method_named(method), loaded, seed=model.seed) if loaded else None
        budgets["evaluated"] = measured_budget(
            module, method, epochs=epochs, images=images, input_shape=shape, data=batches
        )
    if json:
        result: dict[str, Any] = {
            "model": model.model,
            "input_shape": list(shape),
            "dense_flops": counted.dense,
            "inference_flops": counted.sparse,
            "layers": [asdict(layer) for layer in counted.layers],
        }
        if budgets:
            result["budgets"] = {name: {**asdict(b), "total": b.total} for name, b in budgets.items()}
        print_json(result)
        return
    if budgets:
        _print_budgets(budgets, counted)
    else:
        _print_layers(counted, masked=kept is not None)


def _print_layers(counted: Cost, *, masked: bool) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False, show_footer=True)
    table.add_column("layer", "total")
    table.add_column("kind")
    table.add_column("dense", f"{counted.dense:,}", justify="right")
    if masked:
        table.add_column("under masks", f"{counted.sparse:,}", justify="right")
        table.add_column("share", f"{counted.sparse / counted.dense:.2%}", justify="right")
    for layer in counted.layers:
        row = [layer.name or "(the model)", layer.kind, f"{layer.dense:,}"]
        if masked:
            row += [f"{layer.sparse:,}", f"{layer.sparse / layer.dense:.2%}" if layer.dense else "–"]
        table.add_row(*row)
    stdout.print(table)


def _print_budgets(budgets: dict[str, Budget], counted: Cost) -> None:
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("multiply-adds")
    titles = {"paper": "paper's counting", "evaluated": "evaluated here"}
    for name in budgets:
        table.add_column(titles[name], justify="right")
    for row in ("inference", "pruning", "training", "total"):
        table.add_row(row, *(f"{getattr(budget, row):.3g}" for budget in budgets.values()))
    stdout.print(table)
    stdout.print(f"\nOne dense inference: {counted.dense:,}", highlight=False)
