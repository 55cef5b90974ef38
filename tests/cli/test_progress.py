"""Progress where there is no terminal: lines on stderr, and silence with --quiet."""

import json
import re

import pytest

from ntksap.cli import main, progress
from ntksap.cli.progress import Clock
from tests.paper.small_plans import small_plan

TRAIN = ["train", "--model", "lenet-300-100", "--method", "synflow", "--rounds", "3", "--epochs", "3"]


@pytest.fixture
def clock(monkeypatch):
    """Time that stands still until it is told to go on."""

    class Time:
        now = 100.0

        def monotonic(self) -> float:
            return self.now

    time = Time()
    monkeypatch.setattr(progress, "time", time)
    return time


def lines(capsys) -> list[str]:
    return capsys.readouterr().err.splitlines()


def test_training_prints_a_line_per_epoch_with_the_time_left(tmp_path, capsys):
    assert main([*TRAIN, "--out", str(tmp_path), "--json"]) == 0
    printed = capsys.readouterr()
    json.loads(printed.out)
    shown = [line for line in printed.err.splitlines() if line.startswith("train: ")]
    assert [re.match(r"train: epoch (\d)/3, test accuracy \d+\.\d\d%", line)[1] for line in shown] == ["1", "2", "3"]
    assert all(line.endswith(" left") for line in shown[:2])
    assert any(line.startswith("prune: round 3/3, density 10 %") for line in printed.err.splitlines())


@pytest.mark.parametrize(
    "command",
    [
        ["prune", "--model", "lenet-300-100", "--method", "synflow", "--rounds", "3"],
        ["spectrum", "--model", "lenet-300-100", "--methods", "random", "--inputs", "2", "--memory-mib", "1"],
        ["cost", "--model", "lenet-300-100", "--methods", "random", "--sparsities", "0.5"],
        [*TRAIN, "--epochs", "1"],
        ["compare", "--model", "lenet-300-100", "--methods", "random", "--epochs", "1", "--jobs", "1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_takes_time_tells_how_far_it_is_unless_it_is_to_be_quiet(command, tmp_path, capsys):
    where = ["--out", str(tmp_path / "a")], ["--out", str(tmp_path / "b")]
    assert main([*command, *where[0]]) == 0
    assert re.search(r"(round|net|mask|epoch) \d+/\d+", capsys.readouterr().err)
    assert main([*command, *where[1], "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_reproduce_tells_how_far_it_is_unless_it_is_to_be_quiet(tmp_path, capsys):
    body = 'steps = [2]\nseeds = [0]\nrows = [{ method = "synflow", rounds = 3 }]\n'
    plan = str(small_plan(tmp_path, "inference-flops", body))
    assert main(["reproduce", plan, "--out", str(tmp_path / "a"), "--jobs", "1"]) == 0
    shown = lines(capsys)
    assert any(re.match(r"synflow 36\.00% seed 0: prune: round 3/3", line) for line in shown)
    assert any(re.match(r"1/1 synflow 36\.00% seed 0: .*, 0 s left", line) for line in shown)
    assert main(["reproduce", plan, "--out", str(tmp_path / "b"), "--jobs", "1", "--quiet"]) == 0
    assert lines(capsys) == []


def test_fast_rounds_are_told_about_once_a_second_and_the_last_one_always(clock, capsys):
    with progress.Display() as display:
        for done in range(1, 41):
            clock.now += 0.1
            display.on_progress(progress.Progress("prune", done, 40, "round", density=1 / done))
    shown = [int(re.search(r"round (\d+)/40", line)[1]) for line in lines(capsys)]
    assert shown[0] == 1
    assert shown[-1] == 40
    assert 4 <= len(shown) <= 6


def test_time_left_goes_by_what_was_done_here(clock):
    times = Clock()
    clock.now += 10
    assert times.left("train", 101, 160) == 10 * 59  # resumed after 100 epochs: one was done since the beginning
    clock.now += 20
    assert times.left("train", 102, 160) == 15 * 58
    assert times.left("other", 0, 5) is None
    clock.now += 2
    assert times.left("other", 1, 5) == 2 * 4
