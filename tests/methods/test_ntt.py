"""NTT: its kernel against explicit Jacobians in float64, its optimisation, and how its weights reach a model."""

import copy

import pytest
import torch
from torch.func import functional_call, jacrev

import ntksap
from ntksap.methods.ntt_kernel import Halves, exact_fits, kernel_gap
from ntksap.net.net import Net
from tests.cases import BY_NAME, CASES


def setting(case_name: str):
    case = BY_NAME[case_name]
    module = case.module().double().eval()
    net = Net(module)
    batch = Halves.of(net, case.batches(1, size=7)[0][0].double())
    generator = torch.Generator().manual_seed(5)
    masks = {n: torch.rand(net.weights[n].shape, generator=generator) < 0.6 for n in net.prunable}
    student = {
        n: torch.randn(w.shape, generator=generator, dtype=w.dtype) * masks.get(n, 1) for n, w in net.weights.items()
    }
    return module, net, batch, masks, student


def explicit(module, batch, weights, masks, names) -> torch.Tensor:
    """Θ from the whole Jacobian of each half; BatchNorm reads the batch's statistics from the module's buffers."""
    copied = copy.deepcopy(module)
    copied.load_state_dict(dict(batch.norm), strict=False)
    sides = []
    for half in (batch.one, batch.two):
        by = {n: weights[n].detach() for n in names}

        def f(by, half=half):
            return functional_call(copied, {**weights, **by}, (half,))

        parts = jacrev(f)(by)
        rows = batch.outputs * len(half)
        sides.append([(parts[n].reshape(rows, -1), masks.get(n)) for n in names])
    total = 0
    for (first, mask), (second, _) in zip(*sides, strict=True):
        total = total + (first if mask is None else first * mask.flatten()) @ second.T
    return total


@pytest.mark.parametrize("case", ["conv-bn", "residual", "no-bias", "frozen"])
def test_the_exact_gap_and_its_derivative_are_those_of_explicit_jacobians(case):
    module, net, batch, masks, student = setting(case)
    names = net.trainable
    theirs = explicit(module, batch, net.weights, {}, names)
    leaves = {n: w.clone().requires_grad_() for n, w in student.items()}
    apart, size = kernel_gap(net, names, leaves, masks, batch, 1, None, graph=True)
    expected = (explicit(module, batch, student, masks, names) - theirs).square().mean()
    torch.testing.assert_close(apart.detach(), expected)
    torch.testing.assert_close(size, theirs.square().mean())
    gradients = torch.autograd.grad(apart, [leaves[n] for n in names], materialize_grads=True)
    step = 1e-6
    for name, gradient in zip(names, gradients, strict=True):
        ends = []
        for sign in (1, -1):
            moved = {**student, name: student[name].clone()}
            moved[name].view(-1)[0] += sign * step
            ends.append((explicit(module, batch, moved, masks, names) - theirs).square().mean())
        slope = float((ends[0] - ends[1]) / (2 * step))
        assert float(gradient.flatten()[0]) == pytest.approx(slope, rel=1e-4, abs=1e-5 * float(expected))


def test_the_projected_gap_has_the_exact_one_as_its_mean():
    _, net, batch, masks, student = setting("no-bias")
    leaves = {n: w.requires_grad_() for n, w in student.items()}
    exact, size = kernel_gap(net, net.trainable, leaves, masks, batch, 1, None, graph=False)
    generator = torch.Generator().manual_seed(0)
    draws = [kernel_gap(net, net.trainable, leaves, masks, batch, 4, generator, graph=False) for _ in range(400)]
    for found, wanted in zip(zip(*draws, strict=True), (exact, size), strict=True):
        values = torch.stack(found).detach()
        assert abs(values.mean() - wanted) < 4 * values.std() / 20


def test_large_nets_are_projected_and_small_ones_exact():
    for case in CASES:
        if case.input_shape is not None:
            net = Net(case.module())
            assert exact_fits(net, net.trainable, Halves.of(net, case.batches(1)[0][0]))
    fits = {}
    for name, shape in [("lenet-5", (1, 28, 28)), ("conv-4", (3, 32, 32)), ("resnet20", (3, 32, 32))]:
        net = Net(ntksap.models.build(name, input_shape=shape))
        fits[name] = exact_fits(net, net.trainable, Halves.of(net, torch.zeros(64, *shape)))
    assert fits == {"lenet-5": True, "conv-4": False, "resnet20": False}


@pytest.mark.parametrize("kernel", ["exact", "projected"])
@pytest.mark.parametrize("case", ["conv-bn", "residual", "attention"])
def test_the_distance_falls_and_the_kernel_used_is_said(case, kernel):
    case = BY_NAME[case]
    options = {"kernel": kernel, "kernel_weight": 1.0, "prune_lr": 5e-3}  # in so small a net the outputs weigh more
    masks = ntksap.prune(case.module(), 0.5, "ntt", data=case.batches(4, size=8), rounds=5, **options)
    assert masks.info["kernel_distance"] < masks.info["kernel_distance_before"]
    assert masks.info["kernel"] == {"exact": "exact", "projected": "projected 8 times"}[kernel]
    assert masks.info["kernel_rows"] == 12
    assert masks.info["steps"] == 20


def test_each_layer_keeps_its_share_and_the_mask_is_chosen_again():
    case = BY_NAME["no-bias"]
    settings = {"data": case.batches(6), "rounds": 3, "prune_lr": 0.05}
    fixed, refreshed = (ntksap.prune(case.module(), 0.5, "ntt", refresh=n, **settings) for n in (100, 2))
    assert [layer["kept"] for layer in refreshed.layers()] == [20, 12]
    assert fixed == ntksap.prune(case.module(), 0.5, "magnitude", scope="layer")
    assert refreshed != fixed
    assert ntksap.prune(case.module(), 0.5, "ntt", epoch_steps=2, **settings).info["steps"] == 6
    inverted = ntksap.prune(case.module(), 0.5, "ntt", refresh=100, invert=True, **settings)
    assert not any((inverted[name] & fixed[name]).any() for name in fixed)


def test_the_weights_come_with_the_masks_and_survive_a_file(tmp_path):
    case = BY_NAME["frozen"]
    model = case.module()
    before = copy.deepcopy(model.state_dict())
    masks = ntksap.prune(model, 0.5, "ntt", data=case.batches(), rounds=2, prune_lr=0.05)
    masks.save(tmp_path / "masks.safetensors")
    loaded = ntksap.Masks.load(tmp_path / "masks.safetensors")
    assert loaded == masks
    assert loaded.info == masks.info
    assert loaded.weights.keys() == masks.weights.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert all(torch.equal(loaded.weights[name], masks.weights[name]) for name in masks.weights)
    masks.attach(model).remove()
    kept = masks["0.weight"]
    assert torch.equal(model[0].weight[kept], before["0.weight"][kept])  # attaching does not load them
    loaded.load_weights(model)
    loaded.attach(model)
    assert torch.equal(model[0].weight[kept], masks.weights["0.weight"][kept])
    assert not torch.equal(model[0].weight[kept], before["0.weight"][kept])
    assert torch.equal(model[2].weight, before["2.weight"])  # frozen
    assert masks.obeyed_by(model)


def test_weights_are_refused_where_there_are_none_or_the_model_is_another():
    case = BY_NAME["no-bias"]
    model = case.module()
    with pytest.raises(ntksap.MaskError, match="no weights came with these masks"):
        ntksap.prune(model, 0.5, "magnitude").load_weights(model)
    masks = ntksap.prune(model, 0.5, "ntt", data=case.batches(), rounds=1)
    masks.weights["0.weight"] = masks.weights["0.weight"][:2]
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ntksap.MaskError, match="another model"):
        masks.load_weights(model)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_bad_data_and_options_are_refused():
    case = BY_NAME["no-bias"]
    for options, message in [
        ({"data": case.batches(1, size=1)}, "at least two inputs"),
        ({"data": iter(case.batches(3)), "rounds": 2}, "iterated over again"),
        ({"data": case.batches(), "refresh": 0}, "refresh is a whole number of at least 1, not 0"),
        ({"data": case.batches(), "prune_lr": -1.0}, "prune_lr is a number, above 0, not -1.0"),
    ]:
        with pytest.raises(ntksap.InputError, match=message):
            ntksap.prune(case.module(), 0.5, "ntt", **{"rounds": 1, **options})
    with pytest.raises(ntksap.ScoreError, match="diverged"):
        ntksap.prune(case.module(), 0.5, "ntt", data=case.batches(9), rounds=1, prune_lr=1e15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "kernel"),
    [
        ("lenet-300-100", (1, 28, 28), "exact"),
        ("lenet-5", (1, 28, 28), "auto"),
        ("conv-4", (3, 32, 32), "auto"),
        ("resnet20", (3, 32, 32), "auto"),
    ],
)
def test_real_nets(model, shape, kernel):
    module = ntksap.models.build(model, input_shape=shape)
    generator = torch.Generator().manual_seed(0)
    data = [(torch.randn(32, *shape, generator=generator), None) for _ in range(10)]
    masks = ntksap.prune(module, 0.9, "ntt", data=data, rounds=1, kernel=kernel)
    assert masks.info["kernel"] == ("exact" if "lenet" in model else "projected 8 times")
    assert masks.info["kernel_distance"] < masks.info["kernel_distance_before"]
    assert masks.kept == round(0.1 * masks.total)
