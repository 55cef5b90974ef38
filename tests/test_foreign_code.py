"""Nothing that a file says is imported or called."""

import sys
from pathlib import Path

import pytest
import torch

import ntksap
from ntksap import Masks, models
from ntksap._base.machine import peak_memory_mib
from ntksap.cli import main

TRAP = "from pathlib import Path\nPath('sprung').write_text('')\n\ndef factory():\n    Path('called').write_text('')\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a module that leaves traces when it is imported or called."""
    (tmp_path / "trap.py").write_text(TRAP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("trap", None)


def saved(path: Path, **info: object) -> str:
    model = models.build("lenet-300-100", input_shape=(1, 8, 8))
    masks = ntksap.prune(model, 0.5, "magnitude", input_shape=(1, 8, 8))
    Masks(masks, {"model": "lenet-300-100", "input_shape": [1, 8, 8], "classes": 10, "seed": 0, **info}).save(path)
    return str(path)


def failure(capsys, *arguments: str) -> str:
    assert main(arguments) == 1
    return " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("name", ["trap:factory", "trap:nothing", "os:getcwd", ":", "trap:factory:more"])
def test_code_that_a_mask_file_names_is_not_touched(place, capsys, name):
    message = failure(capsys, "diagnose", saved(place / "masks", model=name), "--no-kernel")
    assert f"says that its model is '{name}', which is not in the table" in message
    assert "If it is your own, and you trust it, add --model" in message
    assert {path.name for path in place.iterdir()} == {"trap.py", "masks"}


def test_a_name_in_a_file_cannot_steer_the_terminal(place, capsys):
    file = saved(place / "masks", model="\x1b[31m[bold]a:b")
    assert main(["diagnose", file]) == 1
    printed = capsys.readouterr().err
    assert "\x1b" not in printed
    assert "[bold]a:b" in printed


def test_the_users_own_model_is_still_called(place, capsys):
    file = saved(place / "masks", model="trap:factory")
    message = failure(capsys, "diagnose", file, "--model", "trap:factory", "--no-kernel")
    assert "trap:factory returned NoneType, not an nn.Module" in message
    assert (place / "called").exists()


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"model": 3}, "its model is '3', which is not in the table. Say which it is: --model NAME"),
        ({"model": ["resnet20"]}, "which is not in the table"),
        ({"model": "x" * 300}, "which is not in the table"),
        ({"classes": 10**12}, "no usable number of classes"),
        ({"classes": "ten"}, "no usable number of classes"),
        ({"classes": 99}, "these masks are for another model"),
        ({"input_shape": [1, 10**6, 8]}, "no usable shape of one input"),
        ({"input_shape": "abc"}, "no usable shape of one input"),
        ({"input_shape": [1, 8]}, "--input-shape of the table's models is C H W"),
        ({"input_shape": [4096, 4096, 4096]}, "these masks are for another model"),
        ({"seed": "zero"}, "no usable seed"),
        ({"seed": None}, "no usable seed"),
        ({"seed": -1}, "no usable seed"),
    ],
)
def test_absurd_facts_of_a_mask_file_are_sentences(tmp_path, capsys, info, message):
    assert message in failure(capsys, "diagnose", saved(tmp_path / "masks", **info), "--no-kernel")


def test_what_a_mask_file_says_of_its_model_is_used(tmp_path, capsys):
    file = saved(tmp_path / "masks")
    assert main(["diagnose", file, "--no-kernel", "--picture", str(tmp_path / "layers.svg")]) == 0
    assert (tmp_path / "layers.svg").exists()
    assert "kind of picture 'odd'" in failure(capsys, "diagnose", file, "--no-kernel", "--picture", "layers.odd")
    assert "cannot write" in failure(capsys, "diagnose", file, "--no-kernel", "--picture", "/proc/layers.png")


def test_the_model_is_not_built_before_the_masks_are_known_to_fit(tmp_path, capsys):
    """4096 × 4096 inputs of a fully connected net would be 20 GB of weights."""
    before = peak_memory_mib()
    file = saved(tmp_path / "masks", input_shape=[1, 4096, 4096])
    assert "these masks are for another model" in failure(capsys, "diagnose", file, "--no-kernel")
    assert peak_memory_mib() < before + 500
    assert torch.get_default_device() == torch.device("cpu")
