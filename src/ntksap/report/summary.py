"""What the results say, in words."""

from collections.abc import Sequence
from typing import NamedTuple

from ntksap.report.differences import MIN_SEEDS, Difference, differences
from ntksap.report.experiments import Experiment, sparsity_text
from ntksap.report.reading import Folder
from ntksap.report.table import LEVEL, Cell, formatted, ranks
from ntksap.runs import DENSE, THIN


class Sentence(NamedTuple):
    """One finding: what it is about, what it says, and whether it needs attention."""

    about: str
    text: str
    warning: bool = False


def counts(folder: Folder) -> Sentence:
    """Return how many runs there are, and in what state."""
    total = len(folder.runs)
    parts = [f"{folder.count('finished')} finished"]
    parts += [f"{n} {status}" for status in ("failed", "unfinished", "damaged") if (n := folder.count(status))]
    return Sentence(
        "1 run" if total == 1 else f"{total} runs", ", ".join(parts) + ".", folder.count("finished") < total
    )


def findings(experiment: Experiment) -> list[Sentence]:
    """Return the findings of an experiment: the verdict at each sparsity, the dense reference, collapse."""
    if not experiment.table:
        return [Sentence("Nothing to compare yet", "no run of this experiment is finished.", True)]
    found = verdicts(experiment.table)
    if all(cell.seeds == 1 for cell in experiment.table):
        found.append(Sentence("One seed only", "every number is a single run, so a gap may be chance.", True))
    found.append(_dense(experiment.table))
    if (images := experiment.test_images) is not None:
        found.append(Sentence(f"{images:,} test images", f"one image more or less is {_step(images)}."))
    return [*found, *_collapses(experiment)]


def verdicts(table: Sequence[Cell]) -> list[Sentence]:
    """Return a sentence per sparsity: which method is best, or why nobody can say."""
    gaps = differences(table)
    found = []
    for sparsity, here in _ranked(table).items():
        paired = [gaps[key] for key in gaps if key[1] == sparsity]
        text = _verdict(here, paired) if paired else _highest(here)
        found.append(Sentence(f"{sparsity_text(sparsity)} sparsity", text, len(here) > 1 and not paired))
    return found


def _ranked(table: Sequence[Cell]) -> dict[float, list[Cell]]:
    """Return the cells of each sparsity, the highest mean first, without the dense reference."""
    place = ranks(table)
    pruned = sorted(
        (cell for cell in table if cell.method != DENSE), key=lambda cell: place[cell.method, cell.sparsity]
    )
    return {at: [cell for cell in pruned if cell.sparsity == at] for at in sorted({cell.sparsity for cell in pruned})}


def _step(images: int) -> str:
    """Return how much one test image counts, in points.

    >>> _step(360), _step(10_000)
    ('0.28 points', '0.01 points')
    """
    return f"{100 / images:.2g} points"


def _verdict(ranked: list[Cell], gaps: list[Difference]) -> str:
    """Return which method is best if the seeds tell it from every other; else, which ones they cannot tell it from."""
    closest = min(gaps, key=lambda gap: gap.mean)
    first = next(cell for cell in ranked if cell.method == closest.best)
    near = [gap.method for gap in gaps if not gap.significant]
    low, high = (f"{value:.2f}".replace("-", "−") for value in (closest.low, closest.high))
    interval = f"95 % interval {low} to {high}, paired over {closest.seeds} seeds"
    behind = f"{closest.method} is {_points(closest.mean)} behind ({interval})"
    untested = [cell.method for cell in ranked if cell.method not in (first.method, *(gap.method for gap in gaps))]
    rest = f" Not compared, with fewer than {MIN_SEEDS} seeds in common: {_listed(untested)}." if untested else ""
    uneven = any(cell.seeds > closest.seeds for cell in ranked if cell.method not in untested)
    over = f" over the {closest.seeds} common seeds" if uneven else f", {formatted(first)} %"
    if near:
        others = _listed(near) if len(near) <= 4 else f"{len(near)} of {len(gaps)} other methods"
        text = f"no significant winner: {first.method} has the highest mean{over}, but the seeds do not"
        return f"{text} tell it from {others}; {behind}.{rest}"
    among = "the other method" if len(gaps) == 1 else f"each of {len(gaps)} other methods"
    best = f"{first.method} is best{over if uneven else f' with {formatted(first)} %'}"
    return f"{best}, significantly ahead of {among}; {behind}.{rest}"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _highest(ranked: list[Cell]) -> str:
    """Return which method has the highest mean, where too few seeds tell whether it is the best."""
    first, *rest = ranked
    if not rest:
        return f"only {first.method} was run; it reaches {formatted(first)} %."
    level = [cell for cell in ranked if first.mean - cell.mean < LEVEL]
    if len(level) > 1:
        names = _listed([cell.method for cell in level])
        return f"{names} are level at {first.mean:.2f} %.{_behind(ranked[len(level) :])}"
    ahead = f"{_points(first.mean - rest[0].mean)} ahead of {rest[0].method} ({formatted(rest[0])} %)"
    return (
        f"{first.method} has the highest mean, {formatted(first)} %, {ahead}; fewer than {MIN_SEEDS} seeds in common "
        "cannot tell that from chance."
    )


def _behind(rest: list[Cell]) -> str:
    return f" Next is {rest[0].method} with {formatted(rest[0])} %." if rest else ""


def _dense(table: Sequence[Cell]) -> Sentence:
    dense = next((cell for cell in table if cell.method == DENSE), None)
    if dense is None:
        return Sentence("No dense reference", "the cost of pruning in accuracy is unknown.", True)
    highest = [
        next((cell for cell in here if cell.method.partition(",")[0] != THIN), None) for here in _ranked(table).values()
    ]
    parts = []
    for cell in (cell for cell in highest if cell is not None):
        gap = cell.mean - dense.mean
        way = "level with it" if abs(gap) < LEVEL else f"{_points(abs(gap))} {'above' if gap > 0 else 'below'} it"
        parts.append(f"{way} at {sparsity_text(cell.sparsity)}")
    text = f"the dense network reaches {formatted(dense)} %"
    return Sentence(
        "Reference", f"{text}; the highest mean of a pruned one is {', '.join(parts)}." if parts else f"{text}."
    )


def _points(gap: float) -> str:
    return f"{gap:.2f} points" if gap >= 0.005 else "less than 0.01 points"


def _collapses(experiment: Experiment) -> list[Sentence]:
    """Return a warning for each method and sparsity that left layers with nothing, with their names."""
    seeds: dict[tuple[str, float, str], list[str]] = {}
    for label, run in experiment.runs:
        names = [name for name, density in run.layers.items() if density == 0]
        names = names or (run.result["collapsed"] if run.result else [])
        if names:
            layers = ", ".join(name.removesuffix(".weight") for name in names)
            seeds.setdefault((label, run.settings["sparsity"], layers), []).append(str(run.settings["seed"]))
    return [
        Sentence(
            "Collapsed",
            f"{label} at {sparsity_text(sparsity)} ({'seed' if len(these) == 1 else 'seeds'} {', '.join(these)}) "
            f"left nothing of {layers}; no signal passes there.",
            True,
        )
        for (label, sparsity, layers), these in seeds.items()
    ]
