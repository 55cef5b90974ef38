"""Real architectures of others; slow, since importing and compiling them takes its time."""

import pytest

from tests.methods.architectures.architecture import (
    SAID_ELSEWHERE,
    Architecture,
    assert_that_a_pruned_network_trains_and_stays_pruned,
    assert_that_compiled_training_keeps_the_masks,
    assert_that_cost_and_diagnosis_see_every_layer,
    assert_that_the_prunable_weights_are_the_expected_ones,
    each_method,
)

pytest.importorskip("transformers", reason="needs the extra `transformers`, which `make test-slow` installs")

import torch
from torch import nn

import ntksap
from tests.methods.architectures.hugging_face import HUGGING_FACE, gpt2

pytestmark = [pytest.mark.slow, *SAID_ELSEWHERE]
each_architecture = pytest.mark.parametrize("architecture", HUGGING_FACE, ids=lambda architecture: architecture.name)


@each_architecture
def test_what_is_prunable(architecture: Architecture):
    assert_that_the_prunable_weights_are_the_expected_ones(architecture)


@each_method
@each_architecture
def test_every_method_prunes_it_and_it_trains(architecture: Architecture, method, tmp_path):
    assert_that_a_pruned_network_trains_and_stays_pruned(architecture, method, tmp_path)


@each_architecture
def test_cost_and_diagnosis(architecture: Architecture):
    assert_that_cost_and_diagnosis_see_every_layer(architecture)


@each_architecture
def test_compiled_training(architecture: Architecture):
    assert_that_compiled_training_keeps_the_masks(architecture)


def test_the_linear_layer_of_gpt2_is_drawn_counted_and_diagnosed_by_its_inputs_and_outputs():
    module = gpt2()
    name = "transformer.h.0.mlp.c_fc.weight"
    assert module.get_parameter(name).shape == (32, 128)  # (inputs, outputs)
    drawn = torch.stack([ntksap.Net(module).draw(i)[name] for i in range(20)])
    assert drawn.var().item() == pytest.approx(2 / 32, rel=0.05)

    masks = ntksap.Masks.ones({name: module.get_parameter(name)})
    masks[name][:, :100] = False
    ids = torch.zeros(1, 8, dtype=torch.long)
    [layer] = ntksap.diagnose(module, masks, inputs=lambda batch, generator: ids.expand(batch, -1)).layers
    assert (layer.channels, layer.live_channels) == (128, 28)
    costs = {c.name: c for c in ntksap.cost(module, masks, inputs=lambda batch, generator: ids).layers}
    assert costs["transformer.h.0.mlp.c_fc"].dense == 8 * (32 * 128 + 128)
    assert costs["transformer.h.0.mlp.c_fc"].sparse == 8 * (32 * 28 + 128)


def test_include_and_exclude_choose_what_a_practitioner_names():
    module = gpt2()
    conv1d = type(module.transformer.h[0].mlp.c_fc)
    usual = ntksap.Net(module).prunable
    assert ntksap.Net(module, include=conv1d).prunable == usual
    assert ntksap.Net(module, include="*.mlp.*").prunable == tuple(n for n in usual if ".mlp." in n)
    assert ntksap.Net(module, exclude="*.attn.*").prunable == tuple(n for n in usual if ".attn." not in n)
    tied = ntksap.Net(module, include=[conv1d, "transformer.wte.weight"]).prunable
    assert tied == ("transformer.wte.weight", *usual)
    assert ntksap.Net(module, include=lambda name, owner: isinstance(owner, nn.Embedding)).prunable == (
        "transformer.wte.weight",
        "transformer.wpe.weight",
    )


@each_architecture
@pytest.mark.parametrize("rule", ["uniform", "equal", "erk", "erk-logits", "ntk-sap"])
def test_no_allocation_leaves_a_layer_empty(architecture: Architecture, rule: str):
    module = architecture.module()
    for sparsity in (0.5, 0.75, 0.9, 0.95):
        plan = ntksap.allocate(module, sparsity, rule, inputs=architecture.inputs)
        assert plan.kept == round((1 - sparsity) * plan.total)
        assert min(plan.values()) >= 1
        masks = ntksap.prune(module, sparsity, "magnitude", allocation=plan)
        assert not masks.collapsed


def test_with_rescaling_the_closed_form_starves_no_layer_of_a_llama():
    module = next(a for a in HUGGING_FACE if a.name == "llama").module()
    inputs = next(a for a in HUGGING_FACE if a.name == "llama").inputs
    plain, rescaled = (ntksap.allocate(module, 0.75, "ntk-sap", inputs=inputs, rescale=r) for r in (False, True))
    assert min(rescaled.densities().values()) > 10 * min(plain.densities().values())
