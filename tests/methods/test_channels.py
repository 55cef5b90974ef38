"""Whole channels: every method selects them, in every round, within its budget, and what is left compacts exactly."""

import copy
import itertools

import pytest
import torch
from torch import Tensor, nn

import ntksap
from ntksap.compaction import weight_uses
from ntksap.methods import METHODS, Method
from tests.cases import BY_NAME, Residual
from tests.methods.test_combinations import SMALL

pytestmark = [
    pytest.mark.filterwarnings("ignore::ntksap.ApproximationWarning"),
    pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning"),
]
IMAGE = (2, 5, 5)


class Wide(nn.Module):
    """A residual stream, a branch, a norm without parameters, biases."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())
        self.branch = nn.Sequential(
            nn.Conv2d(12, 10, 3, padding=1), nn.BatchNorm2d(10, affine=False), nn.ReLU(), nn.Conv2d(10, 12, 1)
        )
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        return self.head((y + self.branch(y)).mean((2, 3)))


def wide() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = Wide()
        for norm in (model.stem[1], model.branch[1]):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
    return model


def prune(model: nn.Module, method: str = "magnitude", sparsity: float = 0.6, **settings) -> ntksap.Masks:
    return ntksap.prune(model, sparsity, method, pattern="channel", **{"input_shape": IMAGE, **settings})


def units(masks: ntksap.Masks) -> dict[str, list[int]]:
    return masks.info["channels"]


@pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
def test_every_method_removes_whole_channels_and_the_rest_is_a_smaller_module(method: Method):
    case = BY_NAME["residual"]
    settings = {"rounds": min(method.rounds, 2), **case.needs(method), **case.source(), **SMALL.get(method.name, {})}
    model = case.module()
    if method.allocation not in (None, "ntk-sap"):
        with pytest.raises(ntksap.InputError, match=f"{method.name} is about single weights of a layer"):
            ntksap.prune(model, 0.6, method.name, pattern="channel", **settings)
        return
    for budget in ("weights", "multiply-adds"):
        masks = ntksap.prune(model, 0.6, method.name, pattern="channel", budget=budget, **settings)
        assert masks.obeys("channel")
        assert masks.info["left"] <= masks.info["asked"]
        assert all(1 <= kept <= size for kept, size in units(masks).values())
        if budget == "weights":
            assert masks.kept == masks.info["left"]
        masked = copy.deepcopy(model).double().eval()
        masks.attach(masked)
        image = case.batches()[0][0][:1].double()
        small = ntksap.compact(masked, masks, image)
        assert sum(p.numel() for n, p in small.named_parameters() if n in masks.prunable) == masks.kept
        torch.testing.assert_close(small(image), masked(image), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("budget", ["weights", "multiply-adds"])
@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.6, 0.99])
def test_no_group_could_keep_one_channel_more(sparsity: float, budget: str):
    model = wide()
    masks = prune(model, sparsity=sparsity, budget=budget)
    small = ntksap.compact(model, masks, torch.ones(1, *IMAGE))
    names = list(masks.prunable)
    uses = weight_uses(small, torch.ones(1, *IMAGE), names)
    by_hand = sum(small.get_parameter(n).numel() * (uses[n] if budget != "weights" else 1) for n in names)
    assert masks.info["left"] == by_hand
    if sparsity == 0.0:
        assert all(kept == size for kept, size in units(masks).values())
    if sparsity == 0.99:
        assert all(kept == 1 for kept, size in units(masks).values())
    if 0 < sparsity < 0.99:
        one = max(model.stem[0].weight[0].numel() + model.branch[0].weight[:, 0].numel(), 9 * 12 + 12)
        assert masks.info["asked"] - masks.info["left"] < one * (25 if budget != "weights" else 1)


def test_multiply_adds_are_those_that_cost_counts():
    model = ntksap.models.build("resnet8")
    names = list(ntksap.Net(model).prunable)
    uses = weight_uses(model, torch.ones(1, 3, 16, 16), names)
    layers = {f"{layer.name}.weight": layer.dense for layer in ntksap.cost(model, input_shape=(3, 16, 16)).layers}
    for name in names:
        bias = 10 if name == "fc.weight" else 0
        assert uses[name] * model.get_parameter(name).numel() == layers[name] - bias


def test_multiply_adds_of_transformers_are_counted_through_every_product():
    attention = BY_NAME["attention"]
    model = attention.module()
    inputs = attention.batches()[0][0][:1]
    uses = weight_uses(model, inputs, [n for n, p in model.named_parameters() if p.dim() == 2])
    tokens = inputs.shape[1]
    assert uses["inside.weight"] == uses["attention.in_proj_weight"] == uses["attention.out_proj.weight"] == tokens
    assert uses["head.weight"] == 1


def test_a_weight_whose_products_cannot_be_read_is_named():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last((x.unsqueeze(-2) * self.first.weight).sum(-1))

    with pytest.raises(ntksap.InputError, match=r"'first.weight' cannot be read.* mul "):
        weight_uses(Odd(), torch.ones(1, 3), ["first.weight", "last.weight"])


def test_numbers_of_channels_are_round_in_every_round_and_never_rise():
    seen: list[ntksap.Masks] = []
    model = wide()
    masks = prune(model, "synflow", 0.7, rounds=4, round_to=4, on_round=seen.append)
    assert all(kept % 4 == 0 or kept == size for kept, size in units(masks).values())
    assert masks.info["round_to"] == 4
    for earlier, later in itertools.pairwise(seen):
        assert all((later[name] <= earlier[name]).all() for name in earlier)
    for state in seen[:-1]:
        assert prune(model, "synflow", 0.7, rounds=4, round_to=4, after=state) == masks
    assert set(seen[0]) == set(masks.prunable)  # what follows comes with the last round


def test_without_inputs_there_is_no_graph_to_read():
    with pytest.raises(ntksap.InputError, match="pass input_shape="):
        prune(wide(), input_shape=None)


def test_random_places_keep_the_same_widths():
    model = wide()
    masks = prune(model, seed=3)
    moved = prune(model, seed=3, places="random")
    assert units(moved) == units(masks)
    assert moved != masks
    assert moved.obeys("channel")
    assert moved != prune(model, seed=4, places="random")


def test_what_was_excluded_stays_whole_with_all_that_hangs_together_with_it():
    model = wide()
    masks = prune(model, exclude=["head.weight"])
    assert list(units(masks)) == ["branch.0.weight[0]"]
    assert "head.weight" not in masks
    with pytest.raises(ntksap.InputError, match="exclude less"):
        prune(model, exclude=["branch.0.weight"])


def test_masks_of_channels_hold_biases_norms_and_running_means_at_zero_through_training():
    model = wide().double()
    masks = prune(model)
    assert {"stem.0.bias", "stem.1.weight", "stem.1.bias", "stem.1.running_mean", "branch.1.running_mean"} <= set(masks)
    assert masks.total == sum(model.get_parameter(name).numel() for name in masks.prunable)
    image = torch.randn(8, *IMAGE, dtype=torch.float64)
    masks.attach(model)
    small = ntksap.compact(model, masks, image[:1])
    after = []
    for module in (model, small):
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, weight_decay=1e-2)
        for _ in range(4):
            optimizer.zero_grad()
            module.train()(image).square().sum().backward()
            optimizer.step()
        after.append(module.eval()(image))
    assert masks.obeyed_by(model)
    torch.testing.assert_close(*after, rtol=1e-10, atol=1e-10)
    state = wide().double().state_dict()
    model.load_state_dict(state)
    assert masks.obeyed_by(model)
    assert (model.stem[1].running_mean[masks["stem.1.running_mean"]] != 0).all()


def test_masks_of_channels_survive_a_file(tmp_path):
    masks = prune(wide(), rescale="unit")
    masks.save(tmp_path / "masks.safetensors")
    read = ntksap.Masks.load(tmp_path / "masks.safetensors")
    assert read == masks
    assert read.kept == masks.kept == read.info["left"]
    model = wide()
    read.attach(model)
    assert torch.equal(model.stem[1].weight, masks["stem.1.weight"].float())  # norms are not rescaled


def test_diagnosis_and_cost_are_those_of_the_smaller_module():
    model = Residual()
    masks = ntksap.prune(model, 0.5, "magnitude", pattern="channel", input_shape=(2, 5, 5))
    small = ntksap.compact(model, masks, torch.ones(1, 2, 5, 5))
    found = ntksap.diagnose(model, masks, input_shape=(2, 5, 5))
    assert found.inference_flops == ntksap.cost(small, input_shape=(2, 5, 5)).dense
    assert found.effective_sparsity == pytest.approx(masks.sparsity)
    assert [layer.name for layer in found.layers] == list(masks.prunable)
