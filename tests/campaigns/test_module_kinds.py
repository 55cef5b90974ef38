import pytest

from tests.campaigns.module_kinds import all_kinds, main


@pytest.mark.slow
def test_every_method_is_right_on_every_kind_of_module_or_refuses_it_with_a_sentence(capsys):
    assert len(all_kinds()) >= 60
    counts = main([])
    assert counts["silent difference"] == counts["traceback"] == counts["unexpected"] == 0, capsys.readouterr().out
