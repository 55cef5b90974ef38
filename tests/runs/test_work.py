"""What engines have in common, and what the Ray engine says before there is any Ray."""

import multiprocessing
import socket
import sys
import time
from pathlib import Path

import pytest

from ntksap._base.errors import StorageError
from ntksap.cli import main
from ntksap.runs.folder import Place, locked
from ntksap.runs.work import Work
from tests.runs.small_runs import small_settings

COMPARE = ["compare", "--model", "lenet-300-100", "--epochs", "1", "--methods", "random"]


def hold(folder: Path, seconds: float) -> None:
    """Hold the lock of a run in a process of its own, like a machine that is cut off from the others."""
    with locked(folder):
        (folder / "held").touch()
        time.sleep(seconds)


@pytest.mark.parametrize(("patience", "message"), [(0.0, "already being worked on"), (60.0, None)])
def test_a_run_that_another_process_is_at_is_waited_for_as_long_as_allowed(tmp_path, patience, message):
    settings = small_settings("random", epochs=1)
    folder = tmp_path / settings.name
    folder.mkdir()
    process = multiprocessing.get_context("fork").Process(target=hold, args=(folder, 2.0 if patience else 60.0))
    process.start()
    try:
        while not (folder / "held").exists():
            time.sleep(0.01)
        found = Work(tmp_path, Place(), threads=1, patience=patience).carry_out(settings, lambda progress: None)
    finally:
        process.kill()
        process.join()
    if message is None:
        assert isinstance(found, dict)
        assert found["threads"] == 1
    else:
        assert message in found


def test_errors_of_a_run_are_returned_as_text(tmp_path):
    found = Work(tmp_path, Place(data_dir=tmp_path), threads=1).carry_out(small_settings(data="cifar10"), print)
    assert "NTKSAP_DATA" in found


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    def no_locks(file, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(StorageError, match=r"No locks available.*on NFS"), locked(tmp_path):
        pass


def test_arguments_of_engines_are_checked(tmp_path, capsys):
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"127.0.0.1:{free.getsockname()[1]}"
    for change, message in [
        (["--engine", "ray", "--jobs", "2"], "--jobs means nothing to --engine ray"),
        (["--address", "auto"], "--address means nothing to --engine local"),
        (["--cpus", "2"], "--cpus means nothing to --engine local"),
        (["--engine", "ray", "--cpus", "0"], "at least 1 CPU"),
        (["--engine", "ray", "--address", "ray://host:10001"], "--address is host:port, or auto"),
        (["--engine", "ray", "--address", "host"], "--address is host:port, or auto"),
        (["--engine", "ray", "--address", nobody], f"no Ray cluster at {nobody}"),
        (["--engine", "ray", "--address", "127.0.0.1:99999"], "no Ray cluster at 127.0.0.1:99999"),
    ]:
        assert main([*COMPARE, "--out", str(tmp_path / "out"), *change]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("out/runs/*"))


def test_without_ray_the_extra_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main([*COMPARE, "--out", str(tmp_path / "out"), "--engine", "ray"]) == 1
    assert "pip install 'ntksap[ray]'" in " ".join(capsys.readouterr().err.split())
