"""Layers that go the way that is fastest: measured once, recorded, remembered by the machine."""

import copy
import itertools
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import ntksap
from ntksap.net.kernels import Choices, choice, library, memory

pytestmark = pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")


@pytest.fixture(autouse=True)
def no_memory(tmp_path, monkeypatch):
    """A machine that has measured nothing yet."""
    monkeypatch.setattr(memory, "memory_file", lambda: tmp_path / "choices")


def pruned(sparsity=0.8):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1),
        nn.Flatten(), nn.Linear(1024, 10),
    ).double()  # fmt: skip
    masks = ntksap.prune(model, sparsity, "random")
    masks.attach(model)
    return model, masks


@pytest.mark.parametrize("way", ["torch", "dense", "kept"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_every_way_gives_what_torch_gives(fastest, way, layout):
    fastest(way)
    model, masks = pruned()
    x = torch.randn(4, 3, 8, 8, dtype=torch.float64).to(memory_format=layout)
    twin = copy.deepcopy(model)
    expected = model(x)
    expected.square().sum().backward()
    with ntksap.sparse_kernels(twin, masks) as choices:
        y = twin(x)
        y.square().sum().backward()
    torch.testing.assert_close(y, expected)
    for (name, ours), theirs in zip(twin.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad * masks.get(name, 1), msg=name)
    assert len(choices.ways) == 4
    last = ", channels last" if layout == torch.channels_last else ""
    assert choices.ways[f"3 4×16×8×8{last}, derivatives 11, float64"] == way
    assert set(choices.ways.values()) <= {"torch", way}


@pytest.mark.parametrize("way", ["torch", "dense", "kept"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_results_have_the_layout_of_images_whatever_that_of_weights(fastest, way, layout):
    fastest(way)
    convolution = nn.Conv2d(16, 16, 3, padding=1).to(memory_format=torch.channels_last)
    masks = ntksap.prune(convolution, 0.8, "random")
    masks.attach(convolution)
    images = torch.randn(4, 16, 8, 8).to(memory_format=layout)
    with ntksap.sparse_kernels(convolution, masks):
        result = convolution(images)
        result.sum().backward()
    assert result.is_contiguous(memory_format=layout)
    assert convolution.weight.grad.is_contiguous(memory_format=torch.channels_last)


def test_a_situation_is_measured_once_in_all_blocks_and_processes(fastest, monkeypatch):
    fastest("kept")
    (model, masks), x = pruned(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad(), ntksap.sparse_kernels(model, masks) as first:
        model(x)
    monkeypatch.setattr(choice, "measure", None)  # nothing may be measured from here on
    with torch.no_grad(), ntksap.sparse_kernels(model, masks) as second:
        model(x)
    memory._known.cache_clear()  # as in another process, which reads the file
    with torch.no_grad(), ntksap.sparse_kernels(model, masks) as third:
        model(x)
        model(torch.cat([x, x[:1]]))  # 3 inputs are as many as 2
    assert first.ways == second.ways == third.ways
    assert "kept" in first.ways.values()


def test_whoever_measured_first_decides_for_all(tmp_path):
    assert memory.remember("a", memory.Choice("kept", {"kept": 1.0})).way == "kept"
    memory._known.cache_clear()  # another process, which had read the file before there was anything in it
    memory._known(tmp_path / "choices").clear()
    assert memory.recall("a") is None
    assert memory.remember("a", memory.Choice("torch", {"torch": 1.0})).way == "kept"


@pytest.mark.parametrize(
    "damage", [b"", b"\xff\x00", b"[]\n", b'{"key": 1}\n', b"[" * 10**5 + b"\n", b'{"key": "a", "way']
)
def test_a_damaged_memory_is_passed_over(tmp_path, damage):
    memory._known.cache_clear()
    (tmp_path / "choices").write_bytes(damage)
    assert memory.recall("a") is None
    memory.remember("b", memory.Choice("kept", {"kept": 1.0}))
    memory.remember("c", memory.Choice("torch", {"kept": 1.0}))
    memory._known.cache_clear()
    assert memory.recall("c").way == "torch"


def test_choices_that_are_given_hold(fastest):
    fastest("kept")
    (model, masks), x = pruned(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    model.eval()
    with torch.no_grad(), ntksap.sparse_kernels(model, masks) as choices:
        model(x)
    held = Choices(dict.fromkeys(choices.ways, "torch"))
    with (
        torch.no_grad(),
        ntksap.sparse_kernels(model, masks, choices=held) as again,
        torch.profiler.profile() as profile,
    ):
        expected = model(x)
    assert again is held
    assert "torch" in str(held)
    assert torch.equal(expected, model(x))  # to the last bit, as torch did it
    assert not any("Sparse" in event.key for event in profile.key_averages())
    with torch.no_grad(), ntksap.sparse_kernels(model, masks, choices=Choices({"5 2×1024, float64": "of tomorrow"})):
        torch.testing.assert_close(model(x), expected)


def test_what_was_chosen_can_be_printed(fastest):
    fastest("kept")
    (model, masks), x = pruned(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with ntksap.sparse_kernels(model, masks) as choices:
        assert "nothing was chosen" in str(choices)
        model(x)
    lines = str(choices).splitlines()
    assert len(lines) == 4
    assert lines[0].split("  ", 1)[0] == "0 2×3×8×8, derivatives 01, float64"
    assert lines[0].endswith("kept   torch 2e+03 ms, kept 1e+03 ms")


def test_torch_is_chosen_unless_another_is_clearly_faster():
    for taken, way in ((0.5, "kept"), (0.99, "torch"), (2.0, "torch")):
        ticks = {"torch": 1.0, "kept": taken}
        assert choice._fastest(ticks).way == way


@pytest.mark.parametrize(
    ("empty", "full", "chosen"),
    [(0.8, 0.8, "kept"), (0.5, 1.0, "torch"), (1.0, 0.5, "torch"), (0.9, 0.95, "torch")],
)
def test_a_kernel_must_be_faster_on_empty_and_on_full_caches(monkeypatch, empty, full, chosen):
    """Torch takes 2 s on empty caches and 1 s on full ones; the kernel takes these shares of it."""
    now = [0.0]

    def taking(*seconds: float):
        turns = itertools.chain([0.0], itertools.cycle(seconds))  # the first call is not timed

        def work() -> None:
            now[0] += next(turns)

        return work

    clock = SimpleNamespace(thread_time=lambda: now[0], perf_counter=lambda: now[0])
    monkeypatch.setattr(choice, "time", clock)
    seconds = choice.measure({"torch": taking(2, 1), "kept": taking(2 * empty, full)})
    assert choice._fastest(seconds).way == chosen
    assert seconds["kept"] / seconds["torch"] == pytest.approx(max(empty, full))


def test_measuring_neither_draws_nor_calls_hooks_nor_leaves_gradients():
    (model, masks), x = pruned(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    calls = itertools.count()
    model[3].weight.register_hook(lambda gradient: next(calls) and None)
    state = torch.get_rng_state()
    with ntksap.sparse_kernels(model, masks):
        y = model(x)
        assert torch.equal(torch.get_rng_state(), state)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert next(calls) == 0
        y.sum().backward()
    assert next(calls) == 2


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_works_inside(fastest, reentrant):
    fastest("kept")
    (model, masks), x = pruned(), torch.randn(2, 3, 8, 8, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(model(x).square().sum(), x)
    with ntksap.sparse_kernels(model, masks):
        y = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
        y.square().sum().backward()
    torch.testing.assert_close(x.grad, expected[0])


def test_what_the_kernels_cannot_do_torch_does(fastest):
    fastest("kept")
    model, masks = pruned()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad(), ntksap.sparse_kernels(model, masks) as choices:
        half = copy.deepcopy(model).bfloat16()
        assert half(x.bfloat16()).dtype == torch.bfloat16
        assert model(x[:0]).shape == (0, 10)
        model.float()
        with torch.autocast("cpu", torch.bfloat16):
            assert model(x.float()).dtype == torch.bfloat16
        model.double()
        assert not choices.ways
        with pytest.raises(RuntimeError):
            model(x[:, :2])
        torch.func.vmap(model.eval())(x[:, None])
        assert not choices.ways


def test_a_linear_layer_that_keeps_most_weights_stays_as_it_is():
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    masks = {"0.weight": torch.arange(256).view(16, 16) < 200, "1.weight": torch.arange(256).view(16, 16) < 100}
    with ntksap.sparse_kernels(model, masks):
        assert [type(layer) is nn.Linear for layer in model] == [True, False]


def test_a_copy_made_inside_the_block_has_weights_of_its_own(fastest):
    fastest("kept")
    (model, masks), x = pruned(), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    with torch.no_grad(), ntksap.sparse_kernels(model, masks):
        twin = copy.deepcopy(model)
        for parameter in twin.parameters():
            parameter.zero_()
        assert float(twin(x).abs().sum()) == 0
        assert float(model(x).abs().sum()) > 0


def test_the_module_is_as_it_was_afterwards():
    model, masks = pruned()
    before = [(type(layer), sorted(vars(layer))) for layer in model.modules()]
    with pytest.raises(KeyError), ntksap.sparse_kernels(model, masks):
        raise KeyError
    assert [(type(layer), sorted(vars(layer))) for layer in model.modules()] == before


def test_another_process_goes_the_ways_of_the_file_that_the_environment_names(fastest, tmp_path):
    fastest("kept")
    model, masks = pruned()
    with ntksap.sparse_kernels(model, masks) as choices:
        model(torch.ones(1, 3, 8, 8, dtype=torch.float64))
    code = """
import ntksap, torch
from tests.net.kernels.test_choice import pruned
model, masks = pruned()
torch.set_num_threads(1)
with ntksap.sparse_kernels(model, masks) as choices:
    model(torch.ones(1, 3, 8, 8, dtype=torch.float64))
print(choices.ways)
"""
    environment = {
        **os.environ,
        "NTKSAP_CHOICES": memory.memory_file().name,
        "PYTHONPATH": str(Path(__file__).parents[3]),
    }
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment
    )
    assert process.stdout == f"{choices.ways}\n"
    assert "kept" in process.stdout
