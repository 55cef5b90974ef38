"""ResNet-20 on CIFAR-10 with the recipe ``quick``: two sweeps.

``methods`` compares the methods of this package under equal conditions, at 98.20 % and 95.60 %. ``gain`` compares
single weights, patterns and whole channels with the thin network, each at half and at a quarter of the multiply-adds.

    python -m studies.cifar.sweep methods DATA OUT         # carries out the commands that `--list` prints, run by run
    python -m studies.cifar.sweep methods DATA OUT --pack  # keeps the results of finished runs in docs/results
    python -m studies.cifar.sweep methods --table          # prints them

DATA is the folder that holds CIFAR-10. A run that was interrupted resumes; one whose result was kept is finished. Each
run uses all cores that it may; several sweeps on one machine should each have a core and an OUT of their own
(``taskset -c 0``).
"""

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ntksap.report.differences import MIN_SEEDS, Difference, difference
from ntksap.report.table import Cell, cells, formatted

KEPT = Path(__file__).parents[2] / "docs" / "results"
PACKED = {"methods": KEPT / "sweep", "gain": KEPT / "gain" / "runs"}
SEEDS = ("0", "1", "2")
SCORES = "synflow,ntk-sap,snip,grasp,force,iterative-snip,magnitude,px,prospr,hutchinson"
METHODS = f"random-erk,random,magnitude-erk,phew,ntk-sap-analytic,{SCORES},dpai,mag-1epoch"
BEST = "ntk-sap,ntk-sap-analytic,dpai,mag-1epoch,random-erk,hutchinson"
"""The six with the highest mean accuracy at 98.20 %, of three seeds."""

BESIDE = {0.982: 0.933, 0.956: 0.898}
"""{sparsity: share of the multiply-adds that the thin network lacks beside it}: at 98.20 % it has as many as masks that
rank all weights together, at 95.60 % a fifth fewer, since one channel more would be more than any."""

ERK = ", ERK's counts"
"""How the name of a way ends whose method would have chosen other counts per layer."""
DECAY = ", degree decay"


def commands(sweep: str) -> Iterator[list[str]]:
    """Yield the arguments of ``ntksap``, the most important first."""

    def command(methods: str, sparsities: str, seed: str, *others: str, epochs: int = 5) -> list[str]:
        what = ["--methods", methods, "--sparsities", sparsities, "--seeds", seed]
        return ["compare", "--jobs", "1", *what, "--epochs", str(epochs), *others]

    if sweep == "gain":
        thin = ("--thin", "--budget", "multiply-adds")
        for seed in SEEDS:
            yield command("ntk-sap-analytic", "0.75,0.5", seed, "--patterns", "channel", *thin, epochs=10)
        for seed in SEEDS:
            yield command("ntk-sap-analytic", "0.5", seed, "--patterns", "2:4", *thin, epochs=10)
            # Early layers, whose weights are used most often, keep more: these leave a half and a quarter to multiply.
            yield command("ntk-sap-analytic", "0.75,0.9", seed, "--patterns", "unstructured,block:16x16", epochs=10)
        return
    for seed in SEEDS:
        yield command(METHODS, "0.982", seed)
    for seed in SEEDS:
        yield from _thin("0.982", seed)
        for how in ("rigl", "set"):
            yield command("random-erk,ntk-sap", "0.982", seed, "--regrow", how)
    for seed in SEEDS:
        yield command(BEST, "0.956", seed)
        others = SCORES.replace("magnitude,", "")  # magnitude-erk is among the methods
        yield command(others, "0.982", seed, "--allocation", "erk")
        yield command(BEST, "0.982", seed, epochs=10)
        yield command("imp", "0.982", seed, "--level-epochs", "1")
        yield command("ntk-sap,synflow", "0.982", seed, "--degree-decay", "0.2")
        yield from _thin("0.956", seed)
        yield from _thin("0.982", seed, epochs=10)


def _thin(sparsity: str, seed: str, epochs: int = 5) -> Iterator[list[str]]:
    """Yield the thin networks with as many weights, and as many multiply-adds, as masks of this sparsity."""
    for budget, removed in (("weights", sparsity), ("multiply-adds", str(BESIDE[float(sparsity)]))):
        thin = ["--method", "thin", "--sparsity", removed, "--budget", budget]
        yield ["train", *thin, "--seed", seed, "--epochs", str(epochs)]


def whole(arguments: list[str], data: Path, out: Path) -> list[str]:
    """Return the whole command."""
    runs = out / "runs" if arguments[0] == "train" else out  # compare puts runs into a folder of their own
    where = ["--data", "cifar10", "--data-dir", str(data), "--out", str(runs)]
    return [sys.executable, "-m", "ntksap", *arguments, *where, "--model", "resnet20", "--recipe", "quick"]


FILES = {"result.json": ".json", "timings.json": ".timings.json", "masks.safetensors": ".masks.safetensors"}
"""What is kept of a finished run, {file in its folder: how the copy's name ends}; masks only until it is timed."""


def pack(sweep: str, out: Path) -> None:
    """Keep the results of finished runs, and what was measured of them."""
    PACKED[sweep].mkdir(exist_ok=True)
    for folder in {file.parent for file in out.glob("runs/*/result.json")}:
        timed = sweep != "gain" or (folder / "timings.json").exists()
        for name, ending in FILES.items():
            copy = PACKED[sweep] / f"{folder.name}{ending}"
            if name == "masks.safetensors" and timed:
                copy.unlink(missing_ok=True)
            elif (folder / name).exists():
                copy.write_bytes((folder / name).read_bytes())


def unpack(sweep: str, out: Path) -> None:
    """Put what was kept where the commands look for it, so that no finished run is carried out again."""
    for result in _results(sweep):
        folder = out / "runs" / result.stem
        folder.mkdir(parents=True, exist_ok=True)
        for name, ending in FILES.items():
            copy = result.with_name(f"{result.stem}{ending}")
            if copy.exists() and not (folder / name).exists():
                (folder / name).write_bytes(copy.read_bytes())


def _results(sweep: str) -> list[Path]:
    return sorted(set(PACKED[sweep].glob("*.json")) - set(PACKED[sweep].glob("*.timings.json")))


def kept_runs(sweep: str) -> dict[tuple[int, float], dict[str, list[dict[str, Any]]]]:
    """Return the results that were kept, {(epochs, share removed): {way: runs}}; what was timed is ``timings``.

    The share is that of weights (``methods``), or the nearest of 0, a half and three quarters of the multiply-adds
    (``gain``), at which networks of equal cost stand together.
    """
    cases: dict[tuple[int, float], dict[str, list[dict[str, Any]]]] = {}
    for file in _results(sweep):
        run = json.loads(file.read_text())
        timings = file.with_suffix(".timings.json")
        run["timings"] = json.loads(timings.read_text()) if timings.exists() else {}
        ways = cases.setdefault((run["recipe"]["epochs"], _removed(sweep, run)), {})
        regrown = run["recipe"].get("regrow", "none")
        erk = run["allocation"] == "erk" and not run["method"].endswith(("-erk", "dpai"))
        ranked = run["method"] == "ntk-sap-analytic" and not (run["allocation"] or run["pattern"])
        way = run["method"] + ERK * erk + DECAY * (run["degree_decay"] > 0)
        way += f", {regrown}" if regrown != "none" else ""
        way += ", one ranking" * ranked
        way += f", equal {run['budget']}" if run["method"] == "thin" else ""
        single = ", single weights" if sweep == "gain" and run["method"] not in ("dense", "thin") else ""
        way += f", {run['pattern']}" if run["pattern"] else single
        way += ", random places" if run["pattern"] and run["places"] == "random" else ""
        ways.setdefault(way, []).append(run)
    if sweep == "methods":
        for (epochs, _), ways in cases.items():
            ways.setdefault("dense", cases[epochs, 0.982]["dense"])
    return dict(sorted(cases.items()))


def _removed(sweep: str, run: dict[str, Any]) -> float:
    if sweep == "gain":
        removed = 1 - run["inference_flops"] / run["dense_flops"]
        return min((0.0, 0.5, 0.75), key=lambda share: abs(share - removed))
    if run["method"] == "thin" and run["budget"] == "multiply-adds":
        return next(sparsity for sparsity, share in BESIDE.items() if share == run["sparsity"])
    return 0.982 if run["method"] == "dense" else run["sparsity"]


def table(sweep: str) -> str:
    """Return tables in Markdown: accuracy in per cent, mean ± standard deviation over seeds, and what it costs.

    With three seeds, also the difference in points, paired over seeds, with its 95 % interval: how far a network is
    behind the best mask of those chosen before training, or (``gain``) ahead of the thin network. A second table says
    what changing masks in training (RigL, SET), ERK's counts per layer and degree decay do to a method.
    """
    lines = []
    compared = "ahead of thin" if sweep == "gain" else "behind the best mask"
    heads = "accuracy", compared, "weights", "multiply-adds", "seconds to prune", "seeds"
    for (epochs, removed), ways in kept_runs(sweep).items():
        title = f"{removed:.2%}, {epochs} epochs"
        lines += _head(title, *heads)
        found = cells({**run, "method": way, "sparsity": removed} for way, runs in ways.items() for run in runs)
        found.sort(key=lambda cell: -cell.mean)
        masks = [cell for cell in found if cell.seeds >= MIN_SEEDS and _before_training(ways[cell.method][0])]
        thin = next((cell for cell in found if cell.method.startswith("thin")), None)
        by_way = {cell.method: cell for cell in found}
        for cell in [cell for cell in found if not cell.method.endswith((ERK, DECAY))]:
            pair = (cell, thin) if sweep == "gain" else (masks[0] if masks else None, cell)
            gap = difference(*pair) if None not in pair and pair[0] != pair[1] and cell.method != "dense" else None
            apart = _said(gap) if gap else ""
            weights = f"{cell.kept:,.0f}" if cell.kept else ""
            costs = f"{cell.inference_flops / 1e6:.2f}·10⁶", f"{cell.prune_seconds:.0f}", str(cell.seeds)
            lines += [f"| {' | '.join((cell.method, formatted(cell), apart, weights, *costs))} |"]
        changed = _changed(by_way)
        if changed:
            others = "accuracy", "without", "ahead of it", "ahead of random places", "seeds"
            lines += ["", *_head(title, *others), *changed]
        lines += [""]
    return "\n".join(lines)


def _head(*titles: str) -> list[str]:
    return [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]


def _changed(by_way: dict[str, Cell]) -> list[str]:
    """Return a row for each method with something more, beside the method itself (and random places, for ERK)."""
    rows = []
    for way, cell in by_way.items():
        own = way
        for ending in (", rigl", ", set", ERK, DECAY):
            own = own.removesuffix(ending)
        own = own if own != way else way.removesuffix("-erk")
        if own != way and own in by_way:
            gap, at_random = difference(cell, by_way[own]), None
            if way.endswith(ERK) or way == "magnitude-erk":
                at_random = difference(cell, by_way["random-erk"])
            gaps = [_said(one) if one else "" for one in (gap, at_random)]
            row = way, formatted(cell), formatted(by_way[own]), *gaps, str(cell.seeds)
            rows += [f"| {' | '.join(row)} |"]
    return rows


def _said(gap: Difference) -> str:
    return f"{gap.mean:.2f} ({gap.low:.2f} to {gap.high:.2f})".replace("-", "−")


def _before_training(run: dict[str, Any]) -> bool:
    """Whether a run's mask was there before training, and stayed."""
    return run["method"] not in ("dense", "thin", "imp") and run["recipe"].get("regrow", "none") == "none"


def main() -> int:
    """Carry out what is missing, or show what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", choices=list(PACKED), help="which of the two")
    parser.add_argument("data", type=Path, nargs="?", default=Path("data"), help="the folder that holds CIFAR-10")
    parser.add_argument("out", type=Path, nargs="?", default=Path("sweep"), help="the folder for runs")
    parser.add_argument("--pack", action="store_true", help="keep the results of finished runs, and end")
    parser.add_argument("--table", action="store_true", help="print what was kept, and end")
    parser.add_argument("--list", action="store_true", help="print the commands, and end")
    given = parser.parse_args()
    every = [whole(arguments, given.data, given.out) for arguments in commands(given.sweep)]
    if given.pack:
        pack(given.sweep, given.out)
    elif given.table:
        print(table(given.sweep))
    elif given.list:
        print("\n".join(map(shlex.join, every)))
    else:
        unpack(given.sweep, given.out)
        return max(subprocess.run(command).returncode for command in every)
    return 0


if __name__ == "__main__":
    sys.exit(main())
