"""Architectures of transformers at small sizes, with random weights: heads and channels of MLPs go, streams stay."""

import copy

import pytest
import torch

from ntksap.compaction import channel_groups, channel_masks, plan_compaction
from tests.compaction.truth import assert_same, in_float64, masked, random_masks, random_units, randomised

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
from tests.methods.architectures import hugging_face as small  # noqa: E402

pytestmark = pytest.mark.slow


def t5():
    config = transformers.T5Config(
        vocab_size=20, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3, decoder_start_token_id=0, pad_token_id=0,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    return transformers.T5ForConditionalGeneration(config)


def segformer():
    config = transformers.SegformerConfig(
        num_channels=1, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 12],
        patch_sizes=[3, 3], strides=[2, 2], num_attention_heads=[1, 3], mlp_ratios=[2, 2],
        decoder_hidden_size=10, num_labels=3,
    )  # fmt: skip
    return transformers.SegformerForSemanticSegmentation(config)


def tokens():
    ids = torch.randint(1, 20, (2, 8))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def without_cache():
    return {**tokens(), "use_cache": False}


def sentence_pair():
    return {**without_cache(), "decoder_input_ids": torch.randint(1, 20, (2, 5))}


def images(size):
    return lambda: {"pixel_values": torch.randn(2, 1, size, size)}


# name, module, inputs, and what must be among the axes that can lose something
CASES = [
    ("vit", small.vit, images(8), ["q_proj.weight[0]", "fc1.weight[0]", "fc2.weight[1]"]),
    ("bert", small.bert, tokens, ["query.weight[0]", "intermediate.dense.weight[0]"]),
    ("gpt2", small.gpt2, without_cache, ["c_attn.weight[1]", "mlp.c_fc.weight[1]", "mlp.c_proj.weight[0]"]),
    ("llama", small.llama, without_cache, ["q_proj.weight[0]", "k_proj.weight[0]", "down_proj.weight[1]"]),
    ("t5", t5, sentence_pair, ["q.weight[0]", "wi_0.weight[0]", "relative_attention_bias.weight[1]"]),
    ("convnext", small.convnext, images(16), ["pwconv1.weight[0]", "pwconv2.weight[1]"]),
    ("mobilenet-v2", small.mobilenet, images(32), ["convolution.weight[0]", "convolution.weight[1]"]),
    ("segformer", segformer, images(16), ["dwconv.weight[0]"]),
]
each_case = pytest.mark.parametrize(("name", "make", "inputs", "axes"), CASES, ids=[case[0] for case in CASES])


@each_case
def test_a_compact_transformer_computes_what_the_masked_one_does(name, make, inputs, axes):
    torch.manual_seed(0)
    model, given = randomised(make(), 0), in_float64(inputs())
    before = copy.deepcopy(model.state_dict())
    groups = channel_groups(model, given)
    found = [f"{member.name}[{member.dim}]" for group in groups.groups for member in group.members]
    assert all(any(own.endswith(axis) for own in found) for axis in axes), str(groups)
    assert groups.unknown == {}
    for masks in (channel_masks(model, groups, random_units(groups, 1)), random_masks(model, 0.03, 2)):
        recipe = plan_compaction(model, masks, given)
        small = recipe.apply(model, masks)
        assert_same(masked(model, masks), small, recipe, masks, given)
        assert type(small) is type(model)
        assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
