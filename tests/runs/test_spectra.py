import json
import math

import numpy as np
import pytest
import torch

import ntksap
from ntksap.cli import main
from ntksap.data import load
from ntksap.runs.execution import run
from ntksap.runs.folder import Place
from ntksap.runs.settings import read_settings
from tests.runs.small_runs import small_settings


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    root = tmp_path_factory.mktemp("during")
    settings = small_settings(epochs=3)
    result = run(settings, root, Place(keep_epochs=(0, 2, 3)))
    return root / settings.name, settings, result


def test_training_keeps_the_checkpoints_it_is_asked_for(trained):
    folder, settings, _ = trained
    assert sorted(path.name for path in folder.glob("epoch-*")) == [f"epoch-000{n}.safetensors" for n in (0, 2, 3)]
    assert (folder / "epoch-0003.safetensors").read_bytes() == (folder / "checkpoint.safetensors").read_bytes()
    assert read_settings(folder / "settings.toml") == settings


def test_spectra_during_training(trained, tmp_path, capsys):
    folder, settings, _ = trained
    arguments = ["spectrum", "--during", str(folder), "--inputs", "4", "--dtype", "float64"]
    assert main([*arguments, "--out", str(tmp_path / "out"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["epoch"] for one in found["epochs"]] == [0, 2, 3]
    assert found["epochs"][0]["distance"] == 0 < found["epochs"][1]["distance"]
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"during.json", "during.png", "during.svg"}

    # the first one by itself: the initial weights under the masks
    model = ntksap.models.build("lenet-300-100", input_shape=(1, 8, 8), seed=settings.seed)
    masks = ntksap.Masks.load(folder / "masks.safetensors")
    images, _ = next(load("digits").test.batches(4))
    kernel = ntksap.ntk(model, images, masks, dtype=torch.float64)
    first = found["epochs"][0]
    assert first["eigenvalues"] == pytest.approx(kernel.eigenvalues.tolist(), rel=1e-5)
    smallest = np.sort(first["eigenvalues"])[: math.ceil(0.1 * 40)].mean()
    assert first["relative_eigenvalues"] == pytest.approx(np.array(first["eigenvalues"]) / smallest)

    assert main(arguments) == 0
    assert "distance from the first" in " ".join(capsys.readouterr().out.split())


def test_a_run_without_checkpoints_and_what_is_no_run(tmp_path, capsys):
    settings = small_settings(epochs=1)
    run(settings, tmp_path)
    assert main(["spectrum", "--during", str(tmp_path / settings.name)]) == 1
    assert "--keep-epochs" in capsys.readouterr().err
    assert main(["spectrum", "--during", str(tmp_path)]) == 1
    assert "settings of a run" in " ".join(capsys.readouterr().err.split())
