"""Any method inside any allocation, at any places, in any pattern: one call, or an error that says why not."""

import itertools
import math

import pytest
import torch

import ntksap
from ntksap.methods import METHODS, Method
from ntksap.net import weight_views
from ntksap.pruning import pattern_named
from ntksap.pruning.patterns import Cap
from tests.cases import BY_NAME, CASES, Case

SMALL = {
    "ntk-sap": {"draws": 1, "batch": 4},
    "ntk-sap-s": {"draws": 1, "batch": 4},
    "ntt": {"prune_lr": 0.05, "refresh": 1, "epoch_steps": 1},
    "hutchinson": {"probes": 1},
    "dpai": {"round_steps": 1},
}
PATTERNS = [None, "2:4", "1:3", "transposable-2:4", "block:2x2", "fan-in"]
RULES = [None, "uniform", "equal", "erk", "ntk-sap"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::ntksap.ApproximationWarning"),
    pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning"),
]
each_method = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_pattern = pytest.mark.parametrize("pattern", PATTERNS)


def prune(case: Case, method: str, sparsity: float = 0.7, **settings) -> ntksap.Masks:
    rounds = min(METHODS[method].rounds, 2)
    settings = {"rounds": rounds, **case.needs(METHODS[method]), **SMALL.get(method, {}), **settings}
    return ntksap.prune(case.module(), sparsity, method, **case.source(), **settings)


def counts_of(masks: ntksap.Masks) -> dict[str, int]:
    return {name: int(mask.sum()) for name, mask in masks.items()}


@each_pattern
@each_method
def test_every_method_in_every_allocation_and_pattern(method: Method, pattern: str | None):
    case = BY_NAME["conv-bn"]
    for rule in RULES:
        masks = prune(case, method.name, allocation=rule, pattern=pattern)
        if rule is not None:
            assert masks.info["allocation"] == rule
            assert not masks.collapsed
        rounds = {"rounds": 2} if rule == method.allocation else {}  # then they are those of the closed form
        plan = None if rule is None else ntksap.allocate(case.module(), 0.7, rule, **rounds, **case.source())
        if pattern is None:
            assert masks.kept == round(0.3 * masks.total)
            assert plan is None or counts_of(masks) == dict(plan)
            continue
        assert masks.obeys(pattern)
        assert masks.info["asked"] == round(0.3 * masks.total)
        chosen = pattern_named(pattern)
        views = weight_views({name: tuple(mask.shape) for name, mask in masks.items()})
        if isinstance(chosen, Cap):
            assert masks.kept == masks.info["asked"]  # 30 % is less than any of these allows
        else:
            unit = max(chosen.unit(view) for view in views.values())
            assert abs(masks.kept - masks.info["asked"]) <= unit


@each_case
@pytest.mark.parametrize("places", ["random", "balanced"])
@pytest.mark.parametrize("pattern", [None, "fan-in", "block:2x2"])
def test_places_keep_the_counts_of_the_allocation_or_of_the_method(case: Case, places: str, pattern: str | None):
    own = prune(case, "synflow", floor=1, pattern=pattern)
    moved = prune(case, "synflow", floor=1, pattern=pattern, places=places)
    assert moved.info["places"] == places
    inside = prune(case, "magnitude", allocation="uniform", pattern=pattern)
    placed = prune(case, "magnitude", allocation="uniform", pattern=pattern, places=places)
    if pattern != "block:2x2":  # blocks at the edges are smaller
        assert counts_of(moved) == counts_of(own)
        assert counts_of(placed) == counts_of(inside)
    for masks in (moved, placed):
        assert pattern is None or masks.obeys(pattern)
        assert not masks.collapsed


def test_balanced_places_are_balanced_in_a_real_network():
    model = ntksap.models.build("resnet8")
    masks = ntksap.prune(model, 0.75, "random", allocation="erk", places="balanced", pattern="2:4", exclude="conv.*")
    assert masks.obeys("2:4")
    for mask in masks.values():
        for dims in (tuple(range(1, mask.dim())), (0,)):
            kept = mask.sum(dims)
            assert int(kept.max() - kept.min()) <= 1


def test_places_without_scores_need_neither_inputs_nor_data():
    model = BY_NAME["conv-bn"].module()
    masks = ntksap.prune(model, 0.5, "snip", allocation="erk", places="random")
    assert masks.kept == round(0.5 * masks.total)
    assert masks == ntksap.prune(model, 0.5, "synflow", allocation="erk", places="random")
    assert masks != ntksap.prune(model, 0.5, "snip", allocation="erk", places="random", seed=1)


def test_resuming_inside_an_allocation_and_a_pattern_ends_with_the_same_masks():
    case = BY_NAME["conv-bn"]
    for pattern, places in itertools.product(("2:4", "block:2x2"), ("score", "random")):
        seen: list[ntksap.Masks] = []
        how = {"rounds": 4, "pattern": pattern, "places": places, **case.source()}
        if places == "score":
            how["allocation"] = "erk"
        masks = ntksap.prune(case.module(), 0.7, "synflow", on_round=seen.append, **how)
        for state in seen[:-1]:
            assert ntksap.prune(case.module(), 0.7, "synflow", after=state, **how) == masks


def test_rounds_keep_exactly_what_the_schedule_says_also_inside_an_allocation():
    case = BY_NAME["residual"]
    seen: list[ntksap.Masks] = []
    masks = ntksap.prune(
        case.module(), 0.8, "iterative-snip", rounds=5, allocation="erk", data=case.batches(), on_round=seen.append
    )
    assert [state.kept for state in seen] == [round(0.2 ** (t / 5) * masks.total) for t in range(1, 6)]
    for earlier, later in itertools.pairwise(seen):
        assert all((later[name] <= earlier[name]).all() for name in masks)


def test_a_floor_may_be_a_share():
    case = BY_NAME["conv-bn"]
    masks = prune(case, "magnitude", floor=0.25)
    assert all(int(mask.sum()) >= math.floor(0.25 * mask.numel()) for mask in masks.values())


def test_a_pattern_that_allows_less_than_asked_keeps_what_it_allows_and_says_so():
    masks = prune(BY_NAME["no-bias"], "magnitude", 0.2, pattern="2:4")
    assert masks.obeys("2:4")
    assert masks.kept == 8 * 3 + 3 * 4 < masks.info["asked"] == round(0.8 * masks.total)


@pytest.mark.parametrize(
    ("method", "settings", "text"),
    [
        ("ntt", {"places": "random"}, "ntt chooses weights for the places"),
        ("ntt", {"rescale": True}, "ntt chooses the weights"),
        ("magnitude", {"places": "random", "invert": True}, "have none"),
        ("magnitude", {"allocation": "erk", "places": "random", "degree_decay": 0.2}, "need none"),
        ("magnitude", {"places": "somewhere"}, "Known: balanced, random, score"),
        ("magnitude", {"allocation": "erq"}, "Did you mean 'erk'"),
        ("magnitude", {"pattern": "2-4"}, "unknown pattern"),
        ("magnitude", {"rescale": "twice"}, "Known: layer, none, unit"),
        ("magnitude", {"allocation": "erk", "scope": "global"}, "omit scope"),
        ("magnitude", {"allocation": "erk", "places": "balanced", "pattern": "transposable-2:4"}, "contradict"),
        ("magnitude", {"places": "balanced", "pattern": "channel"}, "contradict"),
        ("magnitude", {"allocation": "erk", "pattern": "channel"}, "several layers at once"),
        ("magnitude", {"floor": 2, "pattern": "channel"}, "always keep at least one per group"),
        ("magnitude", {"rescale": True, "pattern": "channel"}, "use rescale='unit'"),
        ("magnitude", {"budget": "multiply-adds"}, "for whole channels"),
        ("magnitude", {"round_to": 8}, "for whole channels"),
        ("magnitude", {"budget": "flops", "pattern": "channel"}, "Known: multiply-adds, weights"),
        ("magnitude", {"round_to": 0, "pattern": "channel"}, "at least 1"),
    ],
)
def test_what_cannot_be_combined_says_why(method: str, settings: dict, text: str):
    with pytest.raises(ntksap.InputError, match=text):
        prune(BY_NAME["conv-bn"], method, **settings)


def test_the_masks_of_the_paper_are_as_they_were_without_any_of_this():
    case = BY_NAME["residual"]
    masks = prune(case, "magnitude")
    assert set(masks.info) == {"round", "rounds", "method", "sparsity", "seed", "precision"}
    weights = torch.cat([p.detach().abs().flatten() for n, p in case.module().named_parameters() if n in masks])
    kept = torch.cat([masks[name].flatten() for name in masks])
    assert weights[kept].min() >= weights[~kept].max()


@pytest.mark.parametrize("method", ["random", "magnitude"])
def test_a_method_with_an_allocation_of_its_own_is_the_plain_one_inside_it(method: str):
    case = BY_NAME["conv-bn"]
    own = prune(case, f"{method}-erk")
    assert own == prune(case, method, allocation="erk")
    assert own.info["allocation"] == "erk"
    assert prune(case, f"{method}-erk", allocation="uniform") == prune(case, method, allocation="uniform")
    for scope in ("global", "layer"):
        assert prune(case, f"{method}-erk", scope=scope) == prune(case, method, scope=scope)


def test_the_closed_form_is_one_number_per_layer_in_balanced_places_unless_its_scores_are_asked_for():
    case = BY_NAME["residual"]
    own = prune(case, "ntk-sap-analytic", rounds=3)
    plan = ntksap.allocate(case.module(), 0.7, "ntk-sap", rounds=3, **case.source())
    assert own == prune(case, "random", allocation=plan, places="balanced")
    assert (own.info["allocation"], own.info["places"]) == ("ntk-sap", "balanced")
    assert prune(case, "ntk-sap-analytic", allocation="erk") == prune(
        case, "random", allocation="erk", places="balanced"
    )
    inside = [{"places": "score"}, {"degree_decay": 0.2}, {"invert": True}, {"pattern": "fan-in"}]
    for how in ({"scope": "global"}, {"scope": "layer"}, *inside):
        scored = prune(case, "ntk-sap-analytic", rounds=3, **how)
        assert "places" not in scored.info
        assert scored.info.get("allocation") == ("ntk-sap" if how in inside else None)
        assert scored != prune(
            case, "ntk-sap-analytic", rounds=3, noise=False, **how
        )  # scores, and their noise, decide


def test_rounds_and_schedule_are_those_of_the_closed_form():
    case = BY_NAME["residual"]
    for how in ({"rounds": 1}, {"rounds": 4}, {"rounds": 4, "schedule": "linear"}):
        plan = ntksap.allocate(case.module(), 0.7, "ntk-sap", **how, **case.source())
        assert counts_of(prune(case, "ntk-sap-analytic", **how)) == dict(plan)
        assert plan.info["rounds"] == how["rounds"]
        assert plan.info["schedule"] == how.get("schedule", "exponential")
    counts = [counts_of(prune(case, "ntk-sap-analytic", rounds=4, schedule=word)) for word in ("exponential", "linear")]
    assert counts[0] != counts[1]
