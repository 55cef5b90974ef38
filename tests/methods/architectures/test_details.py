"""Layers that need care: recurrent ones in every kind of derivative, transposed convolutions, weights of one's own."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence

import ntksap
from ntksap.methods import METHODS
from ntksap.net.layers import by_output
from ntksap.net.prunable import prunable_names
from ntksap.net.unfused import plain_kernels
from tests.methods.architectures.plain import Recurrent

LABELS = torch.tensor([0, 1, 2, 3, 0])


def scores(module: nn.Module, method: str, dtype: torch.dtype, **options) -> dict[str, torch.Tensor]:
    net = ntksap.Net(module, dtype=dtype)
    ids = torch.randint(20, (5, 6), generator=torch.Generator().manual_seed(0))
    probe = ntksap.Probe.of(net, data=[(ids, LABELS)])
    masks = ntksap.Masks.ones({name: net.weights[name] for name in net.prunable})
    return METHODS[method].with_options(options)(net, masks, probe)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    ("method", "options"),
    [("grasp", {}), ("ntk-sap", {"tangent": True, "real_inputs": True, "fresh_weights": False})],
    ids=["second derivatives", "forward mode"],
)
def test_derivatives_of_recurrent_layers_equal_their_float64_twins(kind, method, options):
    torch.manual_seed(0)
    module = Recurrent(kind)
    narrow, wide = (scores(module, method, dtype, **options) for dtype in (torch.float32, torch.float64))
    for name, score in wide.items():
        assert score.abs().max() > 0
        torch.testing.assert_close(narrow[name].double(), score, rtol=1e-3, atol=1e-5 * float(score.abs().max()))


def test_the_fused_kernels_are_off_only_inside_and_only_for_recurrent_layers():
    libraries = (torch.backends.mkldnn, torch.backends.cudnn)
    before = [library.enabled for library in libraries]
    assert any(before)
    with plain_kernels(nn.Linear(2, 2)):
        assert [library.enabled for library in libraries] == before

    def fail() -> None:
        with plain_kernels(nn.Sequential(nn.GRU(2, 2))):
            assert not any(library.enabled for library in libraries)
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert [library.enabled for library in libraries] == before


def test_the_weights_of_cells_are_prunable():
    assert prunable_names(nn.LSTMCell(3, 4)) == ("weight_ih", "weight_hh")


@pytest.mark.parametrize(("gates", "kind"), [(4, nn.LSTM), (3, nn.GRU), (1, nn.RNN)])
def test_the_cost_of_a_recurrent_layer_is_that_of_its_steps(gates, kind):
    module = kind(5, 7, batch_first=True, bidirectional=True)
    masks = ntksap.prune(module, 0.5, "random")
    found = ntksap.cost(module, masks, input_shape=(6, 5))
    biases = 2 * 2 * gates * 7
    assert found.dense == 6 * (2 * gates * 7 * (5 + 7) + biases)
    assert found.sparse == 6 * (masks.kept + biases)
    assert found.uncounted == ()


def test_the_cost_of_packed_sequences_is_that_of_their_real_steps():
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(5, 7)

        def forward(self, x):
            return self.rnn(pack_sequence([x[0], x[0, :2]]))[1]

    assert ntksap.cost(Packed(), input_shape=(6, 5)).dense == 8 * (21 * (5 + 7) + 42)


def test_output_channels_of_transposed_and_grouped_convolutions():
    torch.manual_seed(0)
    for groups in (1, 2):
        module = nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False)
        with torch.no_grad():
            module.weight.abs_()
        for channel in range(6):
            # a weight belongs to an output channel exactly when that channel depends on it
            [used] = torch.autograd.grad(module(torch.ones(1, 4, 5, 5))[:, channel].sum(), module.weight)
            rows = by_output(module, used != 0)
            assert rows.shape == (6, 4 // groups * 9)
            assert rows.any(1).nonzero().flatten().tolist() == [channel]
            assert rows[channel].all()


def test_weights_of_an_unknown_module_are_named_not_guessed():
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.rand(4, 3))
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            return self.head(x @ self.matrix.T)

    masks = ntksap.prune(Own(), 0.5, "magnitude", include="*")
    found = ntksap.diagnose(Own(), masks, input_shape=(3,))
    assert found.uncounted == ("matrix",)
    assert any("leaves out matrix" in sentence for sentence in found.sentences())
    assert found.dense_flops == 4 * 2 + 2
