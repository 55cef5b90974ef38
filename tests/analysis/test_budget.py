import pytest
import torch
from torch import nn

from ntksap import InputError, models
from ntksap.analysis.budget import measured_budget, paper_budget

# The paper's tables: multiply-adds of pruning, and of pruning and training together on CIFAR-10.
DENSE = {"resnet20": 41_288_330, "vgg16": 314_077_284, "resnet18": 148_553_928}
PRUNING = {
    "snip": (2.48e11, 1.88e12, 8.94e11),
    "grasp": (4.95e11, 3.77e12, 1.79e12),
    "synflow": (1.24e10, 9.42e10, 4.47e10),
    "iterative-snip": (2.48e13, 1.88e14, 8.94e13),
    "ntk-sap": (4.95e13, 3.77e14, 1.79e14),
    "ntk-sap-s": (9.91e12, 7.54e13, 3.58e13),
}
INFERENCE = {  # ×10⁶, ResNet-20
    "snip": (31.9, 19.4, 12.3, 7.37, 3.77),
    "grasp": (24.2, 13.5, 8.65, 4.95, 3.20),
    "synflow": (33.2, 21.6, 12.2, 5.73, 2.67),
    "iterative-snip": (31.3, 16.7, 7.80, 3.46, 2.10),
    "ntk-sap": (31.3, 18.2, 10.1, 5.30, 2.83),
}
TOTAL = {  # ×10¹⁴, ResNet-20
    "snip": (7.65, 4.67, 2.95, 1.77, 0.91),
    "grasp": (5.81, 3.24, 2.08, 1.19, 0.77),
    "synflow": (7.98, 5.19, 2.93, 1.38, 0.64),
    "iterative-snip": (7.75, 4.25, 2.12, 1.08, 0.75),
    "ntk-sap": (8.01, 4.86, 2.91, 1.77, 1.17),
}


@pytest.mark.parametrize("method", PRUNING)
def test_the_papers_pruning_cost(method):
    for dense, paper in zip(DENSE.values(), PRUNING[method], strict=True):
        assert paper_budget(method, dense, dense, epochs=1, images=1).pruning == pytest.approx(paper, rel=5e-3)


@pytest.mark.parametrize("method", TOTAL)
def test_the_papers_total_cost_on_cifar10(method):
    for inference, paper in zip(INFERENCE[method], TOTAL[method], strict=True):
        budget = paper_budget(method, DENSE["resnet20"], round(inference * 1e6), epochs=160, images=50_000)
        assert budget.total / 1e14 == pytest.approx(paper, abs=0.02)  # from rounded inferences


def test_methods_the_paper_does_not_count():
    with pytest.raises(InputError, match="does not count 'force'"):
        paper_budget("force", 1, 1, epochs=1, images=1)


def linear_net() -> tuple[nn.Module, int]:
    """Two linear layers without biases, and their multiply-adds for one input."""
    return nn.Sequential(nn.Linear(5, 8, bias=False), nn.ReLU(), nn.Linear(8, 3, bias=False)), 5 * 8 + 8 * 3


def test_what_is_evaluated_counted_by_hand():
    module, one = linear_net()
    first = 5 * 8  # no gradient by the input of the first layer is computed
    data = [(torch.randn(6, 5), torch.arange(6) % 3)]
    plan = {"epochs": 2, "images": 10, "input_shape": (5,)}
    snip = measured_budget(module, "snip", data=data, **plan)
    assert snip.inference == one
    assert snip.training == (3 * one - first) * 20
    assert snip.pruning == 6 * (3 * one - first)
    assert measured_budget(module, "iterative-snip", data=data, rounds=7, **plan).pruning == 7 * snip.pruning
    assert measured_budget(module, "magnitude", **plan).pruning == 0
    synflow = measured_budget(module, "synflow", rounds=4, **plan)
    assert synflow.pruning == 4 * (3 * one - first)
    # statistics are not needed without BatchNorm: two forward passes and their backward passes
    ntk_sap = measured_budget(module, "ntk-sap", rounds=3, draws=2, batch=4, **plan)
    assert ntk_sap.pruning == 3 * 2 * 4 * 2 * (3 * one - first)


def test_batch_statistics_cost_one_forward_pass():
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2, bias=False)
    )
    one, first = 4 * 9 * 4 + 32, 4 * 9 * 4
    found = measured_budget(module, "ntk-sap", rounds=1, draws=1, batch=5, epochs=1, images=1, input_shape=(1, 4, 4))
    assert found.pruning == 5 * (one + 2 * (3 * one - first))


def test_a_real_model():
    found = measured_budget(
        models.build("resnet20"),
        "ntk-sap",
        rounds=20,
        draws=1,
        batch=2,
        epochs=160,
        images=50_000,
        input_shape=(3, 32, 32),
    )
    convolutions = 40_813_184
    assert found.inference == convolutions
    assert found.pruning == pytest.approx(20 * 2 * 7 * convolutions, rel=0.01)
    assert found.training == pytest.approx(3 * convolutions * 160 * 50_000, rel=0.01)


def test_methods_that_go_through_the_training_set_are_counted_for_all_of_it():
    module, one = linear_net()
    first = 5 * 8
    data = [(torch.randn(6, 5), torch.arange(6) % 3)] * 2
    plan = {"epochs": 1, "images": 60, "input_shape": (5,), "data": data}
    step = 6 * (3 * one - first)
    assert measured_budget(module, "mag-1epoch", **plan).pruning == 10 * step
    first_order = measured_budget(module, "prospr", first_order=True, **plan)
    assert first_order.pruning == 4 * step  # three steps and the final loss, however many images there are
    assert measured_budget(module, "prospr", **plan).pruning > first_order.pruning
    twice = measured_budget(module, "ntt", rounds=2, **plan)
    assert measured_budget(module, "ntt", rounds=4, **plan).pruning == 2 * twice.pruning
    longer = measured_budget(module, "ntt", rounds=2, **{**plan, "images": 120})
    assert twice.pruning < longer.pruning < 2 * twice.pruning  # what each round begins and ends with stays
