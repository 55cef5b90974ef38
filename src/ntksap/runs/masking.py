"""From settings to masks: the one way, which every command takes, and which resumes after the last round."""

import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from torch import Tensor, nn

from ntksap._base import ALONE, CollapseWarning, InputError, MaskError, Ranks
from ntksap._prune import prune
from ntksap.data import Dataset, pruning_batches
from ntksap.methods import method_named
from ntksap.pruning import Data, MakeInputs, Masks, Train, shuffled
from ntksap.runs.folder import OnProgress, Place, Progress
from ntksap.runs.settings import Pruning
from ntksap.training import Recipe, TrainState, train

Images: TypeAlias = Iterable[tuple[Tensor, Tensor]]


def make_masks(
    pruning: Pruning,
    model: nn.Module,
    input_shape: tuple[int, ...],
    data: Dataset | None = None,
    *,
    inputs: MakeInputs | None = None,
    recipe: Recipe | None = None,
    about: Mapping[str, Any] | None = None,
    folder: Path | None = None,
    place: Place | None = None,
    on_progress: OnProgress = lambda progress: None,
    ranks: Ranks = ALONE,
) -> Masks:
    """Return the masks of ``model`` that the settings decide: read them, or prune from the last round that was saved.

    Args:
        pruning: the settings; those of a run will do.
        model: the model, with its initial weights.
        input_shape: the shape of one input, without the batch.
        inputs: makes inputs where numbers of that shape will not do.
        data: the data set, for a method that needs one, see `pruning_data`.
        recipe: how a training set is batched and augmented for methods that read all of it.
        about: what else ``masks.info`` is to say.
        folder: where to keep ``masks.safetensors``, and ``pruning.safetensors`` in the meantime; None: nowhere.
        place: the device, and the size of micro-batches.
        on_progress: told after each round.
        ranks: the processes that share the work.
    """
    place = place or Place()
    final, partial = (folder / f"{name}.safetensors" if folder else None for name in ("masks", "pruning"))
    if (found := ranks.from_first(lambda: _load(final, pruning, model))) is not None:
        return found
    after = ranks.from_first(lambda: _load(partial, pruning, model))
    said = {**(about or {}), **({"run": folder.name} if folder else {})}
    trains = method_named(pruning.method).trains
    start = time.perf_counter() - (after.info["seconds"] if after else 0.0)

    def on_round(masks: Masks) -> None:
        masks.info |= {**said, "input_shape": list(input_shape), "seconds": time.perf_counter() - start}
        index, rounds = masks.info["round"], masks.info["rounds"]
        if partial and index < rounds and ranks.first:
            masks.save(partial)
        on_progress(Progress("prune", index, rounds, "round", density=masks.density))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CollapseWarning)  # results name the layers
        masks = prune(
            model,
            pruning.sparsity,
            pruning.method,
            input_shape=input_shape,
            inputs=inputs,
            data=pruning_data(pruning, data, recipe) if data and not trains else None,
            train=_training(pruning, data, recipe, place, on_progress, ranks) if trains else None,
            seed=pruning.seed,
            rounds=pruning.rounds,
            schedule=pruning.schedule,
            scope=None if pruning.allocation else pruning.scope,
            floor=pruning.floor,
            allocation=pruning.allocation or None,
            places=pruning.places,
            pattern=pruning.pattern or None,
            degree_decay=pruning.degree_decay,
            rescale=pruning.rescale,
            budget=pruning.budget,
            round_to=pruning.round_to,
            init=pruning.init,
            precision=pruning.precision,
            device=place.device,
            micro_batch=place.micro_batch,
            invert=pruning.sanity == "invert",
            on_round=on_round,
            after=after,
            group=ranks.group,
            **pruning.options,
        )
    if pruning.sanity == "shuffle":
        masks = shuffled(masks, pruning.seed)
    masks.state.clear()  # nothing resumes after the last round
    if final and partial and ranks.first:
        masks.save(final)
        partial.unlink(missing_ok=True)
    return masks


def pruning_data(pruning: Pruning, data: Dataset, recipe: Recipe | None = None) -> Data:
    """Return what the method needs of ``data``, for ``data=`` of `ntksap.prune`.

    A pruning set of ``samples_per_class`` images of each class, or epochs of the training set: augmented and batched
    as the recipe says (128 images without one), unless the method says how many it wants.
    """
    method, seed = method_named(pruning.method), pruning.seed
    if not method.streams:  # even for methods that need none: some of their options use data
        return pruning_batches(data, per_class=pruning.samples_per_class, batch_size=pruning.prune_batch, seed=seed)
    size = method.batch or (recipe.batch if recipe else 128)
    augment = recipe.augment if recipe else True

    def epoch(index: int) -> Images:
        return data.train.batches(size, seed=seed, epoch=index, augment=augment)

    return epoch


def _training(
    pruning: Pruning, data: Dataset | None, recipe: Recipe | None, place: Place, on_progress: OnProgress, ranks: Ranks
) -> Train:
    """Return ``train=`` for `ntksap.prune`: it trains a network as the run itself will, on the same images."""
    if data is None or recipe is None:
        raise InputError(
            f"{pruning.method} trains the network again and again and needs data and a recipe: use `ntksap train` or "
            "`ntksap compare`"
        )
    # Masks stay fixed within a level; what a recipe regrows, it regrows in the training that follows.
    own = replace(recipe.without_regrowth(), epochs=pruning.options["level_epochs"] or recipe.epochs)

    def epochs(module: nn.Module, masks: Masks) -> Iterator[object]:
        state = TrainState(
            module,
            own,
            masks=masks if masks.kept < masks.total else None,  # the first level is the dense run, bit for bit
            seed=pruning.seed,
            device=place.device,
            group=ranks.group,
            sync_norm=place.sync_norm,
        )
        for record in train(state, data):
            on_progress(Progress("level", record.epoch, own.epochs, "epoch", record.top1, masks.density))
            yield record

    return epochs


def _load(path: Path | None, pruning: Pruning, model: nn.Module) -> Masks | None:
    """Return masks of this run, None if there are none; `MaskError` if the file is damaged or from another run."""
    if path is None or not path.exists():
        return None
    masks = Masks.load(path)
    run = path.parent.name
    index, rounds = masks.info.get("round"), masks.info.setdefault("rounds", pruning.rounds)  # old files lack it
    whole = type(index) is int and 1 <= index <= rounds == pruning.rounds
    if not whole or not isinstance(masks.info.get("seconds"), int | float) or masks.info.get("run", run) != run:
        raise MaskError(f"{path} does not belong to this run; remove it, and the same command prunes again")
    masks.check(model)
    return masks
