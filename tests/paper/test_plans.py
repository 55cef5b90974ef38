"""The plans that come with the package: complete, readable, and true to the paper."""

import re

import pytest

from ntksap._base.errors import InputError
from ntksap.models import build
from ntksap.paper.bench import settings_at
from ntksap.paper.kinds import KINDS
from ntksap.paper.plan import SCALES, plan_names, read_plan, sparsity_at
from ntksap.runs.settings import DENSE
from ntksap.training.recipe import recipe_names

NOT_BUILT_EVERYWHERE = {"mag-1epoch", "prospr"}
SHAPES = {"cifar10": (3, 32, 32, 10), "cifar100": (3, 32, 32, 100), "tiny-imagenet": (3, 64, 64, 200)}


def every_plan():
    return [(name, scale) for name in plan_names() for scale in SCALES]


def test_every_table_and_figure_of_the_paper_has_a_plan():
    places = " ".join(read_plan(name, "paper").where for name in plan_names())
    assert {int(n) for n in re.findall(r"table (\d+)", places)} == set(range(1, 16))
    assert {int(n) for n in re.findall(r"figure (\d+)", places)} == set(range(1, 11))


@pytest.mark.parametrize(("name", "scale"), every_plan(), ids=lambda value: value)
def test_a_plan_is_valid(name, scale):
    plan = read_plan(name, scale)
    assert plan.kind in KINDS
    assert plan.panels or plan.left_out
    for panel in plan.panels:
        labels = [row.name for row in panel.rows]
        assert len(set(labels)) == len(labels) > 0
        if panel.model:
            assert panel.recipe in recipe_names()
            assert (*panel.input_shape, panel.classes) == SHAPES.get(panel.data, (3, 224, 224, 1000))
        for row in panel.rows:
            if panel.model and row.method not in NOT_BUILT_EVERYWHERE:
                for step in panel.steps or (18,):
                    assert settings_at(panel, row, step, panel.seeds[0]).rounds >= 1


@pytest.mark.parametrize("name", plan_names())
def test_the_papers_numbers_fit_the_table(name):
    quick, full = read_plan(name, "quick"), read_plan(name, "paper")
    assert not full.left_out
    for panel in full.panels:
        columns = len(panel.columns)
        assert set(panel.reported_steps) <= {*panel.steps, *range(columns)}
        for row, numbers in [*panel.reported.items(), *panel.reported_std.items()]:
            assert row in {DENSE, "one epoch", *(one.name for one in panel.rows)}
            assert len(numbers) == (len(panel.reported_steps) if panel.steps else columns)
    for small in quick.panels:
        (large,) = [panel for panel in full.panels if panel.name == small.name]
        assert set(small.steps) <= set(large.steps)
        for row in small.reported:
            for step in small.steps:
                assert small.paper(row, step) == large.paper(row, step)
    if full.where.startswith("table"):
        assert all(panel.reported for panel in full.panels)


def test_some_numbers_as_the_paper_prints_them():
    (cifar10,) = read_plan("inference-flops-cifar10", "paper").panels
    assert [cifar10.paper("ntk-sap", step) for step in cifar10.steps] == [31.3, 18.2, 10.1, 5.3, 2.83]
    (tiny,) = read_plan("ablation-epsilon-tiny-imagenet", "quick").panels
    assert (tiny.paper("ε = 1e-4", 18), tiny.paper_std("ε = 1e-4", 18)) == (43.92, 0.39)
    _, resnet50 = read_plan("imagenet", "paper").panels
    assert (resnet50.paper("ntk-sap", 10), resnet50.paper("ntk-sap", 14)) == (68.28, 60.79)


def test_times_are_scaled_up_to_the_papers_rounds_and_draws():
    full = {panel.name: panel for panel in read_plan("pruning-time", "paper").panels}
    for panel in read_plan("pruning-time", "quick").panels:
        for small, large in zip(panel.rows, full[panel.name].rows, strict=True):
            work = [
                one.times * settings_at(panel, one, 18, 0).rounds * one.options.get("draws", 1)
                for one in (small, large)
            ]
            assert large.times == 1
            assert work[0] == work[1]
            assert small.options.get("batch") == large.options.get("batch")


def test_the_paper_agrees_with_itself_on_totals():
    """Totals follow from the inference tables by the paper's own counting, so a digit copied wrongly would show."""
    from ntksap.analysis.budget import paper_budget
    from ntksap.analysis.multiply_adds import cost

    for data in ("cifar10", "cifar100", "tiny-imagenet"):
        (inference,), (total,) = (read_plan(f"{kind}-flops-{data}", "paper").panels for kind in ("inference", "total"))
        model = build(total.model, num_classes=total.classes, input_shape=total.input_shape)
        dense = cost(model, input_shape=total.input_shape).dense
        for row, numbers in total.reported.items():
            for step, number in zip(total.steps, numbers, strict=True):
                sparse = round(inference.paper(row, step) * inference.unit)
                budget = paper_budget(row, dense, sparse, epochs=total.training.epochs, images=total.images)
                assert budget.total / total.unit == pytest.approx(number, rel=0.012), (data, row, step)


def test_sparsities_are_the_papers():
    assert [round(100 * sparsity_at(step), 2) for step in (2, 6, 10, 14, 18)] == [36.0, 73.79, 89.26, 95.6, 98.2]


def test_what_is_no_plan_says_why(tmp_path):
    with pytest.raises(InputError, match="Did you mean 'imagenet'"):
        read_plan("imagenett", "quick")
    with pytest.raises(InputError, match=r"absent\.toml cannot be read"):
        read_plan(tmp_path / "absent.toml", "quick")
    for text, message in [
        ("title =", "TOML"),
        ('title = "t"\nwhere = "table 1"\nkind = "accuracy"', "panels"),
        ('title = "t"\nwhere = "table 1"\nkind = "x"\npanels = [{ name = "a", rows = [{}] }]', "a row lacks method"),
        ('title = "t"\nkind = "x"\npanels = []', "a plan lacks where"),
        ('title = "t"\nwhere = "table 1"\nkind = "x"\npanels = [{ name = "a", rows = [], sted = 1 }]', "'steps'"),
        (
            'title = "t"\nwhere = "table 1"\nkind = "x"\npanels = [{ name = "a", rows = [], only = ["b"] }]',
            "unknown row of panel a 'b'",
        ),
    ]:
        (tmp_path / "plan.toml").write_text(text)
        with pytest.raises(InputError, match=message):
            read_plan(tmp_path / "plan.toml", "quick")
