"""Slices of a batch give what the whole batch gives."""

import pytest
import torch
from torch import Tensor, nn

import ntksap
from ntksap import InputError, MemoryWarning, Net, Probe, models
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.pruning import micro_batches as micro
from tests.cases import BY_NAME


def scores(module, source, micro_batch=None, **options):
    net = Net(module)
    probe = Probe.of(net, micro_batch=micro_batch, **source)
    generator = torch.Generator().manual_seed(5)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.6 for n in net.prunable}
    return ntk_sap(net, masks, probe, **{"draws": 2, "batch": 7, **options})


@pytest.mark.parametrize("tangent", [False, True])
@pytest.mark.parametrize("case", ["conv-bn", "residual", "tokens", "depthwise"])
def test_slices_add_up_to_the_whole_batch(case, tangent):
    case = BY_NAME[case]
    module = case.module().double()
    whole = scores(module, case.source(), tangent=tangent)
    for size in (1, 3, 7, 50):
        cut = scores(module, case.source(), size, tangent=tangent)
        for name in whole:
            torch.testing.assert_close(cut[name], whole[name], rtol=1e-9, atol=1e-12)


def test_running_out_of_memory_halves_the_slices_and_says_so():
    case = BY_NAME["conv-bn"]
    module = case.module().double()
    sizes = []

    def output(result):
        """As on a GPU with room for three inputs in a graph."""
        if torch.is_grad_enabled():
            sizes.append(len(result))
            if len(result) > 3:
                raise torch.OutOfMemoryError("out of memory")
        return result

    plan = {"sparsity": 0.5, "method": "ntk-sap", "rounds": 2, "draws": 1, "batch": 8, **case.source()}
    with pytest.warns(MemoryWarning) as seen:
        masks = ntksap.prune(module, output=output, **plan)
    told = [str(warning.message) for warning in seen]
    assert len(told) == 2  # 8 → 4 → 2, and not again in round 2
    assert "memory ran out: batches of 8 are processed in slices of 2, with the same result" in told[1]
    assert (sizes[:4], max(sizes[4:])) == ([2, 3, 8, 4], 2)  # first the estimate, from two and three inputs
    assert masks == ntksap.prune(module, **plan)


class Graph(nn.Module):
    """Two rounds of messages along the edges of a graph, and a class for each node."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, 8), nn.Linear(8, 3)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            sent = layer(torch.relu(nodes) if layer is self.second else nodes)
            nodes = sent.index_add(0, edges[1], sent[edges[0]])
        return nodes


class OverTime(nn.Module):
    """(time, batch, features): what comes first depends on nothing later, but not the other way round."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


def whole_graphs(batch, generator):
    """As many nodes as inputs are asked for, each with a neighbour far away."""
    ring = torch.arange(batch)
    return torch.randn(batch, 5, generator=generator), torch.stack([ring, ring.flip(0)])


KINDS = {
    "graph": (Graph, whole_graphs),
    "time first": (OverTime, lambda batch, generator: torch.randn(batch, 2, 4, generator=generator)),
    "batch statistics": (
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=False), nn.Linear(6, 3)),
        lambda batch, generator: torch.randn(batch, 4, generator=generator),
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_depend_on_each_other_stay_whole_however_little_memory_there_is(kind, monkeypatch):
    make, inputs = KINDS[kind]
    torch.manual_seed(0)
    module = make()
    plan = {"sparsity": 0.5, "rounds": 2, "draws": 2, "batch": 12, "inputs": inputs}
    masks = ntksap.prune(module, **plan)
    monkeypatch.setattr(micro, "available_memory_mib", lambda: 1e-6)
    assert ntksap.prune(module, **plan) == masks
    with pytest.raises(InputError, match="cannot be cut into slices"):
        ntksap.prune(module, micro_batch=4, **plan)
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(InputError, match="NTT splits each batch in halves"):
        ntksap.prune(module, 0.5, "ntt", rounds=1, data=[(inputs(12, generator), None)])


def test_other_errors_are_not_taken_for_a_lack_of_memory():
    case = BY_NAME["conv-bn"]

    def output(result):
        raise RuntimeError("something else")

    with pytest.raises(InputError, match="something else"):
        ntksap.prune(case.module(), 0.5, output=output, **case.source())


def test_on_a_cpu_the_slices_are_chosen_from_the_memory_that_is_free(monkeypatch):
    module = models.build("resnet8", seed=0)
    net = Net(module)
    masks = ntksap.Masks.ones({name: net.weights[name] for name in net.prunable})
    leaves = net.leaves(net.weights, masks)
    inputs = torch.randn(64, 3, 32, 32)
    whole = net.graph_mib(leaves, inputs)
    assert 64 * 0.2 < whole < 64 * 3  # about 0.16 M activations of 4 bytes per input
    for free, expected in ((2 * whole * 1.1 / micro.SHARE, None), (whole / micro.SHARE, 32), (0.01, 1)):
        monkeypatch.setattr(micro, "available_memory_mib", lambda free=free: free)
        slices = micro.MicroBatches()
        if expected is None:
            slices.fit(net, leaves, inputs, graphs=2)
            assert slices.size is None
        else:
            with pytest.warns(MemoryWarning, match="a whole batch needs about"):
                slices.fit(net, leaves, inputs, graphs=2)
            assert slices.size == pytest.approx(expected, abs=3)


def test_methods_that_cannot_be_cut_say_so():
    case = BY_NAME["conv-bn"]
    with pytest.raises(InputError, match="snip cannot work on slices"):
        ntksap.prune(case.module(), 0.5, "snip", data=case.batches(), micro_batch=2)
    with pytest.raises(InputError, match="at least 1"):
        ntksap.prune(case.module(), 0.5, micro_batch=0, **case.source())
