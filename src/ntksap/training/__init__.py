"""Training: the loop, recipes, checkpoints."""

from ntksap.training.checkpoint import read_model
from ntksap.training.loop import train
from ntksap.training.recipe import Recipe, load_recipe, not_default
from ntksap.training.regrow import why_nothing_regrows
from ntksap.training.state import TrainState

__all__ = [
    "Recipe",
    "TrainState",
    "load_recipe",
    "not_default",
    "read_model",
    "train",
    "why_nothing_regrows",
]
