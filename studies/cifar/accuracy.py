"""Accuracy on CIFAR-10 of networks that were pruned in many ways and trained for a short time.

    python -m studies.cifar.accuracy DATA --only vit

carries out every run of the grid that is not in the results yet. DATA is the folder that holds CIFAR-10.
"""

import copy
import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ntksap
from ntksap._base import global_seed
from ntksap.data import Dataset, load, pruning_batches
from ntksap.training import TrainState, load_recipe, train
from studies.cifar.vit import LAYERS, WIDTH, ViT
from studies.grid import Grid, Run

SHAPE = (3, 32, 32)
SEEDS = (0, 1, 2)

VIT: dict[str, dict[str, Any]] = {
    "uniform": {"method": "random", "allocation": "uniform"},
    "erk": {"method": "random", "allocation": "erk"},
    "erk-logits": {"method": "random", "allocation": "erk-logits"},
    "equal": {"method": "random", "allocation": "equal"},
    "magnitude": {"method": "magnitude"},
    "snip": {"method": "snip"},
    "ntk-sap": {"method": "ntk-sap", "init": "reset", "batch": 16},
    "ntk-sap-analytic": {"method": "ntk-sap-analytic", "scope": "global", "init": "reset"},
    "closed-form": {"method": "random", "allocation": "ntk-sap", "init": "reset"},
}
PLACES = ("random", "balanced", "score")
CNN: dict[str, dict[str, Any]] = {
    f"{counts}-{places}": {"method": "ntk-sap", "places": places, **allocation}
    for counts, allocation in {
        "erk": {"allocation": "erk"},
        "closed-form": {"allocation": "ntk-sap"},
        "ntk-sap": {},
    }.items()
    for places in PLACES
} | {"ntk-sap-analytic": {"method": "ntk-sap-analytic", "scope": "global"}}
"""How many weights each layer keeps is a matter of ERK, of the closed form with one number per layer, or of NTK-SAP.
Their places are drawn, balanced, or the best by NTK-SAP's score. The last way ranks all weights by the closed form;
without the scope, it would be ``closed-form-balanced``."""

CHANNELS = {"pattern": "channel", "budget": "multiply-adds"}
GAIN: dict[str, dict[str, Any]] = {
    "channels": {"method": "snip", **CHANNELS},
    "random-channels": {"method": "random", **CHANNELS},
    "erk-logits": VIT["erk-logits"],
    "2:4": {"method": "random", "pattern": "2:4"},
}
"""What is compared with the thin network for its savings: whole channels (they are cut out), single weights, 2:4."""
SAVED = (0.75, 0.5)

DENSE = ("dense", "thin", "shallow")
"""Networks without masks: the whole one, and ones with fewer channels or layers, with as many weights as are kept."""

VIT_RECIPE = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.05, "channels_last": False}
"""What differs from the recipe ``quick``."""

VGG_SCORE = {"rounds": 20, "batch": 32}
VGG_IMAGES = 20_000
"""VGG-16 takes eight minutes for an epoch, and a quarter of an hour for NTK-SAP's own 100 rounds: it is pruned with
fewer, and trained on the first images alone."""


def grid() -> Iterator[dict[str, Any]]:
    """Yield every run, a seed after the other."""
    vit = [("vit", 0.9, 3, rescale, VIT) for rescale in (True, False)]
    parts: list[tuple[str, float, int, bool, Iterable[str]]] = [("vit", 0.9, 3, False, DENSE), *vit]
    for cases in (
        parts,
        [("vit", sparsity, 3, False, ("thin", *GAIN)) for sparsity in SAVED],
        [("resnet20", sparsity, 2, False, CNN) for sparsity in (0.982, 0.956)],
        [("vgg16-bn", sparsity, 1, False, CNN) for sparsity in (0.982, 0.956)],
    ):
        for seed, (model, sparsity, epochs, rescale, ways) in itertools.product(SEEDS, cases):
            for way in ways:
                run = {"model": model, "way": way, "sparsity": sparsity, "rescale": rescale}
                yield {**run, "epochs": epochs, "seed": seed}


def name_of(run: Run) -> str:
    """Return the name of a run."""
    scale = "-rescaled" if run["rescale"] else ""
    return f"{run['model']}-{run['way']}{scale}-{100 * run['sparsity']:g}-{run['epochs']}epochs-seed{run['seed']}"


def build(name: str, seed: int, way: str = "dense", sparsity: float = 0.0) -> nn.Module:
    """Return the network, or the thinner or shallower one with nearly as many weights as a pruned one keeps."""
    if name != "vit":
        return ntksap.models.build(name, seed=seed)
    sizes: dict[str, list[dict[str, int]]] = {
        "thin": [{"width": width} for width in range(16, WIDTH + 1, 4)],
        "shallow": [{"layers": layers} for layers in range(1, LAYERS + 1)],
    }
    with global_seed("vit", seed):
        whole, *others = (ViT(**size) for size in [{}, *sizes.get(way, [])])
    target = (1 - sparsity) * _weights(whole)
    return min(others, key=lambda model: abs(_weights(model) - target), default=whole)


def _weights(model: nn.Module) -> int:
    return ntksap.allocate(model, 0.0, "uniform").total


class Study:
    """Carries out runs on one data set."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._scored: tuple[tuple[Any, ...], ntksap.Masks] | None = None

    @cached_property
    def data(self) -> Dataset:
        """CIFAR-10."""
        return load("cifar10", self.folder)

    def carry_out(self, run: Run) -> dict[str, Any]:
        """Return the run with its result."""
        start = time.perf_counter()
        model = build(run["model"], run["seed"], run["way"], run["sparsity"])
        masks = None if run["way"] in DENSE else self._masks(model, run)
        if masks is not None and (VIT | GAIN | CNN)[run["way"]].get("pattern") == "channel":
            model, masks = ntksap.compact(model, masks, torch.ones(1, *SHAPE)), None
        spent = ntksap.cost(model, masks, input_shape=SHAPE)
        facts = {"multiply_adds": spent.sparse, "prune_seconds": round(time.perf_counter() - start, 1)}
        if masks is not None:
            facts |= {"kept": masks.kept, "total": masks.total, "empty": len(masks.collapsed)}
        else:
            facts |= {"kept": _weights(model), "total": _weights(model)}
        recipe = load_recipe("quick", {"epochs": run["epochs"], **(VIT_RECIPE if run["model"] == "vit" else {})})
        data = first_images(self.data, VGG_IMAGES) if run["model"] == "vgg16-bn" else self.data
        *_, last = train(TrainState(model, recipe, masks=masks, seed=run["seed"]), data)
        result = {"accuracy": last.top1, "test_loss": round(last.test_loss, 5)}
        return {**run, **facts, **result, "seconds": round(time.perf_counter() - start, 1), "torch": torch.__version__}

    def _masks(self, model: nn.Module, run: Run) -> ntksap.Masks:
        """Return the masks of a run; those of NTK-SAP itself, whose counts other runs take, are kept."""
        if run["model"] == "vit":
            return self._pruned(model, run, (VIT | GAIN)[run["way"]])
        way = CNN[run["way"]]
        if way["method"] == "ntk-sap" and run["model"] == "vgg16-bn":
            way = way | VGG_SCORE
        if way["method"] != "ntk-sap" or "allocation" in way:
            return self._pruned(model, run, way)
        case = run["model"], run["sparsity"], run["seed"]
        if self._scored is None or self._scored[0] != case:
            self._scored = case, self._pruned(model, run, way | {"places": "score"})
        own = self._scored[1]
        return own if way["places"] == "score" else self._pruned(model, run, way | {"allocation": own})

    def _pruned(self, model: nn.Module, run: Run, way: Mapping[str, Any]) -> ntksap.Masks:
        batches = pruning_batches(self.data, seed=run["seed"]) if way["method"] == "snip" else None
        common = {"seed": run["seed"], "rescale": run["rescale"], "input_shape": SHAPE, "data": batches}
        return ntksap.prune(model, run["sparsity"], **common, **way)


def first_images(data: Dataset, count: int) -> Dataset:
    """Return the data set with the first images to train on alone."""
    part = copy.copy(data.train)
    part.images, part.labels = part.images[:count], part.labels[:count]
    return replace(data, train=part)


def table(found: Iterable[Run]) -> str:
    """Return tables in Markdown: mean accuracy ± standard deviation over seeds, and what it costs."""
    cases: dict[tuple[Any, ...], list[Run]] = {}
    for run in found:
        cases.setdefault((run["model"], run["sparsity"], run["epochs"]), []).append(run)
    lines = []
    for (model, sparsity, epochs), runs in sorted(cases.items()):
        how = _savings if sparsity in SAVED else _allocations if model == "vit" else _places
        lines += [*how(f"{model}, {sparsity:.2%}, epochs: {epochs}", runs), ""]
    return "\n".join(lines)


def _savings(title: str, runs: Iterable[Run]) -> Iterator[str]:
    """A line for each way: accuracy and size. `studies.gain.speed` measures how fast they are."""
    yield from _heads(title, "accuracy", "weights", "multiply-adds")
    for way, those in _groups(runs, "way").items():
        yield _line(way, _accuracy(those), f"{those[0]['kept']:,}", _work(those))


def _allocations(title: str, runs: Iterable[Run]) -> Iterator[str]:
    """A line for each way: accuracy with weights as drawn and rescaled."""
    yield from _heads(title, "as drawn", "rescaled", "weights", "multiply-adds", "empty layers")
    for way, those in _groups(runs, "way").items():
        scaled = _groups(those, "rescale")
        empty = max(run.get("empty", 0) for run in those)
        both = (_accuracy(scaled.get(rescale, [])) for rescale in (False, True))
        yield _line(LABELS.get(way, way), *both, f"{those[0]['kept']:,}", _work(those), str(empty or ""))


def _places(title: str, runs: Iterable[Run]) -> Iterator[str]:
    """A line for each way to count, with a column for each way to place."""
    yield from _heads(title, *PLACES, "multiply-adds")
    for counts, those in _groups(runs, "way", lambda way: parts_of(way)[0]).items():
        placed = _groups(those, "way", lambda way: parts_of(way)[1])
        cells = (_accuracy(placed.get(places, [])) for places in PLACES)
        yield _line(LABELS.get(counts, counts), *cells, _work(those))


LABELS = {"ntk-sap-analytic": "ntk-sap-analytic, one ranking"}


def parts_of(way: str) -> tuple[str, str]:
    """Return what decides the counts and what the places: ``ntk-sap-analytic`` does both."""
    counts, _, places = way.rpartition("-")
    return (counts, places) if places in PLACES else (way, "score")


def _heads(*names: str) -> Iterator[str]:
    yield _line(*names)
    yield "|---" * len(names) + "|"


def _line(*cells: str) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")


def _groups(runs: Iterable[Run], key: str, word: Callable[[Any], Any] = lambda value: value) -> dict[Any, list[Run]]:
    found: dict[Any, list[Run]] = {}
    for run in runs:
        found.setdefault(word(run[key]), []).append(run)
    return found


def _accuracy(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    found = [100 * run["accuracy"] for run in runs]
    spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
    few = f" ({len(found)})" if len(found) < len(SEEDS) else ""
    return f"{statistics.mean(found):.2f}{spread}{few}"


def _work(runs: Sequence[Run]) -> str:
    return f"{statistics.mean(run['multiply_adds'] for run in runs) / 1e6:.2f}·10⁶"


def main() -> None:
    """Carry out what is missing."""
    study = Grid(grid(), name_of, table, Path(__file__).with_name("results.jsonl"))
    parser = study.parser(__doc__)
    parser.add_argument("data", type=Path, nargs="?", help="the folder that holds CIFAR-10")
    given = parser.parse_args()
    study.main(given, Study(given.data).carry_out, "{accuracy:.2%}, {seconds:.0f} s")


if __name__ == "__main__":
    main()
