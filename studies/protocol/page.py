"""``python -m studies.protocol.page``: write ``docs/results/protocol.md``, its learning curves and its table.

Finished runs come from ``docs/results/protocol/``; those in progress from ``unfinished/``, as far as they have got.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from ntksap import allocate
from ntksap.models import build
from ntksap.report import colour_of, write_figure
from ntksap.runs import Settings
from ntksap.runs.settings import read_settings
from studies.protocol.runs import FINISHED, UNFINISHED

PAPER = {"ntk-sap": (77.66, 0.50)}
"""Test accuracy after 160 epochs at 98.20 %, from the paper's table 12."""
DRAWN = ("synflow", "magnitude")
"""Methods for which the paper has figures only."""
PAGE = """# The paper's own protocol: ResNet-20 on CIFAR-10 at 98.20 %

These runs use the paper's recipe, `cifar10-resnet20` (160 epochs, SGD, batches of 128, learning rate 0.1 divided by ten
at epochs 80 and 120), with one thread per run on 2 CPU cores. One run takes about four hours, so there are few of them,
and the table names the seed of each. `python -m studies.protocol.runs DATA RUNS` carries them out one after the other
and resumes after any interruption; `python -m studies.protocol.page` writes this page. Settings, metrics, masks and
results of every finished run are in `docs/results/protocol`, and `ntksap reproduce main-comparison --scale paper
--finished docs/results/protocol` puts those of the paper's methods into its table.

{table}

![test accuracy by epoch](protocol.png)

## What agrees with the paper, and what does not

**The closed form reaches the paper's number, the sampled mask does not.** The closed form of NTK-SAP with seed 0,
ranking all weights together, ends at 77.51 %, within a third of a standard deviation of the paper's mean for NTK-SAP.
Sampled NTK-SAP with seed 0 ends at 76.01 % (its best epoch, the 132nd, has 76.05 %), 1.6 points or three standard
deviations below that mean. With 76.6 % and 77.9 % on the training images, neither network overfits: they cannot fit the
data better. We checked that the
following are the same in [the published code](https://github.com/YiteWang/NTK-SAP): layers, initialisation,
augmentation, optimizer, drops of the learning rate, weight decay on every parameter, and the number of kept weights (a
share of 0.8¹⁸). The sampled mask takes 2.92 million multiply-adds, the paper's 2.83, that of the closed form 2.65. The
published code prints the best epoch, while we report the last, which makes a difference of 0.04 points here. With one
seed each we cannot say whether the gap between the two forms is more than chance.

**A thin network is better at equal cost.** ResNet-20 with 4, 8 and 16 channels instead of 16, 32 and 64 takes as many
multiply-adds as the masks and ends at 81.64 %, four points above the better mask; it has 3.5 times as many weights. At
this sparsity a mask is a way to save weights, not multiply-adds.

The kernel's condition number (largest eigenvalue ÷ mean of the smallest tenth, 100 test images) at the beginning,
after epochs 40, 80 and 120, and at the end follows. `python -m studies.protocol.runs DATA RUNS --pack` computes the
spectra; `ntksap reproduce spectra-during-training --scale paper --finished docs/results/protocol` draws those of the
paper's methods.

- `ntk-sap`: 1.8·10⁵, 2.6·10⁵, 2.9·10⁵, 3.2·10⁵, 3.2·10⁵. As the paper says, the kernel stays well-conditioned.
- `ntk-sap-analytic`: 8.9·10³, 3.9·10⁵, 2.7·10⁵, 2.6·10⁵, 2.6·10⁵. It starts twenty times better conditioned and ends
  slightly better.
- the thin network: 2.4·10⁵, 9.4·10⁵, 5.5·10⁵, 6.9·10⁵, 6.5·10⁵. It is the most accurate of the three and the worst
  conditioned, so the condition number does not rank networks of different shapes.
"""


class Run(NamedTuple):
    """A run as far as it has got."""

    settings: Settings
    records: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def name(self) -> str:
        """Its name in the table."""
        if self.settings.method == "dense":
            return f"thin ({self.settings.model})"
        ranked = self.settings.method == "ntk-sap-analytic" and not self.settings.allocation
        return self.settings.method + ", one ranking" * ranked


def read(folder: Path) -> Run:
    """Return the run in a folder."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = folder / "result.json"
    return Run(
        read_settings(folder / "settings.toml"), records, json.loads(result.read_text()) if result.exists() else None
    )


def table(runs: list[Run]) -> str:
    """Return the table: ours, the paper's where it has a number, weights and multiply-adds."""
    lines = ["| method | seed | epochs | test accuracy | the paper | weights | multiply-adds |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for run in runs:
        paper = PAPER.get(run.name)
        said = f"{paper[0]:.2f} ± {paper[1]:.2f}" if paper else "in a figure only" if run.name in DRAWN else "–"
        sizes = ["", ""]
        if run.result:
            kept = run.result["kept"] or allocate(build(run.settings.model), 0.0, "uniform").total
            sizes = [f"{kept:,}", f"{run.result['inference_flops'] / 1e6:.2f}e6"]
        accuracy = f"{100 * run.records[-1]['top1']:.2f}"
        epochs = f"{len(run.records)} of {run.settings.recipe.epochs}"
        lines.append(f"| {' | '.join([run.name, str(run.settings.seed), epochs, accuracy, said, *sizes])} |")
    return "\n".join(lines)


def curves(runs: list[Run]) -> Figure:
    """Return the learning curves, the paper's number as a band."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    mean, std = PAPER["ntk-sap"]
    axes.axhspan(mean - std, mean + std, color="0.85", label=f"the paper's NTK-SAP, {mean:.2f} ± {std:.2f}")
    for index, run in enumerate(runs):
        points = [(record["epoch"], 100 * record["top1"]) for record in run.records]
        style = "-" if run.settings.seed == 0 else "--"
        label = f"{run.name}, seed {run.settings.seed}"
        axes.plot(*zip(*points, strict=True), style, color=colour_of(run.settings.method, index), label=label, lw=1.2)
    axes.set(xlabel="epoch", ylabel="test accuracy (%)", xlim=(0, 160), ylim=(30, 85))
    axes.set_title("ResNet-20 on CIFAR-10, sparsity 98.20 %, the paper's recipe")
    axes.legend(loc="lower right", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    runs = [read(path.parent) for root in (FINISHED, UNFINISHED) for path in sorted(root.glob("*/metrics.jsonl"))]
    write_figure(curves(runs), FINISHED.parent / "protocol.png")
    FINISHED.with_suffix(".md").write_text(PAGE.format(table=table(runs)))


if __name__ == "__main__":
    main()
