"""The kernel, whole and times a vector, against the explicit Jacobian, in float64."""

import copy
import sys

import pytest
import torch
from torch import nn

import ntksap
from ntksap.analysis.jacobian import Jacobian
from ntksap.analysis.tangent_kernel import ntk
from tests.analysis.kernels import explicit_jacobian, explicit_ntk, flat, setting
from tests.cases import CASES

each_case = pytest.mark.parametrize("case", [case.name for case in CASES])


@pytest.mark.parametrize("norm", ["running", "batch"])
@each_case
def test_three_ways_agree(case, norm):
    module, inputs, masks = setting(case)
    plain = setting("conv-bn")[0] if case == "sync-bn" else module  # the same net, where SyncBatchNorm wants a GPU
    expected = explicit_ntk(plain, inputs, masks, norm)
    kernel = ntk(module, inputs, masks, norm=norm)
    jacobian = Jacobian(module, inputs, masks, norm=norm)
    units = torch.eye(len(kernel), dtype=torch.float64)
    products = torch.stack([jacobian.gram_times(unit) for unit in units], dim=1)
    assert (kernel.num_inputs, kernel.num_outputs, len(kernel)) == (4, 3, 12)
    assert expected.abs().max() > 1e-3
    torch.testing.assert_close(kernel.matrix, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(products, expected, rtol=1e-9, atol=1e-12)


def test_each_product_with_the_jacobian_leaves_pruned_weights_out():
    module, inputs, masks = setting("residual")
    explicit = explicit_jacobian(module, inputs, masks) * flat(masks)
    jacobian = Jacobian(module, inputs, masks)
    generator = torch.Generator().manual_seed(0)
    tangent = {n: torch.randn(m.shape, generator=generator, dtype=torch.float64) for n, m in masks.items()}
    vector = torch.randn(12, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(jacobian.times(tangent), explicit @ flat(tangent))
    torch.testing.assert_close(flat(jacobian.transposed_times(vector)), explicit.T @ vector)


def test_statistics_of_the_batch_are_others_than_the_running_ones():
    module, inputs, masks = setting("conv-bn")
    running, batch = (ntk(module, inputs, masks, norm=norm).matrix for norm in ("running", "batch"))
    assert (running - batch).abs().max() > 0.01 * running.abs().max()
    net = ntksap.Net(module)
    statistics = net.statistics(net.leaves(net.weights, masks), inputs)
    assert torch.equal(ntk(module, inputs, masks, norm=statistics).matrix, batch)


@each_case
def test_symmetric_and_without_negative_eigenvalues(case):
    module, inputs, masks = setting(case)
    kernel = ntk(module, inputs, masks)
    assert torch.equal(kernel.matrix, kernel.matrix.T)
    assert kernel.eigenvalues.min() > -1e-12 * kernel.eigenvalues.max()


def test_a_net_that_is_sparse_enough_for_kernels_of_kept_weights():
    module = ntksap.models.build("resnet8", input_shape=(3, 16, 16), seed=0).double().eval()
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(3, 3, 16, 16, generator=generator, dtype=torch.float64)
    masks = {
        name: torch.rand(mask.shape, generator=generator) < 0.2 for name, mask in Jacobian(module, inputs).masks.items()
    }
    kernel = ntk(module, inputs, masks, memory_mib=0.05)  # so little that J is made in several pieces
    torch.testing.assert_close(kernel.matrix, explicit_ntk(module, inputs, masks), rtol=1e-9, atol=1e-12)


def test_a_net_that_returns_images():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)).double()
    inputs = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    masks = Jacobian(module, inputs).masks
    torch.testing.assert_close(ntk(module, inputs).matrix, explicit_ntk(module, inputs, masks), rtol=1e-9, atol=1e-12)


def test_rank_is_that_of_the_jacobian_and_at_most_the_number_of_kept_weights():
    module, inputs, masks = setting("residual")
    few = {name: torch.zeros_like(mask) for name, mask in masks.items()}
    for name in few:
        few[name].view(-1)[:2] = True
    for name in ("stem.weight", "branch.0.weight", "branch.3.weight"):
        few[name].view(few[name].shape[0], -1)[:, :1] = True  # one path stays open
    for chosen in (few, masks):
        jacobian = explicit_jacobian(module, inputs, chosen)[:, flat(chosen)]
        assert ntk(module, inputs, chosen).rank == torch.linalg.matrix_rank(jacobian)
    one = {name: torch.zeros_like(mask) for name, mask in masks.items()}
    one["head.weight"][0, 0] = True
    assert ntk(module, inputs, one).rank <= 1


def test_pruned_weights_do_not_count_a_net_without_them_has_the_same_kernel():
    module, inputs, masks = setting("no-bias")
    without = {name: torch.ones_like(mask) for name, mask in masks.items()}
    without["0.weight"][[2, 5]] = False
    without["2.weight"][:, [2, 5]] = False
    units = [0, 1, 3, 4, 6, 7]
    small = nn.Sequential(nn.Linear(5, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False)).double()
    with torch.no_grad():
        small[0].weight.copy_(module[0].weight[units])
        small[2].weight.copy_(module[2].weight[:, units])
    torch.testing.assert_close(ntk(module, inputs, without).matrix, ntk(small, inputs).matrix)
    assert ntk(module, inputs).trace > ntk(small, inputs).trace


def test_rows_go_by_input_then_by_output():
    inputs = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel = ntk(nn.Linear(5, 2).double(), inputs)  # ∂f_c(x)/∂W_c = x, and 0 by other rows of W
    torch.testing.assert_close(kernel.matrix, torch.kron(inputs @ inputs.T, torch.eye(2, dtype=torch.float64)))


def test_outputs_with_positions_and_outputs_without_classes():
    inputs = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    kernel = ntk(nn.Linear(5, 2).double(), inputs)
    assert (kernel.num_inputs, kernel.num_outputs) == (2, 6)
    rows = inputs.flatten(0, 1)
    torch.testing.assert_close(kernel.matrix, torch.kron(rows @ rows.T, torch.eye(2, dtype=torch.float64)))
    summed = ntk(nn.Linear(5, 2).double(), inputs, output=lambda y: y.sum((1, 2)))
    assert (summed.num_inputs, summed.num_outputs) == (2, 1)
    torch.testing.assert_close(summed.matrix, 2 * inputs.sum(1) @ inputs.sum(1).T)


class Centred(nn.Module):
    """A module that mixes inputs: it subtracts the mean over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        y = torch.tanh(self.fc(x))
        return y - y.mean(0)


def no_running_statistics() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU(), nn.Linear(4, 3))


@pytest.mark.parametrize("make", [Centred, no_running_statistics])
def test_a_module_that_mixes_inputs_has_an_exact_kernel_too(make):
    torch.manual_seed(0)
    module, inputs = make().double(), torch.randn(4, 5, dtype=torch.float64)
    masks = {n: torch.rand(p.shape) < 0.7 for n, p in module.named_parameters() if p.dim() > 1 and "1." not in n}
    steps = []
    kernel = ntk(module, inputs, masks, on_progress=lambda *step: steps.append(step))
    torch.testing.assert_close(kernel.matrix, explicit_ntk(module, inputs, masks), rtol=1e-9, atol=1e-12)
    assert steps == [(1, 1)]  # all inputs together; otherwise one step for each


@each_case
def test_nothing_of_the_caller_changes(case):
    module, inputs, masks = setting(case)
    before = copy.deepcopy(module.state_dict())
    flags = [(p.requires_grad, p.grad is None, id(p)) for p in module.parameters()]
    random_state = torch.get_rng_state()
    ntk(module, inputs, masks, norm="batch")
    Jacobian(module, inputs, masks).gram_times(torch.ones(12, dtype=torch.float64))
    with pytest.raises(ZeroDivisionError):
        ntk(module, inputs, masks, output=lambda result: 1 / 0)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(part.training for part in module.modules())
    assert [(p.requires_grad, p.grad is None, id(p)) for p in module.parameters()] == flags
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("width", [1, 7, 50, 10_000])
def test_the_memory_budget_does_not_change_the_result(width):
    module, inputs, masks = setting("residual")
    steps = []
    budget = width * 12 * 8 / 2**20  # columns × rows × bytes
    kernel = ntk(module, inputs, masks, memory_mib=budget * 1.001, on_progress=lambda *step: steps.append(step))
    torch.testing.assert_close(kernel.matrix, ntk(module, inputs, masks).matrix, rtol=1e-12, atol=1e-14)
    passes = -(-int(flat(masks).sum()) // width)
    assert steps == [(done, 4 * passes) for done in range(1, 4 * passes + 1)]


@pytest.mark.parametrize("width", [1, 7, 50, 10_000])
def test_blocks_of_columns_hold_each_kept_weight_once_and_are_not_wider_than_asked(width):
    module, inputs, masks = setting("depthwise")
    found = {name: torch.zeros(mask.numel(), dtype=torch.int64) for name, mask in masks.items()}
    for block in Jacobian(module, inputs, masks).pieces(width):
        assert 0 < sum(len(places) for _, places in block) <= width
        for name, places in block:
            found[name][places] += 1
    assert all(torch.equal(found[name], mask.flatten().long()) for name, mask in masks.items())


def test_float32_is_near_float64_and_the_gram_matrix_is_float64_in_either():
    module, inputs, masks = setting("residual")
    exact, single = ntk(module, inputs, masks), ntk(module, inputs, masks, dtype=torch.float32)
    assert single.matrix.dtype == exact.matrix.dtype == torch.float64
    assert exact.rounding < single.rounding < 1e-11
    difference = (single.matrix - exact.matrix).abs().max() / exact.matrix.abs().max()
    assert 0 < difference < 1e-5
    smallest = float(exact.eigenvalues[exact.rank - 1])
    assert float(single.eigenvalues[exact.rank - 1]) == pytest.approx(smallest, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_kernel_of_products_in_the_dtype_of_the_derivatives_is_as_singular_as_it_says(dtype, monkeypatch):
    monkeypatch.setattr(sys.modules["ntksap.analysis.tangent_kernel"], "_IN_FLOAT64", 0)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 40), nn.ReLU(), nn.Linear(40, 3))
    inputs = torch.randn(5, 20)[[0, 1, 2, 3, 4, 0, 1]]
    kernel = ntk(module, inputs, dtype=dtype)
    dense = {n: torch.ones(p.shape).bool() for n, p in module.named_parameters() if p.dim() > 1}
    exact = explicit_ntk(module.double(), inputs.double(), dense)
    assert kernel.rank == 15
    assert kernel.rounding == torch.finfo(dtype).eps
    difference = torch.linalg.eigvalsh(kernel.matrix) - torch.linalg.eigvalsh(exact)
    assert difference.abs().max() < 10 * torch.finfo(dtype).eps * kernel.eigenvalues[0]


class Turned(nn.Module):
    """A layer that is applied to (places, inputs, …), as attention has it; with as many places as inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.relu(self.inside(x.transpose(0, 1)).transpose(0, 1)).mean(1))


class Twice(nn.Module):
    """A weight that a layer uses, and a function too; and ReLU in place behind a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        y = torch.relu_(self.inside(x))
        return self.head(y + x @ self.inside.weight)


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inside, self.head = nn.Conv1d(2, 4, 2, stride=2, groups=2), nn.Linear(8, 3)

    def forward(self, x):
        y = torch.relu_(self.inside(x))
        return self.head(y.flatten(1))


@pytest.mark.parametrize(
    ("make", "shape", "tapped"), [(Turned, (4, 4, 5), False), (Twice, (4, 5), False), (InPlace, (4, 2, 4), True)]
)
def test_whether_layers_are_tapped_is_found_by_trial_and_the_kernel_is_exact_either_way(make, shape, tapped):
    torch.manual_seed(1)
    module, inputs = make().double(), torch.randn(shape, dtype=torch.float64)
    masks = {n: torch.rand(p.shape) < 0.7 for n, p in module.named_parameters() if p.dim() > 1}
    assert (Jacobian(module, inputs, masks).passes().taps is not None) is tapped
    torch.testing.assert_close(
        ntk(module, inputs, masks).matrix, explicit_ntk(module, inputs, masks), rtol=1e-9, atol=1e-12
    )


@each_case
def test_taps_serve_every_case_but_attention_and_what_an_embedding_shares(case):
    module, inputs, masks = setting(case)
    assert (Jacobian(module, inputs, masks).passes().taps is None) is (case == "attention")


def test_many_outputs_and_groups_of_inputs_that_do_not_divide_evenly(monkeypatch):
    monkeypatch.setattr("ntksap.analysis.jacobian._TAP_MIB", 0.03)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 37)).double()
    inputs = torch.randn(7, 1, 5, 5, dtype=torch.float64)
    masks = {n: torch.rand(p.shape) < 0.5 for n, p in module.named_parameters() if p.dim() > 1}
    sizes = [len(group) for group in Jacobian(module, inputs, masks).passes().groups]
    assert sizes == [2, 2, 2, 1]
    torch.testing.assert_close(ntk(module, inputs, masks).matrix, explicit_ntk(module, inputs, masks))


def test_a_weight_without_a_mask_is_kept_and_a_mask_for_nothing_prunable_is_an_error():
    module, inputs, masks = setting("conv-bn")
    partial = {"0.weight": masks["0.weight"]}
    full = {**partial, "5.weight": torch.ones_like(masks["5.weight"])}
    assert torch.equal(ntk(module, inputs, partial).matrix, ntk(module, inputs, full).matrix)
    with pytest.raises(ntksap.InputError, match=r"'1.weight'.*include="):
        ntk(module, inputs, {"1.weight": torch.ones(6, dtype=torch.bool)})
    with pytest.raises(ntksap.MaskError, match="another model"):
        ntk(module, inputs, {"nowhere.weight": torch.ones(6, dtype=torch.bool)})
    only = ntk(module, inputs, masks={"0.weight": masks["0.weight"]}, exclude="5.*").matrix
    torch.testing.assert_close(only, explicit_ntk(module, inputs, {"0.weight": masks["0.weight"]}))


def test_a_module_whose_output_has_nothing_prunable_behind_it_has_a_zero_kernel():
    class Aside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.unused = nn.Linear(5, 5)
            self.scale = nn.Parameter(torch.ones(5))

        def forward(self, x):
            return x * self.scale

    inputs = torch.ones(2, 5)
    assert ntk(Aside(), inputs).matrix.abs().max() == 0
    assert Jacobian(Aside(), inputs).gram_times(torch.ones(10)).abs().max() == 0
    nothing = {"weight": torch.zeros(3, 5, dtype=torch.bool)}
    kernel = ntk(nn.Linear(5, 3), inputs, nothing)
    assert kernel.trace == kernel.rank == 0


def test_bad_arguments():
    module, inputs, masks = setting("no-bias")
    with pytest.raises(ntksap.InputError, match="12 rows"):
        Jacobian(module, inputs, masks).gram_times(torch.ones(11))
    with pytest.raises(ntksap.InputError, match="memory_mib"):
        ntk(module, inputs, masks, memory_mib=0)
    with pytest.raises(ntksap.InputError, match="'batch', 'running' or statistics"):
        ntk(module, inputs, masks, norm="train")
    with pytest.raises(ntksap.InputError, match="NaN or infinite"):
        ntk(module, inputs * 1e200, masks)
