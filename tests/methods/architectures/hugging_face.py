"""Architectures of transformers at small sizes, with random weights: nothing is downloaded."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.methods.architectures.architecture import Architecture

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CLASSES = 4
WORDS = 20
SEQUENCE = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}


def image_inputs(size: int) -> Any:
    return lambda batch, generator: {"pixel_values": torch.randn(batch, 1, size, size, generator=generator)}


def brightest_quarter(inputs: dict[str, Tensor]) -> Tensor:
    return nn.functional.adaptive_avg_pool2d(inputs["pixel_values"], 2).flatten(1).argmax(1)


def token_inputs(batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(1, WORDS, (batch, 8), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def first_token_class(inputs: dict[str, Tensor]) -> Tensor:
    return inputs["input_ids"][:, 0] % CLASSES


def same_tokens(inputs: dict[str, Tensor]) -> Tensor:
    return inputs["input_ids"]


def next_token_loss(output: Tensor, ids: Tensor) -> Tensor:
    """Position t predicts token t + 1."""
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")


def is_depthwise(name: str, module: nn.Module) -> bool:
    """Nine weights for each channel, with no way around: with most of them gone, little of a MobileNet is connected."""
    return isinstance(module, nn.Conv2d) and module.groups > 1


def vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=8,
        patch_size=4,
        num_channels=1,
        num_labels=CLASSES,
    )
    return transformers.ViTForImageClassification(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=8,
        num_labels=CLASSES,
    )
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(**SEQUENCE, n_positions=8, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        **SEQUENCE,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=8,
        tie_word_embeddings=False,
    )
    return transformers.LlamaForCausalLM(config)


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        num_channels=1, patch_size=2, num_stages=2, hidden_sizes=[16, 32], depths=[1, 1], num_labels=CLASSES
    )
    return transformers.ConvNextForImageClassification(config)


def mobilenet() -> nn.Module:
    config = transformers.MobileNetV2Config(
        num_channels=1, image_size=32, depth_multiplier=0.25, classifier_dropout_prob=0.0, num_labels=CLASSES
    )
    return transformers.MobileNetV2ForImageClassification(config)


HUGGING_FACE = [
    Architecture(
        "vit",
        vit,
        image_inputs(8),
        brightest_quarter,
        prunable=r"vit\..*(projection|query|key|value|dense|[qkvo]_proj|fc[12])\.weight|classifier\.weight",
    ),
    Architecture(
        "bert",
        bert,
        token_inputs,
        first_token_class,
        prunable=r"bert\.(encoder|pooler)\..*(query|key|value|dense)\.weight|classifier\.weight",
    ),
    Architecture(
        "gpt2",
        gpt2,
        token_inputs,
        same_tokens,
        prunable=r"transformer\.h\.\d\.(attn\.c_(attn|proj)|mlp\.c_(fc|proj))\.weight",
        loss=next_token_loss,
    ),
    Architecture(
        "llama",
        llama,
        token_inputs,
        same_tokens,
        prunable=r"model\.layers\.\d\.(self_attn\.[qkvo]|mlp\.(gate|up|down))_proj\.weight|lm_head\.weight",
        loss=next_token_loss,
    ),
    Architecture(
        "convnext",
        convnext,
        image_inputs(16),
        brightest_quarter,
        prunable=r"convnext\..*(patch_embeddings|downsampling_layer\.1|dwconv|pwconv[12])\.weight|classifier\.weight",
        settings={"exclude": "*.patch_embeddings.*"},  # else NTT leaves 6 weights there, for 16 channels
    ),
    Architecture(
        "mobilenet-v2",
        mobilenet,
        image_inputs(32),
        brightest_quarter,
        prunable=r"mobilenet_v2\..*convolution\.weight|classifier\.weight",
        lr=0.003,
        settings={"exclude": [is_depthwise, "*.conv_stem.*"], "scope": "layer"},  # else its stem keeps 6 of 8×8
        compiler="aot_eager",  # inductor makes code for 52 layers, which takes many minutes
    ),
]
