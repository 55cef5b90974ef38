"""``python -m benchmarks.sparse [JOB …]``: pruned models with torch's kernels and inside `sparse_kernels`, in turn.

Both sides run in one process, one after the other, so that whatever else the machine does affects both. With one thread
the seconds are processor time, with two they are wall-clock time. Medians over the turns are printed. What the layers
choose is measured beforehand, in this process, and not remembered from earlier ones.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ntksap
from benchmarks.harness import circumstances
from ntksap._base import keep_memory, share_cores, write_json
from ntksap.net.kernels import memory
from studies.cifar.vit import ViT

ENOUGH = 0.05
"""A side's turn ends after this many seconds, or 15 steps: a short step is timed more than once."""
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "sparse.json"


class Transformer(nn.Module):
    """Four encoder layers of torch and a classifier, on sequences of vectors."""

    def __init__(self, width: int = 512) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.0, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, width) → (N, L, 100)."""
        y: Tensor = self.head(self.encoder(x))
        return y


def linear(sparsity: float, pattern: str | None = None) -> tuple[nn.Module, ntksap.Masks, Tensor]:
    model = nn.Linear(1024, 4096)
    return model, ntksap.prune(model, sparsity, "random", pattern=pattern), torch.randn(256, 1024)


def transformer() -> tuple[nn.Module, ntksap.Masks, Tensor]:
    model = Transformer()
    return model, ntksap.prune(model, 0.9, "random"), torch.randn(8, 64, 512)


def resnet20(batch: int) -> tuple[nn.Module, ntksap.Masks, Tensor]:
    model, size = ntksap.models.build("resnet20", input_shape=(3, 32, 32), seed=0), (3, 32, 32)
    masks = ntksap.prune(model, 0.9, "ntk-sap-analytic", scope="global", input_shape=size)
    return model, masks, torch.randn(batch, *size)


def resnet50() -> tuple[nn.Module, ntksap.Masks, Tensor]:
    model = ntksap.models.build("resnet50", input_shape=(3, 224, 224), seed=0)
    return model, ntksap.prune(model, 0.982, "random"), torch.randn(4, 3, 224, 224)


def thin(width: int, batch: int) -> tuple[nn.Module, ntksap.Masks, Tensor]:
    """A dense network of this many channels in the first layers, in the layout that is best for dense kernels."""
    model = ntksap.models.build(f"resnet20-w{width}", seed=0).to(memory_format=torch.channels_last)
    return model, ntksap.Masks({}), torch.randn(batch, 3, 32, 32).to(memory_format=torch.channels_last)


def mlp(batch: int) -> tuple[nn.Module, ntksap.Masks, Tensor]:
    """A network so small that a call takes a few microseconds per layer, most of them in Python."""
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, ntksap.prune(model, 0.9, "random"), torch.randn(batch, 64)


def vit(batch: int) -> tuple[nn.Module, ntksap.Masks, Tensor]:
    """A transformer so small, with so many weights kept, that there is hardly anything to gain."""
    model = ViT()
    return model, ntksap.prune(model, 0.5, "random-erk-logits", input_shape=(3, 32, 32)), torch.randn(batch, 3, 32, 32)


JOBS: dict[str, tuple[str, str, Callable[[], tuple[nn.Module, ntksap.Masks, Tensor]], bool]] = {
    "linear-90": ("linear 1024 → 4096 at 90 %, batch 256", "≥ 2×", lambda: linear(0.9), False),
    "linear-98": ("linear 1024 → 4096 at 98 %, batch 256", "≥ 6×", lambda: linear(0.98), False),
    "linear-blocks": ("the same at 90 % in blocks of 16×16", "≥ 3×", lambda: linear(0.9, "block:16x16"), False),
    "linear-90-train": ("linear 1024 → 4096 at 90 %, batch 256, training", "", lambda: linear(0.9), True),
    "transformer": ("transformer of 4 layers at 90 %, 8 × 64 vectors of 512", "≥ 1.4×", transformer, False),
    "transformer-train": ("the same, training", "≥ 1.4×", transformer, True),
    "resnet20-1": ("ResNet-20 at 90 %, batch 1", "≥ 1×", lambda: resnet20(1), False),
    "resnet20-64": ("ResNet-20 at 90 %, batch 64", "≥ 1.6×", lambda: resnet20(64), False),
    "resnet20-64-train": ("the same, training", "", lambda: resnet20(64), True),
    "vit-1": ("ViT of 0.46 million weights at 50 %, batch 1", "≥ 1×", lambda: vit(1), False),
    "vit-64": ("the same, batch 64", "≥ 1×", lambda: vit(64), False),
    "vit-64-train": ("the same, training", "≥ 1×", lambda: vit(64), True),
    "thin": ("dense ResNet-20 of width 12, batch 64", "", lambda: thin(12, 64), False),
    "thin-train": ("the same, training", "", lambda: thin(12, 64), True),
    "resnet50": ("ResNet-50 at 98.2 %, 224×224, batch 4", "≥ 2×", resnet50, False),
}
"""Name → title, target, (model, masks, inputs), whether to train."""
for batch in (2, 4, 8, 16):  # between one image and many, where calling a kernel takes as long as what it saves
    JOBS[f"resnet20-{batch}"] = f"ResNet-20 at 90 %, batch {batch}", "≥ 1×", partial(resnet20, batch), False
for batch in (1, 2, 4, 8, 16, 32):
    JOBS[f"thin-{batch}"] = f"dense ResNet-20 of width 8, batch {batch}", "≥ 1×", partial(thin, 8, batch), False
for batch in (1, 64):
    JOBS[f"mlp-{batch}"] = f"three small linear layers at 90 %, batch {batch}", "≥ 1×", partial(mlp, batch), False


def measure(name: str, threads: int, repeats: int) -> dict[str, Any]:
    """Return the seconds of both sides turn by turn, and the median of their ratios."""
    title, target, make, training = JOBS[name]
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    model, masks, x = make()
    masks.attach(model)
    model.train(training)

    def step() -> None:
        with torch.set_grad_enabled(training):
            y = model(x)
        if training:
            model.zero_grad()
            y.sum().backward()

    clock = time.thread_time if threads == 1 else time.perf_counter

    def timed() -> float:
        """Return the least seconds of several steps, after one that fills caches and looks up what was chosen."""
        step()
        found, begin = [], time.perf_counter()
        while not found or (time.perf_counter() - begin < ENOUGH and len(found) < 15):
            start = clock()
            step()
            found.append(clock() - start)
        return min(found)

    seconds: dict[str, list[float]] = {"torch": [], "sparse_kernels": []}
    with ntksap.sparse_kernels(model, masks) as choices:
        step()
    for turn in range(repeats):
        gc.collect()
        for side in ("torch", "sparse_kernels") if turn % 2 else ("sparse_kernels", "torch"):
            with ntksap.sparse_kernels(model, masks, choices=choices) if side != "torch" else nullcontext():
                seconds[side].append(timed())
    theirs, ours = seconds["torch"], seconds["sparse_kernels"]
    return {
        "title": title,
        "target": target,
        "seconds": seconds,
        "ratio": statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
        "ways": choices.ways,
        **circumstances(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sparse", description=__doc__)
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"which jobs; all by default: {', '.join(JOBS)}")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path, default=RESULTS, help="the JSON file")
    given = parser.parse_args()
    if unknown := [name for name in given.jobs if name not in JOBS]:
        parser.error(f"unknown job {unknown[0]!r}; known: {', '.join(JOBS)}")
    keep_memory()
    share_cores()  # as commands do
    memory.memory_file = lambda: None  # type: ignore[assignment]
    found = {}
    print("| pruned model | target | threads | torch ms | `sparse_kernels` ms | ratio |\n|---|---|---|---|---|---|")
    for name in given.jobs or JOBS:
        for threads in given.threads:
            result = found[f"{name}, {threads} threads"] = measure(name, threads, given.repeats)
            theirs, ours = (
                f"{1e3 * statistics.median(result['seconds'][side]):.3g}" for side in ("torch", "sparse_kernels")
            )
            row = (result["title"], result["target"], threads, theirs, ours, f"{result['ratio']:.2f}×")
            print(f"| {' | '.join(map(str, row))} |", flush=True)
    if not given.jobs:
        write_json(given.out, found)


if __name__ == "__main__":
    main()
