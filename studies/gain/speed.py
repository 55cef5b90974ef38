"""How fast are smaller and sparser ResNet-20s, before training? CPU seconds, one thread, in turns with the dense one.

python -m studies.gain.speed OUT.json

It measures what `ntksap compare --thin` measures after its runs, but in CPU seconds of the process, which other
processes on the machine hardly change.
"""

import json
import sys
import time
from pathlib import Path

import torch

import ntksap
from ntksap._base import keep_memory
from ntksap.pruning import Masks
from ntksap.runs import measuring, settings_for
from ntksap.runs.network import network_of
from ntksap.training import load_recipe

SHAPE, CLASSES = (3, 32, 32), 10
NETWORKS = [("thin", ""), *(("magnitude", pattern) for pattern in ("channel", "", "block:16x16", "2:4"))]


def measured(method: str, pattern: str, sparsity: float) -> dict:
    counted = {"budget": "multiply-adds"} if method == "thin" or pattern == "channel" else {}
    settings = settings_for(
        model="resnet20", data="cifar10", method=method, sparsity=sparsity, seed=0, recipe=load_recipe("quick"),
        pattern=pattern, **counted,
    )  # fmt: skip
    dense = ntksap.models.build("resnet20")
    masks: Masks | None = None
    if method != "thin":
        masks = ntksap.prune(dense, sparsity, method, pattern=pattern or None, input_shape=SHAPE, **counted)
    own, attached = network_of(settings, masks, SHAPE, CLASSES)
    cost = ntksap.cost(own, attached, input_shape=SHAPE).sparse
    return {
        "network": method if method == "thin" else pattern or "unstructured",
        "sparsity": sparsity,
        "multiply_adds": cost,
        **measuring.compared(own, attached, dense, SHAPE, CLASSES),
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_memory()  # as commands do
    time.perf_counter = time.process_time
    out = Path(sys.argv[1])
    found = json.loads(out.read_text()) if out.exists() else []
    done = {(one["network"], one["sparsity"]) for one in found}
    for sparsity in (0.75, 0.5):
        for method, pattern in NETWORKS:
            if (method if method == "thin" else pattern or "unstructured", sparsity) not in done:
                found.append(measured(method, pattern, sparsity))
                out.write_text(json.dumps(found, indent=1) + "\n")
