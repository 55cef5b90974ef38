import torch
from torch import nn

from ntksap.analysis import diagnose
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
