"""The loop: what it learns, that it is the slow obvious loop, that masks hold, and that it repeats itself."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import ntksap
from ntksap import data
from ntksap._base.errors import InputError, MaskError
from ntksap._base.seeds import global_seed
from ntksap.data import Dataset
from ntksap.data.memory import MemorySplit
from ntksap.models import CifarResNet
from ntksap.net.initialisers import kaiming_normal
from ntksap.training.loop import DivergedError, train
from ntksap.training.recipe import load_recipe, lr_at
from ntksap.training.state import TrainState
from tests.training.small_training import RECIPE, digits, network, random_masks, same_bits, state_of, untimed


def test_a_pruned_residual_network_learns_the_digits_by_the_quick_recipe():
    torch.manual_seed(0)
    model = CifarResNet(8, width=8, in_channels=1)
    kaiming_normal(model)
    masks = ntksap.prune(model, 0.8, "synflow", input_shape=(1, 8, 8), rounds=10)
    state = TrainState(model, load_recipe("quick", {"epochs": 15}), masks=masks)
    records = list(train(state, data.load("digits")))
    assert [record.epoch for record in records] == list(range(1, 16))
    assert records[-1].top1 > 0.93  # chance is 0.1
    assert records[-1].top5 >= records[-1].top1
    assert records[-1].train_accuracy > 0.9
    assert records[-1].train_loss < 0.5 * records[0].train_loss
    assert all(record.pruned == masks.sparsity for record in records)
    assert all(0 < 1437 / record.images_per_second < record.seconds for record in records)


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov"])
def test_the_loop_is_sgd_on_weights_multiplied_by_masks_bit_for_bit(optimizer, monkeypatch):
    monkeypatch.setattr(
        "ntksap.net.kernels.compiler.library", lambda: None
    )  # whose kernels round otherwise than torch's
    recipe, seed, some = replace(RECIPE, optimizer=optimizer), 1, digits()
    state = state_of(recipe, seed=seed)
    masks = {name: mask.float() for name, mask in state.masks.items()}
    records = list(train(state, some))

    model = network()
    dense = {name: p.detach().clone() for name, p in model.named_parameters()}
    velocity: dict[str, torch.Tensor] = {}
    step, rates = 0, []
    for epoch in range(recipe.epochs):
        with global_seed(seed, "epoch", epoch):  # for the dropout
            for images, labels in some.train.batches(recipe.batch, seed=seed, epoch=epoch, augment=True):
                leaves = {name: (w * masks.get(name, 1)).requires_grad_() for name, w in dense.items()}
                loss = cross_entropy(torch.func.functional_call(model, leaves, images), labels)
                gradients = torch.autograd.grad(loss, list(leaves.values()))
                lr = lr_at(recipe, step, 5)
                for name, gradient in zip(leaves, gradients, strict=True):
                    change = (gradient * masks.get(name, 1)).add(dense[name], alpha=recipe.weight_decay)
                    old = velocity.get(name)
                    velocity[name] = change if old is None else old * recipe.momentum + change
                    if optimizer == "nesterov":
                        change = change.add(velocity[name], alpha=recipe.momentum)
                    else:
                        change = velocity[name]
                    dense[name] = dense[name].add(change, alpha=-lr)
                step += 1
        rates.append(lr)
    assert [record.lr for record in records] == rates
    for name, parameter in state.model.named_parameters():
        assert torch.equal(parameter, dense[name] * masks.get(name, 1)), name
    for name, buffer in state.model.named_buffers():
        assert torch.equal(buffer, dict(model.named_buffers())[name]), name


@pytest.mark.parametrize("optimizer", ["sgd", "nesterov", "adamw"])
@pytest.mark.parametrize("fast", [False, True], ids=["fp32", "bf16-channels-last"])
def test_pruned_weights_stay_exactly_zero_and_the_others_train(optimizer, fast):
    lr = 0.01 if optimizer == "adamw" else 0.1
    precision = "bf16" if fast else "fp32"
    recipe = replace(RECIPE, optimizer=optimizer, lr=lr, epochs=8, precision=precision, channels_last=fast)
    state = state_of(recipe)
    before = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    records = list(train(state, digits()))
    for name, parameter in state.model.named_parameters():
        moved = parameter.detach() != before[name]
        kept = state.masks.get(name, torch.ones_like(moved))
        assert torch.all(parameter[~kept] == 0), name
        assert moved[kept].float().mean() > 0.9, name
        assert parameter.dtype == torch.float32
    assert {record.pruned for record in records} == {state.masks.sparsity}
    assert records[-1].top1 > 0.5
    convolution = state.model[3].weight
    assert convolution.is_contiguous(memory_format=torch.channels_last) is fast


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_layers_compute_in_the_recipes_precision_and_the_loss_in_float32(precision, dtype):
    state = state_of(replace(RECIPE, precision=precision))
    seen = []
    state.model[3].register_forward_hook(lambda _, inputs, output: seen.append(output.dtype))
    images, _ = next(digits().test.batches(4))
    assert state.logits(images).dtype == torch.float32
    assert seen == [dtype]


def test_without_masks_nothing_is_pruned():
    records = list(train(state_of(masked=False), digits()))
    assert {record.pruned for record in records} == {0.0}


@pytest.mark.parametrize("fast", [False, True], ids=["fp32", "bf16-channels-last"])
def test_the_same_seed_gives_the_same_bits_whatever_the_global_generator_does(fast):
    recipe = replace(RECIPE, epochs=2, precision="bf16" if fast else "fp32", channels_last=fast)
    outcomes = []
    for noise in (1, 2):
        state = state_of(recipe)
        torch.manual_seed(noise)
        records = []
        for record in train(state, digits()):
            records.append(untimed(record))
            torch.rand(noise)  # a consumer that draws between records
        outcomes.append((state.model, records))
    assert outcomes[0][1] == outcomes[1][1]
    assert same_bits(outcomes[0][0], outcomes[1][0])


def test_another_seed_gives_another_training():
    one, other = state_of(seed=1), state_of(seed=2)
    list(train(one, digits()))
    list(train(other, digits()))
    assert not same_bits(one.model, other.model)


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    records = train(state_of(), digits())
    torch.set_rng_state(before)
    for _ in records:
        assert torch.equal(torch.get_rng_state(), before)


def test_frozen_parameters_are_not_trained():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    list(train(TrainState(model, replace(RECIPE, epochs=1)), digits()))
    assert torch.equal(model[0].weight, before)


def test_a_weight_that_was_changed_behind_the_optimizer_is_zero_again_after_the_next_step():
    state = state_of()
    records = train(state, digits())
    next(records)
    with torch.no_grad():
        state.model[0].weight.add_(1e-9)
    assert not state.masks.obeyed_by(state.model)
    next(records)
    assert state.masks.obeyed_by(state.model)


def test_a_pruned_weight_that_is_not_zero_after_an_epoch_is_an_error():
    state = state_of()

    def meddle(model, inputs, output):
        if not model.training:  # in the test at the end of the epoch
            model[0].weight.data.add_(1e-9)

    state.model.register_forward_hook(meddle)
    with pytest.raises(MaskError, match="not zero in epoch 1"):
        next(train(state, digits()))


def test_a_learning_rate_that_is_too_high_is_an_error_and_not_a_record():
    with pytest.raises(DivergedError, match=r"epoch 1: .*Lower the learning rate \(lr is 1e\+30\)$"):
        next(train(state_of(replace(RECIPE, lr=1e30)), digits()))
    with pytest.raises(DivergedError, match="fp32"):
        next(train(state_of(replace(RECIPE, lr=1e30, precision="bf16")), digits()))


def test_divergence_in_the_first_step_stops_there():
    state = state_of()
    with torch.no_grad():
        state.model[8].bias.fill_(torch.nan)
    steps = []
    state.optimizer.register_step_post_hook(lambda *_: steps.append(1))
    with pytest.raises(DivergedError, match="epoch 1"):
        next(train(state, digits()))
    assert len(steps) == 1


def test_a_test_loss_that_is_not_finite_is_divergence_too():
    state = state_of()
    records = train(state, digits())
    next(records)
    state.model[1].register_forward_hook(lambda module, _, output: output if module.training else output * torch.inf)
    with pytest.raises(DivergedError, match="epoch 2"):
        next(records)
    assert state.epoch == 1


def test_no_images_are_an_error():
    empty = MemorySplit(
        torch.zeros(0, 1, 8, 8, dtype=torch.uint8),
        torch.zeros(0, dtype=torch.int64),
        mean=(0,),
        std=(1,),
        pad=0,
        flip=False,
    )
    with pytest.raises(InputError, match="300 training and 0 test images"):
        next(train(state_of(), Dataset("halves", 10, (1, 8, 8), digits().train, empty)))


def test_a_model_that_returns_more_than_logits_trains():
    class Pair(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = network()

        def forward(self, images):
            return self.inside(images), images.mean()

    pair, plain = TrainState(Pair(), RECIPE), TrainState(network(), RECIPE)
    assert [untimed(r) for r in train(pair, digits())] == [untimed(r) for r in train(plain, digits())]


@pytest.mark.slow
def test_compiled_training_keeps_keys_and_masks_and_is_close_to_plain_training():
    recipe = replace(RECIPE, epochs=1, lr=0.01)
    model = network()
    masks = random_masks(model)
    model[7] = nn.Identity()  # compiled dropout draws other numbers
    keys = list(model.state_dict())
    compiled = TrainState(model, replace(recipe, compile=True), masks=masks)
    plain_model = network()
    plain_model[7] = nn.Identity()
    plain = TrainState(plain_model, recipe, masks=masks)
    ours, theirs = next(train(compiled, digits())), next(train(plain, digits()))
    assert list(compiled.model.state_dict()) == keys
    assert compiled.model is model
    assert ours.pruned == masks.sparsity
    assert masks.obeyed_by(model)
    assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-3)
