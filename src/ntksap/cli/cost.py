"""``ntksap cost``."""

from dataclasses import asdict
from pathlib import Path

from rich.table import Table
from tyro.conf import OmitArgPrefixes

from ntksap._base import InputError, counted, new_folder, require_new, write_atomically, write_json
from ntksap.analysis import Cost, cost
from ntksap.cli.budgets import print_budgets
from ntksap.cli.console import print_json, say
from ntksap.cli.options import ModelArguments, choose_methods, parse_numbers
from ntksap.cli.overrides import MethodOptions, pick_given
from ntksap.cli.progress import Display
from ntksap.cli.tables import print_table
from ntksap.data import Dataset, load
from ntksap.pruning import Masks
from ntksap.runs import budget_rows, budgets_to_csv, prunings
from ntksap.training import load_recipe


def show_cost(
    model: OmitArgPrefixes[ModelArguments],
    pruning: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    masks: Path | None = None,
    methods: str | None = None,
    sparsities: str = "0.36,0.737856,0.8926258176,0.95601953,0.98198560",
    recipe: str = "cifar10-resnet20",
    images: int | None = None,
    data: str | None = None,
    data_dir: Path | None = None,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Count multiply-adds: of one inference, layer by layer; with --methods, the paper's tables of pruning, inference
    and training with each method, in the paper's counting and as actually evaluated.

    Args:
        model: Which model.
        pruning: Options of single methods, for those of --methods that have them.
        masks: A mask file of this model, for the inference layer by layer; without it the dense model is counted.
        methods: Names from `ntksap methods`, separated by commas, or all (except imp). Each prunes the model to each of
            the sparsities, since the cost of an inference depends on the masks.
        sparsities: Shares of prunable weights to remove, separated by commas; by default those of the paper's tables,
            1 − 0.8^k.
        recipe: The recipe that says how many epochs training takes.
        images: How many images an epoch has; by default as many as the data set, else 50,000.
        data: A data set, for methods that need one to prune.
        data_dir: Where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        out: A new folder for cost.json and cost.csv, with --methods.
        json: Print one JSON object.
        quiet: Print no progress.
    """
    if methods is None:
        if out is not None:
            raise InputError("--out is for the tables of --methods; --json prints the layers")
        _show_layers(model, load(data, data_dir) if data else None, masks, json)
        return
    if masks is not None:
        raise InputError("--methods makes its own masks: omit --masks or --methods")
    names, shares = choose_methods(methods), parse_numbers(float, "sparsities", sparsities)
    options = pick_given(pruning)
    prunings(names, shares, options=options, data=data)  # raises before any work if they are impossible
    epochs = load_recipe(recipe).epochs
    if out is not None:
        require_new(out)
    loaded = load(data, data_dir) if data else None
    module, shape = model.build(loaded).numbers("cost --methods")
    images = images or (len(loaded.train) if loaded else 50_000)
    with Display(quiet) as display:
        rows = budget_rows(
            module,
            names,
            shares,
            epochs=epochs,
            images=images,
            options=options,
            data=loaded,
            input_shape=shape,
            seed=model.seed,
            on_progress=display.on_progress,
        )
    result = {
        "model": model.model,
        "input_shape": list(shape),
        "data": data,
        "seed": model.seed,
        "epochs": epochs,
        "images": images,
        "rows": [row.values() for row in rows],
    }
    if out is not None:
        with new_folder(out) as folder:
            write_json(folder / "cost.json", result)
            write_atomically(folder / "cost.csv", budgets_to_csv(rows))
    if json:
        print_json(result)
        return
    print_budgets(rows, f"{counted(epochs, 'epoch')} of {images:,} images")
    if out is not None:
        say(f"Wrote cost.json and cost.csv in {out}")


def _show_layers(model: ModelArguments, data: Dataset | None, masks: Path | None, json: bool) -> None:
    built = model.build(data)
    counted = cost(built.module, Masks.load(masks) if masks is not None else None, **built.probe)
    if json:
        print_json(
            {
                "model": model.model,
                "input_shape": list(built.shape),
                "dense_flops": counted.dense,
                "inference_flops": counted.sparse,
                "layers": [asdict(layer) for layer in counted.layers],
            }
        )
    else:
        _print_layers(counted, masked=masks is not None)


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
    print_table(table)
