"""Transformers whose linear layers go by kept weights, against the same without."""

import copy

import pytest
import torch
from torch import nn

import ntksap
from ntksap.net.kernels import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


@pytest.fixture(autouse=True)
def kept_is_fastest(fastest):
    fastest("kept")


def pruned(model):
    masks = ntksap.prune(model.double(), 0.7, "random")
    masks.attach(model)
    return model, masks


MASKS = {
    "none": {},
    "causal": {"mask": nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64), "is_causal": True},
    "bool": {"mask": torch.ones(5, 5).triu(1).bool()},
    "padding": {"src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2])},
    "both": {
        "mask": torch.ones(5, 5).triu(1).bool(),
        "src_key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    },
    "per head": {"mask": torch.randn(8, 5, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)},
}


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_an_encoder_gives_what_torch_gives(kind, batch_first):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 4, 24, dropout=0.0, batch_first=batch_first)
    model, masks = pruned(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1)
    twin = copy.deepcopy(model)
    expected = model(x, **MASKS[kind])
    expected.square().sum().backward()
    with ntksap.sparse_kernels(twin, masks) as choices:
        y = twin(x, **MASKS[kind])
        y.square().sum().backward()
    torch.testing.assert_close(y, expected)
    for (name, ours), theirs in zip(twin.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * masks.get(name, 1), msg=name)
    assert len(choices.ways) == 8  # projections in and out and two layers behind them, twice
    if kind == "per head":
        return  # torch's fused way takes such a mask for a bool one
    model.eval(), twin.eval()
    with torch.no_grad():
        expected = model(x, **MASKS[kind])
        with ntksap.sparse_kernels(twin, masks, choices=choices):
            torch.testing.assert_close(twin(x, **MASKS[kind]), expected)
    assert "layers.1 8×16, float64" in choices.ways
    assert torch.backends.mha.get_fastpath_enabled()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_encoder_stays_torchs():
    torch.manual_seed(0)
    model, masks = pruned(nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, batch_first=True), 2))
    model.eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    padding = MASKS["padding"]["src_key_padding_mask"]
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=padding)
        with ntksap.sparse_kernels(model, masks):
            torch.testing.assert_close(model(x, src_key_padding_mask=padding), expected)


def test_dropout_draws_as_torch_does():
    torch.manual_seed(0)
    model, masks = pruned(
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 24, dropout=0.5, batch_first=True), 1)
    )
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    with ntksap.sparse_kernels(model, masks):
        torch.testing.assert_close(model(x), expected)


def test_attention_that_has_no_way_of_its_own_is_torchs():
    torch.manual_seed(0)
    attention, masks = pruned(nn.MultiheadAttention(16, 4, add_bias_kv=True))
    x, memory_ = torch.randn(2, 5, 2, 16, dtype=torch.float64)
    calls = [((x, x, x), {}), ((x, memory_, memory_), {"need_weights": False}), ((x, x, x), {"need_weights": False})]
    for inputs, options in calls:
        expected, weights = attention(*inputs, **options)
        with ntksap.sparse_kernels(attention, masks):
            found, seen = attention(*inputs, **options)
        torch.testing.assert_close(found, expected)
        assert (seen is None) == (weights is None)


def test_a_decoder_gives_what_torch_gives():
    torch.manual_seed(0)
    model, masks = pruned(nn.Transformer(16, 4, 1, 1, 24, dropout=0.0, batch_first=True))
    x, target = torch.randn(2, 5, 16, dtype=torch.float64), torch.randn(2, 4, 16, dtype=torch.float64)
    expected = model(x, target)
    with ntksap.sparse_kernels(model, masks) as choices:
        torch.testing.assert_close(model(x, target), expected)
    assert any(key.startswith("decoder.layers.0.self_attn ") for key in choices.ways)


def test_gpt2_keeps_its_own_layout_of_weights():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=17, n_positions=8, n_embd=16, n_layer=1, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0
    )
    model, masks = pruned(transformers.GPT2LMHeadModel(config))
    twin, tokens = copy.deepcopy(model), torch.randint(0, 17, (2, 8))
    expected = model(tokens).logits
    expected.square().sum().backward()
    with ntksap.sparse_kernels(twin, masks) as choices:
        y = twin(tokens).logits
        y.square().sum().backward()
    torch.testing.assert_close(y, expected)
    for (name, ours), theirs in zip(twin.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * masks.get(name, 1), msg=name)
    assert sum(way == "kept" for way in choices.ways.values()) >= 4
