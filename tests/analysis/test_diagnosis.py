import copy
import itertools
import math

import pytest
import torch
from torch import nn

import ntksap
from ntksap import Masks, Net, Probe, ntk, prune
from ntksap.analysis.diagnosis import diagnose
from ntksap.analysis.reach import effective_masks
from tests.cases import BY_NAME, CASES


def paths_twin(masks, sizes):
    """Mark the weights of a chain of linear layers on any path, by walking every path."""
    used = {name: torch.zeros_like(mask) for name, mask in masks.items()}
    for units in itertools.product(*(range(size) for size in sizes)):
        edges = [(name, units[i + 1], units[i]) for i, name in enumerate(masks)]
        if all(masks[name][row, column] for name, row, column in edges):
            for name, row, column in edges:
                used[name][row, column] = True
    return used


@pytest.mark.parametrize("seed", range(8))
def test_chains_against_walking_every_path(seed):
    sizes = (4, 5, 6, 3)
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    generator = torch.Generator().manual_seed(seed)
    masks = {
        f"{i}.weight": torch.rand(module[i].weight.shape, generator=generator) < 0.25 + 0.05 * seed for i in (0, 2, 4)
    }
    assert effective_masks(module, masks, input_shape=(4,)) == Masks(paths_twin(masks, sizes))


def test_a_trained_batchnorm_and_negative_biases_do_not_hide_paths():
    module = BY_NAME["conv-bn"].module()
    with torch.no_grad():
        module[1].running_mean.fill_(1e6)
        module[1].bias.fill_(-1e6)
        module[0].bias.fill_(-1e6)
    ones = Masks.ones({n: p for n, p in module.named_parameters() if p.dim() > 1})
    assert effective_masks(module, ones, input_shape=(2, 5, 5)) == ones


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_weight_of_a_dense_net_is_used(case):
    module = case.module()
    ones = ntksap.prune(module, 0.0, "random", **case.source())
    assert effective_masks(module, ones, **case.source()) == ones


def test_residual_streams_keep_paths_alive():
    module = BY_NAME["residual"].module()
    masks = dict(ntksap.prune(module, 0.0, "random", input_shape=(2, 5, 5)))
    masks["branch.0.weight"] = torch.zeros_like(masks["branch.0.weight"])
    found = diagnose(module, masks, input_shape=(2, 5, 5))
    used = {layer.name: layer.used for layer in found.layers}
    assert used == {"stem.weight": 108, "branch.0.weight": 0, "branch.3.weight": 0, "head.weight": 18}
    assert found.collapsed == ["branch.0.weight"]
    assert not found.disconnected
    text = " ".join(found.sentences())
    assert "Nothing is left of branch.0.weight" in text
    assert "36 of 162 kept weights (22.2%) lie on no path" in text


def test_max_pooling_and_deep_nets():
    layers = [nn.Conv2d(2, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 4)]
    module = nn.Sequential(*layers)
    ones = ntksap.prune(module, 0.0, "random")
    assert effective_masks(module, ones, input_shape=(2, 6, 6)) == ones
    deep = nn.Sequential(*(nn.Linear(50, 50) for _ in range(300)))
    ones = ntksap.prune(deep, 0.0, "random")
    assert effective_masks(deep, ones, input_shape=(50,)) == ones


def test_a_cut_net_is_said_to_compute_a_constant():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    masks = {"0.weight": torch.ones(4, 3, dtype=torch.bool), "2.weight": torch.zeros(2, 4, dtype=torch.bool)}
    found = diagnose(module, masks, input_shape=(3,))
    assert found.disconnected
    assert found.effective_sparsity == 1.0
    assert "computes a constant" in found.sentences()[0]


class Around(nn.Module):
    """A shortcut around everything that is pruned, and something in it that paths may not be followed through."""

    def __init__(self, around):
        super().__init__()
        self.branch, self.around = nn.Linear(4, 4), around

    def forward(self, x):
        return self.around(x) + torch.relu(self.branch(x))


def test_a_shortcut_around_all_that_is_left_of_a_net_is_not_called_a_cut():
    masks = {"branch.weight": torch.zeros(4, 4, dtype=torch.bool)}
    found = diagnose(Around(nn.Identity()), masks, input_shape=(4,))
    assert found.bypassed
    assert not found.disconnected
    assert 10**found.log10_paths == pytest.approx(4)
    text = " ".join(found.sentences())
    assert "constant" not in text
    assert "Every kept weight" not in text  # there is none
    assert "No kept weight lies on a path from input to output. Shortcuts may lead around them" in text
    assert "10^0.6 paths lead from input to output, through 0 of 4 channels" in text


def test_where_paths_cannot_be_counted_a_cut_is_not_claimed():
    class Uncounted(nn.Module):
        def forward(self, x):
            return torch.erf(x)

    masks = {"branch.weight": torch.zeros(4, 4, dtype=torch.bool)}
    found = diagnose(Around(Uncounted()), masks, input_shape=(4,))
    assert found.bypassed
    assert not found.disconnected
    text = " ".join(found.sentences())
    assert "Shortcuts may lead around them" in text
    assert "not counted: paths cannot be followed through erf" in text


def test_weights_that_only_a_constant_reaches_are_on_no_path_from_the_input():
    class Time(nn.Module):
        def __init__(self):
            super().__init__()
            self.time = nn.Linear(1, 4)

        def forward(self, x):
            return self.time(torch.ones(len(x), 1, dtype=x.dtype))

    masks = {"branch.weight": torch.zeros(4, 4, dtype=torch.bool), "around.time.weight": torch.ones(4, 1) > 0}
    found = diagnose(Around(Time()), masks, input_shape=(4,))
    assert not found.bypassed
    assert found.log10_paths == -math.inf
    text = " ".join(found.sentences())
    assert "No path is counted, since none comes from the input alone" in text
    assert "The network still has a path" not in text


def test_dead_channels_and_words_for_a_sound_mask():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    masks = {"0.weight": torch.ones(4, 3, dtype=torch.bool), "2.weight": torch.ones(2, 4, dtype=torch.bool)}
    sound = " ".join(diagnose(module, masks, input_shape=(3,)).sentences())
    assert "Every kept weight lies on a path" in sound
    assert "dead" not in sound
    masks["0.weight"][1] = False
    masks["2.weight"][:, 1] = False
    found = diagnose(module, masks, input_shape=(3,))
    assert found.effective_sparsity == found.sparsity == 5 / 20
    assert "1 of 6 output channels is dead; the narrowest layer is 0.weight with 3 of 4 left" in " ".join(
        found.sentences()
    )


def test_the_kernel_is_that_of_the_output_that_was_asked_for():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 2)

        def forward(self, x):
            return {"a": self.first(x), "b": self.second(x)}

    torch.manual_seed(0)
    module = Two()
    masks = {"second.weight": torch.tensor([[True, False, True, False], [True, True, False, False]])}
    found = diagnose(module, masks, input_shape=(4,), output=lambda y: y["b"], kernel=True).kernel
    assert (found.dense.num_outputs, found.dense.num_inputs) == (2, 10)
    noise = Probe.of(Net(module), input_shape=(4,)).noise(0, 10)
    expected = ntk(module, noise, masks, output=lambda y: y["b"], include="second.weight")
    assert torch.equal(found.pruned.matrix, expected.matrix)
    assert expected.trace > 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_nets_are_diagnosed_in_single_precision(dtype):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 3)).to(dtype)
    masks = prune(module, 0.5, "random")
    found, expected = (
        diagnose(m, masks, input_shape=(2, 5, 5), kernel=True) for m in (module, copy.deepcopy(module).float())
    )
    assert found.layers == expected.layers
    assert torch.equal(found.kernel.pruned.matrix, expected.kernel.pruned.matrix)
    x = torch.randn(4, 2, 5, 5).to(dtype)
    assert torch.equal(ntk(module, x, masks).matrix, ntk(copy.deepcopy(module).float(), x.float(), masks).matrix)
