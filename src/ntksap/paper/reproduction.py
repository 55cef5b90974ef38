"""`reproduce`: a table or figure of the paper, carried out again in one call."""

from collections.abc import Sequence
from pathlib import Path

from ntksap._base import InputError, cores, usable_device
from ntksap.paper.bench import Bench
from ntksap.paper.comparison import Comparison
from ntksap.paper.kinds import TRAINING, carry_out
from ntksap.paper.plan import Scale, read_plan
from ntksap.runs import OnEvent, OnProgress, Outcome, Place, Settings, Task, collect, read_result, sweep


def reproduce(
    name: str | Path,
    *,
    scale: Scale = "quick",
    panels: Sequence[str] = (),
    seeds: Sequence[int] = (),
    out: str | Path = "reproduce",
    data_dir: str | Path | None = None,
    download: bool = False,
    workers: int = 0,
    jobs: int | None = None,
    device: str = "cpu",
    other_kernels: bool = False,
    finished: str | Path | None = None,
    on_event: OnEvent = lambda event: None,
    on_progress: OnProgress = lambda progress: None,
) -> Comparison:
    """Carry out a table or figure of the paper again; return our numbers beside the paper's.

    This is what ``ntksap reproduce`` does. Whatever stops this call, the same call resumes the work. Parts that need a
    data set or a method that is not here are listed in ``.missing``; the rest is carried out.

    Args:
        name: the name of a table or figure, see `ntksap.paper.plan_names`, or a plan of your own as a TOML file.
        scale: "quick" is a small budget for 2 CPU cores, "paper" the paper's full protocol.
        panels: only these; all by default.
        seeds: seeds other than the plan's.
        out: the folder for everything; NAME-SCALE in it holds comparison.json, comparison.md, figures and report.html.
        data_dir: where data sets are; by default the environment variable NTKSAP_DATA, else ./data.
        download: fetch a data set that is not there.
        workers: processes that decode image files.
        jobs: how many runs to carry out at the same time; they share the cores; by default one per core.
        device: cpu, cuda or mps.
        other_kernels: resume runs that began with other kernels, see `ntksap.runs.Place`.
        finished: a folder with runs: show those that are finished, whatever their number, and carry out nothing. For
            plans of accuracy and of spectra during training; no data is needed.
        on_event: told everything that happens to runs.
        on_progress: told how far other work has got.
    """
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {jobs}")
    usable_device(device)
    plan = read_plan(name, scale).narrow(panels, seeds)

    def execute(settings: Sequence[Settings], root: Path, place: Place, task: Task) -> Outcome:
        return collect(settings, sweep(settings, root, place, jobs or cores(), task=task), on_event)

    place = Place(
        Path(data_dir) if data_dir is not None else None, download, workers, device, other_kernels=other_kernels
    )
    if finished is None:
        return carry_out(plan, Bench(Path(out), place, execute, on_progress))
    if plan.kind not in TRAINING:
        raise InputError(f"{plan.name} has no trainings that could be finished: omit --finished")
    return carry_out(plan, Bench(Path(out), place, _read_finished, on_progress, Path(finished)))


def _read_finished(settings: Sequence[Settings], root: Path, place: Place, task: Task) -> Outcome:
    """Return the results that already exist."""
    if not root.is_dir():
        raise InputError(f"{root}: no such folder; give one that holds runs")
    found = {one.name: read_result(root / one.name) for one in settings}
    return Outcome({name: result for name, result in found.items() if result is not None}, {})
