"""``python -m benchmarks.busy [JOB …]``: each job alone and beside a process that keeps one core busy.

A job runs in a process of its own with two threads, in turn as a command does it (threads that wait for work sleep at
once if other programs want the cores, and small work has one thread) and as torch would (they spin for a while, and all
work is divided). The targets: at most 2.2 times the time alone when beside a busy core, and alone no more than 5 %
slower than with threads that always spin.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ntksap._base.files import write_json

RESULTS = Path(__file__).parents[1] / "docs" / "results" / "busy.json"
CIFAR = (3, 32, 32)
PRUNING = {  # rounds that take a second or two
    "ntk-sap": {"rounds": 1, "draws": 2},
    "ntk-sap-analytic": {"rounds": 5, "scope": "global"},
    "synflow": {"rounds": 30},
    "snip": {},
    "iterative-snip": {"rounds": 5},
    "force": {"rounds": 5},
    "grasp": {},
    "px": {"rounds": 1},
    "prospr": {},
    "magnitude": {},
    "random": {},
}
POLICIES = ("torch's", "ours")


def work_of(job: str) -> Callable[[], object]:
    """Return what is timed; imports torch, so for the process that does the work."""
    import torch

    import ntksap
    from benchmarks.jobs.pruning import images
    from ntksap.data import Dataset, MemorySplit
    from ntksap.training import Recipe, TrainState, train

    model = ntksap.models.build("resnet20", seed=0)
    if job == "diagnose":
        masks = ntksap.prune(model, 0.98, "random")
        return lambda: ntksap.diagnose(model, masks, input_shape=CIFAR)
    if job == "train":
        masks = ntksap.prune(model, 0.982, "random")
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (8 * 128, *CIFAR), dtype=torch.uint8, generator=generator)
        split = MemorySplit(pixels, torch.arange(len(pixels)) % 10, mean=(0.5,) * 3, std=(0.25,) * 3, pad=4, flip=True)
        data = Dataset("noise", 10, CIFAR, split, split)
        return lambda: list(train(TrainState(model, Recipe(epochs=1, batch=128, lr=0.1), masks=masks), data))
    return lambda: ntksap.prune(model, 0.9, job, input_shape=CIFAR, data=images(), **PRUNING[job])


def child(job: str, repeats: int, turns: int) -> None:
    """Do a job with threads that spin and as a command does it, in turn; print the seconds of each {policy: […]}."""
    from ntksap._base import share_cores, threads

    small = threads.SMALL
    work, found = work_of(job), {policy: [] for policy in POLICIES}
    for _ in range(turns):
        for policy, seconds in found.items():
            sharing = share_cores() if policy == "ours" else None
            threads.SMALL = small if policy == "ours" else 0
            work()  # warms up, and lets us notice our neighbours
            for _ in range(repeats):
                start = time.perf_counter()
                work()
                seconds.append(time.perf_counter() - start)
            if sharing is not None:
                sharing.stop()
    print(json.dumps(found))


def measure(job: str, busy: bool, repeats: int, turns: int) -> dict[str, list[float]]:
    """Return the seconds of a job {policy: […]}, alone or beside a busy process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.busy", job]
    command += ["--child", "--repeats", str(repeats), "--turns", str(turns)]
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    with neighbour(busy):
        environment = {**others, "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """Keep a core busy while the block runs, if asked."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        yield
    finally:
        if process:
            process.kill()
            process.wait()


def summary(alone: dict[str, list[float]], busy: dict[str, list[float]]) -> dict[str, Any]:
    """Return medians and the ratios that matter."""
    free, shared = ({p: statistics.median(seconds) for p, seconds in found.items()} for found in (alone, busy))
    return {
        "seconds alone": free,
        "seconds busy": shared,
        "busy": shared["ours"] / free["ours"],
        "busy, spinning": shared["torch's"] / free["torch's"],
        "alone, against spinning": free["ours"] / free["torch's"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description=__doc__)
    jobs = [*PRUNING, "diagnose", "train"]
    parser.add_argument("jobs", nargs="*", metavar="JOB", help=f"which jobs; all by default: {', '.join(jobs)}")
    parser.add_argument("--repeats", type=int, default=3, help="how often a job is timed in a turn")
    parser.add_argument("--turns", type=int, default=4, help="how often the two take turns")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        child(given.jobs[0], given.repeats, given.turns)
        return
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    print(f"{'job':<18}{'alone s':>9}{'busy':>8}{'busy, spinning':>16}{'alone, against spinning':>25}")
    for job in given.jobs or jobs:
        alone, busy = (measure(job, busy, given.repeats, given.turns) for busy in (False, True))
        results[job] = one = summary(alone, busy)
        write_json(RESULTS, results)
        ratios = f"{one['busy']:>7.2f}×{one['busy, spinning']:>15.2f}×{one['alone, against spinning']:>24.2f}×"
        print(f"{job:<18}{one['seconds alone']['ours']:>9.3g}{ratios}", flush=True)


if __name__ == "__main__":
    main()
