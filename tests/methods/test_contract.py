"""What every registered method must do on every tiny case. A new method is tested by being in the table."""

import copy
import itertools

import pytest
import torch

import ntksap
from ntksap.methods import METHODS, Method
from ntksap.net.net import Net
from ntksap.pruning.probe import Probe
from ntksap.pruning.schedules import schedule_named
from tests.cases import CASES, Case

SMALL = {
    "ntk-sap": {"draws": 2, "batch": 8},
    "ntk-sap-s": {"draws": 2, "batch": 8},
    "ntt": {"prune_lr": 0.05, "refresh": 1},
    "hutchinson": {"probes": 2},
    "dpai": {"round_steps": 2},
}
LOOK_AT_NOTHING = ("random", "random-erk", "random-erk-logits")
NEVER_EVALUATE = (*LOOK_AT_NOTHING, "magnitude", "magnitude-erk", "imp")  # imp trains, by a loop of the user's

pytestmark = [
    pytest.mark.filterwarnings("ignore::ntksap.ApproximationWarning"),  # tested in test_homogeneity
    pytest.mark.filterwarnings("ignore:every score of round:ntksap.CollapseWarning"),  # tiny nets lose all their paths
]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)


def prune(module, method: Method, case: Case, sparsity=0.7, **settings) -> ntksap.Masks:
    settings = {"rounds": min(method.rounds, 3), "floor": 1, **SMALL.get(method.name, {}), **settings}
    return ntksap.prune(module, sparsity, method.name, **case.needs(method), **case.source(), **settings)


@each_method
@each_case
def test_scores_have_the_names_and_shapes_of_the_prunable_weights_and_are_finite(case, method):
    if method.score is None:
        pytest.skip("prunes in a loop of its own")
    module = case.module()
    net = Net(module)
    probe = Probe.of(net, data=case.batches(), stream=method.streams, **case.source())
    masks = ntksap.Masks.ones({name: net.weights[name] for name in net.prunable})
    scores = method.with_options(SMALL.get(method.name, {}))(net, masks, probe)
    assert list(scores) == list(net.prunable)
    for name, score in scores.items():
        assert score.shape == net.weights[name].shape
        assert torch.isfinite(score).all()
        assert not score.requires_grad
    if method.name != "grasp":  # signed
        assert all((score >= 0).all() for score in scores.values())


@each_method
@each_case
def test_exact_count_same_seed_same_mask_and_nothing_of_the_caller_changes(case, method):
    module = case.module()
    module.train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    flags = [(p.requires_grad, p.grad is None, id(p)) for p in module.parameters()]
    random_state = torch.get_rng_state()

    masks = prune(module, method, case, seed=3)

    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(part.training for part in module.modules())
    assert [(p.requires_grad, p.grad is None, id(p)) for p in module.parameters()] == flags
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name]), name

    assert masks.kept == round(0.3 * masks.total)
    assert bool(masks.weights) == method.returns_weights
    assert all(mask.any() for mask in masks.values())  # the floor
    torch.manual_seed(99)  # what the global generator holds must not matter
    assert prune(module, method, case, seed=3) == masks


@each_method
@each_case
def test_another_seed_gives_another_mask_exactly_where_the_method_draws(case, method):
    module = case.module()
    first, second = (prune(module, method, case, seed=seed) for seed in (0, 1))
    assert (first != second) == (method.weight_agnostic or method.draws)  # others depend on weights and data alone


@each_method
@each_case
def test_weight_agnostic_methods_and_only_they_ignore_the_present_weights(case, method):
    if method.name in LOOK_AT_NOTHING:
        pytest.skip("looks at nothing")
    module, other = case.module(0), case.module(0)
    with torch.no_grad():
        for part in other.modules():
            if hasattr(part, "reset_parameters"):
                part.reset_parameters()
    same = prune(module, method, case) == prune(other, method, case)
    assert same == method.weight_agnostic


@each_method
@each_case
def test_masks_are_nested_unless_the_method_regrows(case, method):
    module = case.module()
    seen: list[ntksap.Masks] = []
    final = prune(module, method, case, rounds=4, on_round=seen.append)
    rounds = 4 if method.places == "score" else 1  # where nothing is scored, there is one
    assert [masks.info["round"] for masks in seen] == list(range(1, rounds + 1))
    assert seen[-1] == final
    if not method.regrow:
        for earlier, later in itertools.pairwise(seen):
            assert all((later[name] <= earlier[name]).all() for name in final)
    total = final.total
    schedule = schedule_named(method.schedule)
    assert [masks.kept for masks in seen] == [round(schedule(0.3, t, rounds) * total) for t in range(1, rounds + 1)]


@each_method
def test_going_on_after_any_round_ends_with_the_same_masks(method):
    case = CASES[0]
    module = case.module()
    settings = {"rounds": 4, "places": "score", **case.needs(method), **case.source(), **SMALL.get(method.name, {})}
    states: list[ntksap.Masks] = []
    last = ntksap.prune(module, 0.7, method.name, on_round=states.append, **settings)
    for state in states:
        rest: list[ntksap.Masks] = []
        final = ntksap.prune(copy.deepcopy(module), 0.7, method.name, after=state, on_round=rest.append, **settings)
        assert [masks.info["round"] for masks in rest] == list(range(state.info["round"] + 1, 5))
        assert final == last
        assert final.info == last.info
        for weights in ("weights", "state"):
            once, again = getattr(last, weights), getattr(final, weights)
            assert once.keys() == again.keys()
            assert all(torch.equal(once[name], again[name]) for name in once)


@each_method
def test_the_caller_gets_the_module_back_untouched_when_scoring_raises(method):
    case = CASES[0]
    module = case.module()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    random_state = torch.get_rng_state()

    def fail(result):
        raise RuntimeError("scoring failed")

    if method.name in NEVER_EVALUATE:
        pytest.skip("never evaluates the module")
    with pytest.raises(ntksap.InputError, match="scoring failed"):
        prune(module, method, case, output=fail)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


@each_method
def test_methods_that_need_data_say_so(method):
    case = CASES[0]
    settings = {**case.source(), **SMALL.get(method.name, {}), "rounds": 1}
    if method.data_free:
        assert ntksap.prune(case.module(), 0.5, method.name, **settings).density == pytest.approx(0.5, abs=0.01)
    elif method.trains:
        with pytest.raises(ntksap.InputError, match="this method trains the network: pass train="):
            ntksap.prune(case.module(), 0.5, method.name, data=case.batches(), **settings)
    else:
        with pytest.raises(ntksap.InputError, match="needs labelled data" if method.labels else "needs inputs"):
            ntksap.prune(case.module(), 0.5, method.name, **settings)
        unlabelled = [(inputs, None) for inputs, _ in case.batches()]
        if method.labels:
            with pytest.raises(ntksap.InputError, match="needs labels"):
                ntksap.prune(case.module(), 0.5, method.name, data=unlabelled, **settings)
        else:
            with_labels = ntksap.prune(case.module(), 0.5, method.name, data=case.batches(), **settings)
            assert ntksap.prune(case.module(), 0.5, method.name, data=unlabelled, **settings) == with_labels


@each_method
def test_the_default_dtype_of_torch_does_not_matter(method):
    case = next(case for case in CASES if case.name == "residual")
    module = case.module()
    settings = {"rounds": min(method.rounds, 3), **case.source(), **SMALL.get(method.name, {}), **case.needs(method)}
    expected = ntksap.prune(module, 0.7, method.name, **settings)
    torch.set_default_dtype(torch.float64)
    try:
        assert ntksap.prune(module, 0.7, method.name, **settings) == expected
        assert torch.equal(Net(module).draw(1)["stem.weight"], Net(module).draw(1)["stem.weight"].float())
    finally:
        torch.set_default_dtype(torch.float32)


@each_method
def test_the_default_device_of_torch_does_not_matter(method):
    case = next(case for case in CASES if case.name == "residual")
    module = case.module()
    settings = {"rounds": min(method.rounds, 3), **case.source(), **SMALL.get(method.name, {}), **case.needs(method)}
    expected = ntksap.prune(module, 0.7, method.name, **settings)
    with torch.device("meta"):  # as a GPU would be, tensors there mix with none on the CPU
        assert ntksap.prune(module, 0.7, method.name, **settings) == expected
