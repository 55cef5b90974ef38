"""``python -m studies.training_levers``: CPU seconds of one training step of ResNet-20 under each lever.

One thread, batch 128, float32. The levers take turns; the least of several steps counts. Compilation happens
beforehand. Our kernels are dense ones, with channels last, or touch the kept weights only, with channels first: masks
of `ntk-sap-analytic` at three sparsities.
"""

import copy
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ntksap

REPEATS = 6


def step_of(
    model: nn.Module,
    *,
    channels_last: bool = False,
    compiled: bool = False,
    fused: bool = False,
    masks: ntksap.Masks | None = None,
) -> Callable[[], None]:
    """Return one training step on the same batch; the layout, compiler and optimizer are as asked."""
    model = copy.deepcopy(model).train()
    if masks is not None:
        masks.attach(model)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(128, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (128,), generator=generator)
    if channels_last:
        model, images = (thing.to(memory_format=torch.channels_last) for thing in (model, images))
    forward = torch.compile(model) if compiled else model
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4, fused=fused)

    def step() -> None:
        with ntksap.sparse_kernels(model, masks) if masks is not None else nullcontext():
            loss = cross_entropy(forward(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    model = ntksap.models.build("resnet20", input_shape=(3, 32, 32), seed=0)
    levers = {
        "NCHW, eager": (False, False, False),
        "channels_last": (True, False, False),
        "channels_last, fused SGD": (True, False, True),
        "NCHW, compile": (False, True, False),
        "channels_last, compile": (True, True, False),
        "channels_last, compile, fused SGD": (True, True, True),
    }
    steps = {name: step_of(model, channels_last=c, compiled=m, fused=f) for name, (c, m, f) in levers.items()}
    steps["channels_last, own kernels"] = step_of(model, channels_last=True, masks=ntksap.Masks({}))
    for sparsity in (0.8926, 0.956, 0.982):
        masks = ntksap.prune(model, sparsity, "ntk-sap-analytic", scope="global", input_shape=(3, 32, 32))
        steps[f"NCHW, kept weights only, {sparsity:.2%}"] = step_of(model, masks=masks)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(REPEATS):
        for name, step in steps.items():
            start = time.process_time()
            step()
            seconds[name].append(time.process_time() - start)
    first = min(seconds["NCHW, eager"])
    for name, taken in seconds.items():
        print(f"| {name} | {min(taken):.3f} | {128 / min(taken):.0f} | {first / min(taken):.2f}× |")


if __name__ == "__main__":
    main()
