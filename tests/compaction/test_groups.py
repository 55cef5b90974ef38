"""Which channels hang together, what is frozen and why."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import ntksap
from ntksap.compaction import channel_groups, channel_masks, channel_scores, rule, select_channels
from ntksap.compaction.rules import RULES
from tests.compaction.networks import NETWORKS, GroupedQueries, RigidAttention, SelfAttention, Shuffle, images

SIZES = {
    "mlp": [8, 6], "functions that are not 0 at 0": [8, 6, 6], "such functions on images": [6, 5, 4],
    "lenet": [4, 6, 5],
    "residual": [6, 5, 5, 8, 8], "dense": [4, 4, 4, 6], "u-net": [4, 6, 8, 6, 6, 4, 4], "inverted residual": [6, 12],
    "channel shuffle": [4, 4, 6], "squeeze and excite": [8, 4, 6], "spatial gate": [5], "inception": [4, 3, 5, 3],
    "gates": [8, 6, 6, 8, 5], "pixel shuffle": [8, 4, 6], "grouped convolutions": [4, 2, 3, 2],
    "norms of channels": [6, 8, 4], "conv1d": [6, 5], "conv3d": [4, 5], "a norm after flatten": [6],
    "attention": [3, 20],
    "rigid attention": [20], "split attention": [3, 20], "grouped queries": [3, 20], "einsum attention": [3, 20],
    "nn.TransformerEncoder": [4, 12, 4, 12], "nn.Transformer": [2, 12, 2, 2, 12], "mixer": [6, 10, 14],
    "convnext block": [24], "tied": [6], "a size in the code": [4, 7], "lstm": [6, 8], "two inputs": [6, 6, 7],
    "pyramid": [5, 7, 6], "padded shortcut": [4, 8], "in place": [6], "resnet8": [16, 16, 32, 32, 64, 64],
    "vgg11-bn": [64, 128, 256, 256, 512, 512, 512, 512],
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_groups_are_as_large_as_worked_out_by_hand_and_every_other_axis_says_why_not(network):
    model = network.make()
    groups = channel_groups(model, network.inputs())
    assert [group.size for group in groups.groups] == SIZES[network.name]
    standing = {(member.name, member.dim) for group in groups.groups for member in group.members}
    for name, parameter in model.named_parameters():
        for dim, size in enumerate(parameter.shape):
            assert size == 1 or ((name, dim) in standing) != ((name, dim) in groups.frozen)
    assert all(groups.frozen.values())


def test_a_member_says_which_unit_each_of_its_indices_belongs_to():
    groups = channel_groups(GroupedQueries(), torch.ones(1, 2, 8))
    (heads,) = groups.groups
    units = {f"{member.name}[{member.dim}]": member.units.tolist() for member in heads.members}
    assert units["q.weight[0]"] == units["out.weight[1]"] == np.repeat([0, 1, 2], 8).tolist()
    assert units["kv.0.weight[0]"] == units["kv.1.bias[0]"] == np.repeat([0, 1, 2], 4).tolist()


def test_indices_of_a_concatenation_belong_to_the_groups_that_they_come_from():
    groups = channel_groups(Shuffle(), torch.ones(1, 2, 6, 6))
    stem = next(m for m in groups.groups[0].members if m.name == "stem.0.weight")
    last = next(m for m in groups.groups[0].members if m.name == "last.0.weight")
    assert stem.units.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]  # halves lose the same places
    assert last.units.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]  # shuffled


def test_an_operator_without_a_rule_is_named_with_the_axes_that_it_freezes():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.special.i0(self.first(x)))

    groups = channel_groups(Odd(), torch.ones(1, 3))
    assert groups.groups == ()
    assert groups.unknown == {"special_i0": ("",)}
    assert "no rule" in groups.frozen["first.weight", 0]
    assert "no rule: special_i0" in str(groups)
    try:
        rule("special_i0")(RULES["relu"])
        assert [group.size for group in channel_groups(Odd(), torch.ones(1, 3)).groups] == [4]
        with pytest.raises(ntksap.InputError, match="already"):
            rule("special_i0")(RULES["relu"])
    finally:
        RULES.pop("special_i0", None)


def test_a_layer_norm_freezes_its_stream_unless_it_may_be_inexact():
    model = nn.Sequential(nn.Linear(3, 6), nn.LayerNorm(6), nn.Linear(6, 2))
    assert channel_groups(model, torch.ones(1, 3)).groups == ()
    (group,) = channel_groups(model, torch.ones(1, 3), inexact=["layer_norm"]).groups
    assert group.size == 6
    masks = channel_masks(model, channel_groups(model, torch.ones(1, 3), inexact=["layer_norm"]), [torch.arange(6) < 4])
    small = ntksap.compact(model, masks, torch.ones(1, 3), inexact=["layer_norm"])
    assert small[1].normalized_shape == (4,)
    assert small(torch.ones(1, 3)).shape == (1, 2)


def test_code_that_cannot_follow_is_found_out_and_named():
    frozen = channel_groups(RigidAttention(), torch.ones(1, 4, 12)).frozen
    assert "the code of RigidAttention holds its size" in frozen["qkv.weight", 0]
    assert ("qkv.weight", 0) not in channel_groups(SelfAttention(), torch.ones(1, 4, 12)).frozen


@pytest.mark.parametrize("settings", [{"kdim": 6, "vdim": 8}, {"add_bias_kv": True}, {"add_zero_attn": True}])
def test_attention_that_is_not_one_matrix_stays_whole(settings):
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True, **settings)

        def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            return self.attention(x, keys, values, need_weights=False)[0]

    inputs = (torch.ones(1, 3, 8), torch.ones(1, 4, settings.get("kdim", 8)), torch.ones(1, 4, 8))
    groups = channel_groups(Cross(), inputs)
    assert groups.groups == ()
    assert ("attention.out_proj.weight", 1) in groups.frozen


def test_reading_a_module_leaves_it_as_it_is():
    model = ntksap.models.build("resnet8").train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    channel_groups(model, images(3, 16, 16)())
    assert model.training
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_module_without_one_graph_is_refused_with_the_reason():
    class Branching(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    with pytest.raises(ntksap.InputError, match="cannot be read"):
        channel_groups(Branching(), torch.ones(2))


def resnet():
    model = ntksap.models.build("resnet8")
    scores = {name: model.get_parameter(name).detach().abs() for name in ntksap.Net(model).prunable}
    return model, channel_groups(model, torch.ones(1, 3, 16, 16)), scores


def left(groups, scores, kept, costs=None):
    """Count what is left, weight by weight."""
    total = 0.0
    for name, score in scores.items():
        alive = torch.ones(score.shape)
        for group, keep in zip(groups.groups, kept, strict=True):
            for member in group.members:
                if member.name == name:
                    gone = [i for i, unit in enumerate(member.units) if unit >= 0 and not keep[unit]]
                    alive.index_fill_(member.dim, torch.tensor(gone, dtype=torch.long), 0)
        total += float(alive.sum()) * (costs[name] if costs else 1)
    return total


def test_a_units_score_is_the_sum_over_every_weight_that_goes_with_it():
    _, groups, scores = resnet()
    for group, found in zip(groups.groups, channel_scores(groups, scores), strict=True):
        for unit in (0, group.size - 1):
            expected = sum(
                float(
                    scores[m.name].index_select(m.dim, torch.from_numpy(np.flatnonzero(m.units == unit))).double().sum()
                )
                for m in group.members
                if m.name in scores
            )
            assert float(found[unit]) == pytest.approx(expected)


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("density", [0.02, 0.25, 0.5, 0.9, 1.0])
def test_what_is_left_fits_the_budget_and_no_channel_more_would(density, scope):
    _, groups, scores = resnet()
    kept = select_channels(groups, scores, density, scope=scope)
    assert all(keep.any() for keep in kept)
    sums = channel_scores(groups, scores)
    budget = density * sum(score.numel() for score in scores.values())
    found = left(groups, scores, kept)
    assert found <= budget
    for number, (keep, own) in enumerate(zip(kept, sums, strict=True)):
        assert keep.all() or float(own[keep].min()) >= float(own[~keep].max())  # the best of each group
        if not keep.all():
            more = [k.clone() for k in kept]
            more[number][own.masked_fill(keep, -torch.inf).argmax()] = True
            assert left(groups, scores, more) > budget
    if density == 1:
        assert all(keep.all() for keep in kept)


def test_with_the_global_scope_the_lowest_of_all_go_first():
    model = nn.Sequential(
        nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 4, bias=False), nn.ReLU(), nn.Linear(4, 3)
    )
    groups = channel_groups(model, torch.ones(1, 3))
    scores = {f"{n}.weight": torch.zeros_like(model[n].weight) for n in (0, 2, 4)}
    scores["0.weight"][:, 0] = torch.tensor([1.0, 5.0, 6.0, 7.0])
    scores["4.weight"][0] = torch.tensor([8.0, 2.0, 9.0, 3.0])
    first, second = select_channels(groups, scores, 0.55, scope="global")  # 22 of 40 weights: 3·3 + 3·2 + 2·3
    assert first.tolist() == [False, True, True, True]
    assert second.tolist() == [True, False, True, False]
    within = [torch.tensor([True, True, False, True]), second]
    alive, rest = select_channels(groups, scores, 0.55, scope="global", within=within)
    assert alive.tolist() == [True, True, False, True]
    assert rest.tolist() == second.tolist()


@pytest.mark.parametrize("density", [0.1, 0.25, 0.5, 0.81])
def test_all_groups_keep_the_same_share_whatever_they_score(density):
    _, groups, scores = resnet()
    uneven = {name: score * 1000.0**number for number, (name, score) in enumerate(scores.items())}
    kept = select_channels(groups, uneven, density)
    shares = [float(keep.double().mean()) for keep in kept]
    most = 1 / min(group.size for group in groups.groups)
    assert max(shares) - min(shares) <= 2 * most  # but for rounding, and a channel that still fitted
    assert min(shares) <= density**0.5 + 1e-9  # each layer loses on both sides
    unbalanced = select_channels(groups, uneven, density, scope="global")
    assert max(float(keep.double().mean()) for keep in unbalanced) == 1.0


def test_costs_count_multiply_adds_and_numbers_of_channels_can_be_round():
    _, groups, scores = resnet()
    costs = {name: 256.0 if "blocks.0" in name else 64.0 for name in scores}
    kept = select_channels(groups, scores, 0.4, costs=costs, round_to=4)
    assert all(int(keep.sum()) % 4 == 0 for keep in kept)
    whole = left(groups, scores, [torch.ones_like(keep) for keep in kept], costs)
    assert 0.3 < left(groups, scores, kept, costs) / whole < 0.5


@pytest.mark.parametrize(("density", "round_to"), [(0, 1), (1.5, 1), (0.5, 0)])
def test_budgets_that_make_no_sense_are_refused(density, round_to):
    _, groups, scores = resnet()
    with pytest.raises(ntksap.InputError):
        select_channels(groups, scores, density, round_to=round_to)


class Overwriting(nn.Module):
    """Writes into a part of a tensor, and then reads the whole."""

    def __init__(self, write) -> None:
        super().__init__()
        self.first, self.other = nn.Linear(3, 6), nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
        self.hidden, self.last = nn.Linear(6, 7), nn.Linear(7, 2)
        self.write = write

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        self.write(y, self.other(x))
        return self.last(torch.relu(self.hidden(y)))


@pytest.mark.parametrize(
    "write",
    [
        lambda y, z: y[:, 2:4].copy_(z),
        lambda y, z: y.__setitem__((slice(None), slice(0, 2)), z),
        lambda y, z: y.view(-1, 3, 2)[:, 1].add_(z),
        lambda y, z: y.view(-1, 3, 2).select(1, 2).mul_(z),
        lambda y, z: y.T[:2].add_(z.T),
    ],
)
def test_a_write_into_a_part_of_a_tensor_freezes_all_that_it_touches(write):
    model = Overwriting(write).double()
    groups = channel_groups(model, torch.ones(2, 3).double())
    assert {("first.weight", 0), ("hidden.weight", 1), ("other.2.weight", 0)} <= set(groups.frozen)
    assert sorted(group.size for group in groups.groups) == [5, 7]
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(p.shape, generator=generator) < 0.4 for name, p in model.named_parameters()}
    ntksap.Masks(masks).attach(model)
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    torch.testing.assert_close(ntksap.compact(model, masks, x)(x), model(x), rtol=1e-12, atol=1e-12)


def test_a_view_that_is_read_after_its_tensor_was_overwritten_is_frozen_and_the_write_named():
    class Late(Overwriting):
        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x)
            seen = y.view(-1, 6)
            y.relu_()
            return self.last(self.hidden(seen))

    groups = channel_groups(Late(None), torch.ones(2, 3))
    assert "in_place_write" in groups.unknown
    assert "in_place_write" in groups.frozen["first.weight", 0]
