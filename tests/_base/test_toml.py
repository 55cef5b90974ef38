import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ntksap._base import toml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

simple = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text())
values = st.one_of(simple, st.lists(simple, max_size=3))
tables = st.recursive(
    st.dictionaries(st.text(), values, max_size=4),
    lambda inner: st.dictionaries(st.text(), st.one_of(values, inner)),
    max_leaves=8,
)


@given(tables)
def test_what_is_written_is_read_back(table):
    assert tomllib.loads(toml.dumps(table)) == table


def test_what_toml_cannot_say_is_an_error():
    with pytest.raises(TypeError, match="NoneType"):
        toml.dumps({"nothing": None})
