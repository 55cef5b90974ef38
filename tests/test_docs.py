"""Every Python block in README and docs runs as it stands."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import ntksap
from ntksap.methods import METHODS

ROOT = Path(__file__).parents[1]


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, stride=4)
        self.mlp = nn.Linear(4, 8)
        self.classifier = nn.Linear(8, 5)

    def forward(self, x):
        return self.classifier(self.mlp(self.stem(x).relu().mean((2, 3))).relu())


class LanguageModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 8)
        self.mix = nn.Linear(8, 8)

    def forward(self, input_ids):
        return self.mix(self.embed(input_ids)).mean(1)


@pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning")
@pytest.mark.parametrize("name", ["README.md", "docs/guide.md"])
def test_the_blocks_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    images = torch.randn(40, 3, 32, 32)
    namespace = {
        "ntksap": ntksap,
        "torch": torch,
        "nn": nn,
        "model": Classifier(),
        "language_model": LanguageModel(),
        "small_subset": TensorDataset(images, torch.arange(40) % 5),
        "regression_loader": [(images, torch.randn(40, 5))],
    }
    code = blocks(name)
    assert len(code) >= 2
    try:
        for block in code:
            exec(block, namespace)
    finally:
        METHODS.pop("big-inputs", None)
    assert namespace["masks"].density == pytest.approx(0.1 if "guide" in name else 0.018, abs=0.03)


def test_the_page_about_compaction_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace: dict = {}
    for block in blocks("docs/compaction.md"):
        exec(block, namespace)
    weights = [sum(p.numel() for p in namespace[name].parameters()) for name in ("small", "again", "model")]
    assert weights[0] == weights[1] < 0.3 * weights[2]


@pytest.mark.filterwarnings("ignore::ntksap.CollapseWarning")
def test_the_tutorial_runs_from_top_to_bottom():
    namespace: dict = {}
    for block in blocks("docs/your-own-model.md"):
        exec(block, namespace)
    assert namespace["masks"].kept == round(0.1 * namespace["masks"].total)
    assert namespace["masks"].obeyed_by(namespace["model"])
    assert namespace["accuracy"] > 0.7
    assert namespace["found"].effective_sparsity < 1


def test_the_page_about_other_loops_quotes_the_examples_and_the_rest_runs():
    quoted = 0
    pruned = nn.Linear(2, 2)
    torch.nn.utils.prune.l1_unstructured(pruned, "weight", amount=2)
    model = nn.Linear(2, 2)
    namespace = {
        "torch": torch,
        "model": model,
        "another_model": nn.Linear(2, 2),
        "masks": ntksap.Masks({"weight": torch.eye(2).bool()}),
        "torch_pruned_model": pruned,
        "pruned_state_dict": {"weight": torch.eye(2)},
    }
    for block in blocks("docs/integrations.md"):
        first, _, rest = block.partition("\n")
        if first.startswith("# examples/"):
            assert rest in (ROOT / first.removeprefix("# ")).read_text()
            quoted += 1
        else:
            exec(block, namespace)
    assert quoted == 2
    assert namespace["masks"].obeyed_by(model)
    assert namespace["another_model"].weight_mask.sum() == 2
    assert torch.equal(namespace["zeros"]["weight"], torch.eye(2).bool())


def test_the_methods_in_the_readme_are_the_methods_there_are():
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| method |") : text.index("A method is one short file")]
    assert set(re.findall(r"`([a-z0-9-]+)`", table)) == set(METHODS)
