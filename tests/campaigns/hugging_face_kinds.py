"""Architectures of transformers at small sizes, with random weights: nothing is downloaded."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.campaigns.kinds import CLOSED, Kind

hf = pytest.importorskip("transformers")

WORDS = {"vocab_size": 20, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
DECODER = {**WORDS, **SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 8}


def ids(batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    drawn = torch.randint(1, 20, (batch, 6), generator=generator)
    return {"input_ids": drawn, "attention_mask": torch.ones_like(drawn)}


def image(size: int) -> Any:
    return lambda batch, generator: {"pixel_values": torch.randn(batch, 3, size, size, generator=generator)}


def sound(batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch, 400, generator=generator)}


def decoder(config: type, model: type, **settings: Any) -> Any:
    return lambda: model(config(**{**DECODER, "tie_word_embeddings": False, **settings}))


def swin(config: type, model: type) -> Any:
    return lambda: model(
        config(image_size=16, patch_size=2, embed_dim=8, depths=[2], num_heads=[2], window_size=4, num_labels=3)
    )


def wav2vec2() -> nn.Module:
    config = hf.Wav2Vec2Config(
        **SMALL, vocab_size=20, conv_dim=(8, 8), conv_stride=(5, 2), conv_kernel=(10, 3), num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, classifier_proj_size=8, num_labels=3,
    )  # fmt: skip
    return hf.Wav2Vec2ForSequenceClassification(config)


def vit() -> nn.Module:
    return hf.ViTForImageClassification(hf.ViTConfig(**SMALL, image_size=8, patch_size=4, num_labels=3))


def gpt2() -> nn.Module:
    return hf.GPT2LMHeadModel(hf.GPT2Config(**WORDS, n_positions=8, n_embd=16, n_layer=1, n_head=2))


def mamba() -> nn.Module:
    config = hf.MambaConfig(**WORDS, hidden_size=16, num_hidden_layers=1, state_size=4, use_cache=False)
    return hf.MambaForCausalLM(config)


def t5() -> nn.Module:
    config = hf.T5Config(**WORDS, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2)
    return hf.T5EncoderModel(config)


def checkpointed_llama() -> nn.Module:
    model = decoder(hf.LlamaConfig, hf.LlamaForCausalLM)()
    model.gradient_checkpointing_enable()
    return model


LAST = {"output": lambda y: y.last_hidden_state}
MIXTURE = {"num_local_experts": 3, "num_experts_per_tok": 2}
QWEN = {"num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}

HUGGING_FACE_KINDS = [
    Kind("ViT", vit, image(8)),
    Kind("Swin", swin(hf.SwinConfig, hf.SwinForImageClassification), image(16)),
    Kind("Swin v2", swin(hf.Swinv2Config, hf.Swinv2ForImageClassification), image(16)),
    Kind("GPT-2", gpt2, ids),
    Kind("Llama", decoder(hf.LlamaConfig, hf.LlamaForCausalLM), ids),
    Kind("Llama, checkpointed", checkpointed_llama, ids),
    Kind("Qwen3", decoder(hf.Qwen3Config, hf.Qwen3ForCausalLM), ids),
    Kind("Qwen3, eager", decoder(hf.Qwen3Config, hf.Qwen3ForCausalLM, attn_implementation="eager"), ids),
    Kind("T5", t5, ids, settings=LAST),
    Kind("Mamba", mamba, ids, CLOSED),  # exp(−softplus): no Gaussian has its moments
    Kind("Wav2Vec2", wav2vec2, sound),
    Kind("Mixtral", decoder(hf.MixtralConfig, hf.MixtralForCausalLM, **MIXTURE), ids, CLOSED),
    Kind("Qwen2-MoE", decoder(hf.Qwen2MoeConfig, hf.Qwen2MoeForCausalLM, **QWEN), ids, CLOSED),
    Kind("GPT-OSS", decoder(hf.GptOssConfig, hf.GptOssForCausalLM, **MIXTURE), ids, CLOSED),
]
