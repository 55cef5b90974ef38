"""Damaged, foreign and impossible files of a run: the message names the file, what it advises mends the run exactly."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import ntksap
from ntksap import InputError, Masks
from ntksap._base.errors import DamageError, MaskError, NtksapError, StorageError
from ntksap._base.seals import sealed, unsealed
from ntksap.cli import main
from ntksap.report.reading import read_folder
from ntksap.runs.execution import run
from ntksap.runs.folder import Place, Progress, read_result
from ntksap.runs.local_sweep import sweep
from ntksap.runs.store import Store
from ntksap.runs.work import Work, skip_finished
from ntksap.training.checkpoint import CheckpointError
from tests.runs.small_runs import outcome, small_settings

SETTINGS = small_settings(epochs=2, rounds=3)


def stop_after(stage: str, done: int):
    """Interrupt a run at some moment."""

    def on_progress(progress: Progress) -> None:
        if (progress.stage, progress.done) == (stage, done):
            raise KeyboardInterrupt

    return on_progress


def interrupted(root: Path, stage: str, done: int) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run(SETTINGS, root, on_progress=stop_after(stage, done))
    return root / SETTINGS.name


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run that nobody changes."""
    root = tmp_path_factory.mktemp("whole")
    torch.set_num_threads(1)
    run(SETTINGS, root)
    return root / SETTINGS.name


@pytest.fixture
def folder(whole, tmp_path):
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(whole, tmp_path / SETTINGS.name))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place // 8 % len(content)] ^= 1 << place % 8
    path.write_bytes(content)


def change(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def test_a_changed_digit_of_a_result_is_noticed_and_the_rest_of_the_run_makes_it_again(folder, whole):
    result = json.loads((folder / "result.json").read_text())
    change(folder / "result.json", f'"top1": {result["top1"]}', '"top1": 0.99')
    with pytest.raises(DamageError, match=r"result\.json is damaged: .*hash.* Remove it, and the same command"):
        run(SETTINGS, folder.parent)
    (folder / "result.json").unlink()
    run(SETTINGS, folder.parent)
    assert outcome(folder) == outcome(whole)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b"null", b"[" * 100_000, b'{"name": 3}', b"\xff"])
def test_a_result_that_is_none_is_an_error(folder, content):
    (folder / "result.json").write_bytes(content)
    with pytest.raises(DamageError, match=r"result\.json is damaged"):
        read_result(folder)


def test_a_result_of_another_run_or_with_texts_for_numbers_is_an_error(folder):
    result = read_result(folder)
    for wrong in ({"name": "other"}, {"top1": "high"}, {"collapsed": 3}, {"mask_sha256": 5}, {"method": None}):
        (folder / "result.json").write_text(json.dumps(sealed({**result, **wrong})))
        with pytest.raises(DamageError):
            read_result(folder)


def test_a_flipped_bit_in_masks_is_noticed_before_training(tmp_path, whole):
    folder = interrupted(tmp_path, "train", 1)
    path = folder / "masks.safetensors"
    flip(path, 8 * (path.stat().st_size - 100) + 3)
    with pytest.raises(MaskError, match=r"masks\.safetensors: .*damaged .*remove it and prune again"):
        run(SETTINGS, tmp_path)
    path.unlink()
    run(SETTINGS, tmp_path)
    assert outcome(folder) == outcome(whole)


def test_a_flipped_bit_in_a_pruning_that_is_under_way_is_noticed(tmp_path, whole):
    folder = interrupted(tmp_path, "prune", 2)
    path = folder / "pruning.safetensors"
    flip(path, 8 * (path.stat().st_size - 100))
    with pytest.raises(MaskError, match=r"pruning\.safetensors: .*damaged"):
        run(SETTINGS, tmp_path)
    path.unlink()
    run(SETTINGS, tmp_path)
    assert outcome(folder) == outcome(whole)


def test_masks_of_another_run_are_refused(tmp_path, whole):
    folder = interrupted(tmp_path, "prune", 2)
    other = small_settings(epochs=2, rounds=3, seed=5)
    run(other, tmp_path)
    shutil.copy(tmp_path / other.name / "masks.safetensors", folder / "masks.safetensors")
    with pytest.raises(MaskError, match="does not belong to this run; remove it, and the same command prunes again"):
        run(SETTINGS, tmp_path)
    for info in ({}, {"round": "two", "seconds": 1.0}, {"round": 10**9, "seconds": 1.0}, {"round": 2, "seconds": "x"}):
        Masks(Masks.load(whole / "masks.safetensors"), info).save(folder / "masks.safetensors")
        with pytest.raises(MaskError, match="does not belong to this run"):
            run(SETTINGS, tmp_path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: change(path, '"top1": 0.', '"top1": 0.0'),
        lambda path: path.write_text(""),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.unlink(),
        lambda path: change(path, '"epoch": 1', '"epoch": 2'),
    ],
)
def test_damaged_records_are_noticed_when_training_resumes(tmp_path, whole, damage):
    folder = interrupted(tmp_path, "train", 1)
    damage(folder / "metrics.jsonl")
    with pytest.raises(DamageError, match=r"metrics\.jsonl is damaged or gone: .*Remove it and checkpoint"):
        run(SETTINGS, tmp_path)
    for name in ("metrics.jsonl", "checkpoint.safetensors"):
        (folder / name).unlink(missing_ok=True)
    run(SETTINGS, tmp_path)
    assert outcome(folder) == outcome(whole)


def test_runs_of_before_there_were_hashes_go_on_and_count_as_finished(tmp_path, whole):
    folder = interrupted(tmp_path, "train", 1)
    masks = Masks.load(folder / "masks.safetensors")
    info = {key: value for key, value in masks.info.items() if key != "run"}
    metadata = {"format": "ntksap-masks", "order": json.dumps(list(masks)), "info": json.dumps(info)}
    save_file(masks.to("cpu"), folder / "masks.safetensors", metadata)
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(unsealed(record)) + "\n" for record in records))
    lines = (folder / "settings.toml").read_text().splitlines(keepends=True)
    (folder / "settings.toml").write_text("".join(line for line in lines if not line.startswith("sha256")))
    result = run(SETTINGS, tmp_path)
    assert outcome(folder) == outcome(whole)
    (folder / "result.json").write_text(json.dumps(result))
    assert run(SETTINGS, tmp_path) == result


def test_a_checkpoint_that_cannot_be_of_this_training_is_refused(tmp_path):
    folder = interrupted(tmp_path, "train", 1)
    path = folder / "checkpoint.safetensors"
    content = path.read_bytes()
    for epoch in ("-1", "3", "1e9", '"x"'):
        damaged = content.replace(rb"\"epoch\": 1", rb"\"epoch\": " + epoch.encode().replace(b'"', rb"\""))
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError):
            run(SETTINGS, tmp_path)


def test_damage_concerns_its_run_alone_in_a_sweep_and_a_report(folder, capsys):
    root = folder.parent
    other = small_settings("random", epochs=1)
    change(folder / "result.json", '"kept": ', '"kept": 1')
    events = list(sweep([SETTINGS, other], root))
    assert [(e.kind, e.settings.name) for e in events if e.kind not in ("started", "progress")] == [
        ("failed", SETTINGS.name),
        ("finished", other.name),
    ]
    assert "result.json is damaged" in (events[0].error or "")
    change(folder / "metrics.jsonl", '"train_loss": ', '"train_loss": 1')
    change(folder / "settings.toml", "seed = 0", "seed = 1")
    runs = {one.name: one for one in read_folder(root).runs}
    assert runs[other.name].status == "finished"
    assert runs[SETTINGS.name].status == "damaged"
    assert {problem.split(":")[0] for problem in runs[SETTINGS.name].problems} == {
        "result.json",
        "metrics.jsonl",
        "settings.toml",
    }


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("result.json", b"[]", r"result\.json is damaged: it holds no object"),
        ("result.json", b"{}", r"result\.json is damaged: it is not the result of this run"),
        ("result.json", b"[" * 100_000, r"result\.json is damaged: it is nested too deeply"),
        ("masks.safetensors", b"xx", r"masks\.safetensors is damaged"),
        ("metrics.jsonl", b"{}\n", r"metrics\.jsonl is damaged"),
    ],
)
def test_a_store_that_holds_nonsense_says_what_to_remove(folder, tmp_path, file, content, message):
    store = Store(f"file://{tmp_path}/store")
    store.check()
    store.publish(folder)
    (tmp_path / "store" / SETTINGS.name / file).write_bytes(content)
    with pytest.raises(StorageError, match=rf"{message}.* Remove {SETTINGS.name} from the store"):
        store.fetch(SETTINGS.name, tmp_path / "other")
    assert {path.name for path in (tmp_path / "other").glob("*/*")} <= {"lock"}
    work = Work(tmp_path / "more", Place(), threads=1, store=store)
    assert [event.kind for event in skip_finished([SETTINGS, small_settings("random")], work)] == ["failed"]


def test_masks_in_a_store_that_are_not_the_results_are_refused(folder, tmp_path):
    store = Store(f"file://{tmp_path}/store")
    store.check()
    store.publish(folder)
    masks = Masks.load(folder / "masks.safetensors")
    Masks({name: ~mask for name, mask in masks.items()}, masks.info).save(
        tmp_path / "store" / SETTINGS.name / "masks.safetensors"
    )
    with pytest.raises(StorageError, match="the result names other masks"):
        store.fetch(SETTINGS.name, tmp_path / "other")


def test_a_lock_that_is_a_folder_and_places_that_cannot_be_written(tmp_path):
    (tmp_path / SETTINGS.name / "lock").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"cannot open .*lock: Is a directory\. .*remove what is in its place"):
        run(SETTINGS, tmp_path)
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match=r"cannot make the folder .*: Not a directory"):
        run(SETTINGS, tmp_path / "file" / "runs")
    with pytest.raises(StorageError, match="cannot make the folder"):
        run(SETTINGS, Path("/proc/runs"))


def test_a_folder_that_vanishes_is_named(tmp_path):
    def remove(progress: Progress) -> None:
        if progress.stage == "train":
            shutil.rmtree(tmp_path / SETTINGS.name)

    with pytest.raises(StorageError, match=r"cannot write .*metrics\.jsonl: No such file or directory"):
        run(SETTINGS, tmp_path, on_progress=remove)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (("--data", "../../x"), "unknown data set '../../x'"),
        (("--data", "cifar11"), "Did you mean 'cifar10'"),
        (("--model", "resnet21"), "unknown model 'resnet21'"),
        (("--model", "m" * 300), "unknown model"),
        (("--model", "os:getcwd"), "unknown model"),
        (("--device", "cuda:9"), "the device 'cuda:9' cannot be used here"),
        (("--floor", "-5"), "a floor is a number of weights, or a share of them below 1, not -5"),
    ],
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_what_cannot_be_run_leaves_no_folder_behind(tmp_path, capsys, command, wrong, message):
    if command == "compare" and wrong[0] == "--floor":
        pytest.skip("compare has no --floor")
    inner = tmp_path / "a" / "b" / "out"
    inner.mkdir(parents=True)
    assert main([command, *wrong, "--epochs", "1", "--out", str(inner / "runs")]) == 1
    assert message in " ".join(capsys.readouterr().err.split())
    assert [path for path in tmp_path.rglob("*") if path not in inner.parents] == [inner]


@pytest.mark.parametrize("place", ["/proc/out", "{}/file/out", "{}/" + "x" * 300])
@pytest.mark.parametrize("command", ["prune", "train", "compare", "spectrum", "report"])
def test_places_that_cannot_be_written_are_sentences(tmp_path, capsys, command, place):
    (tmp_path / "file").write_text("in the way")
    model = [] if command == "report" else ["--model", "lenet-300-100"]
    more = {
        "prune": ["--method", "random"],
        "train": ["--epochs", "1", "--method", "random", "--no-channels-last"],
        "compare": ["--epochs", "1", "--methods", "random", "--jobs", "1"],
        "spectrum": ["--methods", "random", "--inputs", "1", "--input-shape", "1", "4", "4"],
        "report": [str(tmp_path)],
    }[command]
    assert main([command, *more, *model, "--out", place.format(tmp_path)]) == 1
    assert "error:" in capsys.readouterr().err


def test_a_device_is_asked_for_before_anything_is_made(tmp_path):
    with pytest.raises(InputError, match="cannot be used here"):
        run(SETTINGS, tmp_path, Place(device="cuda:9"))
    assert not os.listdir(tmp_path)
    with pytest.raises(NtksapError, match="cannot be used here"):
        ntksap.prune(torch.nn.Linear(2, 2), 0.5, input_shape=(2,), device="mps:3")
