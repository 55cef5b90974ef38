"""``python -m studies.fidelity``: do fast masks allocate like textbook masks? NTK-SAP on ResNet-20.

For each seed both sides prune, and the textbook prunes once more with another seed, to show the effect of chance alone.
Masks are kept in a folder, so that an interrupted run resumes where it stopped. Compared over the seeds: the mean
density of each layer, inference multiply-adds, and the distance between the spectra of the neural tangent kernel. With
``--train``, the masks of both sides are trained on CIFAR-10 instead, and their test accuracies compared.
"""

import argparse
import dataclasses
import json
import time
from pathlib import Path
from statistics import fmean, stdev

import torch

import ntksap
from benchmarks import textbook
from benchmarks.jobs.pruning import CIFAR
from ntksap import Masks, models
from ntksap._base.files import write_json
from ntksap._base.seeds import generator_of
from ntksap.data import load
from ntksap.data.base import Dataset
from ntksap.training.loop import train
from ntksap.training.recipe import load_recipe
from ntksap.training.state import TrainState

CHANCE = 1000
"""Added to the seed of the textbook's second run."""


def mask_of(side: str, seed: int, rounds: int, sparsity: float, folder: Path) -> Masks:
    """Return the masks of one side and seed: read them, else compute and write them."""
    file = folder / f"{side}-{sparsity}-T{rounds}-seed{seed}.safetensors"
    if not file.exists():
        model = models.build("resnet20", seed=seed)
        start = time.perf_counter()
        if side == "product":
            found = ntksap.prune(model, sparsity, "ntk-sap", input_shape=CIFAR, rounds=rounds, seed=seed)
        else:
            dice = seed + CHANCE if side == "chance" else seed
            found = Masks(textbook.prune(model, 1 - sparsity, rounds, textbook.ntk_sap, CIFAR, 5, 100, dice))
        print(f"{side}, seed {seed}: {time.perf_counter() - start:.0f} s", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        found.save(file)
    return Masks.load(file)


def multiply_adds(side: list[Masks]) -> list[int]:
    """Return the multiply-adds of one inference under each of these masks."""
    model = models.build("resnet20", seed=0)
    return [ntksap.cost(model, masks, input_shape=CIFAR).sparse for masks in side]


def compare(first: list[Masks], second: list[Masks]) -> dict[str, float]:
    """Return how far apart two sets of masks, one per seed, are."""
    layers = {}
    for name in first[0]:
        mine, theirs = (fmean(int(masks[name].sum()) for masks in side) for side in (first, second))
        if mine > 1000:
            layers[name] = abs(theirs / mine - 1)
    cost = [fmean(multiply_adds(side)) for side in (first, second)]
    inputs = torch.randn(16, *CIFAR, generator=generator_of("fidelity"))
    distances = []
    for seed, (one, other) in enumerate(zip(first, second)):
        model = models.build("resnet20", seed=seed)
        kernels = [ntksap.ntk(model, inputs, masks, norm="batch") for masks in (one, other)]
        distances.append(ntksap.spectrum_distance(*(kernel.eigenvalues for kernel in kernels)))
    return {
        "layers_above_1000": len(layers),
        "largest_layer_gap": max(layers.values(), default=0.0),
        "multiply_adds_gap": abs(cost[1] / cost[0] - 1),
        "spectrum_distance": fmean(distances),
    }


def accuracy_of(side: str, seed: int, masks: Masks, epochs: int, data: Dataset, file: Path) -> float:
    """Return the test accuracy of the network after a short training under these masks: read it, else compute it."""
    if not file.exists():
        recipe = dataclasses.replace(load_recipe("quick"), epochs=epochs)
        state = TrainState(models.build("resnet20", seed=seed), recipe, masks=masks, seed=seed)
        *_, last = train(state, data)
        write_json(file, last.top1)
        print(f"{side}, seed {seed}: {last.top1:.2%}", flush=True)
    return float(json.loads(file.read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.fidelity", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--sparsity", type=float, default=0.982)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--folder", type=Path, default=Path("fidelity"), help="where masks are kept")
    parser.add_argument("--train", type=Path, help="the folder of CIFAR-10: train the masks")
    parser.add_argument("--epochs", type=int, default=2)
    given = parser.parse_args()
    if given.train is not None:
        data = load("cifar10", given.train)
        ending = f"{given.sparsity}-T{given.rounds}-epochs{given.epochs}"
        for side in ("textbook", "product"):
            found = [
                accuracy_of(
                    side,
                    seed,
                    mask_of(side, seed, given.rounds, given.sparsity, given.folder),
                    given.epochs,
                    data,
                    given.folder / f"{side}-{ending}-seed{seed}.json",
                )
                for seed in range(given.seeds)
            ]
            print(f"{side}: {fmean(found):.2%} ± {stdev(found):.2%}, {given.seeds} seeds")
        return
    sides = {
        side: [mask_of(side, seed, given.rounds, given.sparsity, given.folder) for seed in range(given.seeds)]
        for side in ("textbook", "product", "chance")
    }
    found = {
        "sparsity": given.sparsity,
        "rounds": given.rounds,
        "seeds": given.seeds,
        "multiply_adds": {side: multiply_adds(masks) for side, masks in sides.items()},
        "product": compare(sides["textbook"], sides["product"]),
        "chance": compare(sides["textbook"], sides["chance"]),
    }
    print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
