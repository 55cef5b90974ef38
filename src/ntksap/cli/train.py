"""``ntksap train``."""

from pathlib import Path
from typing import Literal

from tyro.conf import OmitArgPrefixes

from ntksap._base import counted, join_job
from ntksap.cli.console import print_json, say, stderr
from ntksap.cli.options import DataArguments, KeepArguments, parse_numbers, split_list
from ntksap.cli.overrides import MethodOptions, RecipeOverrides, pick_given, pick_recipe_settings
from ntksap.cli.progress import Display
from ntksap.runs import Place, read_result, run, settings_for
from ntksap.training import load_recipe


def run_train(
    data: OmitArgPrefixes[DataArguments],
    pruning: OmitArgPrefixes[MethodOptions],  # type: ignore[valid-type]
    training: OmitArgPrefixes[RecipeOverrides],  # type: ignore[valid-type]
    mask: OmitArgPrefixes[KeepArguments],
    model: str = "resnet20",
    method: str = "ntk-sap",
    sparsity: float = 0.9,
    seed: int = 0,
    recipe: str = "quick",
    sanity: Literal["none", "shuffle", "reinit", "invert"] = "none",
    rounds: int | None = None,
    schedule: Literal["exponential", "linear", "one-shot"] | None = None,
    scope: Literal["global", "layer"] | None = None,
    floor: int | float = 0,
    keep_epochs: str = "",
    sync_norm: bool = True,
    other_kernels: bool = False,
    out: Path = Path("runs"),
    device: str = "cpu",
    log: str = "",
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Prune, then train: one run, from initial weights to test accuracy. The same command again resumes it.

    Args:
        data: Which data.
        pruning: Options of single methods.
        training: Settings of the recipe to replace.
        mask: How many weights each layer keeps, which of them, and in which pattern.
        model: A model from the table, with -wN for another width: resnet20-w8 is half as wide as resnet20.
        method: A name from `ntksap methods`; dense prunes nothing, thin has fewer channels in every layer instead.
        sparsity: Share of prunable weights to remove (for the thin network: the share by which it is smaller).
        seed: Decides initial weights, draws, the order of images and augmentation.
        recipe: How to train: a name from the package (quick, cifar10-resnet20, …), or your own TOML file.
        sanity: Shuffle the mask within layers, train it from fresh weights, or keep the lowest scores.
        rounds: Rounds of pruning; the method's own by default.
        schedule: How density falls over the rounds; the method's own by default.
        scope: Rank all weights together, or within each layer; the method's own by default, mostly global. Whole
            channels are ranked within each coupled group by default.
        floor: The least that each layer keeps, as a number of weights or, below 1, as a share.
        keep_epochs: Epochs after which to keep a checkpoint, separated by commas: 0,40,80 (0 is before training).
        sync_norm: With several processes (torchrun), take BatchNorm's statistics over all of them.
        other_kernels: Carry on with a run that began with other kernels (a C compiler came or went, or NTKSAP_NATIVE
            changed).
        out: The folder that holds runs; this run is a folder in it, named by its settings.
        device: cpu, cuda or mps.
        log: Where else to log training, separated by commas: tensorboard, wandb (offline); in the run's folder.
        json: Print the result as one JSON object.
        quiet: Print no progress.
    """
    settings = settings_for(
        model=model,
        data=data.data,
        method=method,
        sparsity=sparsity,
        seed=seed,
        recipe=load_recipe(recipe, pick_recipe_settings(training)),
        sanity=sanity,
        rounds=rounds,
        schedule=schedule,
        scope=scope,
        floor=floor,
        options=pick_given(pruning),
        **mask.settings(),
    )
    kept = tuple(parse_numbers(int, "keep-epochs", keep_epochs)) if keep_epochs else ()
    with join_job(device) as (ranks, own), Display(quiet or not ranks.first) as display:
        if ranks.first and read_result(out / settings.name) is not None:
            stderr.print("this run is already finished; here is its result", highlight=False)
        place = Place(
            data.data_dir,
            data.download,
            data.workers,
            own,
            keep_epochs=kept,
            sync_norm=sync_norm,
            other_kernels=other_kernels,
            log=tuple(split_list(log)),
        )
        result = run(settings, out, place, display.on_progress, ranks.group)
    if not ranks.first:
        return
    if json:
        print_json(result)
        return
    say(
        f"{settings.label} at {settings.sparsity:.2%} on {settings.data}: test accuracy {result['top1']:.2%} after "
        f"{counted(settings.recipe.epochs, 'epoch')} (training accuracy {result['train_accuracy']:.2%}).\n"
        f"Pruned in {result['prune_seconds']:.1f} s, trained in {result['train_seconds']:.1f} s. "
        f"Everything is in {out / settings.name}",
    )
