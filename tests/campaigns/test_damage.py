"""Flipped bits, truncation, deletion and garbage in every file of run folders, stores and mask files.

Whatever is damaged, a run either ends in the same bits or stops with a sentence that names the file; doing what the
sentence says ends in the same bits. The report shows the same numbers or lists the file.
"""

import random
import re
import shutil
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from ntksap import Masks, models
from ntksap._base import NtksapError, StorageError
from ntksap.report import read_folder
from ntksap.runs.execution import run
from ntksap.runs.folder import Progress
from ntksap.runs.store import Store
from ntksap.training import read_model
from tests.runs.small_runs import outcome, small_settings

pytestmark = pytest.mark.slow

SETTINGS = {
    "synflow": small_settings(epochs=2, rounds=3),
    "ntt": small_settings(
        "ntt", epochs=2, rounds=3, options={"epoch_steps": 1, "kernel": "projected", "projections": 1}
    ),
}
STATES = [
    ("synflow", "prune", 2),
    ("synflow", "train", 1),
    ("synflow", "finished", 0),
    ("ntt", "prune", 2),
    ("ntt", "train", 1),
]
NAMES = re.compile(r"(?:result\.json|metrics\.jsonl|(?:masks|pruning|checkpoint)\.safetensors)")


def flip(content: bytes, dice: random.Random) -> bytes:
    place = dice.randrange(8 * len(content))
    return bytes([*content[: place // 8], content[place // 8] ^ 1 << place % 8, *content[place // 8 + 1 :]])


def truncate(content: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content))]


def delete(content: bytes, dice: random.Random) -> None:
    return None


def garbage(content: bytes, dice: random.Random) -> bytes:
    return dice.randbytes(max(len(content), 16))


def blanks(content: bytes, dice: random.Random) -> bytes:
    """A page of zeros in the middle, as some file systems leave after a power cut."""
    start = dice.randrange(len(content))
    return content[:start] + bytes(min(512, len(content) - start)) + content[start + 512 :]


DAMAGES = [flip, flip, flip, flip, truncate, truncate, delete, garbage, blanks]


def damage(path: Path, how, dice: random.Random) -> None:
    content = how(path.read_bytes(), dice)
    path.unlink() if content is None else path.write_bytes(content)


def make(root: Path, method: str, stage: str, done: int) -> Path:
    """A run that was interrupted after so many rounds or epochs, or is finished."""

    def stop(progress: Progress) -> None:
        if (progress.stage, progress.done) == (stage, done):
            raise KeyboardInterrupt

    try:
        run(SETTINGS[method], root, on_progress=stop)
    except KeyboardInterrupt:
        assert stage != "finished"
    return root / SETTINGS[method].name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """For each method, what a run that nobody disturbed ends in."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("whole")
    return {method: outcome(make(root, method, "finished", 0)) for method in SETTINGS}


def mend(settings, root: Path) -> int:
    """Run; where an error names files, remove those and run again. Return how many errors it took."""
    for errors in range(5):
        error = failure_of(settings, root)
        if error is None:
            return errors
        there = [path for name in NAMES.findall(error) if (path := root / settings.name / name).exists()]
        assert there, f"nothing to remove, by {error}"
        for path in set(there):
            path.unlink()
    raise AssertionError("what the errors said did not mend the run")


def failure_of(settings, root: Path) -> str | None:
    try:
        run(settings, root)
    except NtksapError as error:
        return str(error)
    return None


def shown(folder: Path) -> dict[str, object]:
    """What a report shows of a run."""
    (one,) = read_folder(folder).runs
    return asdict(one)


@pytest.mark.parametrize(("method", "stage", "done"), STATES, ids=[f"{m} {s}" for m, s, _ in STATES])
def test_damaged_run_folders(method, stage, done, whole, tmp_path, tell):
    settings, expected = SETTINGS[method], whole[method]
    template = make(tmp_path / "template", method, stage, done)
    before = shown(template)
    dice = random.Random(f"{method} {stage}")
    counts: Counter[str] = Counter({"damaged files": 0, "errors that name the file": 0, "silent differences": 0})
    for name in sorted(path.name for path in template.iterdir()):
        for index, how in enumerate(DAMAGES):
            root = tmp_path / f"{name}-{index}"
            folder = Path(shutil.copytree(template, root / settings.name))
            if (folder / name).stat().st_size == 0:
                continue
            damage(folder / name, how, dice)
            counts["damaged files"] += 1
            if (folder / "settings.toml").exists():
                after = shown(folder)
                same = all(after[key] == before[key] for key in ("settings", "records", "layers", "result", "status"))
                counts["silent differences"] += not (same or after["problems"] or how is delete)
            counts["errors that name the file"] += mend(settings, root)
            found = outcome_of(folder, expected, stage == "finished")
            counts["silent differences"] += found != expected
            shutil.rmtree(root)
    tell(counts)
    assert counts["silent differences"] == 0
    assert counts["errors that name the file"] > 0


def outcome_of(folder: Path, expected, finished: bool):
    """The outcome; of a finished run only its result is read again, the rest is for whoever reads it."""
    if not finished:
        return outcome(folder)
    path = folder / "checkpoint.safetensors"
    if path.exists():  # its reader notices, too
        model = models.build("lenet-300-100", input_shape=(1, 8, 8))
        with suppress(NtksapError):
            read_model(path, model)
            assert path.read_bytes() == expected["checkpoint"]
    result = run(SETTINGS["synflow"], folder.parent)
    measured = {"prune_seconds", "train_seconds", "peak_memory_mib"}
    return {**expected, "result": {key: value for key, value in result.items() if key not in measured}}


def test_damaged_stores(whole, tmp_path, tell):
    settings = SETTINGS["synflow"]
    folder = make(tmp_path / "here", "synflow", "finished", 0)
    before = shown(folder)
    store = Store(f"file://{tmp_path}/store")
    store.check()
    dice = random.Random("store")
    counts: Counter[str] = Counter({"damaged files": 0, "sentences": 0, "silent differences": 0})
    for name in ("result.json", "masks.safetensors", "metrics.jsonl", "settings.toml"):
        for index, how in enumerate([*DAMAGES, *DAMAGES]):
            shutil.rmtree(tmp_path / "store" / settings.name, ignore_errors=True)
            store.publish(folder)
            damage(tmp_path / "store" / settings.name / name, how, dice)
            counts["damaged files"] += 1
            root = tmp_path / f"{name}-{index}"
            try:
                found = store.fetch(settings.name, root)
            except StorageError:
                counts["sentences"] += 1
                assert not (root / settings.name / "result.json").exists()
                continue
            if found is None:  # as if it were not there: done again, and published again
                counts["sentences"] += name == "result.json"
                continue
            after = shown(root / settings.name)
            same = all(after[key] == before[key] for key in ("settings", "records", "layers", "result"))
            counts["silent differences"] += not same
            counts["sentences"] += bool(after["problems"])
            shutil.rmtree(root)
    tell(counts)
    assert counts["silent differences"] == 0
    assert counts["sentences"] > 50


@pytest.mark.parametrize("method", ["synflow", "ntt"])
def test_damaged_mask_files(method, tmp_path, tell):
    path = make(tmp_path, method, "prune", 2) / "pruning.safetensors"
    masks, content = Masks.load(path), path.read_bytes()
    dice = random.Random(method)
    counts: Counter[str] = Counter({"damaged files": 0, "errors": 0, "silent differences": 0})
    for how in 10 * DAMAGES:
        path.write_bytes(content)
        damage(path, how, dice)
        counts["damaged files"] += 1
        try:
            found = Masks.load(path)
        except NtksapError:
            counts["errors"] += 1
            continue
        equal = found == masks and found.info == masks.info and found.weights.keys() == masks.weights.keys()
        equal = equal and all(torch.equal(found.weights[key], weight) for key, weight in masks.weights.items())
        counts["silent differences"] += not equal
    tell(counts)
    assert counts["silent differences"] == 0
    assert counts["errors"] > 80
