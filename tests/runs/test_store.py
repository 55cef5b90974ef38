import json
import os
import subprocess
import sys
import time

import pytest

import ntksap
from ntksap._base.errors import InputError, StorageError
from ntksap.cli import main
from ntksap.runs.execution import run
from ntksap.runs.folder import BusyError, Place, locked, read_result
from ntksap.runs.local_sweep import sweep
from ntksap.runs.store import Store
from ntksap.runs.work import Work
from tests.runs.small_runs import small_settings

COMPARE = ["compare", "--model", "lenet-300-100", "--epochs", "1", "--no-channels-last", "--methods", "magnitude"]
SMALL = {"settings.toml", "masks.safetensors", "metrics.jsonl", "result.json"}


@pytest.fixture
def store(tmp_path):
    found = Store(f"file://{tmp_path}/store")
    found.check()
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run: its settings and its folder."""
    settings = small_settings("magnitude", epochs=1)
    root = tmp_path_factory.mktemp("finished")
    run(settings, root)
    return settings, root / settings.name


def test_a_run_comes_back_as_it_was_without_what_is_large(store, finished, tmp_path):
    settings, folder = finished
    assert store.finished() == set()
    assert store.fetch(settings.name, tmp_path / "other") is None
    assert not (tmp_path / "other").exists()
    store.publish(folder)
    assert store.finished() == {settings.name}
    result = store.fetch(settings.name, tmp_path / "other")
    assert result == read_result(folder)
    copy = tmp_path / "other" / settings.name
    assert {path.name for path in copy.iterdir()} == SMALL | {"lock"}
    assert all((copy / name).read_bytes() == (folder / name).read_bytes() for name in SMALL)
    assert run(settings, tmp_path / "other") == result


def test_a_run_begun_here_and_finished_elsewhere_leaves_no_old_state(store, finished, tmp_path):
    settings, folder = finished
    store.publish(folder)
    begun = tmp_path / settings.name
    begun.mkdir()
    for name in ("checkpoint.safetensors", "pruning.safetensors", "error.json"):
        (begun / name).write_text("old")
    with locked(begun), pytest.raises(BusyError):
        store.fetch(settings.name, tmp_path)
    store.fetch(settings.name, tmp_path)
    assert {path.name for path in begun.iterdir()} == SMALL | {"lock"}


def test_a_result_that_is_being_written_counts_as_none_and_a_lost_file_is_named(store, finished, tmp_path):
    settings, folder = finished
    store.publish(folder)
    stored = tmp_path / "store" / settings.name
    whole = (stored / "result.json").read_text()
    (stored / "result.json").write_text(whole[: len(whole) // 2])
    assert store.fetch(settings.name, tmp_path / "other") is None
    (stored / "result.json").write_text(whole)
    (stored / "masks.safetensors").unlink()
    with pytest.raises(StorageError, match=r"has a result but no masks\.safetensors"):
        store.fetch(settings.name, tmp_path / "other")
    assert not (tmp_path / "other" / settings.name / "result.json").exists()


def test_machines_that_share_only_a_store_do_a_run_once(store, tmp_path):
    plan = [small_settings(method, epochs=1) for method in ("random", "magnitude")]
    one = Work(tmp_path / "a", Place(), threads=1, store=store)
    assert isinstance(one.carry_out(plan[0], lambda progress: None), dict)
    events = {event.settings.name: event for event in sweep(plan, tmp_path / "b", store=store)}
    assert [events[settings.name].kind for settings in plan] == ["skipped", "finished"]
    assert store.finished() == {settings.name for settings in plan}
    events = {event.settings.name: event for event in sweep(plan, tmp_path / "a", store=store)}
    assert [event.kind for event in events.values()] == ["skipped", "skipped"]

    late = Store(f"file://{tmp_path}/late")  # what is finished here already is published, too
    late.check()
    assert {event.kind for event in sweep(plan, tmp_path / "b", store=late)} == {"skipped"}
    assert late.finished() == store.finished()


def test_compare_fills_the_report_from_the_store(tmp_path, capsys):
    arguments = [*COMPARE, "--store", f"file://{tmp_path}/store", "--jobs", "1", "--json"]
    assert main([*arguments, "--out", str(tmp_path / "a")]) == 0
    first = json.loads(capsys.readouterr().out)["results"]
    assert main([*arguments, "--out", str(tmp_path / "b")]) == 0
    assert json.loads(capsys.readouterr().out)["results"] == first
    assert (tmp_path / "b" / "report.html").exists()
    assert not list(tmp_path.glob("b/runs/*/checkpoint.safetensors"))


def test_stores_that_cannot_be_used_say_so_before_anything_runs(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    for url, message in [
        ("bucket/folder", "a store is a URL such as s3://"),
        ("memory://runs", "gone when a process ends"),
        ("nosuch://runs", "Protocol not known: nosuch"),
        (f"file://{tmp_path}/file/store", "cannot write file://"),
    ]:
        assert main([*COMPARE, "--out", str(tmp_path / "out"), "--store", url]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_a_store_whose_package_is_missing_names_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(InputError, match=r"pip install 'ntksap\[s3\]'"):
        Store("s3://a-bucket-nobody-opened-before/runs").check()


@pytest.mark.slow
def test_runs_come_back_from_an_object_store(finished, tmp_path, monkeypatch):
    for package in ("s3fs", "moto.server"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install s3fs 'moto[server]'")
    fsspec = pytest.importorskip("fsspec")
    environment = {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1"}
    log = tmp_path / "server.log"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with open(log, "w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, env={**os.environ, **environment})
    try:
        while "Running on" not in log.read_text():
            assert server.poll() is None, log.read_text()
            time.sleep(0.1)
        endpoint = log.read_text().split("Running on ")[1].split()[0]
        for name, value in {**environment, "AWS_ENDPOINT_URL": endpoint}.items():
            monkeypatch.setenv(name, value)
        settings, folder = finished
        store = Store("s3://results/runs")
        with pytest.raises(StorageError, match="cannot write s3://results/runs"):
            store.check()  # no such bucket, and none is made
        fsspec.filesystem("s3").mkdir("results")
        store.check()
        assert store.finished() == set()
        store.publish(folder)
        assert store.finished() == {settings.name}
        assert store.fetch(settings.name, tmp_path) == read_result(folder)
        assert ntksap.Masks.load(tmp_path / settings.name / "masks.safetensors").kept > 0
        events = list(sweep([settings, small_settings("random", epochs=1)], tmp_path / "other", store=store))
        assert [event.kind for event in events if event.kind != "progress"] == ["skipped", "started", "finished"]
        assert len(store.finished()) == 2
    finally:
        server.kill()
        server.wait()
