"""`compare`: a grid of runs, from pruning to test accuracy, with table, figure and report."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ntksap._base import InputError, counted, fill, make_folder, usable_device, write_atomically, write_json
from ntksap.report import Cell, accuracy_figure, build_report, labelled_cells, rows, save_figure, to_csv
from ntksap.runs import Engine, OnEvent, OnProgress, Place, collect, grid, measure
from ntksap.training import Recipe, load_recipe

_WRITTEN = ("table.csv", "results.json", "accuracy.png", "accuracy.svg", "report.html")


@dataclass(frozen=True)
class MethodComparison:
    """What became of a comparison of methods.

    Args:
        table: a cell per method and sparsity: mean and standard deviation over seeds, and what it cost.
        results: the result of each finished run, in the order of the grid.
        failed: the name of each run that failed, and why.
    """

    table: list[Cell]
    results: list[dict[str, Any]]
    failed: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        failed = [{"run": name, "error": error} for name, error in self.failed.items()]
        return {"table": rows(self.table), "results": self.results, "failed": failed}


def compare(
    model: str = "resnet20",
    data: str = "digits",
    methods: Sequence[str] = ("ntk-sap", "synflow", "snip"),
    sparsities: Sequence[float] = (0.9,),
    seeds: Sequence[int] = (0,),
    *,
    recipe: str | Path | Recipe = "quick",
    recipe_settings: Mapping[str, Any] | None = None,
    sanity: Sequence[Literal["shuffle", "reinit", "invert"]] = (),
    options: Mapping[str, Any] | None = None,
    allocation: str | None = None,
    places: Literal["score", "random", "balanced"] | None = None,
    patterns: Sequence[str] = ("unstructured",),
    thin: bool = False,
    budget: Literal["weights", "multiply-adds"] = "weights",
    round_to: int = 1,
    degree_decay: float = 0.0,
    rescale: bool = False,
    out: str | Path = "runs",
    data_dir: str | Path | None = None,
    download: bool = False,
    workers: int = 0,
    device: str = "cpu",
    other_kernels: bool = False,
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    address: str | None = None,
    cpus: int | None = None,
    gpus: float | None = None,
    store: str | None = None,
    log: Sequence[str] = (),
    on_event: OnEvent = lambda event: None,
    on_progress: OnProgress = lambda progress: None,
) -> MethodComparison:
    """Compare methods: accuracy against sparsity over seeds, with the dense network as the reference.

    This is what ``ntksap compare`` does. Runs are folders in ``out/runs`` and survive whatever stops this call: the
    same call resumes them, and reads those that are finished. A run that fails does not stop the others.

    With ``thin`` or several patterns, the gain is measured after the runs, once for each: seconds of inference and of a
    training step compared with those of the dense network, and bytes; see `ntksap.runs.measuring`.

    Args:
        model: a name from the table of models.
        data: a name from the table of data sets.
        methods: names from ``ntksap.methods.METHODS``.
        sparsities: shares of prunable weights to remove.
        seeds: each decides initial weights, draws, the order of images and augmentation of its runs.
        recipe: how to train: a recipe, the name of one, or a TOML file.
        recipe_settings: settings of the recipe to replace.
        sanity: variants to add for each method: the mask shuffled within layers, trained from fresh weights, or made of
            the lowest scores.
        options: options of single methods, for those of the compared methods that have them.
        allocation: how many weights each layer keeps: a rule of `ntksap.allocate`, or a method for the counts of its
            masks. By default each method itself decides.
        places: which weights of a layer are kept: by the method's score, at random, or at random with the same number
            in every output, input and position of a kernel. By default each method itself decides.
        patterns: each method prunes in each of these: ``"unstructured"``, or what ``pattern=`` of `ntksap.prune` takes.
        thin: add the thin network, the dense one with fewer channels in every layer, at each sparsity, and with the
            pattern ``"channel"`` random channels at the same widths.
        budget, round_to: for the pattern ``"channel"``, see `ntksap.prune`; the budget is also that of the thin
            network. With ``"multiply-adds"`` it has as many as whole channels leave or, without that pattern, as masks
            with the counts of the rule ``allocation``, by default those of NTK-SAP in closed form.
        degree_decay: how much scores fall with the number of kept weights at both ends of a weight, see `ntksap.prune`.
        rescale: multiply the kept weights of each layer by 1/√density before training.
        out: the folder for the runs, ``table.csv``, ``results.json``, ``accuracy.png``, ``.svg`` and ``report.html``.
            Such files of an earlier comparison are replaced, others are an error.
        data_dir: where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        download: fetch the data set if it is not there.
        workers: processes that decode image files.
        device: cpu, cuda or mps.
        other_kernels: resume runs that began with other kernels, see `ntksap.runs.Place`.
        engine: processes on this machine, or tasks of a Ray cluster.
        jobs: with the engine "local", how many runs to carry out at the same time; by default one per core.
        address, cpus, gpus: for the engine "ray", see `ntksap.runs.Engine`.
        store: a URL under which finished runs are shared.
        log: where else to log training, in each run's folder: "tensorboard", "wandb" (offline).
        on_event: told everything that happens to the runs.
        on_progress: told how far the measurements have got.
    """
    chosen = recipe if isinstance(recipe, Recipe) else load_recipe(recipe, recipe_settings)
    if isinstance(recipe, Recipe) and recipe_settings:
        chosen = fill(Recipe, {**asdict(recipe), **recipe_settings}, "a recipe")
    plan = grid(
        model,
        data,
        methods,
        sparsities,
        seeds,
        recipe=chosen,
        sanity=sanity,
        options=options,
        allocation=allocation or "",
        places=places,
        degree_decay=degree_decay,
        rescale=rescale,
        patterns=patterns,
        thin=thin,
        budget=budget,
        round_to=round_to,
    )
    usable_device(device)
    _check_own(Path(out))
    where_data = Path(data_dir) if data_dir is not None else None
    place = Place(where_data, download, workers, device, other_kernels=other_kernels, log=tuple(log))
    folder, where = Path(out), Engine(engine, jobs, address, cpus, gpus, store)
    events = where.sweep(plan, folder / "runs", place)
    make_folder(folder)
    outcome = collect(plan, events, on_event)
    names = dict.fromkeys(one.name for one in plan)
    results = [outcome.results[name] for name in names if name in outcome.results]
    if thin or len(patterns) > 1:  # then the gain is the question
        finished = [one for one in {one.name: one for one in plan}.values() if one.name in outcome.results]
        timings = measure(finished, folder / "runs", place, on_progress)
        results = [{**result, "timings": timings[result["name"]]} for result in results]
    found = MethodComparison(labelled_cells(results), results, outcome.failed)
    _write(found, folder, f"{model} on {data}, {counted(chosen.epochs, 'epoch')}")
    return found


def _check_own(out: Path) -> None:
    """Raise if the folder holds files in the place of ours, and nothing says that we wrote them."""
    found = [name for name in _WRITTEN if os.path.exists(out / name)]  # Path's own raises for names that are too long
    page_alone = found == ["report.html"] and "– ntksap report</title>" in _text(out / "report.html")
    if found and not page_alone and not _is_record(_text(out / "results.json")):
        raise InputError(
            f"{out} holds {', '.join(found)}, which would be replaced and which no comparison wrote: choose another "
            "folder (--out), or move what is there"
        )


def _is_record(text: str) -> bool:
    """Whether this is what `_write` writes first, whatever became of the runs."""
    try:
        return set(json.loads(text)) == {"results", "failed"}
    except (ValueError, RecursionError, TypeError):
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _write(found: MethodComparison, out: Path, title: str) -> None:
    plain = found.to_json()
    write_json(out / "results.json", {"results": plain["results"], "failed": plain["failed"]})
    write_atomically(out / "table.csv", to_csv(found.table))
    if any(out.glob("runs/*/settings.toml")):  # not when all failed on machines that do not see this folder
        build_report(out)
    if found.table:
        save_figure(accuracy_figure(found.table, title), out, "accuracy")
