"""What masks are called: as runs are, as far as their files say how they were made."""

import torch

import ntksap
from ntksap.pruning import Masks
from ntksap.report import mask_labels


def labels(*infos):
    return mask_labels([Masks({"weight": torch.ones(4, 4) > 0}, {"sparsity": 0.9, **info}) for info in infos])


def test_masks_of_one_method_are_called_by_what_is_not_usual_about_them():
    assert labels(
        {"method": "snip", "rounds": 1},
        {"method": "snip", "rounds": 1, "pattern": "2:4"},
        {"method": "snip", "rounds": 1, "degree_decay": 0.2},
        {"method": "snip", "rounds": 1, "allocation": "erk"},
        {"method": "snip", "rounds": 1, "scope": "layer"},
        {"method": "synflow", "rounds": 100},
    ) == ["snip", "snip, 2:4", "snip, degree decay 0.2", "snip, erk", "snip, layer scope", "synflow"]


def test_the_way_in_which_masks_regrew_is_said_and_earlier_files_say_only_that_they_did():
    random = {"method": "random", "rounds": 1, "allocation": "erk"}
    found = labels({**random, "regrown": "rigl"}, {**random, "regrown": "set"}, {**random, "regrown": True}, random)
    assert found == ["random, rigl", "random, set", "random, regrown", "random"]


def test_a_methods_own_allocation_is_not_repeated_and_a_scope_in_its_place_is_said():
    model = ntksap.models.build("lenet-300-100", input_shape=(1, 8, 8))
    given = [{}, {"scope": "global"}, {"scope": "layer"}, {"scope": "global", "degree_decay": 0.2}]
    made = [ntksap.prune(model, 0.9, "ntk-sap-analytic", input_shape=(1, 8, 8), **own) for own in given]
    made += [ntksap.prune(model, 0.9, "random-erk", input_shape=(1, 8, 8))]
    assert mask_labels(made) == [
        "ntk-sap-analytic",
        "ntk-sap-analytic, global scope",
        "ntk-sap-analytic, layer scope",
        "ntk-sap-analytic, global scope, degree decay 0.2",
        "random-erk",
    ]


def test_imp_is_called_the_same_at_every_sparsity():
    runs = [{"method": "imp", "sparsity": sparsity, "rounds": rounds} for sparsity, rounds in ((0.9, 11), (0.95, 14))]
    assert labels(*runs) == ["imp", "imp"]


def test_masks_that_say_nothing_are_masks():
    assert labels({"sparsity": None}, {"method": "x" * 99}) == ["masks", "x" * 60]
