import pytest

from ntksap.report.experiments import experiments
from ntksap.report.reading import Folder, Run
from ntksap.report.summary import counts, findings
from tests.report.finished_runs import RECIPE, finished, seeds


def said(*runs):
    (one,) = experiments(runs)
    return {sentence.about: sentence.text for sentence in findings(one)}


def test_one_seed():
    words = said(*seeds("snip", 0.9, 0.80), *seeds("grasp", 0.9, 0.75), *seeds("dense", 0.0, 0.9))
    assert words["90 % sparsity"] == (
        "snip has the highest mean, 80.00 %, 5.00 points ahead of grasp (75.00 %); fewer than 3 seeds in common cannot "
        "tell that from chance."
    )
    assert words["One seed only"] == "every number is a single run, so a gap may be chance."
    assert words["Reference"] == (
        "the dense network reaches 90.00 %; the highest mean of a pruned one is 10.00 points below it at 90 %."
    )


def test_two_seeds_name_no_best_method():
    (one,) = experiments([*seeds("snip", 0.9, 0.80, 0.84), *seeds("grasp", 0.9, 0.70, 0.74)])
    verdict, *others = findings(one)
    assert verdict.text == (
        "snip has the highest mean, 82.00 ± 2.83 %, 10.00 points ahead of grasp (72.00 ± 2.83 %); fewer than 3 seeds "
        "in common cannot tell that from chance."
    )
    assert verdict.warning
    assert "One seed only" not in [other.about for other in others]
    assert "the cost of pruning in accuracy is unknown." in [other.text for other in others]


def test_a_verdict_where_three_seeds_tell_the_best_from_every_other():
    words = said(
        *seeds("snip", 0.9, 0.80, 0.82, 0.84),
        *seeds("grasp", 0.9, 0.70, 0.72, 0.75),
        *seeds("force", 0.9, 0.5, 0.5, 0.5),
    )
    assert words["90 % sparsity"] == (
        "snip is best with 82.00 ± 2.00 %, significantly ahead of each of 2 other methods; grasp is 9.67 points behind "
        "(95 % interval 8.23 to 11.10, paired over 3 seeds)."
    )


def test_no_verdict_where_the_seeds_do_not_tell_the_best_from_another():
    words = said(*seeds("snip", 0.9, 0.80, 0.82, 0.84), *seeds("grasp", 0.9, 0.83, 0.70, 0.75))
    assert words["90 % sparsity"] == (
        "no significant winner: snip has the highest mean, 82.00 ± 2.00 %, but the seeds do not tell it from grasp; "
        "grasp is 6.00 points behind (95 % interval −13.72 to 25.72, paired over 3 seeds)."
    )


def test_a_mean_over_other_seeds_is_not_the_highest():
    words = said(*seeds("snip", 0.9, 0.80, 0.82, 0.84, 0.99), *seeds("grasp", 0.9, 0.83, 0.81, 0.85))
    assert words["90 % sparsity"] == (
        "no significant winner: grasp has the highest mean over the 3 common seeds, but the seeds do not tell it from "
        "snip; snip is 1.00 points behind (95 % interval −3.97 to 5.97, paired over 3 seeds)."
    )


def test_methods_without_enough_seeds_in_common_are_not_compared():
    words = said(*seeds("snip", 0.9, 0.8, 0.8, 0.8), *seeds("grasp", 0.9, 0.7, 0.7, 0.7), *seeds("force", 0.9, 0.9))
    assert words["90 % sparsity"].endswith(" Not compared, with fewer than 3 seeds in common: force.")


def test_how_many_images_stand_behind_a_number():
    assert said(*seeds("snip", 0.9, 0.8, images=360))["360 test images"] == "one image more or less is 0.28 points."
    assert said(*seeds("snip", 0.9, 0.8, images=10_000))["10,000 test images"].endswith("is 0.01 points.")
    assert not [about for about in said(*seeds("snip", 0.9, 0.8)) if "test images" in about]  # not known


def test_methods_that_are_level():
    words = said(
        *(run for method in ("random", "snip", "grasp") for run in seeds(method, 0.9, 0.8)), *seeds("force", 0.9, 0.6)
    )
    assert words["90 % sparsity"] == "random, snip and grasp are level at 80.00 %. Next is force with 60.00 %."


def test_one_method_alone_and_a_pruned_net_above_the_dense_one():
    words = said(*seeds("snip", 0.5, 0.95), *seeds("snip", 0.9, 0.9), *seeds("dense", 0.0, 0.9))
    assert words["50 % sparsity"] == "only snip was run; it reaches 95.00 %."
    assert "5.00 points above it at 50 %, level with it at 90 %" in words["Reference"]


def test_collapsed_layers_by_name():
    layers = {"conv.weight": 0.1, "a.weight": 0.0, "b.weight": 0.0}
    runs = [finished("snip", 0.9, seed, 0.8, layers=layers) for seed in (0, 1)] + seeds("snip", 0.5, 0.8)
    assert said(*runs)["Collapsed"] == "snip at 90 % (seeds 0, 1) left nothing of a, b; no signal passes there."
    assert "Collapsed" not in said(*seeds("snip", 0.5, 0.8))


@pytest.mark.parametrize(
    ("states", "about", "text"),
    [
        (["finished"], "1 run", "1 finished."),
        (["finished", "failed", "unfinished", "failed"], "4 runs", "1 finished, 2 failed, 1 unfinished."),
        (["damaged"], "1 run", "0 finished, 1 damaged."),
    ],
)
def test_counts(states, about, text):
    sentence = counts(Folder("x", [Run(str(index), state) for index, state in enumerate(states)], {}, []))
    assert (sentence.about, sentence.text) == (about, text)
    assert sentence.warning == (states != ["finished"])


def test_other_recipes_models_and_data_are_other_experiments():
    slow = {**RECIPE, "lr": 0.01}
    runs = [
        *seeds("snip", 0.9, 0.8),
        finished("snip", 0.9, 0, 0.6, recipe=slow),
        finished("snip", 0.9, 0, 0.5, data="cifar10"),
    ]
    found = experiments(runs)
    titles = ["net on cifar10, 2 epochs", "net on digits, 2 epochs, lr=0.01", "net on digits, 2 epochs, lr=0.1"]
    assert [one.title for one in found] == titles
    assert [cell.mean for one in found for cell in one.table] == pytest.approx([50, 60, 80])


def test_other_settings_of_a_method_are_no_seeds_of_it():
    runs = [finished("snip", 0.9, 0, 0.8, rounds=1), finished("snip", 0.9, 0, 0.7, rounds=100, options={"batch": 4})]
    runs += [finished("snip", 0.9, 0, 0.6, rounds=100, sanity="shuffle")]
    (one,) = experiments(runs)
    assert [(cell.method, cell.mean) for cell in one.table] == [
        ("snip", 80.0),
        ("snip, batch 4, rounds 100", 70.0),
        ("snip, rounds 100 (shuffle)", 60.0),
    ]


def test_methods_stand_in_the_order_of_their_table_dense_first():
    runs = [run for method in ("zz-own", "ntk-sap", "snip") for run in seeds(method, 0.9, 0.8)]
    (one,) = experiments([*runs, *seeds("dense", 0.0, 0.9)])
    assert [label for label, _ in one.runs] == ["dense", "snip", "ntk-sap", "zz-own"]


def test_a_run_that_is_there_twice_counts_once():
    run = seeds("snip", 0.9, 0.8)[0]
    copy = Run("a-copy", "unfinished", run.settings)
    (one,) = experiments([copy, run, Run("b-copy", "finished", run.settings, result=run.result)])
    assert [cell.seeds for cell in one.table] == [1]
