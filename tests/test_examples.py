"""The scripts in examples/ run, learn, and keep their masks."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

import ntksap

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_example_is_tested_here():
    text = Path(__file__).read_text()
    assert all(f'example("{path.stem}")' in text for path in EXAMPLES.glob("*.py"))


def test_a_plain_loop():
    found = example("plain_loop").main(epochs=5)
    assert found["accuracy"] > 0.85
    assert found["model holds"]
    assert found["average holds"]


def test_what_a_comparison_gained(tmp_path, capsys):
    how = {"recipe_settings": {"epochs": 1}, "seeds": (0, 1), "out": tmp_path, "jobs": 1}
    ntksap.compare("lenet-300-100", "digits", ["magnitude", "random"], [0.5, 0.9], **how)
    found = example("gain").main(tmp_path, "magnitude", 0.9)
    assert found["share"] < 0.2
    assert found["speed-up"] > 0
    *_, sentence, last = capsys.readouterr().out.strip().split("\n")
    assert sentence.startswith("What was gained: magnitude, before training, kept 5,020 of 50,200 weights (10.0%)")
    assert "mean ± std of 2 seeds, 360 test images each (equally sparse: random " in sentence
    assert last == f"The report, one page to open in a browser, is {tmp_path / 'report.html'}"
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_the_trainer_of_transformers(tmp_path):
    pytest.importorskip("transformers", reason="needs the extra `transformers`, which `make test-slow` installs")
    found = example("hugging_face_trainer").main(tmp_path, epochs=6)
    assert found["accuracy"] > 0.6
    assert found["model holds"]
    assert found["saved model holds"]
    assert found["steps"] == 6 * 23  # of the first three epochs none was repeated


@pytest.mark.slow
def test_lightning_fabric():
    pytest.importorskip("lightning_fabric", reason="needs the extra `fabric`, which `make test-slow` installs")
    found = example("fabric_loop").main()
    assert found["accuracy"] > 0.8
    assert found["model holds"]
