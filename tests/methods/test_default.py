"""Whoever names no method gets the closed form of NTK-SAP, and on attention a mask that starves no queries and keys."""

import pytest
import torch
from torch import nn
from torch.nn import functional

import ntksap
from ntksap.methods import default_method

CONV = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
FEW = {"rounds": 1, "draws": 1, "batch": 2}


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o, self.head = (nn.Linear(16, 16) for _ in range(5))

    def forward(self, x):
        mixed = functional.scaled_dot_product_attention(self.q(x), self.k(x), self.v(x))
        return self.head(x + self.o(mixed)).mean(1)


class AsksForValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum().item() > -100 else x


class Routes(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.head = nn.Linear(4, 6), nn.Linear(2, 3)

    def forward(self, x):
        return self.head(self.layer(x).topk(2, dim=-1).values)


def test_networks_without_attention_get_the_closed_form():
    masks = ntksap.prune(CONV, 0.5, input_shape=(3, 8, 8))
    assert masks.info["method"] == "ntk-sap-analytic"
    assert masks.sha256 == ntksap.prune(CONV, 0.5, "ntk-sap-analytic", input_shape=(3, 8, 8)).sha256


@pytest.mark.parametrize("how", [FEW, {"rounds": 1, "micro_batch": 4}])
def test_whoever_gives_options_of_sampling_gets_sampling(how):
    masks = ntksap.prune(CONV, 0.5, input_shape=(3, 8, 8), **how)
    assert masks.info["method"] == "ntk-sap"
    assert masks.sha256 == ntksap.prune(CONV, 0.5, "ntk-sap", input_shape=(3, 8, 8), **how).sha256


def test_an_option_that_is_spelt_wrongly_is_still_an_error():
    with pytest.raises(ntksap.InputError, match="draws"):
        ntksap.prune(CONV, 0.5, input_shape=(3, 8, 8), drawz=3)


def test_a_function_without_a_rule_is_sampled():
    with pytest.raises(ntksap.InputError, match="topk"):
        ntksap.prune(Routes(), 0.5, "ntk-sap-analytic", input_shape=(4,))
    assert ntksap.prune(Routes(), 0.5, input_shape=(4,), rounds=1).info["method"] == "ntk-sap"


def test_deciding_leaves_the_module_and_the_generator_of_torch_alone():
    before = {name: value.clone() for name, value in CONV.state_dict().items()}
    state = torch.get_rng_state()
    assert default_method(CONV, input_shape=(3, 8, 8)) == "ntk-sap-analytic"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in CONV.state_dict().items())


def test_attention_gets_random_places_and_more_for_queries_and_keys():
    masks = ntksap.prune(Attention(), 0.9, input_shape=(5, 16))
    assert masks.info["method"] == "random-erk-logits"
    assert masks["q.weight"].sum() == masks["k.weight"].sum() > 2 * masks["v.weight"].sum() > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_attention_is_seen_where_gradients_are_off(mode):
    with mode():
        assert ntksap.prune(Attention(), 0.9, input_shape=(5, 16)).info["method"] == "random-erk-logits"


def test_no_name_is_not_the_default():
    with pytest.raises(ntksap.InputError, match="unknown method ''"):
        ntksap.prune(Attention(), 0.9, "", input_shape=(5, 16))


def test_a_method_that_is_named_is_used_whatever_the_module():
    assert ntksap.prune(Attention(), 0.5, "magnitude").info["method"] == "magnitude"


@pytest.mark.parametrize("how", [{"scope": "layer"}, {"pattern": "channel"}])
def test_scope_and_whole_channels_leave_no_place_for_an_allocation(how):
    masks = ntksap.prune(Attention(), 0.3, input_shape=(5, 16), **how, **FEW)
    assert masks.info["method"] == "ntk-sap"


def test_a_module_that_asks_for_values_gets_ntk_sap():
    assert default_method(AsksForValues(), input_shape=(4,)) == "ntk-sap"


def test_wrong_inputs_are_explained_as_with_a_named_method():
    for method in (None, "ntk-sap"):
        with pytest.raises(ntksap.InputError, match="16"):
            ntksap.prune(Attention(), 0.5, method, input_shape=(5, 7))


def test_the_command_decides_as_the_function_does(capsys):
    import json

    from ntksap.cli import main

    model = f"{__name__}:Attention"
    command = ["prune", "--model", model, "--input-shape", "5", "16", "--sparsity", "0.9", "--json", "--quiet"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["method"] == "random-erk-logits"
