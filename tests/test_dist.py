"""What `make dist` builds, installed and used in a clean environment."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
USE = """
import torch, ntksap
model = ntksap.models.build("lenet-300-100")
masks = ntksap.prune(model, 0.9, "synflow", input_shape=(1, 28, 28), rounds=2)
masks.attach(model)
masks.save("masks.safetensors")
assert ntksap.Masks.load("masks.safetensors") == masks
print(ntksap.__version__, masks.kept)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_the_core_installs_and_works_by_itself(kind, tmp_path):
    built = list((ROOT / "dist").glob(kind))
    if not built:
        pytest.skip("there is no dist/: run make dist")
    python = tmp_path / "clean" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True)
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", "-q", "-c", ROOT / "constraints.txt"]
    subprocess.run([*pip, "torch", "hatchling"], check=True)  # hatchling builds the sdist; torch by the pinned version
    subprocess.run([*pip, "--no-build-isolation", *built], check=True)
    done = subprocess.run([python, "-c", USE], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [built[0].name.split("-")[1].removesuffix(".tar.gz"), "26620"]
    command = subprocess.run([python, "-m", "ntksap", "methods"], cwd=tmp_path, capture_output=True, text=True)
    assert command.returncode == 1
    assert "pip install 'ntksap[lab]'" in command.stderr
    assert "Traceback" not in command.stderr
