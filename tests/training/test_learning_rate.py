import itertools

import pytest

from ntksap._base.errors import InputError
from ntksap.training.recipe import Recipe, load_recipe, lr_at

STEPS = 7


def curve(recipe: Recipe, steps_per_epoch: int = STEPS) -> list[float]:
    return [lr_at(recipe, step, steps_per_epoch) for step in range(recipe.epochs * steps_per_epoch)]


@pytest.mark.parametrize("name", ["cifar10-resnet20", "imagenet-resnet18"])
def test_the_step_schedule_divides_by_ten_at_exactly_its_epochs(name):
    recipe = load_recipe(name)
    rates = curve(recipe)
    changes = [step for step in range(1, len(rates)) if rates[step] != rates[step - 1]]
    assert rates[0] == recipe.lr
    assert changes == [drop * STEPS for drop in recipe.drops]
    assert [rates[step - 1] / rates[step] for step in changes] == pytest.approx([10] * len(changes))


def test_a_step_schedule_may_be_cut_short():
    assert set(curve(load_recipe("cifar10-resnet20", {"epochs": 3}))) == {0.1}


@pytest.mark.parametrize("epochs", [3, 10, 15])
def test_one_cycle_starts_low_peaks_after_warmup_and_ends_near_zero(epochs):
    recipe = load_recipe("quick", {"epochs": epochs})
    rates = curve(recipe, 400)
    peak = rates.index(max(rates))
    assert 0 < rates[0] < 0.01 * recipe.lr
    assert 0 < rates[-1] < 0.01 * recipe.lr
    assert peak / len(rates) == pytest.approx(recipe.warmup, abs=1 / len(rates))
    assert 0.99 * recipe.lr < rates[peak] <= recipe.lr
    assert all(a < b for a, b in itertools.pairwise(rates[: peak + 1]))
    assert all(a > b for a, b in itertools.pairwise(rates[peak:]))


def test_one_cycle_does_not_see_where_epochs_end():
    recipe = Recipe(epochs=2, batch=1, lr=0.3, schedule="one-cycle")
    longer = Recipe(epochs=8, batch=1, lr=0.3, schedule="one-cycle")
    assert curve(recipe, 12) == curve(longer, 3)


def test_one_cycle_without_warmup_starts_at_the_top():
    recipe = Recipe(epochs=1, batch=1, lr=0.4, schedule="one-cycle", warmup=0)
    assert curve(recipe, 4) == pytest.approx([0.4 * share for share in (7 / 8, 5 / 8, 3 / 8, 1 / 8)])


@pytest.mark.parametrize("step", [-1, 3 * STEPS])
def test_a_step_outside_the_training_is_an_error(step):
    with pytest.raises(InputError, match=f"step {step} .* 21 steps"):
        lr_at(Recipe(epochs=3, batch=1, lr=0.1), step, STEPS)
