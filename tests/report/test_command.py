import json

import pytest
import tyro

from ntksap._base.errors import InputError
from ntksap.cli.report import run_report
from tests.report.pages import Page


def test_the_command_writes_the_page_into_the_folder_and_says_where(sample, capsys):
    tyro.cli(run_report, args=[str(sample)])
    printed = capsys.readouterr().out
    assert printed == f"12 runs (10 finished, 1 failed, 1 unfinished). The report is {sample / 'report.html'}\n"
    assert Page(sample / "report.html").count("h1") == 1


def test_the_command_prints_json(sample, tmp_path, capsys):
    out = tmp_path / "[page].html"
    tyro.cli(run_report, args=[str(sample), "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out) == {
        "report": str(out), "runs": 12, "finished": 10, "failed": 1, "unfinished": 1, "damaged": 0,
    }  # fmt: skip
    assert out.exists()
    assert not (sample / "report.html").exists()


def test_the_command_refuses_a_folder_without_runs(tmp_path):
    with pytest.raises(InputError, match="no runs here"):
        tyro.cli(run_report, args=[str(tmp_path)])
