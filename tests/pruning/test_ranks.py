"""Scoring in several real processes: the same bits as in one."""

import pytest
import torch

from ntksap._base.ranks import ALONE, Ranks
from ntksap._base.tree_sum import Tree, layout
from tests.processes.jobs import spawn
from tests.processes.work import hashes, summed

METHODS = ["magnitude", "synflow", "snip", "iterative-snip", "grasp", "ntk-sap", "hutchinson", "dpai", "phew", "imp"]
SETTINGS = {
    "ntk-sap": {"draws": 5, "batch": 7, "perturbations": 2},
    "hutchinson": {"probes": 3},
    "dpai": {"round_steps": 3},
}


@pytest.mark.parametrize("leaves", [range(0, 1), range(0, 6), range(3, 8), range(5, 21), range(4, 4)])
def test_the_layout_of_a_range_is_what_the_tree_has_after_it(leaves):
    tree = Tree()
    for leaf in leaves:
        tree.push(leaf, 0, torch.ones(1))
    assert layout(leaves) == [(start, level) for start, level, _ in tree.nodes]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_any_split_adds_the_same_pairs(count, size):
    values = torch.randn(count, 4, generator=torch.Generator().manual_seed(0)) * 10.0 ** torch.arange(count)[:, None]
    whole, joined = Tree(), Tree()
    for index in range(count):
        whole.push(index, 0, values[index].clone())
    shares = Ranks()
    shares.size = size
    covered = []
    for rank in range(size):
        own = Tree()
        for index in shares.share(count, rank):
            own.push(index, 0, values[index].clone())
            covered.append(index)
        for node in own.nodes:
            joined.push(*node)
    assert covered == list(range(count))
    assert torch.equal(whole.total(), joined.total())


def test_the_tree_is_a_sum():
    values = torch.randn(11, 3, dtype=torch.float64)
    total = ALONE.sum(lambda row: {"a": row}, list(values))["a"]
    torch.testing.assert_close(total, values.sum(0))


def test_a_sum_leaves_its_summands_alone():
    ones = [torch.ones(2) for _ in range(4)]
    ALONE.sum(lambda value: {"a": value}, ones)
    assert all(value.tolist() == [1, 1] for value in ones)


@pytest.mark.parametrize("processes", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_sums_have_the_same_bits_in_every_process_and_for_every_number_of_them(processes):
    for count in (2, 7):  # fewer summands than processes, and more
        assert spawn("summed", processes, count) == [summed(None, count)] * processes


@pytest.mark.parametrize("processes", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_masks_have_the_same_bits_for_every_number_of_processes(processes):
    alone = spawn("hashes", 1, METHODS, SETTINGS)[0]
    assert spawn("hashes", processes, METHODS, SETTINGS) == [alone] * processes
    torch.set_num_threads(1)
    assert hashes(None, METHODS, SETTINGS) == alone  # a process without a group is the same again


def test_processes_that_start_from_different_weights_are_told_so():
    for error in spawn("different_weights", 2):
        assert "must have the same weights" in error


def test_an_error_in_the_first_process_reaches_the_others():
    first, second = spawn("failing_first", 2)
    assert first == "ValueError: no disk"
    assert "no disk" in second
