import itertools

import torch
from torch import nn

from ntksap.analysis import Diagnosis, diagnose
from ntksap.analysis.diagnosis import LayerDiagnosis
from ntksap.report import node_path_figure


class Shortcut(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(x + torch.relu(self.branch(x)))


def test_masks_that_only_shortcuts_lead_around_are_drawn_and_those_without_a_path_are_named():
    whole = {"branch.weight": torch.ones(4, 4, dtype=torch.bool)}
    around = {"branch.weight": torch.zeros(4, 4, dtype=torch.bool)}
    cut = {**whole, "head.weight": torch.zeros(2, 4, dtype=torch.bool)}
    masks = {"whole": whole, "around": around, "cut": cut}
    found = [(name, diagnose(Shortcut(), one, input_shape=(4,))) for name, one in masks.items()]
    figure = node_path_figure(found, "")
    assert {line.get_label() for line in figure.axes[0].lines} == {"whole", "around"}
    assert figure.get_supxlabel() == "not shown, as no path could be counted: cut at 33.33%"


def diagnosed(sparsity, channels, paths):
    layer = LayerDiagnosis("fc.weight", (100, 100), round(10_000 * (1 - sparsity)), 10, 10_000, 100, channels, 9, 9)
    return Diagnosis((layer,), 100, 10, paths, (), None)


def test_seeds_are_small_markers_and_a_line_joins_their_means():
    places = {0.9: ((80, 30.0), (70, 28.0), (90, 32.0)), 0.98: ((40, 10.0), (50, 14.0), (60, 12.0))}
    found = [("snip", diagnosed(sparsity, *place)) for sparsity in places for place in places[sparsity]]
    found.append(("grasp", diagnosed(0.9, 60, 20.0)))
    figure = node_path_figure(found, "")
    lines = figure.axes[0].lines
    (joined,) = [line for line in lines if line.get_label() == "snip"]
    assert (list(joined.get_xdata()), list(joined.get_ydata())) == ([80, 50], [30, 12])
    seeds = [line for line in lines if line.get_linestyle() == "None"]
    assert [sorted(line.get_xdata()) for line in seeds] == [[70, 80, 90], [40, 50, 60]]
    assert "single seeds" in figure.get_supxlabel()


def test_sparsities_do_not_lie_on_each_other():
    found = [
        (f"method-{k}", diagnosed(sparsity, 90 + k % 3, 30.0 + k / 4)) for k in range(9) for sparsity in (0.9, 0.91)
    ]
    figure = node_path_figure([*found, ("far", diagnosed(0.5, 10, 40.0))], "")
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert {"90 %", "91 %", "50 %"} == {text.get_text() for text in figure.axes[0].texts}
    assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))
