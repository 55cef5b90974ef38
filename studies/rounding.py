"""``python -m studies.rounding``: how far NTK-SAP's scores in float32 and bfloat16 are from those in float64.

The same draws in each precision, on ResNet-20 with all its weights: the gap relative to the norm of a layer's scores,
the correlation of scores and of ranks, and how the density of layers changes when the best 30 % or 5 % are kept.
"""

import argparse

import torch
from torch import Tensor

from ntksap import Masks, Net, Probe, models, select
from ntksap.methods.ntk_sap import ntk_sap
from ntksap.net.precision import arithmetic


def scores_in(precision: str, draws: int, batch: int) -> dict[str, Tensor]:
    net = Net(models.build("resnet20", seed=0), **arithmetic(precision))
    masks = Masks.ones({name: net.weights[name] for name in net.prunable})
    found = ntk_sap(net, masks, Probe.of(net, input_shape=(3, 32, 32)), draws=draws, batch=batch)
    return {name: score.double() for name, score in found.items()}


def correlation(first: Tensor, second: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([first, second]))[0, 1])


def density_gaps(first: dict[str, Tensor], second: dict[str, Tensor], density: float) -> list[float]:
    """Return the relative change of each layer that keeps more than 1000 weights."""
    kept = round(density * sum(score.numel() for score in first.values()))
    one, other = (select(scores, kept) for scores in (first, second))
    return [abs(float(other[n].sum() / one[n].sum()) - 1) for n in one if int(one[n].sum()) > 1000]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.rounding", description=__doc__)
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--batch", type=int, default=20)
    given = parser.parse_args()
    exact = scores_in("float64", given.draws, given.batch)
    for precision in ("float32", "bfloat16"):
        found = scores_in(precision, given.draws, given.batch)
        gap = max(float((found[n] - exact[n]).norm() / exact[n].norm()) for n in exact)
        flat = [torch.cat([s.flatten() for s in scores.values()]) for scores in (exact, found)]
        ranks = [values.argsort().argsort().double() for values in flat]
        print(f"{precision}: gap {gap:.2g}, correlation {correlation(*flat):.4f}, of ranks {correlation(*ranks):.4f}")
        for density in (0.3, 0.05):
            gaps = density_gaps(exact, found, density)
            mean = sum(gaps) / len(gaps)
            print(f"  {density:.0%} kept: layer densities change by {mean:.2%}, at most {max(gaps):.2%}", flush=True)


if __name__ == "__main__":
    main()
