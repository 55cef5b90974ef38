import warnings

import pytest
import torch
from torch import nn

import ntksap
from ntksap.methods import METHODS
from tests.cases import BY_NAME


class Functional(nn.Module):
    def __init__(self, function) -> None:
        super().__init__()
        self.first, self.second, self.function = nn.Linear(5, 4), nn.Linear(4, 3), function

    def forward(self, x):
        return self.second(self.function(self.first(x)))


BENT = [
    (nn.GELU(), "GELU"),
    (nn.Tanh(), "Tanh"),
    (nn.SiLU(), "SiLU"),
    (nn.LayerNorm(4), "LayerNorm"),
    (nn.Softmax(-1), "Softmax"),
    (nn.ReLU6(), "Hardtanh"),  # as torch computes it
    (nn.GroupNorm(2, 4), "GroupNorm"),
    (torch.tanh, "Tanh"),
    (lambda x: x.sigmoid(), "Sigmoid"),
    (lambda x: nn.functional.scaled_dot_product_attention(x, x, x), "scaled_dot_product_attention"),
]


def names(method: str, module: nn.Module, batch: torch.Tensor) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        own = {"round_steps": 1} if method == "dpai" else {}
        ntksap.prune(module, 0.5, method, data=[(batch, None)], input_shape=batch.shape[1:], rounds=3, **own)
    return [str(warning.message) for warning in caught if warning.category is ntksap.ApproximationWarning]


@pytest.mark.parametrize("method", [method.name for method in METHODS.values() if method.homogeneous])
@pytest.mark.parametrize(("function", "name"), BENT, ids=lambda value: value if isinstance(value, str) else "")
def test_a_net_that_is_not_homogeneous_is_named_once(method, function, name):
    (message,) = names(method, Functional(function), torch.randn(4, 5))
    assert message.startswith(method)
    assert f"because of {name}: its scores are only approximate" in message


def test_batch_norm_counts_only_where_it_has_no_statistics():
    with_statistics, without = (nn.BatchNorm1d(4, track_running_stats=track) for track in (True, False))
    assert names("px", Functional(with_statistics), torch.randn(4, 5)) == []
    (message,) = names("px", Functional(without), torch.randn(4, 5))
    assert "because of BatchNorm without running statistics:" in message


@pytest.mark.parametrize("method", ["synflow", "px"])
def test_all_kinds_are_named_and_attention_counts_as_one(method):
    (message,) = names(method, BY_NAME["attention"].module(), torch.randn(4, 3, 4))
    assert "because of MultiheadAttention, LayerNorm:" in message


@pytest.mark.parametrize("method", ["synflow", "px"])
@pytest.mark.parametrize("case", ["conv-bn", "residual", "conv3d", "sync-bn", "tied", "no-bias"])
def test_homogeneous_nets_are_not_warned_about(method, case):
    case = BY_NAME[case]
    assert names(method, case.module(), case.batches(1)[0][0]) == []


@pytest.mark.parametrize(
    "method", [method.name for method in METHODS.values() if not method.homogeneous and method.data_free]
)
def test_other_methods_do_not_care(method):
    assert names(method, Functional(nn.GELU()), torch.randn(4, 5)) == []
