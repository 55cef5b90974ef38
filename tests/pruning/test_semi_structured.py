"""Masks of pattern 2:4 are what sparse tensor cores multiply by: torch's packing for them loses nothing."""

import pytest
import torch
from torch import nn
from torch.sparse._semi_structured_conversions import (
    sparse_semi_structured_from_dense_cutlass,
    sparse_semi_structured_to_dense_cutlass,
)

import ntksap


def kept_values(weight):
    """Return two values of each four, (rows, columns ÷ 2), in the slow and obvious way; 0 where fewer are kept."""
    rows = []
    for row in weight.tolist():
        fours = [[value for value in row[at : at + 4] if value != 0] for at in range(0, len(row), 4)]
        rows.append([value for four in fours for value in (*four, 0.0, 0.0)[:2]])
    return torch.tensor(rows)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_pruned_in_2_of_4_is_packed_without_loss(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64)).to(dtype)
    masks = ntksap.prune(model.float(), 0.5, "magnitude", pattern="2:4")
    masks.attach(model.to(dtype))
    assert masks.obeys("2:4")
    for name in masks:
        weight = model.get_parameter(name).detach()
        values, meta = sparse_semi_structured_from_dense_cutlass(weight)
        assert values.numel() == weight.numel() // 2  # half the values, and two bits for the place of each
        assert meta.numel() * meta.element_size() == weight.numel() // 8
        assert torch.equal(sparse_semi_structured_to_dense_cutlass(values, meta), weight)
        assert torch.equal(kept_values(weight).sort(1).values, values.float().sort(1).values)
