"""Masks that are written one layer after another."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import ntksap
from tests.cases import CASES

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@each_case
@pytest.mark.parametrize("places", ["random", "balanced"])
def test_the_file_holds_the_masks_that_prune_makes(case, places, tmp_path):
    with torch.device("meta"):
        empty = case.make()
    plan = ntksap.allocate(empty, 0.7, "erk")
    ntksap.write_masks(tmp_path / "masks", empty, plan, places=places, seed=3, rescale=True)
    found = ntksap.Masks.load(tmp_path / "masks")
    masks = ntksap.prune(
        case.module(), 0.7, "random", allocation=plan, places=places, seed=3, rescale=True, **case.source()
    )
    assert found == masks
    assert list(found) == list(masks)
    assert {**masks.info, "sparsity": found.info["sparsity"]} == {**found.info, "precision": masks.info["precision"]}
    assert found.info["sparsity"] == pytest.approx(masks.info["sparsity"], abs=0.01)


def test_a_pattern_is_obeyed_and_what_does_not_fit_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    plan = ntksap.allocate(model, 0.5, "uniform")
    ntksap.write_masks(tmp_path / "masks", model, plan, pattern="2:4")
    assert ntksap.Masks.load(tmp_path / "masks").obeys("2:4")
    with pytest.raises(ntksap.InputError, match="another model"):
        ntksap.write_masks(tmp_path / "none", nn.Linear(8, 3), plan)
    with pytest.raises(ntksap.InputError, match="places"):
        ntksap.write_masks(tmp_path / "none", model, plan, places="score")
    with pytest.raises(ntksap.InputError, match=r"channels .* use prune"):
        ntksap.write_masks(tmp_path / "none", model, plan, pattern="channel")
    assert not (tmp_path / "none").exists()


MANY = """
import sys, torch
from torch import nn
import ntksap
from ntksap._base import peak_memory_mib
with torch.device("meta"):
    model = nn.Sequential(*[nn.Linear(1024, 1024, bias=False) for _ in range(int(sys.argv[1]))])
plan = ntksap.allocate(model, 0.9, "uniform")
ntksap.write_masks(sys.argv[2], model, plan, places=sys.argv[3])
print(peak_memory_mib())
"""


@pytest.mark.slow
@pytest.mark.parametrize("places", ["random", "balanced"])
def test_memory_does_not_grow_with_the_number_of_layers(places, tmp_path):
    def peak(layers: int) -> float:
        command = [sys.executable, "-c", MANY, str(layers), str(tmp_path / "masks"), places]
        return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    few, many = peak(2), peak(42)  # 40 more masks, of 1 MiB each where an entry takes a byte
    assert many - few < 12
    assert (tmp_path / "masks").stat().st_size == pytest.approx(42 * 2**17, rel=0.01)
