"""Regrowth: SET and RigL against plain loops, with any optimizer, and in users' own loops."""

import copy
import math

import numpy
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ntksap
from ntksap import InputError, MaskError, Masks, Regrowth, sparse_kernels
from ntksap.pruning.regrowth import fraction_at, regrown
from tests.processes.jobs import spawn
from tests.processes.work import regrowing_net
from tests.processes.work import regrown as regrown_by_one

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1),
    "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=1e-3),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, eps=1e-4, amsgrad=True),  # float16 takes 1e-8 for 0
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5),
}


def batch(step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(8, 6, generator=generator, dtype=dtype), torch.randint(4, (8,), generator=generator)


def masks_of(model: nn.Module, density: float = 0.4) -> Masks:
    generator = torch.Generator().manual_seed(5)
    return Masks(
        {
            name: torch.rand(p.shape, generator=generator) < density
            for name, p in model.named_parameters()
            if p.dim() == 2
        }
    )


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
    inputs, labels = batch(step, next(model.parameters()).dtype)
    optimizer.zero_grad()
    cross_entropy(model(inputs).float(), labels).backward()
    optimizer.step()


def twin(weight: list[float], mask: list[bool], growth: list[float], count: int) -> list[bool]:
    """Drop and grow with plain loops: one weight at a time, ties to the lower index."""
    kept = list(mask)
    for _ in range(count):
        smallest = None
        for i, k in enumerate(kept):
            if k and (smallest is None or abs(weight[i]) <= abs(weight[smallest])):
                smallest = i  # of equal ones the last is dropped, so that the first is kept
        kept[smallest] = False
    after = list(kept)
    for _ in range(count):
        largest = None
        for i, k in enumerate(after):
            if not k and (largest is None or growth[i] > growth[largest]):
                largest = i
        after[largest] = True
    return after


@pytest.mark.parametrize("density", [0.05, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_drops_and_grows_as_plain_loops_do(density, dtype):
    generator = torch.Generator().manual_seed(int(100 * density))
    for count in (0, 1, 3):
        weight = torch.randn(9, 7, generator=generator).to(dtype)
        growth = torch.randint(6, (9, 7), generator=generator).to(dtype)  # many ties
        mask = torch.rand(9, 7, generator=generator) < density
        mask[0, :3] = True
        weight[0, :3] = 0.0
        weight = weight * mask
        expected = twin(weight.flatten().tolist(), mask.flatten().tolist(), growth.flatten().tolist(), count)
        found = regrown(weight, mask, growth, count)
        assert found.flatten().tolist() == expected
        assert found.sum() == mask.sum()


def test_the_share_falls_like_a_cosine_and_ends():
    for step in range(100):
        expected = 0.15 * (1 + math.cos(math.pi * step / 75)) if step < 75 else 0.0
        assert fraction_at(step, 100) == pytest.approx(expected, abs=1e-15)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rigl_moves_weights_to_where_the_dense_gradient_is_largest(name):
    model = regrowing_net()
    masks = masks_of(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    regrowth = Regrowth(model, masks, optimizer, steps=40, interval=4, fraction=0.5)
    expected = dict(masks)
    for step in range(1, 41):
        free = regrowing_net()  # without masks: its gradients are dense
        free.load_state_dict(model.state_dict())
        inputs, labels = batch(step)
        cross_entropy(free(inputs).float(), labels).backward()
        one_step(model, optimizer, step)
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        states = {
            n: {k: v.clone() for k, v in optimizer.state[p].items() if isinstance(v, torch.Tensor)}
            for n, p in model.named_parameters()
        }
        changed = regrowth.step()
        share = fraction_at(step, 40, 0.5) if step % 4 == 0 else 0.0
        assert changed or share < 0.1
        for n, p in model.named_parameters():
            if n not in masks:
                assert torch.equal(p, before[n])
                continue
            gradient = dict(free.named_parameters())[n].grad.abs()
            new = twin(
                before[n].flatten().tolist(),
                expected[n].flatten().tolist(),
                gradient.flatten().tolist(),
                int(share * int(masks[n].sum())),
            )
            new = torch.tensor(new).view(p.shape)
            moved = new ^ expected[n]
            expected[n] = new
            assert torch.equal(regrowth.masks[n], new)
            assert int(new.sum()) == int(masks[n].sum())
            assert torch.equal(p.detach(), before[n].masked_fill(~new, 0))  # kept ones as they were, the others 0
            for key, value in optimizer.state[p].items():
                if isinstance(value, torch.Tensor) and value.shape == p.shape:
                    assert torch.equal(value, states[n][key].masked_fill(moved, 0))
    assert regrowth.masks != masks
    assert regrowth.masks.obeyed_by(model)


def test_set_grows_at_random_places_that_the_seed_the_step_and_the_layer_decide():
    def train(seed: int, noise: bool = False) -> Masks:
        model = regrowing_net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        regrowth = Regrowth(model, masks_of(model), optimizer, method="set", steps=40, interval=4, seed=seed)
        for step in range(1, 41):
            assert not regrowth.listening
            one_step(model, optimizer, step)
            if noise:
                torch.rand(3)
            regrowth.step()
        assert {n: int(m.sum()) for n, m in regrowth.masks.items()} == {
            n: int(m.sum()) for n, m in masks_of(model).items()
        }
        return regrowth.masks

    assert train(0) == train(0, noise=True) != train(1)


def test_grown_weights_are_spread_evenly_by_set():
    weight, mask = torch.ones(1, 400), torch.zeros(1, 400, dtype=torch.bool)
    mask[0, :100] = True
    model = nn.Linear(400, 1, bias=False)
    counts = torch.zeros(400)
    for seed in range(50):
        with torch.no_grad():
            model.weight.copy_(weight)
        optimizer = torch.optim.SGD(model.parameters(), 0.0)
        regrowth = Regrowth(
            model, Masks({"weight": mask}), optimizer, method="set", steps=9, interval=1, fraction=1.0, seed=seed
        )
        regrowth.step()
        counts += regrowth.masks["weight"][0]
    kept = int(100 - int(100 * fraction_at(1, 9, 1.0)))
    assert (counts[:kept] == 50).all()  # ties: the first are kept
    grown = counts[kept:]
    expected = 50 * (100 - kept) / (400 - kept)
    assert abs(grown - expected).max() < 5 * math.sqrt(expected)


@pytest.mark.parametrize("method", ["rigl", "set"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_counts_stay_exact_in_half_precision(method, dtype, name):
    model = regrowing_net().to(dtype)
    masks = masks_of(model)
    optimizer = OPTIMIZERS[name](model.parameters())
    regrowth = Regrowth(model, masks, optimizer, method=method, steps=24, interval=2)
    for step in range(1, 25):
        one_step(model, optimizer, step)
        regrowth.step()
        assert all(regrowth.masks[n].sum() == mask.sum() for n, mask in masks.items())
        assert regrowth.masks.obeyed_by(model)
    assert regrowth.masks != masks


def test_dense_tiny_and_frozen_layers_stay_as_they_are():
    model = regrowing_net()
    masks = dict(masks_of(model))
    names = list(masks)
    masks[names[0]][:] = True
    masks[names[1]][:] = False
    masks[names[1]][0, :3] = True  # ⌊0.3 · 3⌋ = 0
    model.get_parameter(names[2]).requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1)
    for method in ("rigl", "set"):
        regrowth = Regrowth(model, Masks(masks), optimizer, method=method, steps=40, interval=2)
        for step in range(1, 41):
            one_step(model, optimizer, step)
            assert not regrowth.step()
        assert regrowth.masks == Masks(masks)


def test_gradients_of_several_backward_passes_add_up():
    whole, parts = regrowing_net(), regrowing_net()
    found = []
    for model, pieces in ((whole, 1), (parts, 4)):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        regrowth = Regrowth(model, masks_of(model), optimizer, steps=20, interval=2)
        for step in range(1, 21):
            inputs, labels = batch(step)
            optimizer.zero_grad()
            for x, y in zip(inputs.chunk(pieces), labels.chunk(pieces), strict=True):
                (cross_entropy(model(x), y) / pieces).backward()
            optimizer.step()
            regrowth.step()
        found.append(regrowth.masks)
    assert found[0] == found[1]


def test_a_change_is_left_out_where_gradients_are_not_finite():
    model = regrowing_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    regrowth = Regrowth(model, masks_of(model), optimizer, steps=20, interval=2)
    one_step(model, optimizer, 1)
    regrowth.step()
    (model(batch(2)[0]).sum() * float("inf")).backward()  # as under GradScaler, which makes no step then
    assert not regrowth.step()
    for step in (3, 4):
        one_step(model, optimizer, step)
        changed = regrowth.step()
    assert changed


@pytest.mark.parametrize("first", ["model", "regrowth", "neither"])
@pytest.mark.parametrize("method", ["rigl", "set"])
@pytest.mark.parametrize(("name", "rescale"), [("momentum", True), ("adamw", False)])
def test_resuming_ends_in_the_same_bits_in_whatever_order_things_are_loaded(method, name, rescale, first):
    def start(model):
        optimizer, masks = OPTIMIZERS[name](model.parameters()), masks_of(model)
        masks.info["rescale"] = "layer" if rescale else "none"
        return optimizer, Regrowth(model, masks, optimizer, method=method, steps=40, interval=4)

    model = regrowing_net()
    optimizer, regrowth = start(model)
    for step in range(1, 41):
        one_step(model, optimizer, step)
        regrowth.step()
        if step == 15:  # the next step is one whose gradient RigL listens to
            assert regrowth.listening == (method == "rigl")
            saved = copy.deepcopy((model.state_dict(), optimizer.state_dict(), regrowth.state_dict()))
    again = regrowing_net()
    if first == "model":
        again.load_state_dict(saved[0])
    optimizer, resumed = start(again)
    if first == "neither":
        again.load_state_dict(saved[0])  # which says nothing of weights that the first masks do not keep
    resumed.load_state_dict(saved[2])
    if first == "regrowth":
        again.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for step in range(16, 41):
        one_step(again, optimizer, step)
        resumed.step()
    assert resumed.masks == regrowth.masks
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_a_state_of_another_training_is_refused_and_changes_nothing():
    def start(masks):
        model = regrowing_net()
        return model, Regrowth(model, masks, torch.optim.SGD(model.parameters(), 0.1), steps=40, interval=4)

    model, regrowth = start(masks_of(regrowing_net()))
    before = copy.deepcopy(model.state_dict())
    elsewhere = Masks({name: mask.flip(1) for name, mask in regrowth.masks.items()})  # as many in every layer
    own = regrowth.state_dict()
    for state, message in (
        (start(masks_of(model, 0.6))[1].state_dict(), "other numbers of weights"),
        ({**own, "masks": {"x": torch.ones(2).bool()}}, "another training"),
        (start(elsewhere)[1].state_dict(), "started with other masks"),
        ({"step": 1}, "no 'kept'"),
    ):
        with pytest.raises(MaskError, match=message):
            regrowth.load_state_dict(state)
        assert regrowth.masks == masks_of(model)
        assert all(torch.equal(before[name], now) for name, now in model.state_dict().items())


def test_masks_of_a_pattern_and_wrong_settings_are_refused():
    model = regrowing_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(InputError, match="would break the pattern 2:4"):
        Regrowth(model, ntksap.prune(model, 0.5, "magnitude", pattern="2:4"), optimizer, steps=10)
    for wrong, message in (
        ({"method": "rgl"}, "rigl"),
        ({"interval": 0}, "interval is a whole number of at least 1"),
        ({"fraction": 0.0}, "fraction of regrowth is a share"),
        ({"until": 1.5}, "until of regrowth is a share"),
        ({"steps": -1}, "steps is a whole number"),
    ):
        with pytest.raises(InputError, match=message):
            Regrowth(model, masks_of(model), optimizer, **{"steps": 10, **wrong})


def test_masks_that_name_a_parameter_twice_are_refused():
    first, second = nn.Linear(6, 6), nn.Linear(6, 6)
    second.weight = first.weight
    model = nn.Sequential(first, second)
    masks = Masks({"0.weight": torch.eye(6).bool(), "1.weight": torch.eye(6).bool()})
    with pytest.raises(InputError, match=r"'0\.weight' and '1\.weight' are one parameter"):
        Regrowth(model, masks, torch.optim.SGD(model.parameters(), 0.1), steps=400)


def test_a_training_too_short_for_a_change_gets_a_warning():
    model = regrowing_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.warns(UserWarning, match="will not change: they do so every 30 steps, and only before step 30"):
        Regrowth(model, masks_of(model), optimizer, steps=40, interval=30)
    Regrowth(model, masks_of(model), optimizer, steps=40, interval=29)


def test_rigl_hears_layers_that_were_frozen_at_first():
    model = regrowing_net()
    masks = masks_of(model)
    head = list(masks)[-1].removesuffix(".weight")
    for name, p in model.named_parameters():
        p.requires_grad_(name == f"{head}.bias")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    regrowth = Regrowth(model, masks, optimizer, steps=80, interval=4)
    for step in range(1, 41):
        if step == 10:
            assert regrowth.masks == masks
            model.requires_grad_(True)
        one_step(model, optimizer, step)
        regrowth.step()
    assert all(not torch.equal(regrowth.masks[name], masks[name]) for name in masks)
    assert regrowth.masks.obeyed_by(model)


def test_weights_of_other_masks_are_not_lost_without_a_word():
    model = regrowing_net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    regrowth = Regrowth(model, masks_of(model), optimizer, method="set", steps=80, interval=4)
    average, best = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    for step in range(1, 21):
        one_step(model, optimizer, step)
        regrowth.step()
    with pytest.warns(UserWarning, match="seem to have been pruned with other masks"):
        average.load_state_dict(model.state_dict())
    regrowth.masks.attach(average)
    average.load_state_dict(model.state_dict())  # says nothing
    with pytest.warns(UserWarning, match="masks that change in training belong with the weights"):
        model.load_state_dict(best)
    model.load_state_dict(regrowing_net().state_dict())  # dense weights are pruned, as expected
    with pytest.raises(InputError, match="make one for it"):
        copy.deepcopy((model, regrowth))


def test_what_was_rescaled_once_is_not_rescaled_by_a_change():
    model = regrowing_net()
    masks = ntksap.prune(model, 0.6, "random", rescale="unit")
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    fresh = {name: p.detach().clone() for name, p in model.named_parameters()}
    regrowth = Regrowth(model, masks, optimizer, method="set", steps=40, interval=2)
    scaled = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert any(not torch.equal(scaled[n], fresh[n] * masks[n]) for n in masks)
    for step in range(1, 31):
        one_step(model, optimizer, step)
        regrowth.step()
    for name, p in model.named_parameters():
        alive = p != 0  # others have been dropped, and with a rate of 0 stay there
        assert alive.any()
        assert torch.equal(p[alive], scaled[name][alive])


def test_kernels_that_compute_no_gradients_of_pruned_weights_are_noticed(fastest):
    fastest("kept")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 64, 3))
    masks = ntksap.prune(model, 0.95, "magnitude", scope="layer")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    regrowth = Regrowth(model, masks, optimizer, steps=8, interval=2)
    with sparse_kernels(model, masks) as used:
        if not used:
            pytest.skip("no kernels here")
        for _ in range(2):
            model(torch.randn(4, 16, 8, 8)).square().sum().backward()
            if not regrowth.listening:
                regrowth.step()
    with pytest.raises(InputError, match="leave the block of sparse_kernels"), sparse_kernels(model, masks):
        regrowth.step()


def test_processes_that_share_batches_choose_what_one_would():
    alone = regrown_by_one(None)
    first, second = spawn("regrown", 2)
    for kind, one in alone.items():
        assert one["stayed"] < 0.9
        assert all(found[kind]["hold"] for found in (alone, first, second))
        for name, mask in one["masks"].items():
            assert numpy.array_equal(first[kind]["masks"][name], second[kind]["masks"][name])
            # Sums differ in their last bits, and so may what is chosen among nearly equal weights.
            assert (first[kind]["masks"][name] == mask).mean() > (0.98 if "recipe" in kind else 0.9999)
        for name, value in first[kind]["weights"].items():
            assert numpy.array_equal(value, second[kind]["weights"][name])
