"""``python -m studies.growth``: how time and memory grow, point by point into ``docs/results/growth.json``.

A point is measured in a process of its own with one thread: CPU seconds (the lesser of two) and the rise of peak memory
above what imports and inputs take. Points that are in the file are not measured again.
"""

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

import ntksap
from benchmarks.harness import circumstances
from ntksap._base.files import write_json
from ntksap._base.machine import peak_memory_mib
from ntksap.models.cifar_resnet import CifarResNet

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "growth.json"
IMAGE = (3, 32, 32)
BASE: dict[str, int] = {"depth": 20, "width": 16, "inputs": 50, "rounds": 1, "weights": 0}

GRID: dict[str, dict[str, list[int]]] = {
    "ntk-sap": {
        "width": [8, 16, 32, 64],
        "depth": [8, 14, 20, 32, 56],
        "inputs": [25, 50, 100, 200, 400],
        "rounds": [1, 2, 4, 8],
    },
    "synflow": {"width": [8, 16, 32, 64, 128], "depth": [8, 14, 20, 32, 56], "rounds": [2, 4, 8, 16]},
    "ntk": {"width": [8, 16, 32], "depth": [8, 14, 20, 32], "inputs": [5, 10, 20, 40]},
    "selection": {"weights": [1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000]},
}
"""job → what is varied → its values; everything else is as in `BASE`."""

HELD_OUT = {"vgg16-bn": ((3, 32, 32), 25), "resnet18": ((3, 64, 64), 25)}
"""Models that no constant is fitted to: input shape and inputs of one NTK-SAP round."""


class Point(NamedTuple):
    """One measurement: ``job`` with ``along`` set to ``value``; ``held out`` along names a model."""

    job: str
    along: str
    value: int | str

    @property
    def key(self) -> str:
        return f"{self.job} {self.along} {self.value}"


def points() -> Iterator[Point]:
    for job, axes in GRID.items():
        for along, values in axes.items():
            yield from (Point(job, along, value) for value in values)
    yield from (Point("ntk-sap", "held out", name) for name in HELD_OUT)


def _work(point: Point) -> tuple[Callable[[], object], dict[str, int]]:
    """Return what to time, and what it depends on: weights, multiply-adds, inputs, rounds."""
    at = {**BASE, point.along: point.value}
    if point.job == "selection":
        scores = {"w": torch.rand(at["weights"], generator=torch.Generator().manual_seed(0))}
        return lambda: ntksap.select(scores, at["weights"] // 20), {"weights": at["weights"]}
    shape, model = IMAGE, _model(at)
    if point.along == "held out":
        shape, at["inputs"] = HELD_OUT[point.value]
        model = ntksap.models.build(point.value, input_shape=shape, seed=0)
    facts = {
        "weights": sum(p.numel() for p in model.parameters() if p.dim() > 1),
        "multiply_adds": ntksap.cost(model, input_shape=shape).dense,
        "inputs": at["inputs"],
        "rounds": at["rounds"],
    }
    if point.job == "ntk":
        at["inputs"] = facts["inputs"] = at["inputs"] if point.along == "inputs" else 10
        inputs = torch.randn(at["inputs"], *shape, generator=torch.Generator().manual_seed(0))
        return lambda: ntksap.ntk(model.eval(), inputs).eigenvalues, facts
    options = {}
    if point.job == "ntk-sap":
        options = {"batch": min(100, at["inputs"]), "draws": -(-at["inputs"] // 100)}
    return lambda: ntksap.prune(model, 0.9, point.job, input_shape=shape, rounds=at["rounds"], **options), facts


def _model(at: dict[str, int]) -> nn.Module:
    torch.manual_seed(0)
    return CifarResNet(at["depth"], width=at["width"])


def _measure(point: Point) -> dict[str, Any]:
    torch.set_num_threads(1)
    work, facts = _work(point)
    before, seconds = peak_memory_mib(), []
    for _ in range(2):
        start = time.process_time()
        work()
        seconds.append(time.process_time() - start)
    return {"seconds": min(seconds), "mib": peak_memory_mib() - before, **facts}


def main() -> None:
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    processes = multiprocessing.get_context("fork")  # a copy of this one, in which everything is imported
    for point in points():
        if point.key in found:
            continue
        with processes.Pool(1) as pool:
            found[point.key] = {
                **point._asdict(),
                **pool.apply(_measure, (point,)),
                "commit": circumstances()["commit"],
            }
        print(point.key, f"{found[point.key]['seconds']:.3g} s, {found[point.key]['mib']:.0f} MiB", flush=True)
        write_json(RESULTS, found)


if __name__ == "__main__":
    main()
