"""Pruned weights become 0 and stay 0, whatever happens to the module."""

import copy
import io
import os

import pytest
import torch
from torch import nn
from torch.func import functional_call

import ntksap
from ntksap import Masks
from ntksap.net.prunable import prunable_names
from tests.cases import BY_NAME, CASES, conv_bn

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01, weight_decay=0.1),
}


def random_masks(module: nn.Module, density: float = 0.3) -> Masks:
    generator = torch.Generator().manual_seed(1)
    weights = dict(module.named_parameters())
    return Masks({n: torch.rand(weights[n].shape, generator=generator) < density for n in prunable_names(module)})


def steps(module, optimizer, count=5, case="conv-bn"):
    for inputs, labels in BY_NAME[case].batches(count):
        optimizer.zero_grad()
        output = module(**inputs) if isinstance(inputs, dict) else module(inputs)
        nn.functional.cross_entropy(ntksap.net.net.first_tensor(output), labels).backward()
        optimizer.step()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pruned_weights_stay_exactly_zero_and_the_others_move(optimizer):
    module = BY_NAME["conv-bn"].module()
    masks = random_masks(module)
    masks.attach(module)
    assert masks.obeyed_by(module)
    start = copy.deepcopy(module.state_dict())
    steps(module, OPTIMIZERS[optimizer](module.parameters()))
    for name, mask in masks.items():
        weight = module.get_parameter(name)
        assert (weight[~mask] == 0).all()
        assert (weight[mask] != start[name][mask]).all()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_kind_of_module(case):
    module = case.module()
    keys = list(module.state_dict())
    masks = random_masks(module)
    masks.attach(module)
    steps(module, OPTIMIZERS["adamw"](module.parameters()), case=case.name)
    assert masks.obeyed_by(module)
    assert list(module.state_dict()) == keys


def test_training_equals_multiplying_by_the_mask_in_every_forward_bit_for_bit():
    module = conv_bn()
    masks = random_masks(module)
    dense = copy.deepcopy(module)
    masks.attach(module)
    parameters, buffers = dict(dense.named_parameters()), dict(dense.named_buffers())
    optimizers = [OPTIMIZERS["sgd"](m.parameters()) for m in (module, dense)]
    for inputs, labels in BY_NAME["conv-bn"].batches(8):
        outputs = [
            module(inputs),
            functional_call(dense, {**{n: parameters[n] * masks[n] for n in masks}, **buffers}, (inputs,)),
        ]
        assert torch.equal(*outputs)
        for output, optimizer in zip(outputs, optimizers, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(output, labels).backward()
            optimizer.step()
    for name, mask in masks.items():
        assert torch.equal(module.get_parameter(name), parameters[name] * mask)


def test_deep_copies_stay_pruned_and_independent():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    twin = copy.deepcopy(copy.deepcopy(module))
    steps(twin, OPTIMIZERS["adam"](twin.parameters()))
    assert masks.obeyed_by(twin)
    assert masks.obeyed_by(module)
    assert not torch.equal(twin[0].weight, module[0].weight)


def test_averaged_models_stay_pruned():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    average = torch.optim.swa_utils.AveragedModel(module)
    optimizer = OPTIMIZERS["sgd"](module.parameters())
    for _ in range(3):
        steps(module, optimizer, 1)
        average.update_parameters(module)
    assert masks.obeyed_by(average.module)


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_state_dict_is_pruned_too(assign):
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    dense = conv_bn().state_dict()
    module.load_state_dict(dense, assign=assign)
    assert masks.obeyed_by(module)
    assert torch.equal(module[0].weight[masks["0.weight"]], dense["0.weight"][masks["0.weight"]])
    steps(module, OPTIMIZERS["sgd"](module.parameters()))
    assert masks.obeyed_by(module)


def test_state_dict_round_trip_through_a_file():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    steps(module, OPTIMIZERS["sgd"](module.parameters()))
    file = io.BytesIO()
    torch.save(module.state_dict(), file)
    file.seek(0)
    fresh = conv_bn()
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert masks.obeyed_by(fresh)
    assert all(
        torch.equal(a, b) for a, b in zip(module.state_dict().values(), fresh.state_dict().values(), strict=True)
    )


def test_a_pickled_module_loads_and_can_be_attached_again():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    loaded = copy.deepcopy(torch.load(file, weights_only=False))
    assert masks.obeyed_by(loaded)
    masks.attach(loaded)
    steps(loaded, OPTIMIZERS["sgd"](loaded.parameters()))
    assert masks.obeyed_by(loaded)


def test_attaching_again_replaces_and_remove_lets_go():
    module = conv_bn()
    first, second = random_masks(module, 0.5), random_masks(module, 0.2)
    first.attach(module)
    attachment = second.attach(module)
    steps(module, OPTIMIZERS["adam"](module.parameters()))
    assert second.obeyed_by(module)
    attachment.remove()
    steps(module, OPTIMIZERS["adam"](module.parameters()))
    assert not second.obeyed_by(module)
    assert not module._load_state_dict_post_hooks
    steps(copy.deepcopy(module), OPTIMIZERS["adam"](module.parameters()))


def test_gradients_that_are_not_finite_do_not_reach_pruned_weights():
    module = nn.Linear(3, 2, bias=False)
    masks = Masks({"weight": torch.tensor([[True, False, True], [False, True, False]])})
    masks.attach(module)
    module(torch.full((1, 3), float("inf"))).sum().backward()
    assert (module.weight.grad[~masks["weight"]] == 0).all()
    assert torch.isinf(module.weight.grad[masks["weight"]]).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("few", [0, 2**20])
def test_pruned_weights_of_every_type_and_layout_are_zero_whatever_they_were(dtype, layout, few, monkeypatch):
    monkeypatch.setattr("ntksap.pruning.attach._FEW", few)  # small layers and large ones
    module = nn.Conv2d(4, 8, 3, dtype=dtype).to(memory_format=layout)
    masks = random_masks(module)
    with torch.no_grad():
        module.weight[~masks["weight"]] = float("nan")
        module.weight[0, ~masks["weight"][0]] = -float("inf")
    before = module.weight.detach().clone()
    masks.attach(module)
    assert torch.equal(module.weight, before.masked_fill(~masks["weight"], 0))
    assert not module.weight[~masks["weight"]].signbit().any()
    (gradient,) = torch.autograd.grad(module.weight.sum(), module.weight)
    assert torch.equal(gradient, masks["weight"].to(dtype))
    module.weight.sum().backward(torch.tensor(float("nan"), dtype=dtype))
    assert torch.equal(module.weight.grad.isnan(), masks["weight"])


def test_a_gradient_in_a_graph_is_masked_and_keeps_its_derivative():
    module = nn.Linear(3, 1, bias=False)
    masks = Masks({"weight": torch.tensor([[True, False, True]])})
    masks.attach(module)
    x = torch.ones(1, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(module(x).pow(2).sum(), module.weight, create_graph=True)  # 2 (w·x) x where kept
    assert gradient[0, 1] == 0
    (by_x,) = torch.autograd.grad(gradient.sum(), x)
    w = module.weight.detach()[0]
    expected = 2 * (2 * w + w.sum() * masks["weight"][0])  # of Σ over kept i of 2 (w·x) x_i, at x = 1
    torch.testing.assert_close(by_x[0], expected)


def test_a_gradient_that_is_there_already_is_masked():
    module = nn.Linear(3, 2, bias=False)
    module(torch.ones(1, 3)).sum().backward()
    masks = Masks({"weight": torch.tensor([[True, False, True], [False, True, False]])})
    masks.attach(module)
    torch.optim.SGD(module.parameters(), lr=1.0).step()
    assert masks.obeyed_by(module)


def test_moving_and_casting_keep_the_masks():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    module.double()
    optimizer = OPTIMIZERS["sgd"](module.parameters())
    for inputs, labels in BY_NAME["conv-bn"].batches(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs.double()), labels).backward()
        optimizer.step()
    assert masks.obeyed_by(module)


@pytest.mark.parametrize("attach_first", [True, False])
def test_compiled_modules(attach_first):
    module = conv_bn()
    masks = random_masks(module)
    if attach_first:
        masks.attach(module)
    compiled = torch.compile(module, backend="aot_eager")
    if not attach_first:
        masks.attach(compiled)
    steps(compiled, OPTIMIZERS["sgd"](compiled.parameters()))
    assert masks.obeyed_by(compiled)
    assert masks.obeyed_by(module)


def test_ddp(tmp_path):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        module = conv_bn()
        masks = random_masks(module)
        masks.attach(module)
        wrapped = nn.parallel.DistributedDataParallel(module)
        steps(wrapped, OPTIMIZERS["adamw"](wrapped.parameters()))
        assert masks.obeyed_by(wrapped)
        assert ntksap.prune(wrapped, 0.5, "synflow", input_shape=(2, 5, 5)).keys() == masks.keys()
    finally:
        torch.distributed.destroy_process_group()


def test_an_optimizer_whose_state_was_saved_goes_on():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    optimizer = OPTIMIZERS["adam"](module.parameters())
    steps(module, optimizer)
    resumed = copy.deepcopy(module)
    again = OPTIMIZERS["adam"](resumed.parameters())
    again.load_state_dict(optimizer.state_dict())
    steps(resumed, again)
    assert masks.obeyed_by(resumed)


def test_lbfgs_only_combines_gradients():
    module = BY_NAME["no-bias"].module()
    masks = random_masks(module)
    masks.attach(module)
    [(inputs, labels)] = BY_NAME["no-bias"].batches(1)
    optimizer = torch.optim.LBFGS(module.parameters(), line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(module(inputs), labels)
        loss.backward()
        return loss

    assert optimizer.step(closure) > closure()
    assert masks.obeyed_by(module)


def test_they_hold_where_an_optimizer_mixes_entries_until_they_are_let_go():
    module = BY_NAME["no-bias"].module()
    masks = random_masks(module)
    attached = masks.attach(module)
    optimizer = torch.optim.Muon(module.parameters(), lr=0.1)  # its step is an orthogonal matrix: no entry is zero
    steps(module, optimizer, case="no-bias")
    assert masks.obeyed_by(module)
    attached.remove()
    steps(module, optimizer, case="no-bias")
    assert not masks.obeyed_by(module)


def test_they_hold_where_momentum_is_older_than_the_masks():
    module = conv_bn()
    optimizer = OPTIMIZERS["adam"](module.parameters())
    steps(module, optimizer)
    masks = random_masks(module)
    masks.attach(module)
    steps(module, optimizer)
    assert masks.obeyed_by(module)


HALVES = {
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "adadelta": torch.optim.Adadelta,
    "sgd": torch.optim.SGD,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", HALVES)
def test_they_hold_in_half_precision_where_a_step_may_be_0_over_0(kind, dtype):
    module = BY_NAME["no-bias"].module().to(dtype)
    masks = random_masks(module)
    masks.attach(module)
    optimizer = HALVES[kind](module.parameters(), lr=0.01)
    for inputs, labels in BY_NAME["no-bias"].batches(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(inputs.to(dtype)).float(), labels).backward()
        for parameter in module.parameters():  # what is kept may be 0/0 as well, where its gradient is too small
            parameter.grad[parameter.grad.abs() < 1e-3] = 1e-2
        for name, mask in masks.items():
            module.get_parameter(name).grad[~mask] = 0
        optimizer.step()
    assert masks.obeyed_by(module)
    assert all(parameter.isfinite().all() for parameter in module.parameters())


def test_accumulated_clipped_and_scaled_gradients():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    start = copy.deepcopy(module.state_dict())
    for number, (inputs, labels) in enumerate(BY_NAME["conv-bn"].batches(6)):
        scaler.scale(nn.functional.cross_entropy(module(inputs), labels)).backward()
        if number % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert masks.obeyed_by(module)
    assert all((module.get_parameter(n)[m] != start[n][m]).all() for n, m in masks.items())


@pytest.mark.parametrize("kind", ["mean", "exponential"])
def test_averaged_copies_are_pruned_too(kind):
    average = None if kind == "mean" else torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    averaged = torch.optim.swa_utils.AveragedModel(module, multi_avg_fn=average)
    optimizer = OPTIMIZERS["adamw"](module.parameters())
    for _ in range(3):
        steps(module, optimizer, count=1)
        averaged.update_parameters(module)
    assert masks.obeyed_by(averaged.module)
    assert not torch.equal(averaged.module[0].weight, module[0].weight)


@pytest.mark.slow
def test_modules_compiled_by_inductor():
    module = conv_bn()
    masks = random_masks(module)
    masks.attach(module)
    compiled = torch.compile(module)
    steps(compiled, OPTIMIZERS["adamw"](compiled.parameters()))
    assert masks.obeyed_by(module)
    twin = copy.deepcopy(compiled)
    steps(twin, OPTIMIZERS["adamw"](twin.parameters()))
    assert masks.obeyed_by(twin)


def test_weights_with_zeros_of_their_own_are_loaded_without_a_word():
    torch.manual_seed(0)
    layer = nn.Conv2d(16, 16, 3)
    masks = ntksap.prune(layer, 0.5, "random", input_shape=(16, 8, 8))
    masks.attach(layer)
    rows, columns = (torch.randn(16, 16, 3, 3) for _ in range(2))
    rows[:5], columns[:, :3] = 0, 0
    nested = ntksap.prune(nn.Conv2d(16, 16, 3), 0.2, "random", input_shape=(16, 8, 8), seed=1)["weight"]
    dirac = nn.init.dirac_(torch.empty(16, 16, 3, 3))
    for weight in (rows, columns, (nested | masks["weight"]) * torch.randn(16, 16, 3, 3), dirac):
        layer.load_state_dict({**layer.state_dict(), "weight": weight})  # a warning would be an error here
        assert torch.equal(layer.weight, weight * masks["weight"])
