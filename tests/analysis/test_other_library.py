"""The kernel against neural-tangents, which shares no code with this library, nor with torch."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ntksap.analysis.tangent_kernel import ntk
from ntksap.net.prunable import prunable_names
from tests.analysis.kernels import setting

PYTHON = Path(__file__).parents[2] / ".venv-neural-tangents" / "bin" / "python"
SCRIPT = Path(__file__).parent / "other" / "neural_tangents_kernel.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (PYTHON.parents[1] / ".installed").exists(),
        reason="needs the environment that `make .venv-neural-tangents/.installed` makes",
    ),
]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 8, bias=False), nn.Tanh(), nn.Linear(8, 3))


def strided() -> nn.Module:
    """Stride 2 over an odd height and an even width, and padding beyond half the kernel."""
    return nn.Sequential(
        nn.Conv2d(2, 5, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(5, 4, 3, padding=2, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(4 * 6 * 5, 3),
    )


def residual() -> nn.Module:
    """A shortcut around a BatchNorm that has seen some training."""
    return setting("residual")[0].eval()


NETS = {"mlp": (mlp, (7,)), "strided": (strided, (2, 7, 6)), "residual": (residual, (2, 5, 5))}


@pytest.mark.parametrize("density", [1.0, 0.5])
@pytest.mark.parametrize("name", NETS)
def test_the_kernel_is_that_of_neural_tangents(name, density, tmp_path):
    make, shape = NETS[name]
    torch.manual_seed(4)
    module = make().double()
    inputs = torch.randn(5, *shape, dtype=torch.float64)
    parameters = dict(module.named_parameters())
    masks = {n: torch.rand(parameters[n].shape) < density for n in prunable_names(module)}
    np.savez(
        tmp_path / "problem.npz",
        net=name,
        inputs=inputs,
        **{n: tensor.detach().numpy() for n, tensor in module.state_dict().items()},
        **{f"mask/{n}": mask.numpy() for n, mask in masks.items()},
    )
    done = subprocess.run(
        [PYTHON, SCRIPT, tmp_path / "problem.npz", tmp_path / "answer.npz"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    answer = np.load(tmp_path / "answer.npz")
    assert set(answer) == {"JACOBIAN_CONTRACTION", "NTK_VECTOR_PRODUCTS"}
    found = ntk(module, inputs, masks).matrix
    assert found.abs().max() > 0.1
    for matrix in answer.values():
        torch.testing.assert_close(found, torch.from_numpy(matrix), rtol=1e-10, atol=1e-12 * float(found.abs().max()))
