"""What is known about one architecture, and what must hold of it: the battery that every method goes through."""

import copy
import io
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntksap
from ntksap.methods import METHODS, Method
from ntksap.net.net import arguments, first_tensor, summed_cross_entropy

each_method = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)

SMALL = {"kernel": "projected", "projections": 2, "draws": 2, "batch": 8}
"""Options that keep a method fast, for those that have them."""

SAID_ELSEWHERE = [
    pytest.mark.filterwarnings("ignore::ntksap.ApproximationWarning"),
]
"""Warnings that scores are approximate, which have tests of their own."""


@dataclass(frozen=True)
class Architecture:
    """A network and a task. ``prunable`` matches exactly the parameters that must be prunable by default; ``settings``
    are the keywords of `ntksap.prune` that this network wants."""

    name: str
    make: Callable[[], nn.Module]
    inputs: Callable[[int, torch.Generator], Any]
    labels: Callable[[Any], Tensor]
    prunable: str
    loss: Callable[[Tensor, Tensor], Tensor] = summed_cross_entropy
    lr: float = 0.02
    settings: Mapping[str, Any] = field(default_factory=dict)
    compiler: str = "inductor"

    def module(self, seed: int = 0) -> nn.Module:
        torch.manual_seed(seed)
        return self.make()

    def batches(self, count: int = 2, size: int = 16) -> list[tuple[Any, Tensor]]:
        generator = torch.Generator().manual_seed(5)
        drawn = [self.inputs(size, generator) for _ in range(count)]
        return [(inputs, self.labels(inputs)) for inputs in drawn]

    def prune(self, module: nn.Module, method: Method) -> ntksap.Masks:
        options = {name: value for name, value in SMALL.items() if name in method.options}
        return ntksap.prune(
            module,
            0.9,
            method.name,
            inputs=self.inputs,
            loss=self.loss,
            **({"train": self.epoch} if method.trains else {"data": self.batches()}),
            rounds=min(method.rounds, 2),
            floor=4,
            **options,
            **self.settings,
        )

    def epoch(self, module: nn.Module, masks: ntksap.Masks) -> Iterator[None]:
        """One short epoch, for methods that train."""
        self.train(module, self.adamw(module))
        yield

    def adamw(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(module.parameters(), lr=self.lr, weight_decay=0.1)

    def train(self, module: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 20) -> list[float]:
        """Train on the task's own batches and return the loss of each step."""
        module.train()
        batches, losses = self.batches(), []
        for step in range(steps):
            inputs, labels = batches[step % len(batches)]
            args, kwargs = arguments(inputs)
            loss = self.loss(first_tensor(module(*args, **kwargs)), labels) / labels.numel()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses


def assert_that_the_prunable_weights_are_the_expected_ones(architecture: Architecture) -> None:
    module = architecture.module()
    expected = [name for name, _ in module.named_parameters() if re.fullmatch(architecture.prunable, name)]
    assert list(ntksap.Net(module).prunable) == expected
    assert len(expected) >= 3


def assert_that_a_pruned_network_trains_and_stays_pruned(architecture: Architecture, method: Method, tmp_path) -> None:
    module = architecture.module()
    try:
        masks = architecture.prune(module, method)
    except ntksap.InputError as error:
        if method.name != "phew" or "phew walks" not in str(error):
            raise
        pytest.skip(str(error))  # it needs the graph, and says where it cannot read it
    assert masks.kept == round(0.1 * masks.total)

    if masks.weights:
        masks.load_weights(module)
    masks.attach(module)
    keys = list(module.state_dict())
    optimizer = architecture.adamw(module)
    losses = architecture.train(module, optimizer)
    assert sum(losses[-2:]) < 0.95 * sum(losses[:2])
    assert masks.obeyed_by(module)
    assert list(module.state_dict()) == keys

    twin = copy.deepcopy(module)
    resumed = architecture.adamw(twin)
    resumed.load_state_dict(optimizer.state_dict())
    architecture.train(twin, resumed, steps=2)
    assert masks.obeyed_by(twin)
    assert not _equal(twin, module)

    fresh = architecture.module(seed=1)
    fresh.load_state_dict(_through_a_file(module.state_dict()))
    assert masks.obeyed_by(fresh)
    assert _equal(fresh, module)
    if hasattr(module, "save_pretrained"):
        module.save_pretrained(tmp_path)
        loaded = type(module).from_pretrained(tmp_path)
        assert masks.obeyed_by(loaded)
        assert _equal(loaded, module)
        masks.attach(loaded)
        architecture.train(loaded, architecture.adamw(loaded), steps=2)
        assert masks.obeyed_by(loaded)


def assert_that_compiled_training_keeps_the_masks(architecture: Architecture) -> None:
    module = architecture.module()
    masks = architecture.prune(module, METHODS["magnitude"])
    masks.attach(module)
    compiled = torch.compile(module, backend=architecture.compiler)
    losses = architecture.train(compiled, architecture.adamw(compiled))
    assert sum(losses[-2:]) < 0.95 * sum(losses[:2])
    assert masks.obeyed_by(module)


def assert_that_cost_and_diagnosis_see_every_layer(architecture: Architecture) -> None:
    module = architecture.module()
    masks = architecture.prune(module, METHODS["random"])
    dense = ntksap.Masks.ones({name: module.get_parameter(name) for name in masks})
    whole = ntksap.diagnose(module, dense, inputs=architecture.inputs)
    assert whole.effective_sparsity == 0
    assert whole.uncounted == ()
    found = ntksap.diagnose(module, masks, inputs=architecture.inputs)
    assert found.sparsity == masks.sparsity
    assert found.sparsity <= found.effective_sparsity < 1
    assert 0 < found.inference_flops < 0.5 * found.dense_flops == 0.5 * whole.dense_flops
    assert all(layer.live_channels <= layer.channels for layer in found.layers)


def _through_a_file(state: dict[str, Tensor]) -> dict[str, Tensor]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def _equal(first: nn.Module, second: nn.Module) -> bool:
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)
