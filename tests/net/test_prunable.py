"""What is prunable by default, what is not, and how users say otherwise."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import ntksap
from ntksap.net.layers import by_output, fan_in
from ntksap.net.prunable import left_out, prunable_names
from ntksap.net.weight_views import weight_views


class Experts(nn.Module):
    """Two matrices for each of four experts, as mixtures of experts have them; every expert sees every input."""

    def __init__(self, is_transposed: bool = False) -> None:
        super().__init__()
        first, second = (4, 12, 6), (4, 6, 12)
        self.is_transposed = is_transposed
        self.up = nn.Parameter(0.3 * torch.randn(second if is_transposed else first))
        self.down = nn.Parameter(0.3 * torch.randn(first if is_transposed else second))
        self.up_bias = nn.Parameter(torch.zeros(4, 12))

    def forward(self, x: Tensor) -> Tensor:
        up, down = (w if self.is_transposed else w.mT for w in (self.up, self.down))
        return (torch.relu(x @ up + self.up_bias[:, None]) @ down).mean(0)


class Mixture(nn.Module):
    def __init__(self, is_transposed: bool = False) -> None:
        super().__init__()
        self.stem, self.experts, self.head = nn.Linear(5, 6), Experts(is_transposed), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.experts(self.stem(x)))


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).mT


def data():
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(6, 5, generator=generator), torch.randint(3, (6,), generator=generator))]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_stacked_experts_are_prunable_and_one_matrix_each(is_transposed):
    module = Mixture(is_transposed)
    names = ("stem.weight", "experts.up", "experts.down", "head.weight")
    assert prunable_names(module) == names
    assert left_out(module) == {}
    assert (fan_in(module.experts, module.experts.up), fan_in(module.experts, module.experts.down)) == (6, 12)
    assert by_output(module.experts, module.experts.up).shape == (48, 6)
    drawn = torch.stack([ntksap.Net(module).draw(i)["experts.down"] for i in range(50)])
    assert float(drawn.var()) == pytest.approx(2 / 12, rel=0.05)
    masks = ntksap.prune(module, 0.9, "snip", data=data())
    zeros = sum(int((~masks[name]).sum()) for name in names)
    assert zeros / sum(module.get_parameter(name).numel() for name in names) == pytest.approx(0.9, abs=0.01)


def test_each_expert_is_a_layer_in_allocations_floors_and_places():
    module = Mixture()
    sizes = {"stem.weight": 11, "experts.up": 18 * 4, "experts.down": 18 * 4, "head.weight": 9}
    plan = ntksap.allocate(module, 0.8, "erk")
    assert {n: plan[n] / sizes[n] for n in plan} == pytest.approx(dict.fromkeys(plan, plan.kept / 164), rel=0.2)
    assert ntksap.allocate(module, 0.8, "equal")["experts.up"] == pytest.approx(plan.kept * 4 / 10, abs=4)
    with pytest.raises(ntksap.InputError, match="42 to 578"):  # 8 matrices of experts keep 5 each
        ntksap.allocate(module, 0.95, {"stem.weight": 1, "head.weight": 1}, floor=5)
    for places in ("score", "random", "balanced"):
        masks = ntksap.prune(module, 0.9, "random", allocation="erk", floor=3, places=places, input_shape=(5,))
        for name in ("experts.up", "experts.down"):
            counts = masks[name].flatten(1).sum(1)
            assert int(counts.max() - counts.min()) <= 1
            assert int(counts.min()) >= 3
    by_rank = ntksap.prune(module, 0.95, "magnitude", floor=2)
    assert int(by_rank["experts.up"].flatten(1).sum(1).min()) >= 2


def test_an_expert_with_nothing_left_has_collapsed_and_cost_counts_what_is_left(tmp_path):
    module = Mixture()
    module.experts.up.data[2] *= 1e-6
    with pytest.warns(ntksap.CollapseWarning, match=r"experts.up\[2\]"):
        masks = ntksap.prune(module, 0.5, "magnitude", include="experts.up")
    assert masks.collapsed == ["experts.up[2]"]
    masks.save(tmp_path / "masks")
    assert ntksap.Masks.load(tmp_path / "masks").collapsed == ["experts.up[2]"]
    found = ntksap.cost(module, masks, input_shape=(5,))
    assert not found.uncounted
    assert (found.dense, found.sparse) == (36 + 4 * (72 + 72 + 12) + 21, 36 + 144 + 4 * (72 + 12) + 21)


def test_cost_counts_an_expert_for_each_input_that_is_sent_to_it():
    class TwoExperts(Experts):
        def forward(self, x, chosen):
            return torch.stack([one @ self.up[i].mT @ self.down[i].mT for one, i in zip(x, chosen, strict=True)])

    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = TwoExperts()

        def forward(self, x):
            return self.experts(x[0], torch.tensor([3, 1, 3]))

    module = Routed()
    masks = ntksap.Masks.ones({"experts.up": module.experts.up, "experts.down": module.experts.down})
    masks["experts.up"][3] = False
    found = ntksap.cost(module, masks, input_shape=(3, 6))
    assert (found.dense, found.sparse) == (3 * (72 + 72 + 12), 72 + 3 * (72 + 12))


@pytest.mark.parametrize("is_transposed", [False, True])
def test_patterns_hold_in_each_expert(is_transposed):
    module = Mixture(is_transposed)
    view = weight_views({"experts.up": tuple(module.experts.up.shape)}, module)["experts.up"]
    assert view.sizes == (4, 12, 6)
    assert torch.equal(view.tensor(view.matrices(module.experts.up)), module.experts.up)
    masks = ntksap.prune(module, 0.5, "magnitude", pattern="2:4", include="experts.down")  # rows of twelve inputs
    kept = masks["experts.down"].mT if is_transposed else masks["experts.down"]
    assert (kept.unflatten(-1, (3, 4)).sum(-1) == 2).all()


def weight_norm_old(layer: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    "make",
    [
        lambda: parametrizations.weight_norm(nn.Linear(20, 20)),
        lambda: weight_norm_old(nn.Linear(20, 20)),
        lambda: parametrizations.spectral_norm(nn.Linear(20, 20)),
        lambda: nn.utils.spectral_norm(nn.Linear(20, 20)),
        lambda: parametrizations.orthogonal(nn.Linear(20, 20)),
        lambda: parametrize.register_parametrization(nn.Linear(20, 20), "weight", Symmetric()),
    ],
    ids=["weight_norm", "older weight_norm", "spectral_norm", "older spectral_norm", "orthogonal", "own"],
)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.spectral_norm` is deprecated:FutureWarning")
def test_other_parametrized_layers_stay_dense_which_is_said_with_their_share(make):
    module = nn.Sequential(nn.Linear(5, 20), nn.ReLU(), make(), nn.ReLU(), nn.Linear(20, 3))
    assert prunable_names(module) == ("0.weight", "4.weight")
    [(name, share)] = left_out(module).items()
    total = sum(p.numel() for p in module.parameters())
    assert share == 400 / total
    with pytest.warns(ntksap.NotPrunableWarning, match=rf"{share:.1%} of the parameters.*{name}"):
        ntksap.prune(module, 0.5, "random")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ntksap.prune(module, 0.5, "random", exclude=name)
        assert name in ntksap.prune(module, 0.5, "random", include=["default", name])


def test_the_parts_of_recurrent_weights_under_weight_norm_are_not_taken_for_weights():
    module = nn.LSTM(4, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        nn.utils.weight_norm(module, "weight_hh_l0")
    assert prunable_names(module) == ("weight_ih_l0",)
    assert "weight_hh_l0_v" in left_out(module)


def test_embeddings_biases_and_small_tables_alone_are_not_worth_a_warning():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Parameter(torch.zeros(1, 4, 8))
            self.table = nn.Parameter(torch.zeros(2, 3))
            self.words, self.layer = nn.Embedding(100, 8), nn.Linear(8, 8)

    assert list(left_out(Own())) == ["place", "table"]
    assert left_out(Own(), include=nn.Linear) == {}
    with pytest.warns(ntksap.NotPrunableWarning, match=r"4\.2% of the parameters.*place \(3\.5%\), table \(0\.7%\)"):
        ntksap.prune(Own(), 0.5, "random")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ntksap.prune(Own(), 0.5, "random", exclude="place")  # the table alone is less than 2 %


def test_include_adds_to_the_default_when_it_names_it():
    module = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    usual = ("1.weight", "2.weight")
    assert prunable_names(module, include="default") == usual
    assert prunable_names(module, include=["default", "0.*"]) == ("0.weight", *usual)
    assert prunable_names(module, include=["default", nn.Embedding], exclude="1.*") == ("0.weight", "2.weight")
    assert prunable_names(module, include="0.*") == ("0.weight",)


@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_pattern_that_matches_nothing_is_an_error_that_names_the_nearest(option):
    module = nn.ModuleDict({"body": nn.Linear(4, 4), "classifier": nn.Linear(4, 2)})
    with pytest.raises(ntksap.InputError, match=rf"{option}='clasifier\.\*' matches no .* mean 'classifier\.\*'"):
        prunable_names(module, **{option: ["body.*", "clasifier.*"]})
    with pytest.raises(ntksap.InputError, match=r"Parameters are named like 'body\.weight'"):
        prunable_names(module, **{option: "0123"})


def test_a_tied_parameter_is_found_by_each_of_its_names():
    module = nn.ModuleDict({"words": nn.Embedding(9, 4), "body": nn.Linear(4, 4), "head": nn.Linear(4, 9)})
    module["head"].weight = module["words"].weight
    assert prunable_names(module, include="head.weight") == ("words.weight",)
    assert prunable_names(module, include=["default", "words.*"], exclude="head.*") == ("body.weight",)
