"""Regrowth as a recipe asks for it."""

from ntksap.pruning import Regrowth
from ntksap.training.state import TrainState


def regrowth_of(state: TrainState, steps: int) -> Regrowth | None:
    """Return the regrowth from here on, in a training with ``steps`` per epoch; None if masks do not change."""
    recipe = state.recipe
    if state.masks is None or recipe.regrow == "none":
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
