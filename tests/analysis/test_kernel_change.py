"""How pruning changes the kernel: against the kernels themselves, and words that follow from the numbers."""

import pytest
import torch
from torch import nn

import ntksap
from ntksap.analysis.kernel_change import KernelChange, kernel_change
from ntksap.analysis.spectrum import Kernel
from ntksap.analysis.tangent_kernel import ntk
from ntksap.pruning.probe import Probe
from tests.cases import CASES


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, outputs))


def diagonal(*eigenvalues: float) -> Kernel:
    return Kernel(torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)), len(eigenvalues))


def words(pruned: Kernel, dense: Kernel) -> str:
    return " ".join(KernelChange(dense, pruned).sentences())


def test_the_kernels_are_those_of_the_same_ten_inputs():
    model = net()
    masks = ntksap.prune(model, 0.5, "magnitude")
    change = kernel_change(model, masks, input_shape=(6,), seed=5)
    noise = Probe(5, input_shape=(6,)).noise(0, 10)
    assert torch.equal(change.dense.matrix, ntk(model, noise).matrix)
    assert torch.equal(change.pruned.matrix, ntk(model, noise, masks).matrix)
    assert change.distance == ntksap.spectrum_distance(change.pruned.eigenvalues, change.dense.eigenvalues) > 0
    other = kernel_change(model, masks, input_shape=(6,), seed=6)
    assert other.distance != change.distance


def test_of_many_outputs_ten_are_looked_at():
    model = net(outputs=28)
    masks = ntksap.prune(model, 0.5, "magnitude")
    change = kernel_change(model, masks, input_shape=(6,))
    assert (change.dense.num_inputs, change.dense.num_outputs) == (10, 10)
    rows = [28 * i + 3 * c for i in range(10) for c in range(10)]
    whole = ntk(model, Probe(input_shape=(6,)).noise(0, 10), masks).matrix
    torch.testing.assert_close(change.pruned.matrix, whole[rows][:, rows])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_net(case):
    module = case.module()
    ones = ntksap.prune(module, 0.0, "random", **case.source())
    found = ntksap.diagnose(module, ones, **case.source(), kernel=True)
    assert isinstance(found.kernel, KernelChange)
    assert found.kernel.distance == 0
    assert "typically about as large as" in " ".join(found.sentences())


def test_words_for_a_spectrum_ten_times_smaller_of_the_same_shape():
    text = words(diagonal(10, 1, 0.1), diagonal(100, 10, 1))
    assert "typically 10 times smaller than the dense network's of equal rank" in text
    assert "typically begins to learn 10 times slower than" in text
    assert "the smallest tenth is about as large as" in text
    assert "1.00 decades, 0.00 with equal means" in text


def test_words_for_a_spectrum_that_is_flatter():
    text = words(diagonal(100, 20, 4), diagonal(100, 10, 1))
    assert "typically 2.0 times larger than" in text
    assert "learn 4.0 times faster than the dense network's" in text


def test_words_for_lost_directions_and_a_zero_kernel():
    dense = diagonal(8, 4, 2, 1)
    text = words(diagonal(8, 4, 2, 0), dense)
    assert "1 of the neural tangent kernel's 4 eigenvalues (4 noise inputs × 1 outputs" in text
    assert "slowest directions" not in text
    most = words(diagonal(8, 0, 0, 0), dense)
    assert "3 of the neural tangent kernel's 4 eigenvalues" in most
    assert "typically" not in most
    assert "is zero: no gradient reaches a kept weight" in words(diagonal(0, 0, 0, 0), dense)


def test_a_net_that_is_too_large_is_skipped_with_the_reason():
    model = ntksap.models.build("resnet50")
    masks = ntksap.Masks.ones({name: p for name, p in model.named_parameters() if p.dim() > 1})
    with pytest.raises(ntksap.InputError, match=r"on 3 inputs it takes .* multiply-adds, beyond the limit of 5e\+11"):
        kernel_change(model, masks, input_shape=(3, 224, 224))


def test_what_cannot_be_compared_is_said_in_the_diagnosis():
    model = net()
    with torch.no_grad():
        model[0].weight.fill_(float("nan"))
    masks = ntksap.prune(model, 0.0, "random")
    text = " ".join(ntksap.diagnose(model, masks, input_shape=(6,), kernel=True).sentences())
    assert "kernel is not compared with the dense network's: the kernel has NaN or infinite entries" in text
    assert "tangent kernel" in text
    assert "tangent kernel" not in " ".join(ntksap.diagnose(model, masks, input_shape=(6,)).sentences())
