"""What `prune` is given by mistake is answered with a sentence that says what to do, never with a traceback."""

import numpy as np
import pytest
import torch
from torch import nn

import ntksap
from ntksap import InputError, prune
from ntksap._base.errors import ScoreError

METHODS_OF_ALL_KINDS = ["snip", "grasp", "synflow", "ntk-sap", "ntk-sap-analytic", "force", "ntt"]


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))


def batch(labels: list[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.randn(len(labels), 8, generator=torch.Generator().manual_seed(0)), torch.tensor(labels))]


GOOD = batch([0, 1, 0, 1, 0, 1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "model.pt"}, r"model is 'model\.pt', not an nn\.Module: build the module"),
        ({"model": {"0.weight": torch.ones(2)}}, r"not an nn\.Module"),
        ({"model": nn.Linear(8, 2, device="meta")}, "on the meta device, so its weights have no values"),
        ({"input_shape": 16}, r"such as \(16,\), not 16"),
        ({"input_shape": "8"}, "input_shape is the shape"),
        ({"input_shape": (8.0,)}, "input_shape is the shape"),
        ({"input_shape": (-8,)}, "input_shape is the shape"),
        ({"inputs": torch.ones(4, 8)}, r"inputs= is a function .*not a tensor of shape \(4, 8\)"),
        ({"sparsity": "0.9"}, "sparsity is a number, 0 ≤ sparsity < 1, not '0.9'"),
        ({"sparsity": None}, "sparsity is a number"),
        ({"sparsity": True}, "sparsity is a number"),
        ({"sparsity": float("nan")}, "0 ≤ sparsity < 1"),
        ({"seed": None}, "seed is a whole number, not None"),
        ({"seed": 0.5}, "seed is a whole number"),
        ({"floor": -5}, "a floor is a number of weights, .*not -5"),
        ({"rounds": 1.5}, "rounds is a whole number of at least 1"),
        ({"device": "cuda:7"}, "the device 'cuda:7' cannot be used here"),
        ({"device": "toaster"}, "the device 'toaster' cannot be used here"),
        ({"device": "meta"}, "nothing can be computed on the device meta"),
        ({"data": 7}, r"data= is an iterable of \(inputs, labels\) batches, not 7"),
    ],
)
def test_arguments_that_cannot_be_used(arguments, message):
    values = {"model": model(), "sparsity": 0.5, "method": "synflow", "input_shape": (8,), **arguments}
    with pytest.raises(InputError, match=message):
        prune(**values)


@pytest.mark.parametrize("method", ["synflow", "ntk-sap", "ntk-sap-analytic"])
def test_inputs_of_the_wrong_size(method):
    with pytest.raises(InputError, match=r"cannot be evaluated on inputs of shape \(2, 9\), .*2x9 and 8x16"):
        prune(model(), 0.5, method, input_shape=(9,))


@pytest.mark.parametrize("method", ["snip", "grasp", "ntt"])
def test_data_of_the_wrong_size(method):
    with pytest.raises(InputError, match=r"cannot be evaluated on inputs of shape \(4, 9\)"):
        prune(model(), 0.5, method, data=[(torch.ones(4, 9), torch.tensor([0, 1, 0, 1]))])


@pytest.mark.parametrize("method", ["snip", "grasp", "force", "prospr"])
def test_labels_out_of_range(method):
    for labels in ([0, 1, 2, 0], [0, -1, 0, 1]):
        with pytest.raises(
            InputError, match=rf"a label of data= is {labels[2] or labels[1]}, but the model has 2 outp"
        ):
            prune(model(), 0.5, method, data=batch(labels))


def test_labels_of_another_kind():
    with pytest.raises(InputError, match=r"the loss of the model's output \(3, 2\) and the labels .*pass loss="):
        prune(model(), 0.5, "snip", data=[(torch.ones(3, 8), torch.tensor([0.0, 1.0, 1.0]))])


def test_an_error_that_inputs_and_labels_do_not_explain_stays_as_it_is():
    def broken(module: nn.Module) -> None:
        raise IndexError("a mistake in an initialiser")

    with pytest.raises(IndexError, match="a mistake in an initialiser"):
        prune(model(), 0.5, "ntk-sap", input_shape=(8,), init=broken)


@pytest.mark.parametrize("method", ["magnitude", "snip", "synflow"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named_and_float64_is_no_advice(method, value):
    broken = model()
    broken[2].weight.data[1, 3] = value
    with pytest.raises(
        ScoreError, match=r"'2\.weight' of the model holds NaN or infinite .*Load its weights again"
    ) as e:
        prune(broken, 0.5, method, input_shape=(8,), data=GOOD)
    assert "float64" not in str(e.value)


def test_inputs_that_are_no_numbers():
    with pytest.raises(ScoreError, match="data= holds NaN"):
        prune(model(), 0.5, "snip", data=[(torch.full((2, 8), float("nan")), torch.tensor([0, 1]))])


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("method", METHODS_OF_ALL_KINDS)
def test_gradients_that_are_off_do_not_matter(method, context):
    net, how = model(), {"input_shape": (8,), "data": GOOD}
    expected = prune(net, 0.5, method, **how)
    with context():
        assert prune(net, 0.5, method, **how) == expected
        assert not torch.is_grad_enabled()


def test_gradients_are_as_the_caller_has_them_between_rounds():
    seen = []
    with torch.no_grad():
        prune(
            model(), 0.5, "synflow", input_shape=(8,), rounds=3, on_round=lambda _: seen.append(torch.is_grad_enabled())
        )
    assert seen == [False, False, False]
    assert torch.is_grad_enabled()


def test_numbers_of_numpy_are_numbers():
    expected = prune(model(), 0.5, "ntk-sap", input_shape=(8,), seed=3, rounds=2)
    shape = np.zeros((1, 8)).shape[1:]
    found = prune(model(), np.float32(0.5), "ntk-sap", input_shape=shape, seed=np.int64(3), rounds=np.int32(2))
    assert found == expected
    assert ntksap.prune(model(), 0.5, "random", input_shape=[np.int64(8)], floor=np.int64(1)).kept == 80
