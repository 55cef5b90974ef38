"""Regrowth as a recipe asks for it."""

import math
import warnings

from ntksap.pruning import Regrowth, fraction_at
from ntksap.training.recipe import Recipe
from ntksap.training.state import TrainState


def regrowth_of(state: TrainState, steps: int) -> Regrowth | None:
    """Return the regrowth from here on, in a training with ``steps`` per epoch; None if masks do not change.

    Warns where they would, but the training is too short.
    """
    recipe = state.recipe
    if state.masks is None or recipe.regrow == "none":
        return None
    if text := why_nothing_regrows(recipe, steps):
        warnings.warn(text, stacklevel=3)
        return None
    made = Regrowth(
        state.model,
        state.masks,
        state.optimizer,
        steps=recipe.epochs * steps,
        method=recipe.regrow,
        interval=recipe.regrow_every,
        fraction=recipe.regrow_fraction,
        until=recipe.regrow_until,
        seed=state.seed,
        group=state.ranks.group,
    )
    made.load_state_dict({**made.state_dict(), "step": state.epoch * steps})
    return made


def why_nothing_regrows(recipe: Recipe, steps: int) -> str:
    """Return why no mask would change in a training with ``steps`` per epoch; nothing if masks do.

    >>> recipe = Recipe(epochs=10, batch=128, lr=0.1, regrow="rigl")
    >>> bool(why_nothing_regrows(recipe, steps=12)), bool(why_nothing_regrows(recipe, steps=14))
    (True, False)
    """
    total, every, until = recipe.epochs * steps, recipe.regrow_every, recipe.regrow_until
    if recipe.regrow == "none" or fraction_at(every, total, until=until):
        return ""
    last = math.ceil(until * total) - 1
    advice = f"Lower regrow_every (--regrow-every), to {max(1, last // 10)}, say" if last else "Train for longer"
    return (
        f"no mask would change: the recipe regrows every {every} steps and only before step {until * total:g} of "
        f"{total}. {advice}, or omit regrow"
    )
