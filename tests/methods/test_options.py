"""The options of methods: what each takes is stated once, and checked wherever they are given."""

import math

import pytest

import ntksap
from ntksap.methods import METHODS
from tests.cases import BY_NAME

OPTIONS = [(name, option) for name, method in METHODS.items() for option in method.options.values()]


@pytest.mark.parametrize(("method", "option"), OPTIONS, ids=lambda one: getattr(one, "name", one))
def test_an_option_takes_its_default_and_no_value_that_is_no_such_thing(method, option):
    assert METHODS[method].checked({option.name: option.default}) == {option.name: option.default}
    for wrong in (None, "many", [], math.nan, math.inf, -math.inf, *([] if option.type is bool else [True])):
        with pytest.raises(ntksap.InputError, match=f"^{option.name} is "):
            METHODS[method].checked({option.name: wrong})


@pytest.mark.parametrize(
    ("method", "option"), [one for one in OPTIONS if one[1].type in (int, float)], ids=lambda o: getattr(o, "name", o)
)
def test_every_number_has_a_range_and_nothing_below_it_is_taken(method, option):
    with pytest.raises(ntksap.InputError, match=f"^{option.name} is "):
        METHODS[method].checked({option.name: -1})


def test_options_are_checked_before_anything_is_computed():
    case = BY_NAME["no-bias"]

    def inputs(size, generator):
        raise AssertionError("inputs were drawn")

    for places in ("score", "random"):
        with pytest.raises(ntksap.InputError, match="draws is a whole number of at least 1, not 0"):
            ntksap.prune(case.module(), 0.5, "ntk-sap", draws=0, places=places, inputs=inputs)
