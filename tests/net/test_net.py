import copy
import threading

import pytest
import torch
from torch import nn

import ntksap
from ntksap import InputError, Net, Probe
from tests.cases import BY_NAME, CASES, CLASSES, Residual, Tied, conv_bn


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_evaluates_what_the_module_evaluates(case):
    module = case.module().double()
    net = Net(module)
    inputs = Probe.of(net, **case.source()).noise(0, 6)
    for _ in range(2):  # a second call must see the same skeleton
        for norm, mode in (("running", False), ("batch", True)):
            twin = copy.deepcopy(module).train(mode)
            for part in twin.modules():
                if isinstance(part, nn.Dropout | nn.MultiheadAttention):
                    part.eval()
            expected = twin(**inputs) if isinstance(inputs, dict) else twin(inputs)
            got = net(net.weights, inputs, norm=norm)
            torch.testing.assert_close(got, ntksap.net.net.first_tensor(expected))


def test_weights_are_looked_up_by_name_also_when_tied_or_used_twice():
    module = Tied().double()
    net = Net(module)
    assert net.prunable == ("first.weight", "head.weight")
    inputs = torch.randn(4, 6, dtype=torch.float64)
    doubled = {**net.weights, "first.weight": 2 * net.weights["first.weight"]}
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.first.weight.mul_(2)
    torch.testing.assert_close(net(doubled, inputs), twin(inputs))
    torch.testing.assert_close(net(net.weights, inputs), module(inputs))


def test_missing_weights_are_an_error():
    net = Net(conv_bn())
    weights = {name: w for name, w in net.weights.items() if name != "0.weight"}
    with pytest.raises(KeyError, match=r"0\.weight"):
        net(weights, torch.zeros(2, 2, 5, 5))


def test_a_tied_head_and_embeddings_are_not_prunable():
    assert Net(BY_NAME["tokens"].module()).prunable == ("mix.0.weight", "mix.2.weight")


def test_attention_projections_are_prunable():
    names = Net(BY_NAME["attention"].module()).prunable
    assert names == ("inside.weight", "attention.in_proj_weight", "attention.out_proj.weight", "head.weight")
    separate = nn.MultiheadAttention(8, 2, kdim=5, vdim=6)
    assert Net(separate).prunable == ("q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight")


def test_frozen_weights_are_prunable_only_when_included():
    module = BY_NAME["frozen"].module()
    assert Net(module).prunable == ("0.weight", "4.weight")
    assert Net(module, include="*").prunable == ("0.weight", "2.weight", "4.weight")


def test_include_and_exclude_take_patterns_types_and_callables():
    module = Residual()
    assert Net(module, include="branch.*").prunable == ("branch.0.weight", "branch.3.weight")
    assert Net(module, include=nn.Linear).prunable == ("head.weight",)
    assert Net(module, exclude=[nn.Linear, "stem.*"]).prunable == ("branch.0.weight", "branch.3.weight")
    assert Net(module, include=lambda name, owner: name.startswith("s")).prunable == ("stem.weight",)
    assert Net(module, include=["head.weight", "head.bias"]).prunable == ("head.weight", "head.bias")
    assert Net(BY_NAME["tokens"].module(), include=nn.Embedding).prunable == ("embed.weight",)


def test_nothing_prunable():
    for module, options in [(nn.BatchNorm1d(3), {}), (Residual(), {"exclude": "*"}), (nn.ReLU(), {})]:
        with pytest.raises(InputError, match="nothing prunable"):
            Net(module, **options)


def test_lazy_modules_and_modules_that_cannot_be_copied():
    with pytest.raises(InputError, match="has no shape yet"):
        Net(nn.LazyLinear(3))
    module = nn.Linear(3, 3)
    module.lock = threading.Lock()
    with pytest.raises(InputError, match="cannot be copied"):
        Net(module)


class Returns(nn.Module):
    def __init__(self, what) -> None:
        super().__init__()
        self.linear = nn.Linear(3, CLASSES)
        self.what = what

    def forward(self, x):
        return self.what(self.linear(x))


@pytest.mark.parametrize(
    "what",
    [
        lambda y: y,
        lambda y: (y, 1),
        lambda y: [None, y],
        lambda y: {"logits": y, "loss": None},
        lambda y: type("Output", (), {"logits": y})(),
    ],
)
def test_outputs_of_many_kinds(what):
    module = Returns(what)
    inputs = torch.randn(2, 3)
    torch.testing.assert_close(Net(module)(Net(module).weights, inputs), module.linear(inputs))


def test_other_outputs_need_a_callable():
    module = Returns(lambda y: {"scores": y})
    with pytest.raises(InputError, match="pass output="):
        Net(module)(Net(module).weights, torch.ones(2, 3))
    net = Net(module, output=lambda result: result["scores"])
    assert net(net.weights, torch.ones(2, 3)).shape == (2, CLASSES)


def test_dropout_is_off_and_noise_in_the_forward_pass_repeats():
    noisy = Returns(lambda y: nn.functional.dropout(y + torch.randn(y.shape), training=False))
    net = Net(nn.Sequential(noisy, nn.Dropout(0.9)))
    state = torch.get_rng_state()
    first, second = (net(net.weights, torch.ones(2, 3)) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)


def test_draws_depend_on_the_key_alone():
    net = Net(conv_bn())
    first, other = net.draw(0, "a", 1), net.draw(0, "a", 2)
    again = net.draw(0, "a", 1)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert all(not torch.equal(first[name], other[name]) for name in net.prunable)


def test_kaiming_normal_draws():
    module = nn.Sequential(nn.Conv2d(8, 300, 3), nn.BatchNorm2d(300), nn.Flatten(), nn.Linear(300, 200))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(7)
    draw = Net(module).draw(0)
    assert float(draw["0.weight"].std()) == pytest.approx((2 / 72) ** 0.5, rel=0.05)
    assert float(draw["3.weight"].std()) == pytest.approx((2 / 300) ** 0.5, rel=0.05)
    assert (draw["1.weight"] == 1).all()
    assert (draw["1.bias"] == 0).all()
    assert 0 < draw["0.bias"].abs().max() <= 72**-0.5  # torch's default
    assert all((p == 7).all() for p in module.parameters())


def test_other_initialisers():
    module = nn.Sequential(nn.Linear(6, 20), nn.Linear(20, 3))
    shuffled = Net(module, init="shuffle").draw(0)
    assert not torch.equal(shuffled["0.weight"], module[0].weight)
    assert torch.equal(shuffled["0.weight"].flatten().sort()[0], module[0].weight.detach().flatten().sort()[0])
    assert torch.equal(shuffled["0.bias"], module[0].bias)
    reset = Net(module, init="reset").draw(0)
    assert reset["0.weight"].abs().max() <= 6**-0.5

    def orthogonal(m):
        for part in m.modules():
            if isinstance(part, nn.Linear):
                nn.init.orthogonal_(part.weight)

    drawn = Net(module, init=orthogonal).draw(0)["0.weight"]
    torch.testing.assert_close(drawn.T @ drawn, torch.eye(6))
    with pytest.raises(InputError, match="Known: kaiming_normal, reset, shuffle"):
        Net(module, init="xavier")


def test_dtype():
    net = Net(conv_bn(), dtype=torch.float64)
    assert all(w.dtype == torch.float64 for w in net.weights.values())
    noise = Probe.of(net, input_shape=(2, 5, 5)).noise(0, 3)
    assert net(net.weights, noise, norm=net.statistics(net.weights, noise)).dtype == torch.float64
    assert net.draw(0)["0.weight"].dtype == torch.float64


def test_bad_probes_say_what_to_do():
    module = nn.Linear(3, 2)
    with pytest.raises(InputError, match="pass input_shape="):
        ntksap.prune(module, 0.5, "ntk-sap")
    with pytest.raises(InputError, match="must yield"):
        ntksap.prune(module, 0.5, "snip", data=[torch.ones(2, 3)])
    with pytest.raises(InputError, match="Did you mean 'draws'"):
        ntksap.prune(module, 0.5, "ntk-sap", draw=3)
    with pytest.raises(InputError, match="Did you mean 'ntk-sap'"):
        ntksap.prune(module, 0.5, "ntksap")
    with pytest.raises(InputError, match="rounds is a whole number of at least 1"):
        ntksap.prune(module, 0.5, "random", rounds=0)


def test_collapse_is_a_warning_and_strict_makes_it_an_error():
    module = nn.Sequential(nn.Linear(10, 50), nn.Linear(50, 1))
    with torch.no_grad():
        module[1].weight.mul_(1e-3)
    with pytest.warns(ntksap.CollapseWarning, match=r"1\.weight"):
        assert ntksap.prune(module, 0.9, "magnitude").collapsed == ["1.weight"]
    with pytest.raises(ntksap.CollapseError, match=r"1\.weight.*floor="):
        ntksap.prune(module, 0.9, "magnitude", strict=True)
    assert ntksap.prune(module, 0.9, "magnitude", floor=2, strict=True)["1.weight"].sum() == 2


def test_scores_that_overflow_name_the_layer():
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight[0, 0] = float("inf")
    with pytest.raises(ntksap.ScoreError, match="'weight'"):
        ntksap.prune(module, 0.5, "magnitude")


@pytest.mark.parametrize("method", ["snip", "synflow", "px"])
def test_scores_that_are_all_zero_are_refused(method):
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    nn.init.zeros_(module[2].weight)
    data = [(torch.randn(5, 3), torch.tensor([0, 1, 0, 1, 0]))]
    with pytest.raises(ntksap.ScoreError, match="every score of the dense net is 0"):
        ntksap.prune(module, 0.5, method, data=data, input_shape=(3,))


def test_a_loss_of_ones_own():
    module = nn.Linear(3, 1)
    batch = (torch.randn(5, 3), torch.randn(5, 1))
    masks = ntksap.prune(
        module, 0.5, "snip", data=[batch], loss=lambda output, target: (output - target).square().sum()
    )
    (module(batch[0]) - batch[1]).square().sum().backward()
    scores = (module.weight * module.weight.grad).abs()
    assert scores[masks["weight"]].min() > scores[~masks["weight"]].max()


def test_channels_last_modules_give_the_same_masks():
    module = Residual()
    masks = ntksap.prune(module, 0.5, "synflow", input_shape=(2, 5, 5), rounds=3)
    assert (
        ntksap.prune(module.to(memory_format=torch.channels_last), 0.5, "synflow", input_shape=(2, 5, 5), rounds=3)
        == masks
    )
