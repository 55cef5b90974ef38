import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import time
from pathlib import Path

import pytest
import torch

import ntksap
from ntksap import InputError, Masks
from ntksap._base.seals import unsealed
from ntksap.pruning.sanity import shuffled
from ntksap.runs.execution import run
from ntksap.runs.folder import BusyError, Place
from ntksap.runs.settings import settings_for
from ntksap.training.recipe import load_recipe
from tests.runs.small_runs import carry_out, outcome, small_settings

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILES = {"settings.toml", "masks.safetensors", "metrics.jsonl", "checkpoint.safetensors", "result.json", "lock"}


@pytest.fixture(scope="module")
def processes():
    """Processes that are forked from one that has imported everything, so that they start at once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ntksap.runs.execution", "sklearn.datasets", "small_runs"])
    return context


@pytest.fixture(scope="module")
def reference(tmp_path_factory, processes):
    """The same run without interruption, and how long it took."""
    root = tmp_path_factory.mktemp("reference")
    settings = small_settings()
    for _ in range(2):  # the second time the fork server is there already
        start = time.perf_counter()
        process = processes.Process(target=carry_out, args=(settings, root))
        process.start()
        process.join()
        assert process.exitcode == 0
        seconds = time.perf_counter() - start
        found = outcome(root / settings.name)
        shutil.rmtree(root / settings.name)
    return found, seconds


def test_a_run_is_a_folder_that_describes_itself(tmp_path):
    settings = small_settings(seed=4)
    seen = []
    result = run(settings, tmp_path, on_progress=seen.append)
    folder = tmp_path / settings.name
    assert {path.name for path in folder.iterdir()} == FILES
    assert [(p.stage, p.done, p.total) for p in seen] == [
        *(("prune", t, 5) for t in range(1, 6)),
        *(("train", e, 5) for e in range(1, 6)),
    ]
    written = unsealed(tomllib.loads((folder / "settings.toml").read_text()))
    assert written.pop("versions")["torch"] == torch.__version__
    assert written == settings.plain()
    masks = Masks.load(folder / "masks.safetensors")
    assert masks.sha256 == result["mask_sha256"]
    assert result["kept"] == round(0.1 * result["total"]) == masks.kept
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [record["epoch"] for record in records] == [1, 2, 3, 4, 5]
    assert records[-1]["top1"] == result["top1"] > 0.5
    assert records[-1]["pruned"] == masks.sparsity
    assert unsealed(json.loads((folder / "result.json").read_text())) == result
    assert result["prune_seconds"] > 0
    assert result["dense_flops"] > result["inference_flops"] > 0


def test_a_finished_run_is_only_read(tmp_path):
    settings = small_settings(epochs=1)
    first = run(settings, tmp_path)
    stamps = {path.name: path.stat().st_mtime_ns for path in (tmp_path / settings.name).iterdir()}
    assert run(settings, tmp_path) == first
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / settings.name).iterdir()} == stamps


def test_names_differ_exactly_when_settings_do():
    base = small_settings()
    assert base.name == small_settings().name
    assert base.name.startswith("digits-lenet-300-100-synflow-90.00-seed0-")
    others = [
        small_settings(seed=1),
        small_settings(sparsity=0.90001),
        small_settings(epochs=4),
        small_settings(rounds=6),
        small_settings(sanity="shuffle"),
        small_settings("random"),
        small_settings(model="lenet-5"),
        small_settings("ntk-sap"),
        small_settings("ntk-sap", options={"draws": 6}),
    ]
    assert len({settings.name for settings in [base, *others]}) == 10
    spelled_out = small_settings("ntk-sap", options={"draws": 5})
    assert spelled_out.name == others[-2].name  # the default, written down


def test_the_same_seed_gives_the_same_bits(tmp_path, reference, processes):
    settings = small_settings()
    process = processes.Process(target=carry_out, args=(settings, tmp_path))
    process.start()
    process.join()
    assert outcome(tmp_path / settings.name) == reference[0]


def kill_often(settings, root, processes, kills, longest, seed):
    """Start the run again and again, kill it at random moments, and let it finish; return how often it was killed."""
    moments = random.Random(seed)
    killed = 0
    while killed < kills:
        process = processes.Process(target=carry_out, args=(settings, root))
        process.start()
        process.join(moments.uniform(0.0, longest))
        if process.exitcode is None:
            process.kill()
            process.join()
            killed += 1
        else:
            assert process.exitcode == 0
            break
    process = processes.Process(target=carry_out, args=(settings, root))
    process.start()
    process.join()
    assert process.exitcode == 0
    return killed


def test_kill_9_at_random_moments_changes_no_bit(tmp_path, reference, processes):
    settings = small_settings()
    whole, seconds = reference
    kills = 0
    for seed in range(4):
        root = tmp_path / str(seed)
        kills += kill_often(settings, root, processes, kills=6, longest=0.6 * seconds, seed=seed)
        assert outcome(root / settings.name) == whole
        assert {path.name for path in (root / settings.name).iterdir()} == FILES
    assert kills >= 8


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ntk-sap", "force", "iterative-snip", "dense"])
def test_kill_9_with_other_methods(tmp_path, processes, method):
    options = {} if method == "dense" else {"rounds": 12}
    settings = small_settings(method, epochs=6, **options)
    whole = tmp_path / "whole"
    for root in (tmp_path / "first, while kernels are being chosen", whole):
        start = time.perf_counter()
        kill_often(settings, root, processes, kills=0, longest=0, seed=0)
    seconds = time.perf_counter() - start
    kills = 0
    for seed in range(3):
        root = tmp_path / str(seed)
        kills += kill_often(settings, root, processes, kills=12, longest=0.6 * seconds, seed=seed)
        assert outcome(root / settings.name) == outcome(whole / settings.name)
    assert kills >= 6


def test_a_full_disk_is_a_clear_error_and_leaves_the_last_checkpoint(tmp_path, reference, processes):
    settings = small_settings()
    folder = tmp_path / settings.name
    process = processes.Process(target=carry_out, args=(settings, tmp_path))
    process.start()
    while not (folder / "checkpoint.safetensors").exists():
        time.sleep(0.005)
    process.kill()
    process.join()
    before = (folder / "checkpoint.safetensors").read_bytes()
    assert not (folder / "result.json").exists()

    process = processes.Process(target=carry_out, args=(settings, tmp_path, 400_000))  # a checkpoint has 660 kB
    process.start()
    process.join()
    assert process.exitcode == 3
    assert (folder / "checkpoint.safetensors").read_bytes() == before
    error = json.loads((folder / "error.json").read_text())
    assert error["type"] == "StorageError"
    assert "checkpoint.safetensors: File too large" in error["error"]

    assert kill_often(settings, tmp_path, processes, kills=0, longest=0, seed=0) == 0
    assert outcome(folder) == reference[0]
    assert not (folder / "error.json").exists()


def test_a_second_process_says_so_and_leaves(tmp_path, processes):
    settings = small_settings(epochs=200)
    process = processes.Process(target=carry_out, args=(settings, tmp_path))
    process.start()
    while not (tmp_path / settings.name / "metrics.jsonl").exists():
        time.sleep(0.01)
    try:
        with pytest.raises(BusyError, match=rf"already being worked on, by process {process.pid}"):
            run(settings, tmp_path)
        assert process.is_alive()
    finally:
        process.kill()
        process.join()
    assert not (tmp_path / settings.name / "error.json").exists()


def test_an_error_is_kept_with_the_run_until_it_succeeds(tmp_path):
    settings = small_settings(data="cifar10")
    with pytest.raises(ntksap.NtksapError, match="NTKSAP_DATA"):
        run(settings, tmp_path, ntksap.runs.folder.Place(data_dir=tmp_path / "nothing"))
    assert "NTKSAP_DATA" in json.loads((tmp_path / settings.name / "error.json").read_text())["error"]


def test_a_disk_without_any_room_left_names_the_file_that_could_not_be_written(tmp_path, monkeypatch):
    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(ntksap._base.errors.StorageError, match=r"owner: No space left on device"):
        run(small_settings(), tmp_path)


def test_divergence_keeps_the_last_good_checkpoint(tmp_path):
    recipe = load_recipe("quick", {"epochs": 30, "lr": 1e30, "channels_last": False, "warmup": 0.99})
    settings = settings_for(model="lenet-300-100", data="digits", method="dense", sparsity=0, seed=0, recipe=recipe)
    with pytest.raises(ntksap.training.loop.DivergedError, match="diverged in epoch"):
        run(settings, tmp_path)
    assert not (tmp_path / settings.name / "result.json").exists()
    assert json.loads((tmp_path / settings.name / "error.json").read_text())["type"] == "DivergedError"


def test_the_dense_run_prunes_nothing(tmp_path):
    settings = small_settings("dense", epochs=1)
    result = run(settings, tmp_path)
    assert settings.name == small_settings("dense", epochs=1, sparsity=0.5).name
    assert result["density"] == 1.0
    assert result["mask_sha256"] is None
    assert result["inference_flops"] == result["dense_flops"]
    assert not (tmp_path / settings.name / "masks.safetensors").exists()


def test_shuffling_moves_weights_and_keeps_each_layers_count():
    generator = torch.Generator().manual_seed(0)
    masks = Masks({name: torch.rand(40, 30, generator=generator) < 0.1 for name in "abc"})
    moved = shuffled(masks, seed=1)
    for name in masks:
        assert moved[name].sum() == masks[name].sum()
        overlap = int((moved[name] & masks[name]).sum())
        expected = float(masks[name].sum()) ** 2 / masks[name].numel()
        assert abs(overlap - expected) < 5 * math.sqrt(expected)
    assert moved == shuffled(masks, seed=1)
    assert moved != shuffled(masks, seed=2)


def test_sanity_checks_change_what_they_say_and_nothing_else(tmp_path):
    masks, results = {}, {}
    for sanity in ("none", "shuffle", "reinit", "invert"):
        settings = small_settings(epochs=1, sanity=sanity)
        results[sanity] = run(settings, tmp_path)
        masks[sanity] = Masks.load(tmp_path / settings.name / "masks.safetensors")
    assert masks["reinit"] == masks["none"]
    assert results["reinit"]["train_loss"] != results["none"]["train_loss"]
    assert masks["shuffle"] != masks["none"]
    assert [m.sum() for m in masks["shuffle"].values()] == [m.sum() for m in masks["none"].values()]
    assert masks["invert"].kept == masks["none"].kept
    assert sum(int((masks["invert"][name] & masks["none"][name]).sum()) for name in masks["none"]) == 0
    with pytest.raises(InputError, match="Known: invert, none, reinit, shuffle"):
        small_settings(sanity="scramble")


def test_settings_are_checked_before_anything_runs():
    for change, message in [
        ({"method": "snipp"}, "Did you mean 'snip'"),
        ({"sparsity": 1.2}, "0 ≤ sparsity < 1"),
        ({"schedule": "cubic"}, "unknown schedule"),
        ({"options": {"draws": 2}}, "no option 'draws'"),
        ({"rounds": 0}, "at least 1"),
        ({"degree_decay": -1.0}, "degree_decay is a number, at least 0, not -1.0"),
        ({"method": "ntk-sap", "options": {"draws": 0}}, "draws is a whole number of at least 1, not 0"),
        ({"method": "ntk-sap", "options": {"epsilon": 0.0}}, "epsilon is a number, above 0, not 0.0"),
        ({"method": "prospr", "options": {"prune_momentum": 1.0}}, "at least 0 and below 1, not 1.0"),
        ({"method": "grasp", "options": {"temperature": float("inf")}}, "temperature is a number, above 0, not inf"),
        ({"method": "ntt", "options": {"kernel": "whole"}}, "kernel is one of auto, exact, projected, not 'whole'"),
    ]:
        with pytest.raises(InputError, match=message):
            small_settings(**{"method": "synflow", **change})


@pytest.mark.slow
def test_real_cifar10_from_pruning_to_accuracy(tmp_path):
    root = os.environ.get("NTKSAP_DATA")
    if not root or not (Path(root) / "cifar-10-batches-bin").is_dir():
        pytest.skip("NTKSAP_DATA holds no CIFAR-10")
    recipe = load_recipe("quick", {"epochs": 2, "lr": 0.05, "channels_last": False})
    settings = settings_for(model="lenet-5", data="cifar10", method="snip", sparsity=0.5, seed=0, recipe=recipe)
    assert run(settings, tmp_path, Place(data_dir=Path(root)))["top1"] > 0.35
