"""Compiled kernels are loaded only from where nobody else can write, and only whole."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from ntksap.net.kernels import library
from ntksap.net.kernels.cache import find, keep, private_folders

needs_owners = pytest.mark.skipif(not hasattr(os, "getuid"), reason="no owners here")


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A home, a cache and a folder for temporary files that are not the machine's."""
    for variable, name in (("HOME", "home"), ("XDG_CACHE_HOME", "cache"), ("TMPDIR", "tmp")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setattr(tempfile, "tempdir", None)  # where Python remembers the old one
    return tmp_path


def names(root: Path) -> list[str]:
    return [str(folder.relative_to(root)) for folder in private_folders()]


def test_the_users_cache_comes_first(elsewhere):
    first, second, last = names(elsewhere)
    assert (first, second) == ("cache/ntksap", f"tmp/ntksap-{os.getuid()}")
    assert last.startswith("tmp/")
    for folder in (first, second):
        assert (elsewhere / folder).stat().st_mode & 0o777 == 0o700
    assert not (elsewhere / last).exists()  # it was this process's, for as long as it was asked for


@pytest.mark.parametrize("relative", ["cache", "./cache", "", "~/cache"])
def test_a_cache_that_is_relative_to_wherever_one_happens_to_be_is_ignored(elsewhere, monkeypatch, relative):
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("XDG_CACHE_HOME", relative)
    assert names(elsewhere)[0] == "home/.cache/ntksap"
    assert not (elsewhere / "cache" / "ntksap").exists()


@needs_owners
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
@pytest.mark.parametrize("place", ["cache", "cache/ntksap"])
def test_a_folder_that_others_can_write_to_is_refused(elsewhere, mode, place):
    (elsewhere / place).mkdir(exist_ok=True)
    (elsewhere / place).chmod(mode)
    assert names(elsewhere)[0] == f"tmp/ntksap-{os.getuid()}"


@needs_owners
def test_a_folder_of_temporary_files_in_which_others_cannot_rename_is_fine(elsewhere):
    (elsewhere / "cache").chmod(0o1777)
    assert names(elsewhere)[0] == "cache/ntksap"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_refused(elsewhere):
    for folder in ("cache/ntksap", f"tmp/ntksap-{os.getuid()}"):
        (elsewhere / folder).mkdir(mode=0o700)
        os.chown(elsewhere / folder, 12345, -1)
    (last,) = names(elsewhere)
    assert last.startswith("tmp/")


@needs_owners
def test_a_link_to_a_folder_that_others_can_write_to_is_refused(elsewhere):
    (elsewhere / "open").mkdir()
    (elsewhere / "open").chmod(0o777)
    (elsewhere / "cache" / "ntksap").symlink_to(elsewhere / "open")
    assert names(elsewhere)[0] == f"tmp/ntksap-{os.getuid()}"


def test_a_system_without_owners_is_taken_as_it_is(elsewhere, monkeypatch):
    (elsewhere / "cache").chmod(0o777)
    monkeypatch.delattr(os, "getuid", raising=False)
    assert names(elsewhere)[:2] == ["cache/ntksap", "tmp/ntksap-0"]


@pytest.fixture
def kept(tmp_path):
    return keep(tmp_path, "kernels-1", lambda path: path.write_bytes(b"some code"))


def test_what_was_kept_is_found_under_its_name_alone(kept, tmp_path):
    assert find(tmp_path, "kernels-1") == kept
    assert find(tmp_path, "kernels-2") is None
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("content", [b"", b"some", b"some cods", b"some code and more"])
def test_what_is_damaged_is_not_found_until_it_is_made_again(kept, tmp_path, content):
    kept.write_bytes(content)
    assert find(tmp_path, "kernels-1") is None
    keep(tmp_path, "kernels-1", lambda path: path.write_bytes(b"some code"))
    assert find(tmp_path, "kernels-1") == kept


@needs_owners
def test_a_file_that_others_can_write_to_or_a_link_is_not_found(kept, tmp_path):
    kept.chmod(0o620)
    assert find(tmp_path, "kernels-1") is None
    kept.chmod(0o600)
    kept.rename(tmp_path / "moved")
    kept.symlink_to(tmp_path / "moved")
    assert find(tmp_path, "kernels-1") is None


@needs_owners
def test_a_generous_umask_gives_nothing_away(tmp_path):
    before = os.umask(0)
    try:
        made = keep(tmp_path, "kernels-1", lambda path: path.write_bytes(b"some code"))
    finally:
        os.umask(before)
    assert made.stat().st_mode & 0o077 == 0
    assert find(tmp_path, "kernels-1") == made


def test_what_cannot_be_made_leaves_nothing_behind(tmp_path):
    with pytest.raises(FileNotFoundError):
        keep(tmp_path, "kernels-1", lambda path: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")
@pytest.mark.parametrize("length", [4096, pytest.param(0, marks=pytest.mark.slow)])
def test_a_truncated_library_is_compiled_again(elsewhere, length):
    compiler = elsewhere / "cc"  # in a hurry
    compiler.write_text('#!/bin/sh\nexec cc "$@" -O0\n')
    compiler.chmod(0o755)
    script = (
        "import torch; from ntksap.net.kernels import library, conv2d; assert library() is not None;"
        "x, w = torch.ones(2, 3, 8, 8), torch.zeros(4, 3, 3, 3);"
        "assert conv2d(x, w, w != 0).abs().max() == 0"
    )

    def run():
        environment = {**os.environ, "CC": str(compiler)}
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
        (made,) = (elsewhere / "cache" / "ntksap").iterdir()
        return made

    made = run()
    content = made.read_bytes()
    os.truncate(made, length)
    assert run() == made
    assert made.read_bytes() == content
