"""A run belongs to the kernels that it began with: with others it would end in other bits."""

from dataclasses import replace

import pytest

from ntksap import InputError
from ntksap.net.kernels import library
from ntksap.runs.execution import run
from ntksap.runs.folder import Place
from ntksap.runs.settings import read_kernels
from ntksap.training import train
from ntksap.training.checkpoint import CheckpointError
from ntksap.training.kernels import TrainingKernels
from tests.runs.small_runs import small_settings
from tests.training.small_training import RECIPE, digits, same_bits, state_of

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")

SETTINGS = small_settings(epochs=2, rounds=3)


def without_kernels(monkeypatch):
    monkeypatch.setattr("ntksap.net.kernels.compiler.library", lambda: None)


def interrupt(root, stage, place=None):
    """Begin the run, and stop it after its first round or epoch."""

    def stop(progress):
        if progress.stage == stage:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(SETTINGS, root, place, stop)
    return root / SETTINGS.name


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("error.json", "lock")}


@pytest.mark.parametrize("stage", ["prune", "train"])
def test_a_run_is_not_resumed_with_other_kernels_unless_the_user_insists(tmp_path, monkeypatch, stage):
    folder = interrupt(tmp_path, stage)
    before = contents(folder)
    with monkeypatch.context() as patch:
        without_kernels(patch)
        with pytest.raises(InputError, match=r"of ntksap and torch .* insist with --other-kernels"):
            run(SETTINGS, tmp_path)
        assert contents(folder) == before
        result = run(SETTINGS, tmp_path, Place(other_kernels=True))
    assert result["versions"]["kernels"] == "ntksap and torch, then torch" == read_kernels(folder / "settings.toml")


def test_a_run_is_resumed_with_the_kernels_it_began_with(tmp_path):
    interrupt(tmp_path, "train")
    assert run(SETTINGS, tmp_path)["versions"]["kernels"] == "ntksap and torch"


def test_after_a_change_the_later_kernels_count(tmp_path, monkeypatch):
    folder = interrupt(tmp_path, "prune")
    with monkeypatch.context() as patch:
        without_kernels(patch)
        interrupt(tmp_path, "prune", Place(other_kernels=True))
        assert read_kernels(folder / "settings.toml") == "ntksap and torch, then torch"
    with pytest.raises(InputError, match="began with the kernels of ntksap and torch, then torch"):
        run(SETTINGS, tmp_path)


def test_a_folder_that_does_not_say_is_resumed(tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingKernels, "provenance", lambda self: None)  # as checkpoints were written before
    folder = interrupt(tmp_path, "train")
    monkeypatch.undo()
    text = (folder / "settings.toml").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("kernels")]
    assert len(lines) == len(text.splitlines()) - 1
    (folder / "settings.toml").write_text("\n".join(lines))
    without_kernels(monkeypatch)
    assert run(SETTINGS, tmp_path)["versions"]["kernels"] == "torch"


def test_a_run_that_got_nowhere_may_begin_with_other_kernels(tmp_path, monkeypatch):
    elsewhere = small_settings(data="cifar10", model="resnet20")
    for _ in range(2):
        with pytest.raises(ValueError, match="cifar10"):
            run(elsewhere, tmp_path, Place(data_dir=tmp_path / "nothing"))
        without_kernels(monkeypatch)
    assert read_kernels(tmp_path / elsewhere.name / "settings.toml") == "torch"


def test_a_checkpoint_is_not_loaded_with_other_kernels_unless_the_user_insists(tmp_path, monkeypatch):
    saved, loaded = state_of(), state_of()
    next(train(saved, digits()))
    saved.save(tmp_path / "ours")
    without_kernels(monkeypatch)
    with pytest.raises(CheckpointError, match=r"kernels of ntksap and torch; those here are of torch"):
        loaded.load(tmp_path / "ours")
    assert loaded.epoch == 0
    loaded.load(tmp_path / "ours", other_kernels=True)
    assert loaded.epoch == 1
    assert same_bits(loaded.model, saved.model)


def test_kernels_do_not_matter_to_a_training_that_uses_torchs(tmp_path, monkeypatch):
    recipe = replace(RECIPE, precision="bf16")
    saved, loaded = state_of(recipe), state_of(recipe, init=1)
    saved.save(tmp_path / "bf16")
    without_kernels(monkeypatch)
    assert not same_bits(loaded.model, saved.model)
    loaded.load(tmp_path / "bf16")
    assert same_bits(loaded.model, saved.model)
