"""What a method is, and the table it is looked up in."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from torch import Tensor

from ntksap._base import InputError, unknown
from ntksap.methods.options import Option, options_of
from ntksap.pruning import Pruner, Score, prune_rounds

METHODS: dict[str, "Method"] = {}

Need: TypeAlias = Literal["none", "pruning set", "training set", "training"]
"""What a method needs: nothing; a few batches, held in memory; epochs of batches, streamed; whole trainings."""


@dataclass(frozen=True)
class Method:
    """One line of the table.

    Args:
        name: what users write.
        score: ``score(net, masks, probe, *, options…) -> {name: tensor}``, larger = keep. None if there is a pruner.
        summary: one sentence.
        rounds, schedule, scope: the defaults; one round is one shot.
        rate: the share of the remaining weights that a round removes, where the sparsity decides how many rounds there
            are, see `rounds_at`; ``rounds`` is then their number at the paper's highest sparsity, 98.20 %.
        allocation: how many weights each layer keeps, instead of the scope, unless the user says otherwise.
        places: which of them, see `ntksap.pruning.PLACES`, unless the user says otherwise or wants what needs scores.
        data: what it needs, see `Need`.
        labels: it uses the labels of the data.
        batch: inputs per batch when a run feeds it the training set; None means as many as in training.
        weight_agnostic: the score does not depend on the module's present weights, so it is drawn.
        draws: the seed matters although the weights decide as well.
        regrow: pruned weights may return in a later round.
        returns_weights: it also chooses the weights that training is to start from.
        homogeneous: the score is exact on positively homogeneous nets only; a warning says so on others.
        splits: a batch can be cut into micro-batches without changing the scores.
        from_recipe: options that a run takes from its recipe unless they are given: {option: setting of the recipe}.
        agree: raises where options contradict each other; it is given all of them.
        pruner: instead of a score, a whole `Pruner` with options, for a method that is more than score and select.
    """

    name: str
    score: Callable[..., dict[str, Tensor]] | None
    summary: str
    rounds: int = 1
    schedule: str = "exponential"
    scope: str = "global"
    rate: float | None = None
    allocation: str | None = None
    places: str = "score"
    data: Need = "pruning set"
    labels: bool = True
    batch: int | None = None
    weight_agnostic: bool = False
    draws: bool = False
    regrow: bool = False
    returns_weights: bool = False
    homogeneous: bool = False
    splits: bool = False
    from_recipe: Mapping[str, str] = field(default_factory=dict)
    agree: Callable[..., None] | None = None
    pruner: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if (self.score is None) == (self.pruner is None):
            raise InputError(f"method {self.name!r} must have either a score or a pruner")
        if self.data not in get_args(Need):
            raise unknown("need for data", self.data, get_args(Need))

    @property
    def data_free(self) -> bool:
        """Whether it needs no data."""
        return self.data == "none"

    @property
    def streams(self) -> bool:
        """Whether it takes its batches one by one, in epochs, and never holds them all."""
        return self.data == "training set"

    @property
    def trains(self) -> bool:
        """Whether it trains the network, with whatever trains it afterwards, see `ntksap.pruning.Train`."""
        return self.data == "training"

    def rounds_at(self, density: float) -> int:
        """Return the default number of rounds to a final density.

        >>> method_named("imp").rounds_at(0.8**4), method_named("snip").rounds_at(0.1)
        (4, 1)
        """
        if self.rate is None:
            return self.rounds
        return max(1, math.ceil(math.log(density) / math.log(1 - self.rate) - 1e-9))

    @property
    def iterative(self) -> bool:
        """Whether it scores again after removing some weights."""
        return self.rounds > 1

    @property
    def options(self) -> dict[str, Option]:
        """The options of the function, from its own signature."""
        function = self.pruner or self.score
        assert function is not None
        return options_of(function)

    def checked(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return these options; raise unless the method has them all, they are in range and agree."""
        own = self.options
        for name in options:
            if name not in own:
                has = ", ".join(own) or "none"
                raise InputError(f"method {self.name!r} has no option {name!r}; its options: {has}")
        found = {name: own[name].checked(value) for name, value in options.items()}
        if self.agree is not None:
            self.agree(**{name: option.default for name, option in own.items()} | found)
        return found

    def with_options(self, options: Mapping[str, Any]) -> Score:
        """Return the score function with its options filled in, see `checked`."""
        if self.score is None:
            raise InputError(f"method {self.name!r} has no score of its own: it prunes in a loop of its own")
        return partial(self.score, **self.checked(options))

    def pruner_with(self, options: Mapping[str, Any]) -> Pruner:
        """Return the whole pruning with the method's options filled in, see `checked`."""
        if self.pruner is None:
            return partial(prune_rounds, score=self.with_options(options), regrow=self.regrow)
        return partial(self.pruner, **self.checked(options))


def register(method: Method) -> Method:
    """Add a method to the table; a name that is taken is an error."""
    if method.name in METHODS:
        raise InputError(f"a method named {method.name!r} is already registered")
    METHODS[method.name] = method
    return method


def method_named(name: str) -> Method:
    """Return the method of that name; an unknown name answers with the known ones."""
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]
