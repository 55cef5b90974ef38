"""What ``ntksap compare`` prints, of runs made by hand."""

import pytest

from ntksap.cli import main
from ntksap.experiments import MethodComparison
from ntksap.report.experiments import experiments
from tests.report.finished_runs import seeds


@pytest.fixture
def compared(monkeypatch, capsys, tmp_path):
    def say(*runs):
        (one,) = experiments(runs)
        monkeypatch.setattr("ntksap.cli.compare.compare", lambda *_, **__: MethodComparison(one.table, [], {}))
        assert main(["compare", "--out", str(tmp_path)]) == 0
        return capsys.readouterr().out

    return say


def test_the_verdict_stands_below_the_table(compared):
    printed = compared(*seeds("snip", 0.9, 0.80, 0.82, 0.84), *seeds("grasp", 0.9, 0.83, 0.70, 0.75))
    assert (
        "90 % sparsity: no significant winner: snip has the highest mean, 82.00 ± 2.00 %, but the seeds do not tell it "
        "from grasp; grasp is 6.00 points behind (95 % interval −13.72 to 25.72, paired over 3 seeds)."
    ) in printed


def test_two_seeds_get_no_verdict(compared):
    printed = compared(*seeds("snip", 0.9, 0.80, 0.82), *seeds("grasp", 0.9, 0.7, 0.7))
    assert "is best" not in printed
    assert "fewer than 3 seeds in common cannot tell that from chance" in printed
