import shutil
import subprocess
import sys
from dataclasses import FrozenInstanceError, asdict
from pathlib import Path

import pytest

import ntksap
from ntksap._base.errors import InputError
from ntksap.training.recipe import Recipe, load_recipe, recipe_names

# Network and data set: epochs, batch, optimizer, momentum, lr, drops, weight decay, as printed in the paper's appendix.
PAPER = {
    "cifar10-resnet20": (160, 128, "sgd", 0.9, 0.1, (80, 120), 1e-4),
    "cifar100-vgg16": (160, 128, "nesterov", 0.9, 0.1, (60, 120), 5e-4),
    "tiny-imagenet-resnet18": (200, 256, "sgd", 0.9, 0.2, (100, 150), 1e-4),
    "imagenet-resnet18": (90, 512, "sgd", 0.9, 0.1, (30, 60, 80), 1e-4),
    "imagenet-resnet50": (90, 448, "sgd", 0.9, 0.1, (30, 60, 80), 1e-4),
}


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_recipes_are_the_papers_table(name):
    recipe = load_recipe(name)
    row = (
        recipe.epochs,
        recipe.batch,
        recipe.optimizer,
        recipe.momentum,
        recipe.lr,
        recipe.drops,
        recipe.weight_decay,
    )
    assert row == PAPER[name]
    assert (recipe.schedule, recipe.drop_factor, recipe.precision, recipe.augment) == (
        "step",
        10,
        "fp32",
        True,
    )


def test_the_shipped_recipes_are_those_of_the_paper_and_quick():
    assert {*PAPER, "quick"} <= set(recipe_names())
    quick = load_recipe("quick")
    assert (quick.schedule, quick.optimizer, quick.epochs, quick.weight_decay) == ("one-cycle", "nesterov", 10, 5e-4)


def test_overrides_replace_settings_and_nothing_else():
    changed = {"epochs": 3, "drops": [1, 2], "optimizer": "adamw", "lr": 1}
    assert asdict(load_recipe("cifar10-resnet20", changed)) == {
        **asdict(load_recipe("cifar10-resnet20")),
        **changed,
        "drops": (1, 2),
    }


def test_an_integer_is_fine_where_a_number_is_wanted_and_becomes_one():
    recipe = load_recipe("quick", {"lr": 1})
    assert isinstance(recipe.lr, float)


def test_a_recipe_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        load_recipe("quick").lr = 1.0


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file_of_ones_own_is_read(tmp_path, kind):
    path = tmp_path / "mine.toml"
    path.write_text('epochs = 2\nbatch = 8\nlr = 0.5\noptimizer = "adamw"\n')
    assert load_recipe(kind(path)) == Recipe(epochs=2, batch=8, lr=0.5, optimizer="adamw")


def test_an_unknown_name_answers_with_the_nearest_and_all_known_ones():
    with pytest.raises(InputError, match=r"'cifar10-resnet2'.*Did you mean 'cifar10-resnet20'\?.*imagenet-resnet50.*"):
        load_recipe("cifar10-resnet2")


def test_an_unknown_setting_in_a_file_names_file_setting_nearest_and_all_known_ones(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text("epochs = 2\nbatch = 8\nlr = 0.5\nweight_decai = 0.1\n")
    with pytest.raises(InputError, match=r"mine\.toml.* 'weight_decai'.*mean 'weight_decay'\?.*Known: augment, batch"):
        load_recipe(path)


def test_an_unknown_override_names_it_with_the_nearest_and_all_known_ones():
    with pytest.raises(InputError, match=r"'epoch'.*mean 'epochs'\?.*Known: augment, batch"):
        load_recipe("quick", {"epoch": 3})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("epochs", 1.5),
        ("epochs", True),
        ("epochs", "3"),
        ("lr", "0.1"),
        ("lr", False),
        ("drops", 3),
        ("drops", [1.5]),
        ("drops", "12"),
        ("compile", 1),
        ("optimizer", "adam"),
        ("optimizer", 3),
        ("precision", "fp16"),
    ],
)
def test_a_value_of_the_wrong_type_is_an_error_that_names_setting_and_value(setting, value):
    with pytest.raises(InputError, match=rf"{setting} of a recipe is .*{value!r}|an entry of {setting} .*1\.5"):
        load_recipe("cifar10-resnet20", {setting: value})


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("epochs", 0),
        ("batch", 0),
        ("lr", 0),
        ("lr", float("nan")),
        ("momentum", 1.0),
        ("weight_decay", -1e-4),
        ("drops", [5, 5]),
        ("drops", [7, 5]),
        ("drops", [0, 5]),
        ("drop_factor", 1),
        ("warmup", 1.0),
    ],
)
def test_a_value_out_of_range_is_an_error_that_names_the_setting(setting, value):
    with pytest.raises(InputError, match=f"{setting} of a recipe must be"):
        load_recipe("cifar10-resnet20", {setting: value})


@pytest.mark.parametrize(
    "settings", [{"schedule": "one-cycle", "drops": (1,)}, {"optimizer": "nesterov", "momentum": 0.0}]
)
def test_settings_that_contradict_each_other_are_an_error(settings):
    with pytest.raises(InputError, match="with"):
        Recipe(epochs=2, batch=8, lr=0.5, **settings)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"epochs = 2\nlr = 0.1", "lacks batch"), (b"epochs: 2", "TOML"), (b"\xff\xfe", "TOML")],
)
def test_a_file_that_is_no_recipe_is_an_error(tmp_path, content, message):
    (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(InputError, match=rf"mine\.toml.*{message}"):
        load_recipe(tmp_path / "mine.toml")


def test_a_missing_file_is_an_error():
    with pytest.raises(InputError, match=r"no/such\.toml"):
        load_recipe("no/such.toml")


def test_an_installed_package_has_its_recipes_beside_its_modules(tmp_path):
    package = Path(ntksap.__file__).parent
    shutil.copytree(package, tmp_path / "ntksap", ignore=shutil.ignore_patterns("__pycache__", "recipes"))
    (tmp_path / "ntksap" / "training" / "recipes").mkdir()
    (tmp_path / "ntksap" / "training" / "recipes" / "alone.toml").write_text("epochs = 2\nbatch = 8\nlr = 0.5\n")
    code = "from ntksap.training.recipe import *; print(recipe_names(), load_recipe('alone').lr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "['alone'] 0.5\n"
