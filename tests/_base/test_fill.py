"""Tables become checked dataclasses: right types, known keys, nothing missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from ntksap._base import InputError, check_value, fill


@dataclass(frozen=True)
class Inner:
    size: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    lr: float
    inner: Inner
    mode: Literal["a", "b"] = "a"
    shape: tuple[int, int] = (0, 0)
    rounds: int | None = None
    flag: bool = False
    parts: tuple[Inner, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict)


GOOD = {"lr": 1, "inner": {"size": 3, "names": ["x"]}}


def test_values_become_what_the_annotations_say():
    more = {"shape": [1, 2], "rounds": 3, "parts": [{"size": 1}, Inner(2)], "numbers": {"row": [1, 2.5]}}
    found = fill(Outer, {**GOOD, **more, "options": {"any": [1, "x"]}}, "a thing")
    assert found == Outer(
        1.0, Inner(3, ("x",)), "a", (1, 2), 3, False, (Inner(1), Inner(2)), {"any": [1, "x"]}, {"row": [1.0, 2.5]}
    )
    assert isinstance(found.lr, float)
    assert isinstance(found.numbers["row"][0], float)
    assert fill(Outer, {**GOOD, "rounds": None}, "a thing").rounds is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": True}, "lr of a thing is float, not True"),
        ({"lr": "1"}, "lr of a thing is float, not '1'"),
        ({"inner": {"size": 1.0}}, "size of inner of a thing is int, not 1.0"),
        ({"inner": {"size": 1, "nams": []}}, "unknown setting of inner of a thing 'nams'. Did you mean 'names'?"),
        ({"inner": {}}, "inner of a thing lacks size"),
        ({"inner": 3}, "inner of a thing is Inner, not 3"),
        ({"mode": "c"}, "mode of a thing is one of a, b, not 'c'"),
        ({"shape": [1]}, "shape of a thing is a list of 2, not [1]"),
        ({"shape": [1, "2"]}, "an entry of shape of a thing is int, not '2'"),
        ({"shape": "12"}, "shape of a thing is a list, not '12'"),
        ({"rounds": 1.5}, "rounds of a thing is int, not 1.5"),
        ({"flag": 1}, "flag of a thing is bool, not 1"),
        ({"options": 1}, "options of a thing is a table, not 1"),
        ({"numbers": {"row": ["x"]}}, "an entry of 'row' in numbers of a thing is float, not 'x'"),
        ({"lrr": 1}, "unknown setting of a thing 'lrr'. Did you mean 'lr'?"),
    ],
)
def test_what_does_not_fit_is_named(change, message):
    with pytest.raises(InputError) as error:
        fill(Outer, {**GOOD, **change}, "a thing")
    assert message in str(error.value)


def test_what_is_missing_is_named():
    with pytest.raises(InputError, match="a thing lacks lr, inner"):
        fill(Outer, {}, "a thing")


@pytest.mark.parametrize("value", [2, 0.5])
def test_of_several_types_a_value_keeps_its_own(value):
    found = check_value(value, int | float, "floor")
    assert (found, type(found)) == (value, type(value))


def test_numbers_beyond_all_bounds_are_refused():
    with pytest.raises(InputError, match="which is too large"):
        check_value(2**63, float, "lr")
