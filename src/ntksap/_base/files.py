"""Files that are either whole or absent."""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ntksap._base.errors import InputError, StorageError

TEMPORARY = ".part-"
"""The prefix of files that are not whole yet; one that is left over after a crash can be removed."""


def write_atomically(path: str | Path, content: bytes | str) -> None:
    """Write ``content`` to ``path`` so that a crash leaves the old file or the new one, never a part."""
    with new_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def new_file(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that becomes ``path`` when the block ends well, and goes away when it does not."""
    path = Path(path)
    try:
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}.")
    except OSError as error:
        raise _storage_error(path, error) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException as error:
        with suppress(OSError):  # the whole folder may be gone
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise _storage_error(path, error) from error
        raise


def _storage_error(path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"cannot write {path}: {error.strerror}. What was there before is intact; make room or choose another place, "
        "then run the same command again"
    )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: str | Path, values: Mapping[str, Any]) -> None:
    """Write one JSON object atomically."""
    write_atomically(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def make_folder(path: Path) -> None:
    """Make a folder and those above it, unless they exist; `StorageError` if that is not possible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"cannot make the folder {path}: {error.strerror}. Choose another place") from error


def require_new(path: str | Path) -> None:
    """Raise InputError if there is already something at ``path``: call it before the work, not after."""
    try:
        there = Path(path).exists()
    except OSError as error:
        raise InputError(f"--out cannot be used: {error.strerror}") from error
    if there:
        raise InputError(f"{path} already exists; choose another --out or remove it (nothing was changed)")


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``path`` when the block ends well, and goes away when it does not."""
    path = Path(path)
    make_folder(path.parent)
    try:
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f"{TEMPORARY}{path.name}."))
    except OSError as error:
        raise _storage_error(path, error) from error
    try:
        yield temporary
        try:
            temporary.chmod(0o777 & ~_umask())
            temporary.rename(path)
        except OSError as error:
            raise _storage_error(path, error) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
