"""Training shared by several real processes: DDP and FSDP2 on gloo."""

import numpy
import pytest

from tests.processes.jobs import spawn


@pytest.fixture(scope="module")
def alone():
    return spawn("trained", 1, True, 2, 100)[0]


# 1,437 digits in batches of 100 leave a last batch of 37, which 2 processes share unevenly.
def test_two_processes_with_synchronised_statistics_train_like_one(alone):
    for one in spawn("trained", 2, True, 2, 100):
        assert one["hold"]
        for name, value in alone["weights"].items():
            numpy.testing.assert_allclose(one["weights"][name], value, rtol=2e-3, atol=2e-4, err_msg=name)
        for ours, theirs in zip(one["records"], alone["records"], strict=True):
            assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-3)
            assert ours["top1"] == pytest.approx(theirs["top1"], abs=0.01)


@pytest.mark.parametrize("processes", [2, 3])
def test_synchronised_statistics_are_those_of_the_whole_batch_and_so_are_derivatives(processes):
    ((whole, expected),) = spawn("normalised", 1)
    shares = spawn("normalised", processes)
    numpy.testing.assert_allclose(numpy.concatenate([output for output, _ in shares]), whole, rtol=1e-10, atol=1e-12)
    for _, found in shares:
        for name, value in expected.items():
            numpy.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-12, err_msg=name)


def test_every_process_reports_metrics_over_the_whole_set():
    first, second = spawn("trained", 2, True, 1, 64)
    assert first["records"] == second["records"]
    assert first["evaluated"] == second["evaluated"]


def test_local_statistics_differ_from_synchronised_ones_and_the_weights_still_agree(alone):
    first, second = spawn("trained", 2, False, 2, 100)
    assert all(numpy.array_equal(first["weights"][n], second["weights"][n]) for n in ("0.weight", "4.weight"))
    assert not numpy.allclose(first["weights"]["0.weight"], alone["weights"]["0.weight"], rtol=2e-3, atol=2e-4)
    assert first["hold"]
    assert second["hold"]


# A batch of 3 for 4 processes: one has nothing to do in every step.
@pytest.mark.slow
def test_a_batch_smaller_than_the_number_of_processes_still_trains_like_one():
    alone = spawn("trained", 1, False, 1, 3)[0]
    for one in spawn("trained", 4, False, 1, 3):
        assert one["hold"]
        assert len(one["records"]) == len(alone["records"])


def test_processes_with_different_masks_are_told_so():
    for error in spawn("different_masks", 2):
        assert "must have the same masks" in error


def test_masks_hold_on_parameters_that_fsdp_shards():
    for one in spawn("sharded", 2, 4):
        assert all(one["held"])
        for name, mask in one["masks"].items():
            assert (one["weights"][name][~mask] == 0).all()
            assert (one["weights"][name][mask] != 0).all()
