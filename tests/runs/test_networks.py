"""Thin networks and whole channels as runs: named, trained, resumable."""

import copy

import pytest
import torch

import ntksap
from ntksap import InputError, Masks, compact, cost, models, save_sparse
from ntksap.runs.execution import run
from ntksap.runs.measuring import file_bytes, interleaved
from ntksap.runs.network import network_of
from ntksap.runs.thin import thin_model
from ntksap.training.checkpoint import read_model
from tests.runs.small_runs import outcome, small_settings

SMALL = {"model": "resnet8-w4", "sparsity": 0.6}
SHAPE = (1, 8, 8)


@pytest.mark.parametrize("budget", ["weights", "multiply-adds"])
def test_a_thin_network_is_as_near_to_the_budget_as_widths_allow(budget):
    def costs(width: int) -> float:
        module = models.build(f"resnet20-w{width}")
        if budget == "multiply-adds":
            return cost(module, input_shape=(3, 32, 32)).dense
        return sum(p.numel() for p in module.parameters() if p.dim() > 1)

    target = costs(16) / 4
    found = thin_model("resnet20", 0.75, budget, "", (3, 32, 32), 10)
    assert found.width == min(range(1, 17), key=lambda width: abs(costs(width) - target))
    assert thin_model("resnet20-w8", 0.75, budget, "", (3, 32, 32), 10).name == "resnet20-w4"
    with pytest.raises(InputError, match="one channel"):
        thin_model("resnet20", 0.9999, budget, "", (3, 32, 32), 10)


def test_a_thin_network_can_have_as_many_multiply_adds_as_masks():
    module = models.build("resnet20")
    shape = (3, 32, 32)
    for rule in ("erk", "ntk-sap"):
        masks = ntksap.prune(module, 0.9, "random", allocation=rule, input_shape=shape, seed=3)
        target = cost(module, masks, input_shape=shape).sparse
        dense = {width: cost(models.build(f"resnet20-w{width}"), input_shape=shape).dense for width in range(1, 17)}
        found = thin_model("resnet20", 0.9, "multiply-adds", rule, shape, 10)
        assert found.width == min(dense, key=lambda width: abs(dense[width] - target))
        assert target > 1.2 * dense[thin_model("resnet20", 0.9, "multiply-adds", "", shape, 10).width]
    with pytest.raises(InputError, match="random"):
        small_settings("thin", budget="multiply-adds", allocation="random")


def test_a_thin_run_trains_the_smaller_network_and_says_what_it_costs(tmp_path):
    settings = small_settings("thin", epochs=1, **SMALL)
    assert settings.name.startswith("digits-resnet8-w4-thin-60.00-seed0-")
    result = run(settings, tmp_path)
    network, masks = network_of(settings, None, SHAPE, 10)
    assert masks is None
    read_model(tmp_path / settings.name / "checkpoint.safetensors", network)  # raises for another network
    assert result["inference_flops"] == cost(network, input_shape=SHAPE).dense < result["dense_flops"]
    assert result["kept"] == sum(p.numel() for p in network.parameters() if p.dim() > 1) < result["total"]
    assert result["density"] == result["kept"] / result["total"]
    assert result["mask_sha256"] is None
    with pytest.raises(InputError, match="no mask"):
        small_settings("thin", sanity="shuffle")


def test_a_run_of_whole_channels_trains_the_compact_network_and_resumes_to_the_same_bits(tmp_path):
    settings = small_settings("magnitude", epochs=2, pattern="channel", rescale="unit", **SMALL)
    result = run(settings, tmp_path / "whole")
    masks = Masks.load(tmp_path / "whole" / settings.name / "masks.safetensors")
    assert masks.obeys("channel")
    assert result["kept"] == masks.kept == masks.info["left"]
    assert result["total"] == masks.total
    network, attached = network_of(settings, masks, SHAPE, 10)
    assert attached is None
    whole = models.build("resnet8-w4", num_classes=10, input_shape=SHAPE, seed=0)
    fresh = copy.deepcopy(whole)
    masks.attach(whole)
    image = torch.rand(2, *SHAPE)
    torch.testing.assert_close(network.eval()(image), whole.eval()(image))
    assert not torch.equal(network.fc.weight, compact(fresh, masks, image).fc.weight)  # it is rescaled
    assert result["inference_flops"] == cost(network, input_shape=SHAPE).dense
    read_model(tmp_path / "whole" / settings.name / "checkpoint.safetensors", network)

    class Stop(Exception):
        pass

    def stop(progress):
        if progress.stage == "train" and progress.done == 1:
            raise Stop

    with pytest.raises(Stop):
        run(settings, tmp_path / "parts", on_progress=stop)
    run(settings, tmp_path / "parts")
    assert outcome(tmp_path / "parts" / settings.name) == outcome(tmp_path / "whole" / settings.name)


def test_budgets_rename_a_run_only_where_they_are_given():
    plain = small_settings("magnitude", pattern="channel")
    assert plain == small_settings("magnitude", pattern="channel", budget="weights", round_to=1)
    others = [{"budget": "multiply-adds"}, {"round_to": 8}]
    assert len({plain.name, *(small_settings("magnitude", pattern="channel", **how).name for how in others)}) == 3
    assert small_settings("magnitude").name == "digits-lenet-300-100-magnitude-90.00-seed0-75be53d0"


def test_bytes_are_those_of_the_files_themselves(tmp_path):
    model = torch.nn.Linear(100, 30)
    masks = Masks({"weight": torch.arange(3000).view(30, 100) < 70})
    whole = file_bytes(model, None)
    masks.attach(model)
    save_sparse(model, masks, tmp_path / "sparse")
    assert file_bytes(model, masks) == (tmp_path / "sparse").stat().st_size
    assert 0 < whole - 4 * 3030 < 300  # what is not numbers are the names
    assert file_bytes(model, masks) < whole / 5


def test_two_deeds_take_turns():
    done: list[int] = []
    first, second, ratio = interleaved(lambda: done.append(1), lambda: done.append(2))
    assert done[:4] == [1, 2, 1, 2]
    assert done[4:10] == [1, 2, 2, 1, 1, 2]
    assert min(first, second, ratio) > 0
