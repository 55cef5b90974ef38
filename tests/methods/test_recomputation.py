"""Modules that compute their forward pass again in the backward pass."""

from functools import partial

import pytest
import torch
import torch.utils.checkpoint as theirs
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import ntksap
from ntksap.methods import METHODS
from tests.cases import train

SMALL = {"draws": 2, "batch": 6, "epoch_steps": 1}
pytestmark = pytest.mark.filterwarnings("ignore::ntksap.ApproximationWarning")


class Blocks(nn.Module):
    """Two blocks and a head; ``reentrant`` says how the blocks are checkpointed, None: not at all."""

    def __init__(self, reentrant: bool | None, sequential: bool = False) -> None:
        super().__init__()
        self.stem = nn.Linear(5, 8)
        self.blocks = nn.Sequential(
            nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Tanh()), nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        )
        self.head = nn.Linear(8, 3)
        self.reentrant, self.sequential = reentrant, sequential

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        if self.sequential and self.reentrant is not None:
            x = checkpoint_sequential(self.blocks, 2, x, use_reentrant=self.reentrant)
        else:
            for block in self.blocks:
                x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


def made(*args) -> Blocks:
    torch.manual_seed(0)
    return Blocks(*args).double()


def batches():
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(6, 5, generator=generator, dtype=torch.float64), torch.randint(3, (6,), generator=generator))
        for _ in range(2)
    ]


@pytest.mark.parametrize("sequential", [False, True], ids=["each block", "checkpoint_sequential"])
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_a_checkpointed_module_has_the_masks_of_the_plain_one(method, reentrant, sequential):
    options = {name: value for name, value in SMALL.items() if name in method.options}

    needs = {"train": partial(train, data=batches())} if method.trains else {"data": batches()}

    def masks(module):
        rounds = min(2, method.rounds)
        return ntksap.prune(module, 0.6, method.name, input_shape=(5,), rounds=rounds, **needs, **options)

    assert masks(made(reentrant, sequential)) == masks(made(None))


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_checkpointed_module_has_the_kernel_of_the_plain_one(reentrant):
    x = batches()[0][0]
    assert torch.equal(ntksap.ntk(made(reentrant), x).matrix, ntksap.ntk(made(None), x).matrix)


def test_checkpointing_outside_of_scoring_is_as_before_also_after_an_error():
    own = theirs.CheckpointFunction, theirs._checkpoint_without_reentrant_generator
    with pytest.raises(ntksap.InputError, match="division by zero"):
        ntksap.prune(made(True), 0.5, "synflow", input_shape=(5,), output=lambda y: 1 / 0)
    ntksap.prune(made(False), 0.5, "synflow", input_shape=(5,))
    assert (theirs.CheckpointFunction, theirs._checkpoint_without_reentrant_generator) == own
    module, calls = made(False), []
    module.blocks[0].register_forward_pre_hook(lambda *_: calls.append(1))
    module(batches()[0][0]).sum().backward()
    assert len(calls) == 2  # computed again, as the caller wants it


def test_a_module_that_recomputes_by_code_of_its_own_is_refused_not_scored_wrongly():
    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, layer, x):
            ctx.layer = layer
            ctx.save_for_backward(x)
            return layer(x)

        @staticmethod
        def backward(ctx, g):
            with torch.enable_grad():
                x = ctx.saved_tensors[0].detach().requires_grad_()
                return None, *torch.autograd.grad(ctx.layer(x), x, g)

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return Again.apply(self.second, torch.relu(self.first(x)))

    with pytest.raises(ntksap.InputError, match=r"layer \(Linear\) is called again in the backward pass"):
        ntksap.prune(Own(), 0.5, "snip", data=[(torch.randn(4, 5), torch.zeros(4, dtype=torch.long))])


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated:FutureWarning")
def test_a_module_that_holds_a_tensor_computed_from_its_parameters_can_be_copied():
    module = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 6)), nn.ReLU(), nn.Linear(6, 3))
    masks = ntksap.prune(module, 0.5, "synflow", input_shape=(4,), rounds=1, include=["0.weight_v", "2.weight"])
    assert masks.sparsity == pytest.approx(0.5, abs=0.03)
