"""SIGKILL at random moments: whatever was under way ends in the same bits when the same command is given again."""

import csv
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest
import torch

from ntksap import Masks
from ntksap.runs import Place, Settings, prune_only
from tests.runs.small_runs import carry_out, outcome, small_settings

pytestmark = pytest.mark.slow

NTT = {"rounds": 6, "options": {"epoch_steps": 3, "kernel": "projected", "projections": 2}}
TRAININGS = {
    "train synflow": small_settings(rounds=8),
    "train dense": small_settings("dense"),
    "train ntk-sap": small_settings("ntk-sap", rounds=8),
    "train force": small_settings("force", rounds=8),
    "train ntt": small_settings("ntt", **NTT),
}
MASKS = {"prune ntk-sap": small_settings("ntk-sap", rounds=40), "prune ntt": small_settings("ntt", **NTT)}


@pytest.fixture(scope="module")
def processes():
    """Processes that are forked from one that has imported everything, so that kills hit work and not imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ntksap.runs", "sklearn.datasets", "tests.runs.small_runs", __name__])
    return context


def prune_alone(settings: Settings, root: Path) -> None:
    torch.set_num_threads(1)
    prune_only(settings, root, Place(), lambda progress: None, input_shape=(1, 8, 8), classes=10)


def masks_of(folder: Path) -> str:
    from ntksap.runs.folder import read_result

    result = read_result(folder)
    assert result is not None
    return result["mask_sha256"]


def kill_until(kills, start, end, found, root, expected, longest, moments):
    """Start, kill, start again … until so many kills; whenever one gets to its end, compare, and begin anew."""
    counts: Counter[str] = Counter(kills=0, finished=0, differences=0)
    while counts["kills"] < kills:
        process = start()
        if end(process, moments.uniform(0.0, longest)):
            counts["finished"] += 1
            counts["differences"] += found() != expected
            shutil.rmtree(root)
        else:
            counts["kills"] += 1
    assert end(start(), None)
    counts["finished"] += 1
    counts["differences"] += found() != expected
    return counts


@pytest.mark.parametrize("name", [*TRAININGS, *MASKS])
def test_kills_of_a_run(name, tmp_path, processes, tell):
    settings = {**TRAININGS, **MASKS}[name]
    target, look = (carry_out, outcome) if name in TRAININGS else (prune_alone, masks_of)
    root = tmp_path / "runs"

    def start(where: Path = root):
        process = processes.Process(target=target, args=(settings, where))
        process.start()
        return process

    def end(process, seconds: float | None) -> bool:
        process.join(seconds)
        if process.exitcode is None:
            process.kill()
            process.join()
            return False
        assert process.exitcode == 0
        return True

    for index in range(2):  # the second time the fork server is there already
        began = time.perf_counter()
        assert end(start(tmp_path / f"whole{index}"), None)
        seconds = time.perf_counter() - began
    expected = look(tmp_path / "whole0" / settings.name)
    assert look(tmp_path / "whole1" / settings.name) == expected
    found = partial(look, root / settings.name)
    counts = kill_until(8, start, end, found, root, expected, 0.7 * seconds, random.Random(name))
    tell(counts)
    assert counts["differences"] == 0
    left = {path.name for path in (root / settings.name).iterdir()}
    assert not [file for file in left if file.startswith(".part-") or file == "error.json"]


def command(*arguments: str) -> subprocess.Popen[bytes]:
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "ntksap", *arguments]
    return subprocess.Popen(line, **quiet, env=environment, start_new_session=True)  # type: ignore[call-overload]


def end_of_command(process: subprocess.Popen[bytes], seconds: float | None, *, alone: bool = False) -> bool:
    """Wait; kill the process with its workers, or it alone, if that takes longer. Whether it ended by itself."""
    try:
        assert process.wait(seconds) == 0
    except subprocess.TimeoutExpired:
        (process.kill if alone else partial(os.killpg, process.pid, signal.SIGKILL))()
        process.wait()
        while alone and _group_lives(process.pid):  # its workers notice that they are orphans and go
            time.sleep(0.05)
        return False
    return True


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("alone", [False, True], ids=["with workers", "the sweep alone"])
def test_kills_of_compare_with_two_jobs(alone, tmp_path, tell):
    grid = ["--model", "lenet-300-100", "--methods", "random,synflow", "--sparsities", "0.5,0.9", "--epochs", "6"]

    def start(out: Path = tmp_path / "out"):
        return command("compare", *grid, "--no-channels-last", "--jobs", "2", "--out", str(out))

    def found(out: Path = tmp_path / "out"):
        folders = sorted(path.parent for path in out.glob("runs/*/result.json"))
        lines = csv.DictReader((out / "table.csv").read_text().splitlines())
        table = [{key: value for key, value in line.items() if not key.endswith("_seconds")} for line in lines]
        return {folder.name: outcome(folder) for folder in folders}, table

    began = time.perf_counter()
    assert end_of_command(start(tmp_path / "whole"), None)
    seconds = time.perf_counter() - began
    expected = found(tmp_path / "whole")
    assert len(expected[0]) == 5
    end = partial(end_of_command, alone=alone)
    counts = kill_until(4, start, end, found, tmp_path / "out", expected, 0.9 * seconds, random.Random(alone))
    tell(counts)
    assert counts["differences"] == 0


def test_kills_of_the_prune_command(tmp_path, tell):
    def start(out: Path = tmp_path / "out"):
        how = ["--method", "synflow", "--rounds", "400", "--sparsity", "0.9"]
        return command("prune", "--model", "lenet-300-100", *how, "--out", str(out))

    def found(out: Path = tmp_path / "out"):
        masks = Masks.load(out / "masks.safetensors")
        return masks.sha256, {key: value for key, value in masks.info.items() if key != "seconds"}

    began = time.perf_counter()
    assert end_of_command(start(tmp_path / "whole"), None)
    seconds = time.perf_counter() - began
    expected = found(tmp_path / "whole")

    def end(process, limit: float | None) -> bool:
        ended = end_of_command(process, limit)
        if not ended and (tmp_path / "out").exists():  # killed after its last act: the folder is there as a whole
            assert found() == expected
            shutil.rmtree(tmp_path / "out")
        return ended

    counts = kill_until(6, start, end, found, tmp_path / "out", expected, seconds, random.Random(0))
    tell(counts)
    assert counts["differences"] == 0
