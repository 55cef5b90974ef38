"""`Recipe`: everything that decides how a network is trained, and where recipes are read from."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_type_hints

from ntksap._base import InputError, check_keys, check_value, fill, toml, unknown

RECIPES = Path(__file__).parent / "recipes"
_FLOAT32 = 3.4e38  # factors that optimizers multiply weights by must be below


@dataclass(frozen=True)
class Recipe:
    """How to train. The same object is filled by a TOML file, the command line and Python.

    >>> Recipe(epochs=160, batch=128, lr=0.1, drops=(80, 120)).optimizer
    'sgd'
    """

    epochs: int
    """Passes over the training images."""
    batch: int
    """Images per optimizer step; the last step of an epoch takes those that are left."""
    lr: float
    """Learning rate: the initial one of "step", the highest one of "one-cycle"."""
    optimizer: Literal["sgd", "nesterov", "adamw"] = "sgd"
    """SGD with momentum, SGD with Nesterov momentum, or AdamW."""
    momentum: float = 0.9
    """Momentum of SGD; β₁ of AdamW (whose β₂ is 0.999)."""
    weight_decay: float = 0.0
    """Weight decay of every trained parameter: L2 in SGD, decoupled in AdamW."""
    schedule: Literal["step", "one-cycle"] = "step"
    """Divide the learning rate at some epochs, or raise it linearly from 0 and lower it linearly to 0."""
    drops: tuple[int, ...] = ()
    """Schedule "step": after this many epochs the rate is divided. Drops after the last epoch never happen."""
    drop_factor: float = 10.0
    """Schedule "step": what the rate is divided by."""
    warmup: float = 0.25
    """Schedule "one-cycle": the share of all steps in which the rate rises, 0 ≤ warmup < 1."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Precision of the layers' arithmetic; weights and loss are always float32."""
    channels_last: bool = False
    """Hold images and convolution weights with channels innermost."""
    compile: bool = False
    """Run the model through torch.compile."""
    augment: bool = True
    """Crop and mirror training images at random, in the way of the data set."""
    regrow: Literal["none", "set", "rigl"] = "none"
    """Move some of the kept weights of each layer now and then: where chance (SET) or the gradient (RigL) says."""
    regrow_every: int = 100
    """Regrowth: steps from one change of the masks to the next."""
    regrow_fraction: float = 0.3
    """Regrowth: the share of a layer's kept weights that moves at first; it falls to 0 like a cosine."""
    regrow_until: float = 0.75
    """Regrowth: the share of the training after which masks stay as they are."""

    def stated(self) -> dict[str, Any]:
        """Return the settings that are not the default ones: what names a training.

        So a setting that is added later, with a default that changes nothing, leaves names as they were.
        """
        return not_default(self)

    def without_regrowth(self) -> "Recipe":
        """Return the recipe for a network that has no masks."""
        usual: dict[str, Any] = {one.name: one.default for one in fields(self) if one.name.startswith("regrow")}
        return replace(self, **usual)

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(Recipe).items():
            object.__setattr__(self, name, check_value(getattr(self, name), kind, f"{name} of a recipe"))
        for name, wrong, wanted in (
            ("epochs", self.epochs < 1, "at least 1"),
            ("batch", self.batch < 1, "at least 1"),
            ("lr", not 0 < self.lr < _FLOAT32, "positive"),
            ("momentum", not 0 <= self.momentum < 1, "0 or more and less than 1"),
            ("momentum", self.optimizer == "nesterov" and self.momentum == 0, "positive with optimizer nesterov"),
            ("weight_decay", not 0 <= self.weight_decay < _FLOAT32, "0 or more"),
            ("drops", list(self.drops) != sorted({d for d in self.drops if d > 0}), "positive epochs that increase"),
            ("drops", self.schedule == "one-cycle" and self.drops, 'empty with schedule "one-cycle", which has none'),
            ("drop_factor", not 1 < self.drop_factor < float("inf"), "more than 1"),
            (
                "drop_factor",
                self.drop_factor > 1 and len(self.drops) * math.log10(self.drop_factor) > 300,
                "smaller: this many drops by this much leave no learning rate",
            ),
            ("warmup", not 0 <= self.warmup < 1, "0 or more and less than 1"),
            ("regrow_every", self.regrow_every < 1, "at least 1"),
            ("regrow_fraction", not 0 < self.regrow_fraction <= 1, "more than 0 and at most 1"),
            ("regrow_until", not 0 < self.regrow_until <= 1, "more than 0 and at most 1"),
        ):
            if wrong:
                raise InputError(f"{name} of a recipe must be {wanted}, not {getattr(self, name)!r}")


def not_default(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that do not have their default value, as plain values."""
    return {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if getattr(record, field.name)
        != (field.default_factory() if field.default_factory is not MISSING else field.default)
    }


def lr_at(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of optimizer step ``step``, counted from 0 over the whole training.

    "step": lr / drop_factor^(drops that are over), a function of the epoch ⌊step / steps_per_epoch⌋ alone.

    "one-cycle": a triangle over the share s = (step + ½) / total of the training,
    lr · min(s / warmup, (1 − s) / (1 − warmup)). With ½, neither the first step nor the last has a rate of 0.

    >>> [lr_at(Recipe(epochs=4, batch=1, lr=1.0, drops=(2, 3)), step, 2) for step in (3, 4, 5, 6)]
    [1.0, 0.1, 0.1, 0.01]
    """
    total = recipe.epochs * steps_per_epoch
    if not 0 <= step < total:
        raise InputError(f"step {step} is not in a training of {total} steps")
    if recipe.schedule == "step":
        return recipe.lr / recipe.drop_factor ** sum(drop <= step // steps_per_epoch for drop in recipe.drops)
    share = (step + 0.5) / total
    return recipe.lr * (share / recipe.warmup if share < recipe.warmup else (1 - share) / (1 - recipe.warmup))


def load_recipe(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Return a recipe that comes with the package, or one from your own TOML file, with some settings replaced.

    A `Path`, or text that ends in ``.toml`` or has a slash, is a file; other text is a name.

    >>> load_recipe("cifar10-resnet20", {"lr": 0.05}).lr
    0.05
    """
    path, overrides = _path(name_or_path), overrides or {}
    try:
        values = toml.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as a recipe, which is a TOML file: {error}") from error
    check_keys(Recipe, overrides, "a recipe")
    try:
        return fill(Recipe, {**values, **overrides}, "a recipe")
    except InputError as error:
        raise InputError(f"{path}{' with your settings' if overrides else ''}: {error}") from error


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def _path(name_or_path: str | Path) -> Path:
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path:
        return Path(name_or_path)
    if name_or_path not in recipe_names():
        raise unknown("recipe", name_or_path, recipe_names())
    return RECIPES / f"{name_or_path}.toml"
