"""The paper's inference multiply-adds on ResNet-20 (×10⁶), which data-free methods reproduce without data."""

from statistics import fmean

import pytest

import ntksap

SPARSITIES = [1 - 0.8**k for k in (2, 6, 10, 14, 18)]
SYNFLOW = [33.20, 21.60, 12.20, 5.73, 2.67]
NTK_SAP = [31.30, 18.20, 10.10, 5.30, 2.83]


def inference_flops(method: str, sparsity: float, seed: int = 0) -> float:
    model = ntksap.models.build("resnet20", seed=seed)
    masks = ntksap.prune(model, sparsity, method, input_shape=(3, 32, 32), seed=seed)
    return ntksap.cost(model, masks, input_shape=(3, 32, 32)).sparse / 1e6


@pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning")  # SynFlow empties a shortcut at 98.20 %
@pytest.mark.parametrize(("sparsity", "paper"), list(zip(SPARSITIES, SYNFLOW, strict=True)))
def test_synflow(sparsity, paper):
    assert inference_flops("synflow", sparsity) == pytest.approx(paper, rel=0.03)


def test_ntk_sap_at_the_extreme():
    """One mask alone strays by 4 %: rounding decides early rounds, and these decide the rest."""
    assert inference_flops("ntk-sap", SPARSITIES[-1]) == pytest.approx(NTK_SAP[-1], rel=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(("sparsity", "paper"), list(zip(SPARSITIES, NTK_SAP, strict=True)))
def test_ntk_sap(sparsity, paper):
    """The mean over three seeds, as in the paper: a single seed strays by 3 % (5.50, 5.40 and 5.24 at 95.60 %)."""
    assert fmean(inference_flops("ntk-sap", sparsity, seed) for seed in range(3)) == pytest.approx(paper, rel=0.03)
