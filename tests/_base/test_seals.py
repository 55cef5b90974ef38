import json

import pytest

from ntksap._base.errors import DamageError
from ntksap._base.seals import read_sealed, sealed, unsealed, write_sealed

VALUES = {"top1": 0.1, "layers": [{"name": "a", "kept": 3}], "none": None, "text": "ä\n", "flag": True}


def test_what_was_sealed_comes_back():
    assert unsealed(json.loads(json.dumps(sealed(VALUES)))) == VALUES
    assert unsealed(sealed({})) == {}


def test_what_was_never_sealed_is_taken_as_it_is():
    assert unsealed(VALUES) == VALUES


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    path = tmp_path / "values.json"
    write_sealed(path, VALUES)
    content = path.read_bytes()
    errors = []
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            assert read_sealed(path) == VALUES  # a blank more or less, or the case of a digit in \u00e4
        except DamageError as error:
            errors.append(str(error))
    assert len(errors) > 0.8 * 8 * len(content)
    assert all("values.json is damaged" in error for error in errors)


@pytest.mark.parametrize("content", ["", "[]", "3", "null", "{", "[" * 100_000, '{"sha256": "x"}', '{"sha256": 3}'])
def test_what_is_no_object_or_has_another_hash_is_damaged(tmp_path, content):
    (tmp_path / "values.json").write_text(content)
    with pytest.raises(DamageError, match="Remove it"):
        read_sealed(tmp_path / "values.json")
