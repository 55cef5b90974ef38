"""`ntksap.integrations.accelerate` with a real Accelerator."""

import pytest
import torch
from torch import nn

from ntksap import MaskError
from tests.integrations.small_net import loader, masks_of, network

pytestmark = pytest.mark.slow
HOW = {"sparsity": 0.5, "method": "magnitude", "input_shape": (8,)}


def loop(epochs, seed=0, begin_at=0, folder=None, **how):
    accelerate = pytest.importorskip("accelerate", reason="needs the extra `transformers`")
    from ntksap.integrations.accelerate import register_pruning

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = network(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader())
    masks = register_pruning(accelerator, model, **how)
    if folder:
        accelerator.load_state(str(folder))
    for _ in range(begin_at, epochs):
        for inputs, targets in batches:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(inputs), targets))
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
    return accelerator, model, masks


def test_a_loop_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    accelerator, _, masks = loop(2, **HOW)
    assert masks == masks_of(network())
    accelerator.save_state(str(tmp_path / "state"))
    _, straight, _ = loop(4, **HOW)
    # Other initial weights, hence other masks until load_state brings those of the checkpoint.
    _, resumed, made = loop(4, seed=1, begin_at=2, folder=tmp_path / "state", **HOW)
    assert made != masks
    assert masks.obeyed_by(resumed)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_a_save_checks_and_given_masks_must_be_those_of_the_checkpoint(tmp_path):
    accelerator, model, _ = loop(1, masks=masks_of(network()))
    accelerator.save_state(str(tmp_path / "state"))
    with pytest.raises(MaskError, match="trained with masks other than"):
        loop(1, masks=masks_of(network(), 0.25), folder=tmp_path / "state")
    with torch.no_grad():
        model[0].weight += 1.0
    with pytest.raises(MaskError, match="no longer zero"):
        accelerator.save_state(str(tmp_path / "broken"))
