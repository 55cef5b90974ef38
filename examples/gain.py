"""What pruning gained in a comparison that ``ntksap compare`` left in a folder: weights, multiply-adds, seconds.

ntksap compare --methods random,ntk-sap --sparsities 0.95,0.98 --seeds 0,1,2 --model resnet8 --epochs 10 --out demo
python examples/gain.py demo ntk-sap 0.95
"""

import json
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from torch import nn

import ntksap
from ntksap.training import read_model


def accuracy(results: list[dict[str, Any]]) -> str:
    """Mean ± standard deviation over seeds, in per cent."""
    found = [100 * result["top1"] for result in results]
    return f"{mean(found):.1f} ± {stdev(found):.1f} %" if len(found) > 1 else f"{found[0]:.1f} %"


def seconds(model: nn.Module, images: torch.Tensor, repeats: int = 20) -> float:
    """The fastest of some passes, since whatever else the machine does only makes them slower."""
    taken = []
    with torch.no_grad():
        for _ in range(repeats):
            start = time.perf_counter()
            model(images)
            taken.append(time.perf_counter() - start)
    return min(taken)


def main(folder: Path, method: str, sparsity: float) -> dict[str, float]:
    results = json.loads((folder / "results.json").read_text())["results"]
    cells: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        if result["sparsity"] in (0.0, sparsity):
            cells.setdefault(result["method"], []).append(result)
    dense, chosen = cells.pop("dense"), cells.pop(method)
    one = chosen[0]

    torch.set_num_threads(1)
    data = ntksap.data.load(one["data"])
    run = folder / "runs" / one["name"]
    model = ntksap.models.build(one["model"], num_classes=data.num_classes, input_shape=data.input_shape).eval()
    masks = ntksap.Masks.load(run / "masks.safetensors")
    read_model(run / "checkpoint.safetensors", model)
    images, _ = next(iter(data.test.batches(len(data.test))))
    before = seconds(model, images)
    with ntksap.sparse_kernels(model, masks):
        after = seconds(model, images)
    others = ", ".join(f"{name} {accuracy(own)}" for name, own in cells.items())
    share = one["inference_flops"] / one["dense_flops"]
    print(
        f"\nWhat was gained: {method}, before training, kept {one['kept']:,} of {one['total']:,} weights "
        f"({one['density']:.1%}) and {share:.0%} of the multiply-adds; {len(images)} images take {1000 * after:.1f} ms "
        f"instead of {1000 * before:.1f} ms on one core (ntksap.sparse_kernels); test accuracy is {accuracy(chosen)} "
        f"instead of {accuracy(dense)}, mean ± std of {len(dense)} seeds, {len(images)} test images each (equally "
        f"sparse: {others})."
    )
    print(f"The report, one page to open in a browser, is {folder / 'report.html'}")
    return {"speed-up": before / after, "share": share}


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
