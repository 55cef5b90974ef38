"""Work that is too small to be divided among threads."""

import threading

import pytest
import torch
from torch import nn

import ntksap
from ntksap._base.threads import SMALL, threads_for

FEW = {"weight": torch.empty(SMALL - 1, device="meta")}
MANY = {"weight": torch.empty(SMALL - 1, device="meta"), "bias": torch.empty(1, device="meta")}


@pytest.fixture(autouse=True)
def _two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_few_weights_get_one_thread_and_many_all():
    with threads_for(FEW):
        assert torch.get_num_threads() == 1
        with threads_for(FEW):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads_for(MANY):
        assert torch.get_num_threads() == 2


def test_an_error_gives_the_threads_back():
    with pytest.raises(ZeroDivisionError), threads_for(FEW):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 2


def test_two_overlapping_threads_of_python_both_get_theirs_back():
    begun, joined, after = threading.Event(), threading.Event(), {}

    def first():
        with threads_for(FEW):
            begun.set()
            joined.wait(10)
        after["first"] = torch.get_num_threads()

    other = threading.Thread(target=first)
    other.start()
    begun.wait(10)
    with threads_for(FEW):
        joined.set()
        other.join(10)
        after["inside"] = torch.get_num_threads()
    after["second"] = torch.get_num_threads()
    assert after == {"first": 2, "inside": 1, "second": 2}


@pytest.mark.parametrize(("method", "threads"), [("synflow", 1), ("ntk-sap-analytic", 1), ("ntk-sap", 2)])
def test_one_example_of_a_small_network_is_scored_in_one_thread(method, threads):
    seen = set()

    class Watched(nn.Linear):
        def forward(self, x):
            seen.add(torch.get_num_threads())
            return super().forward(x)

    model = nn.Sequential(Watched(8, 8), nn.ReLU(), Watched(8, 4))
    ntksap.prune(model, 0.5, method, input_shape=(8,))
    assert threads in seen
    assert torch.get_num_threads() == 2


def test_the_allocation_of_a_small_network_is_found_in_one_thread():
    seen = set()

    class Watched(nn.Linear):
        def forward(self, x):
            seen.add(torch.get_num_threads())
            return super().forward(x)

    ntksap.allocate(nn.Sequential(Watched(8, 8), nn.ReLU(), Watched(8, 4)), 0.5, "ntk-sap", input_shape=(8,))
    assert 1 in seen
