"""The scripts in examples/ run, learn, and keep their masks."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

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
