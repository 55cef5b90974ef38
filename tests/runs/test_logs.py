"""Records of training in TensorBoard and Weights & Biases: each epoch once, whatever interrupted the run."""

import importlib.util
import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from ntksap import InputError
from ntksap.cli import main
from ntksap.runs import Place, Progress, run, sweep
from ntksap.training import TrainState
from tests.runs.small_runs import small_settings

NEEDS = "needs the extra `{0}`, which `make test-slow` installs"


class KilledError(Exception):
    pass


def tensorboard_events(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Every scalar in every event file, doubled ones too."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for path in sorted(folder.glob("tensorboard/events.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag != "settings/text_summary":
                    yield value.tag, event.step, value.tensor.float_val[0]


def chunks(content: bytes) -> Iterator[bytes]:
    """The records of a file in the log format of LevelDB, behind a header of 7 bytes: blocks of 32 KiB; each piece of a
    record has a checksum, its length and its kind (1 whole, 2 first, 3 middle, 4 last)."""
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def wandb_events(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Every number of every history record in every offline run."""
    from wandb.proto import wandb_internal_pb2

    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        record = wandb_internal_pb2.Record()
        for data in chunks(path.read_bytes()):
            record.ParseFromString(data)
            for item in record.history.item:
                key = item.key or item.nested_key[0]
                if not key.startswith("_"):
                    yield key, record.history.step.num, float(json.loads(item.value_json))


EVENTS = {"tensorboard": tensorboard_events, "wandb": wandb_events}


def expected(folder: Path) -> dict[tuple[str, int], float]:
    """What metrics.jsonl holds."""
    records = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {(k, r["epoch"]): v for r in records for k, v in r.items() if k not in ("epoch", "sha256")}


def check(name: str, folder: Path) -> None:
    found = list(EVENTS[name](folder))
    assert len(found) == len(expected(folder)), "an epoch stands there twice, or not at all"
    assert {(key, step): value for key, step, value in found} == pytest.approx(expected(folder), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_run_that_was_killed_before_its_checkpoint_and_resumed_has_each_epoch_once(tmp_path, monkeypatch, name):
    pytest.importorskip(name, reason=NEEDS.format(name))
    settings, place = small_settings(epochs=4), Place(log=(name,))
    folder = tmp_path / settings.name
    save = TrainState.save

    def killed(state: TrainState, path: Path) -> None:
        if state.epoch == 3:
            raise KilledError
        save(state, path)

    with monkeypatch.context() as patched:
        patched.setattr(TrainState, "save", killed)
        with pytest.raises(KilledError):
            run(settings, tmp_path, place)
    assert max(step for _, step, _ in EVENTS[name](folder)) == 3
    begun: list[int] = []
    run(settings, tmp_path, place, lambda progress: begun.append(_epoch(progress)))
    assert begun == [3, 4]
    check(name, folder)
    run(settings, tmp_path, place)
    check(name, folder)


def _epoch(progress: Progress) -> int:
    assert progress.stage == "train"
    return progress.done


@pytest.mark.slow
def test_a_run_that_is_finished_gets_the_log_that_it_lacks_also_in_a_sweep(tmp_path):
    pytest.importorskip("tensorboard", reason=NEEDS.format("tensorboard"))
    first, second = small_settings("magnitude", epochs=1), small_settings("random", epochs=1)
    for settings in (first, second):
        run(settings, tmp_path)
    run(first, tmp_path, Place(log=("tensorboard",)))
    check("tensorboard", tmp_path / first.name)
    assert [event.kind for event in sweep([second], tmp_path, Place(log=("tensorboard",)))] == ["skipped"]
    check("tensorboard", tmp_path / second.name)


def test_a_package_that_is_missing_is_a_sentence_before_any_work(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    sentence = r"--log wandb needs a package that is not installed: pip install 'ntksap\[wandb"
    with pytest.raises(InputError, match=sentence):
        Place(log=("wandb",))
    assert main(["train", "--log", "tensorboard", "--out", str(tmp_path / "runs")]) == 1
    assert "pip install 'ntksap[tensorboard]'" in " ".join(capsys.readouterr().err.split())
    assert main(["compare", "--log", "tensorbord", "--out", str(tmp_path / "runs")]) == 1
    assert "Did you mean 'tensorboard'" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "runs").exists()
