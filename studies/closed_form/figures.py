"""Draw the figures of the page from measured.json (see measure.py)."""

import json
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
FIGURES = HERE.parents[1] / "docs" / "methods" / "ntk-sap-analytic"
SPARSITIES = ("36.00", "73.79", "89.26", "95.60", "98.20")
PAPER = {  # inference multiply-adds of the paper's appendix
    "resnet20": ("ResNet-20, CIFAR-10", 1e6, (31.3, 18.2, 10.1, 5.30, 2.83), (33.2, 21.6, 12.2, 5.73, 2.67)),
    "vgg16": ("VGG-16, CIFAR-100", 1e7, (26.1, 17.5, 11.6, 7.54, 4.58), (25.8, 17.6, 11.5, 6.95, 3.71)),
    "resnet18": ("ResNet-18, Tiny-ImageNet", 1e7, (12.7, 9.47, 6.77, 4.53, 2.73), (12.8, 9.49, 6.77, 4.31, 2.36)),
}
INK, BLUE, ORANGE = "#444444", "#0072b2", "#d55e00"


def multiply_adds(measured: dict[str, dict[str, object]]) -> None:
    """Multiply-adds relative to the paper's NTK-SAP, one panel for each of its settings."""
    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), sharey=True, layout="constrained")
    for axis, (setting, (title, unit, sampled, synflow)) in zip(axes, PAPER.items(), strict=True):
        here = [measured[f"{setting} {s} ntk-sap-analytic seed=0"]["multiply_adds"] / unit for s in SPARSITIES]
        at = range(len(SPARSITIES))
        axis.axhline(1, color=INK, lw=1, label="NTK-SAP (paper)")
        axis.plot(
            at, [a / b for a, b in zip(synflow, sampled, strict=True)], "s--", color=ORANGE, label="SynFlow (paper)"
        )
        axis.plot(at, [a / b for a, b in zip(here, sampled, strict=True)], "o-", color=BLUE, label="ntk-sap-analytic")
        axis.set(title=title, xlabel="sparsity (%)")
        axis.set_xticks(list(at), SPARSITIES)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("multiply-adds ÷ NTK-SAP's")
    axes[0].legend(frameon=False, loc="lower left", fontsize=8)
    figure.savefig(FIGURES / "multiply-adds.png", dpi=150)


def densities(measured: dict[str, dict[str, object]]) -> None:
    """Density of each layer of ResNet-20, in closed form and sampled."""
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), sharey=True, layout="constrained")
    for axis, sparsity in zip(axes, ("89.26", "98.20"), strict=True):
        for method, colour, mark in (("ntk-sap", INK, "s--"), ("ntk-sap-analytic", BLUE, "o-")):
            key = f"resnet20 {sparsity} {method} seed=0"
            if key in measured:
                found = measured[key]["densities"]
                axis.plot(range(len(found)), [100 * d for d in found.values()], mark, color=colour, ms=4, label=method)
        names = [name.removesuffix(".weight").replace("blocks.", "") for name in found]
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axis.set(yscale="log", title=f"ResNet-20 at {sparsity} % sparsity")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("kept weights of the layer (%)")
    axes[0].legend(frameon=False)
    figure.savefig(FIGURES / "densities.png", dpi=150)


if __name__ == "__main__":
    values = json.loads((HERE / "measured.json").read_text())
    multiply_adds(values)
    densities(values)
