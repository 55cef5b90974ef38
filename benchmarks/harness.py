"""Measures both versions of a job, textbook and product: times in turn in one process, peak memory in one each."""

import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ntksap._base.machine import peak_memory_mib

SIDES = ("textbook", "product")


@dataclass(frozen=True)
class Job:
    """One row of the table.

    Args:
        name: the name for ``JOB=``.
        title: the row of the table.
        target: what the product should reach against the textbook version in the same run.
        textbook, product: do the whole job once and return its result; textbook is None where it cannot run at all.
        agreement: (textbook's result, product's result) → numbers that say how well both agree.
        repeats: how often each side runs; the two take turns.
        memory: also run each side once in a process of its own and report its peak memory.
    """

    name: str
    title: str
    target: str
    textbook: Callable[[], object] | None
    product: Callable[[], object]
    agreement: Callable[[Any, Any], dict[str, float]]
    repeats: int = 3
    memory: bool = True

    @property
    def sides(self) -> tuple[str, ...]:
        return SIDES if self.textbook else SIDES[1:]


def measure(job: Job, repeats: int | None = None, note: Callable[[str], object] = lambda text: None) -> dict[str, Any]:
    """Return what one job took: seconds and MiB of both sides, the ratio of the minima, and how well they agree."""
    repeats = repeats or job.repeats
    seconds: dict[str, list[float]] = {side: [] for side in job.sides}
    results: dict[str, object] = {}
    for repeat in range(repeats):
        for side in job.sides if repeat % 2 == 0 else reversed(job.sides):  # so that neither is always first
            note(f"{side}, {repeat + 1} of {repeats}")
            gc.collect()
            start = time.perf_counter()
            results[side] = getattr(job, side)()
            seconds[side].append(time.perf_counter() - start)
    found: dict[str, Any] = {"title": job.title, "target": job.target}
    for side in job.sides:
        found[side] = {"seconds": seconds[side], "min": min(seconds[side]), "median": statistics.median(seconds[side])}
    if job.textbook:
        found["ratio"] = found["textbook"]["min"] / found["product"]["min"]
        found["ratio_of_medians"] = found["textbook"]["median"] / found["product"]["median"]
    found["agreement"] = job.agreement(results.get("textbook"), results["product"])
    if job.memory:
        for side in job.sides:
            note(f"memory of {side}")
            found[side]["peak_mib"] = _peak_in_a_process(job.name, side)
    return {**found, **circumstances()}


def circumstances() -> dict[str, Any]:
    """Return what the numbers depend on besides the code."""
    return {
        "commit": _commit(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": f"{os.cpu_count()} CPU cores ({platform.machine()}, {torch.backends.cpu.get_cpu_capability()})",
    }


def run_one_side(job: Job, side: str) -> float:
    """Run one side once and return how far the peak memory rose above what imports and inputs took, in MiB."""
    before = peak_memory_mib()
    getattr(job, side)()
    return peak_memory_mib() - before


def _peak_in_a_process(name: str, side: str) -> float:
    command = [sys.executable, "-m", "benchmarks", name, "--memory-of", side]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def _commit() -> str:
    def git(*command: str) -> str:
        return subprocess.run(["git", *command], capture_output=True, text=True, check=True).stdout.strip()

    return git("rev-parse", "--short=12", "HEAD") + (" and changes" if git("status", "--porcelain", "-uno") else "")
