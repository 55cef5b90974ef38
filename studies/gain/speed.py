"""How fast are smaller and sparser networks, before training? CPU seconds, one thread, in turns with the dense one.

    python -m studies.gain.speed           # measures what docs/results/gain/speed.json does not have yet
    python -m studies.gain.speed --table   # prints it

It measures ResNet-20 and a small ViT as `ntksap compare --thin` measures its runs, but in CPU seconds of the process,
which other processes on the machine hardly change.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import ntksap
from ntksap._base import keep_memory
from ntksap.runs import measuring, settings_for
from ntksap.runs.network import network_of
from ntksap.training import load_recipe
from studies.cifar.accuracy import GAIN, build

SHAPE, CLASSES = (3, 32, 32), 10
OUT = Path(__file__).parents[2] / "docs" / "results" / "gain" / "speed.json"
SPARSITIES = (0.5, 0.75)
METHOD = "ntk-sap-analytic"

Network = tuple[nn.Module, ntksap.Masks | None]


def resnet20(network: str, sparsity: float) -> Network:
    """Return a ResNet-20: ``thin``, or pruned in a pattern; a smaller one in torch, or with the kernels for it."""
    network, _, kernels = network.partition(", ")
    pattern = "" if network in ("thin", "unstructured") else network
    counted = {"budget": "multiply-adds"} if network in ("thin", "channel") else {}
    settings = settings_for(
        model="resnet20", data="cifar10", method="thin" if network == "thin" else METHOD, sparsity=sparsity,
        seed=0, recipe=load_recipe("quick"), pattern=pattern, **counted,
    )  # fmt: skip
    masks = None
    if network != "thin":
        dense = ntksap.models.build("resnet20")
        masks = ntksap.prune(dense, sparsity, METHOD, pattern=pattern or None, input_shape=SHAPE, **counted)
    own, masks = network_of(settings, masks, SHAPE, CLASSES)
    return own, ntksap.Masks({}) if kernels else masks


def vit(network: str, sparsity: float) -> Network:
    """Return a small ViT, one of those that are trained in `studies.cifar.accuracy`."""
    model = build("vit", 0, network, sparsity)
    if network == "thin":
        return model, None
    masks = ntksap.prune(model, sparsity, input_shape=SHAPE, **GAIN[network])
    return (ntksap.compact(model, masks, torch.ones(1, *SHAPE)), None) if "channels" in network else (model, masks)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[str, float], Network], tuple[str, ...]]] = {
    "resnet20": (
        lambda: ntksap.models.build("resnet20"), resnet20, (
            "thin", "thin, sparse_kernels", "channel", "channel, sparse_kernels", "unstructured", "2:4", "block:16x16"
        )
    ),
    "vit": (lambda: build("vit", 0), vit, ("thin", "random-channels", "erk-logits", "2:4")),
}  # fmt: skip
"""Name → the dense network, (network, sparsity) → that one, networks."""


def cases() -> Iterator[tuple[str, float, str]]:
    """Yield (model, sparsity, network)."""
    for model, (_, _, networks) in MODELS.items():
        for sparsity in SPARSITIES:
            yield from ((model, sparsity, network) for network in networks)


def _case(one: dict[str, Any]) -> tuple[str, float, str]:
    return one["model"], one["sparsity"], one["network"]


def measured(model: str, sparsity: float, network: str) -> dict[str, Any]:
    """Return what a network costs, and how many times as fast as the dense one it is."""
    dense, make, _ = MODELS[model]
    own, masks = make(network, sparsity)
    cost = ntksap.cost(own, masks, input_shape=SHAPE).sparse
    found = {"model": model, "network": network, "sparsity": sparsity, "multiply_adds": cost}
    return {**found, **measuring.compared(own, masks, dense(), SHAPE, CLASSES)}


def table(found: list[dict[str, Any]]) -> str:
    """Return a table in Markdown."""
    heads = "removed", "network", "multiply-adds", "inference, batch 1", "batch 64", "training step of 64", "file"
    known, lines = {_case(one): one for one in found}, []
    for model in MODELS:
        lines += [f"| {' | '.join((model, *heads[1:]))} |", "|---" * len(heads) + "|"]
        for one in (known[case] for case in cases() if case[0] == model and case in known):
            faster = (f"{one[f'speedup_{what}']:.2f}×" for what in ("inference_1", "inference_64", "step_64"))
            size = f"{one['bytes'] / 1e3:,.0f} kB of {one['dense_bytes'] / 1e3:,.0f}"
            cells = f"{one['sparsity']:.0%}", one["network"], f"{one['multiply_adds'] / 1e6:.1f} M", *faster, size
            lines += [f"| {' | '.join(cells)} |"]
        lines += [""]
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="the JSON file")
    parser.add_argument("--table", action="store_true", help="print what was measured, and end")
    given = parser.parse_args()
    found = json.loads(given.out.read_text()) if given.out.exists() else []
    if given.table:
        print(table(found))
        return
    torch.set_num_threads(1)
    keep_memory()  # as commands do
    time.perf_counter = time.process_time
    done = set(map(_case, found))
    for case in cases():
        if case not in done:
            found.append(measured(*case))
            given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
