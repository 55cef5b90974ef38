"""Modules whose layers use the kernels cannot become a graph; they say so instead of ending the process."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

import ntksap
from ntksap.net.kernels import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


def pruned(density=0.1):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(128, 4)
    ).eval()
    masks = ntksap.prune(model, 1 - density, "random")
    masks.attach(model)
    return model, masks


RECORDERS = {
    "trace": lambda model, x: torch.jit.trace(model, x),
    "onnx": lambda model, x: torch.onnx.export(model, (x,), "never-written.onnx", dynamo=False),
    "export": lambda model, x: torch.export.export(model, (x,)),
    "fx": lambda model, x: torch.fx.symbolic_trace(model),
    "script": lambda model, x: torch.jit.script(model),
}


def record(density: float) -> None:
    """Print what is said about each."""
    model, masks = pruned(density)
    x = torch.randn(4, 3, 8, 8)
    for recorder in RECORDERS.values():
        with ntksap.sparse_kernels(model, masks):
            try:
                recorder(model, x)
            except ntksap.InputError as error:
                print(error)


@pytest.mark.parametrize("density", [0.1, 0.9])  # kernels for kept weights, and dense ones
def test_tracing_and_exporting_are_refused_in_a_sentence(density):
    code = f"import warnings; warnings.simplefilter('ignore'); import {__name__} as here; here.record({density})"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
    assert done.stdout.count("leave the block first") == len(RECORDERS)


def test_after_the_block_a_module_is_traced_as_ever():
    model, masks = pruned()
    x = torch.randn(4, 3, 8, 8)
    with ntksap.sparse_kernels(model, masks):
        expected = model(x)
    torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), expected)


def test_what_is_compiled_inside_the_block_is_torchs():
    model, masks = pruned()
    x = torch.randn(4, 3, 8, 8)
    with ntksap.sparse_kernels(model, masks):
        torch.testing.assert_close(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("mode", ["real", "fake", "symbolic"])
def test_what_make_fx_records_inside_the_block_is_torchs(training, mode):
    model, masks = pruned()
    model.train(training)
    x = torch.randn(4, 3, 8, 8)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    with ntksap.sparse_kernels(model, masks):
        model(x)  # so that there are choices
        graph = make_fx(lambda state, x: torch.func.functional_call(model, state, x), tracing_mode=mode)(state, x)
    torch.testing.assert_close(graph(state, x), torch.func.functional_call(model, state, x))
    assert "aten.convolution" in graph.code
    assert "aten.addmm" in graph.code


@pytest.mark.filterwarnings("ignore")  # of torch, that recorders are old
def test_one_linear_layer_alone_is_refused_too():
    layer = nn.Linear(4, 4)
    with ntksap.sparse_kernels(layer, {"weight": torch.eye(4).bool()}):
        for recorder in RECORDERS.values():
            with pytest.raises(ntksap.InputError, match="leave the block first"):
                recorder(layer, torch.randn(2, 4))
