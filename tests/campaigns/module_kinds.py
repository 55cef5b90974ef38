"""Every method, the kernel and the diagnosis on every kind of module: masks that are right, or a sentence.

``python -m tests.campaigns.module_kinds`` prints what is not as expected and the counts; words after it choose kinds by
name.
An outcome is *right* (exactly as many weights as asked for, the same again, nothing of the caller changed and, for the
methods that have one, the scores of a textbook twin), *refused* (an error of this package), a *silent difference*
(neither), or a *traceback* (an error of anything else).
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ntksap
from ntksap.methods import METHODS
from ntksap.net import arguments, first_tensor, map_tensors
from tests.campaigns.kinds import KINDS, Kind
from tests.campaigns.twins import TWINS

SMALL = {"kernel": "projected", "projections": 2, "draws": 2, "batch": 4, "epoch_steps": 1, "inner_steps": 1}
SPARSITY = 0.6


class Different(Exception):
    """A result that is not what it should be."""


def loss(output: Tensor, labels: Any) -> Tensor:
    """Something smooth that any output has."""
    return (output - 0.5).square().sum()


def batches(kind: Kind) -> list[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(3)
    return [(kind.inputs(4, generator), torch.zeros(4)) for _ in range(2)]


def masks_of(kind: Kind, module: nn.Module, name: str) -> ntksap.Masks:
    method = METHODS[name]
    options = {key: value for key, value in SMALL.items() if key in method.options}
    settings = {"rounds": min(2, method.rounds), "floor": 1, "loss": loss, **options, **kind.settings}
    settings |= {"train": partial(train, kind=kind)} if method.trains else {"data": batches(kind)}
    return ntksap.prune(module, SPARSITY, name, inputs=kind.inputs, **settings)


def train(module: nn.Module, masks: ntksap.Masks, kind: Kind) -> Iterator[None]:
    """A step, for methods that train the network."""
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    output = kind.settings.get("output", first_tensor)
    dtype = next(module.parameters()).dtype
    for inputs, labels in batches(kind):
        inputs = map_tensors(inputs, lambda x: x.to(dtype) if x.is_floating_point() else x)
        args, kwargs = arguments(inputs)
        optimizer.zero_grad()
        loss(output(module(*args, **kwargs)), labels).backward()
        optimizer.step()
    yield


def prune(name: str) -> Callable[[Kind], None]:
    def job(kind: Kind) -> None:
        module = kind.module()
        before = {key: value.clone() for key, value in module.state_dict().items()}
        state = torch.get_rng_state()
        masks = masks_of(kind, module, name)
        if not torch.equal(torch.get_rng_state(), state):
            raise Different("the global random state has moved")
        if any(not torch.equal(value, before[key]) for key, value in module.state_dict().items()):
            raise Different("the caller's module has changed")
        if masks.kept != round((1 - SPARSITY) * masks.total):
            raise Different(f"{masks.kept} of {masks.total} weights are kept")
        if masks_of(kind, kind.module(), name) != masks:
            raise Different("the same call gives other masks")
        for mask in masks.values():
            if mask.numel() > 1 and bool(mask.all()) and masks.density < 0.3:
                raise Different("a layer was left out")

    return job


def kernel(kind: Kind) -> None:
    inputs = kind.inputs(3, torch.Generator().manual_seed(0))
    found = ntksap.ntk(kind.module(), inputs, output=kind.settings.get("output"))
    if not found.matrix.isfinite().all() or found.trace <= 0:
        raise Different("the kernel is not positive")


def diagnose(kind: Kind) -> None:
    module = kind.module()
    masks = ntksap.prune(module, SPARSITY, "random", floor=1)
    found = ntksap.diagnose(module, masks, inputs=kind.inputs, output=kind.settings.get("output"), kernel=True)
    if found.sparsity != masks.sparsity or not found.sentences():
        raise Different("the diagnosis is of other masks")
    if isinstance(found.kernel, str):
        raise ntksap.InputError(found.kernel)


JOBS: dict[str, Callable[[Kind], None]] = {
    **{name: prune(name) for name in METHODS},
    "ntk": kernel,
    "diagnose": diagnose,
    **{f"twin of {name}": twin for name, twin in TWINS.items()},
}


def outcome(job: Callable[[Kind], None], kind: Kind) -> tuple[str, str]:
    """Return what became of a job, and what was said."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            job(kind)
    except ntksap.NtksapError as error:
        return "refused", str(error)
    except (Different, AssertionError) as error:
        return "silent difference", str(error)
    except Exception as error:
        return "traceback", f"{type(error).__name__}: {error}"
    return "right", ""


def run(kinds: list[Kind]) -> Iterator[tuple[Kind, str, str, str]]:
    """Yield (kind, job, outcome, what was said) for every job on every kind."""
    for kind in kinds:
        for name, job in JOBS.items():
            yield kind, name, *outcome(job, kind)


def main(words: list[str]) -> Counter[str]:
    """Run all, print, and return the counts."""
    torch.set_num_threads(1)
    kinds = [kind for kind in all_kinds() if not words or any(word in kind.name for word in words)]
    counts: Counter[str] = Counter()
    start = time.perf_counter()
    for kind, job, result, said in run(kinds):
        counts[result] += 1
        unread = job == "phew" and "phew walks" in said  # it needs the graph, which not every module has
        expected = "refused" if job in kind.refused or unread else "right"
        if result != expected:
            counts["unexpected"] += 1
            print(f"{kind.name}, {job}: {result}, not {expected}. {said}", flush=True)
    print(f"{len(kinds)} kinds of modules, {len(JOBS)} jobs each, {time.perf_counter() - start:.0f} s:", end=" ")
    print(", ".join(f"{counts[key]} {key}" for key in ("right", "refused", "silent difference", "traceback")))
    print(f"{counts['unexpected']} outcomes are not the expected ones")
    return counts


def all_kinds() -> list[Kind]:
    """Return those of torch and, where transformers is installed, those of transformers."""
    try:
        from tests.campaigns.hugging_face_kinds import HUGGING_FACE_KINDS
    except pytest.skip.Exception:  # without transformers
        return KINDS
    return KINDS + HUGGING_FACE_KINDS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:])["unexpected"] > 0)
