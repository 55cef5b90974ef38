"""Run folders made by real runs: finished ones of two methods and two seeds, a failed one, an interrupted one."""

import shutil
from pathlib import Path

import pytest
import torch

from ntksap._base.errors import NtksapError
from ntksap.runs.execution import run
from ntksap.runs.folder import Place, Progress
from tests.runs.small_runs import small_settings


def _stop_after_first_epoch(progress: Progress) -> None:
    if progress.stage == "train":
        raise KeyboardInterrupt


@pytest.fixture(scope="session")
def real_runs(tmp_path_factory):
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("sample")
    grid = [("synflow", 0.5), ("synflow", 0.9), ("random", 0.5), ("random", 0.9), ("dense", 0.0)]
    for method, sparsity in grid:
        for seed in (0, 1):
            run(small_settings(method, epochs=2, sparsity=sparsity, seed=seed), root / "runs")
    with pytest.raises(NtksapError):
        run(small_settings("snip", epochs=2, data="cifar10"), root / "runs", Place(data_dir=root / "nowhere"))
    with pytest.raises(KeyboardInterrupt):
        run(small_settings("magnitude", epochs=2), root / "runs", on_progress=_stop_after_first_epoch)
    return root


@pytest.fixture
def sample(real_runs, tmp_path):
    """A copy of the real runs that a test may damage."""
    return Path(shutil.copytree(real_runs, tmp_path / "sample"))
