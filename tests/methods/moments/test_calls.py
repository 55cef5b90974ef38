"""How torch's functions reach the rules: by place, by name, on known values, and where they cannot."""

import inspect

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import get_testing_overrides

import ntksap
from ntksap.methods.moments import RULES, Known, Moments, MomentTensor, certain, noise
from ntksap.methods.moments.names import ALIASES, ORDERS
from ntksap.methods.moments.value import FIELDS
from tests.methods.moments.test_rules import out_of, same

OTHERWISE = {"cudnn_enabled", "out_dtype", "batch_sizes", "data", "x", "y", "exponent"}
"""Parameters of builtins that nobody passes by name, or that the functions of that name do not really have."""


def calls() -> list[tuple[str, list[str]]]:
    """(rule, the parameters that torch's function of that name has) for each function of torch that a rule answers."""
    found = []
    for function, like in get_testing_overrides().items():
        name = ALIASES.get(getattr(function, "__name__", ""), getattr(function, "__name__", ""))
        if name in RULES and not name.startswith("__") and function not in ORDERS:
            own = function if getattr(function, "__module__", "") == "torch.nn.functional" else like
            kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            names = [p.name for p in inspect.signature(own).parameters.values() if p.kind in kinds and p.name != "out"]
            if names and not OTHERWISE & set(names):
                found.append((name, names))
    return found


def test_every_rule_takes_the_arguments_of_its_function_by_their_names():
    assert len(calls()) > 180
    for name, (_, *names) in calls():
        inspect.signature(RULES[name]).bind(None, **dict.fromkeys(names))


CONV = nn.Conv2d(2, 4, 3, padding=1)
FORMS = {
    "avg_pool2d": (lambda y: F.avg_pool2d(y, 3), lambda y: F.avg_pool2d(y, kernel_size=3)),
    "normalize": (lambda y: F.normalize(y, 2.0, 1), lambda y: F.normalize(y, dim=1)),
    "cat": (lambda y: torch.cat([y, y], 1), lambda y: torch.cat(tensors=[y, y], dim=1)),
    "relu": (lambda y: F.relu(y), lambda y: F.relu(input=y)),
    "add": (lambda y: y + 2, lambda y: torch.add(input=y, other=2)),
    "mean": (lambda y: y.mean((2, 3)), lambda y: torch.mean(input=y, dim=(2, 3))),
    "pad": (lambda y: F.pad(y, (1, 1)), lambda y: F.pad(input=y, pad=(1, 1), mode="constant")),
    "max_pool2d": (lambda y: F.max_pool2d(y, 2), lambda y: F.max_pool2d(input=y, kernel_size=2)),
    "adaptive": (lambda y: F.adaptive_avg_pool2d(y, 2), lambda y: F.adaptive_avg_pool2d(y, output_size=2)),
    "group_norm": (lambda y: F.group_norm(y, 2), lambda y: F.group_norm(input=y, num_groups=2)),
    "layer_norm": (lambda y: F.layer_norm(y, (6,)), lambda y: F.layer_norm(y, normalized_shape=(6,))),
    "instance_norm": (lambda y: F.instance_norm(y), lambda y: nn.InstanceNorm2d(4)(y)),
    "unfold": (lambda y: y.unfold(2, 2, 2), lambda y: y.unfold(dimension=2, size=2, step=2)),
    "where": (lambda y: torch.where(torch.eye(6) > 0, y, 0.0), lambda y: y.where(torch.eye(6) > 0, 0.0)),
    "masked_fill": (lambda y: y.masked_fill(torch.eye(6) == 0, 0.0), lambda y: y * torch.eye(6)),
    "batch_norm": (
        lambda y: F.batch_norm(y, None, None, torch.full((4,), 2.0), training=True),
        lambda y: torch.batch_norm(y, torch.full((4,), 2.0), None, None, None, True, 0.1, 1e-5, False),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_two_ways_to_call_a_function_have_the_same_moments(form):
    one, other = (out_of(lambda x, c, f=f: f(c(x)), CONV) for f in FORMS[form])
    assert one.tangent.sum() > 0
    assert same(one, other)


def test_unfold_of_windows_moves_entries():
    y = out_of(lambda x, c: F.unfold(c(x), kernel_size=2, stride=2), CONV)
    z = out_of(lambda x, c: c(x), CONV)
    assert torch.equal(y.square, F.unfold(z.square, kernel_size=2, stride=2))


def test_known_values_are_computed_with_as_they_are():
    values = torch.tensor([[-2.0, 0.5], [3.0, 0.0]], dtype=torch.float64)
    known = MomentTensor(certain(values))
    assert torch.equal(torch.cumsum(known, 0).moments.mean, values.cumsum(0))
    assert torch.equal(known > 0, values > 0)
    assert torch.argmax(known).item() == 2
    assert float(known[1, 0]) == 3.0
    zeros = MomentTensor(noise(values)).new_zeros(2, 2)
    zeros[0] = 7
    assert isinstance(zeros.moments, Known)
    assert torch.equal(zeros.moments.mean, torch.tensor([[7.0, 7.0], [0.0, 0.0]], dtype=torch.float64))
    zeros[1] = MomentTensor(noise(values))[1]
    assert zeros.moments.square.tolist() == [[49.0, 49.0], [1.0, 1.0]]


@pytest.mark.parametrize("mark", [-float("inf"), torch.finfo(torch.float64).min, -100.0])
def test_a_mask_of_any_size_closes_entries_of_a_softmax(mark):
    closed = torch.ones(5, 5, dtype=torch.bool).triu(1)
    mask = torch.zeros(5, 5, dtype=torch.float64).masked_fill(closed, mark)

    def attend(x, c):
        q, k, v = c(x).chunk(3, -1)
        return (q @ k.mT + mask).softmax(-1) @ v

    y = out_of(attend, nn.Linear(4, 12), shape=(5, 4))
    plain = out_of(lambda x, c: F.scaled_dot_product_attention(*c(x).chunk(3, -1), is_causal=True, scale=1.0),
                   nn.Linear(4, 12), shape=(5, 4))  # fmt: skip
    assert all(getattr(y, name).isfinite().all() for name in FIELDS)
    torch.testing.assert_close(y.square, plain.square)


REFUSED = {
    "cumsum": (lambda y: y.cumsum(-1), "there is no rule for it"),
    "gt": (lambda y: y * (y > 0), "asks for the values"),
    "topk": (lambda y: y.topk(2)[0], "asks for the values"),
    "norm": (lambda y: y / y.norm(p=3), "order 3"),
    "index_add_": (lambda y: torch.zeros(4).double().index_add_(0, torch.tensor([1]), y[0, :1, 0, 0]), "writes"),
    "exp": (lambda y: (y * 1e6).exp(), "NaN or infinite"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_followed_is_refused_by_its_name_with_the_module_and_a_way_out(name):
    function, why = REFUSED[name]

    class Inner(nn.Module):
        def forward(self, y):
            return function(y)

    module = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), Inner(), nn.Flatten(), nn.LazyLinear(2))
    module[3] = nn.Linear(4 * 36, 2)
    with pytest.raises(ntksap.InputError, match=r"(?s)(in 1 \(Inner\)|order 3).*(ntk-sap|moments)") as error:
        ntksap.prune(module, 0.5, "ntk-sap-analytic", input_shape=(2, 6, 6))
    assert why in str(error.value)


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_layers_follow_their_own_steps(kind):
    layer, cell = kind(3, 4), {nn.RNN: nn.RNNCell, nn.LSTM: nn.LSTMCell, nn.GRU: nn.GRUCell}[kind](3, 4)

    def steps(x, c):
        state = None
        for here in x.unbind(1):
            state = c(here, state)
        return state[0] if isinstance(state, tuple) else state

    whole = out_of(lambda x, r: r(x.transpose(0, 1))[0][-1], layer, shape=(3, 3))
    by_hand = out_of(steps, cell, shape=(3, 3))
    for name in FIELDS:  # biases have moments from draws
        torch.testing.assert_close(getattr(whole, name), getattr(by_hand, name), rtol=0.1, atol=0.02)
    both = out_of(lambda x, r: r(x)[0], kind(3, 4, 2, bidirectional=True, batch_first=True), shape=(3, 3))
    assert both.tangent.shape == (1, 3, 8)
    assert (both.tangent > 0).all()


def test_noise_of_the_forward_pass_has_moments():
    y = out_of(lambda x, c: torch.randn_like(c(x)) + torch.rand_like(c(x)), nn.Linear(3, 3), shape=(3,))
    assert isinstance(y, Moments)
    assert y.square.unique().tolist() == pytest.approx([1 + 1 / 3])
    assert y.cross.unique().tolist() == pytest.approx([1 / 4])


def test_a_tensor_that_the_forward_pass_fills_by_slices_is_followed():
    class Halved(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

        def forward(self, x):
            weights = x.new_zeros(8)
            weights[slice(2, 6)] = 1.0
            return self.second(self.first(x) * weights)

    masks = ntksap.prune(Halved(), 0.5, "ntk-sap-analytic", scope="global", input_shape=(5,), rounds=1)
    assert not masks["second.weight"][:, 6:].any()  # no signal comes there
    assert masks["second.weight"][:, 2:6].all()
