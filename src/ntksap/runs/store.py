"""A store: finished runs under a URL (``s3://bucket/folder``, ``file:///folder``), for machines that share no folder.

It holds the small files of each run: settings, masks, metrics, result; no checkpoints. The result is written last, so
where there is a result, the other files are there too. Runs are worked on in folders, never in a store.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ntksap._base import InputError, NtksapError, StorageError, write_atomically
from ntksap.pruning import Masks
from ntksap.runs.folder import FINAL_MASKS, checked_result, locked, read_records, read_result

_RESULT, _MASKS = "result.json", "masks.safetensors"
_HASHES = {_MASKS: "mask_sha256", FINAL_MASKS: "final_mask_sha256"}
"""Mask files, and the key under which a result names their masks; a file without one does not belong to the run."""
_OTHERS = ("settings.toml", *_HASHES, "metrics.jsonl")
_ONLY_WHILE_WORKING = ("pruning.safetensors", "checkpoint.safetensors", "error.json")


@dataclass(frozen=True)
class Store:
    """Finished runs under a URL that fsspec knows."""

    url: str

    def check(self) -> None:
        """Raise an error that says what to do unless the store can be written to."""
        if "://" not in self.url:
            raise InputError(f"a store is a URL such as s3://bucket/folder or file:///folder, not {self.url!r}")
        if self.url.startswith("memory://"):
            raise InputError("memory:// is gone when a process ends, so it cannot be a store: use file:///folder")
        self._write("store.json", json.dumps({"holds": "runs of ntksap"}).encode())

    def finished(self) -> set[str]:
        """Return the names of the runs in the store."""
        with self._clear_errors("list"):
            system, path = self._open()
            system.invalidate_cache()
            return {found.split("/")[-2] for found in system.glob(f"{path}/*/{_RESULT}")}

    def publish(self, folder: Path) -> None:
        """Copy a finished run to the store."""
        for name in (*_OTHERS, _RESULT):
            if (folder / name).exists():  # the dense run has no masks
                self._write(f"{folder.name}/{name}", (folder / name).read_bytes())

    def fetch(self, name: str, root: Path) -> dict[str, Any] | None:
        """Return the result of a run after copying it to ``root``, None if it is not in the store.

        A run that is finished in ``root`` is only read.
        """
        folder = root / name
        if (result := read_result(folder)) is not None:
            return result
        content = self._read(f"{name}/{_RESULT}")
        if content is None or not _whole(content):
            return None
        try:
            stored = checked_result(content, name)
        except ValueError as error:
            raise self._damaged(name, _RESULT, str(error)) from error
        with locked(folder):
            for other in _OTHERS:
                if (data := self._read(f"{name}/{other}")) is not None:
                    write_atomically(folder / other, data)
                elif other not in _HASHES or stored.get(_HASHES[other]) is not None:
                    raise StorageError(f"{self.url}/{name} has a result but no {other}; remove it from the store")
            self._check_copy(name, folder, stored)
            for other in _ONLY_WHILE_WORKING:
                (folder / other).unlink(missing_ok=True)
            write_atomically(folder / _RESULT, content)
        return stored

    def _check_copy(self, name: str, folder: Path, stored: dict[str, Any]) -> None:
        """Raise, and remove what was copied, unless it is what the result names."""
        doing = ""
        try:
            for doing, key in _HASHES.items():
                if stored.get(key) is not None and Masks.load(folder / doing).sha256 != stored[key]:
                    raise ValueError("the result names other masks")
            if "top1" in stored:
                doing = "metrics.jsonl"
                read_records(folder / doing, stored["recipe"]["epochs"])
        except (ValueError, KeyError, TypeError) as error:
            for other in _OTHERS:
                (folder / other).unlink(missing_ok=True)
            raise self._damaged(name, doing, str(error)) from error

    def _damaged(self, name: str, file: str, why: str) -> StorageError:
        return StorageError(
            f"{self.url}/{name}/{file} is damaged: {why}. Remove {name} from the store, and the same command does the "
            "run again"
        )

    def _read(self, name: str) -> bytes | None:
        with self._clear_errors("read"):
            system, path = self._open()
            try:
                content: bytes = system.cat_file(f"{path}/{name}")
            except FileNotFoundError:
                return None
            return content

    def _write(self, name: str, content: bytes) -> None:
        with self._clear_errors("write"):
            system, path = self._open()
            if "file" in system.protocol:  # object stores have no folders
                system.makedirs(f"{path}/{name}".rpartition("/")[0], exist_ok=True)
            system.pipe_file(f"{path}/{name}", content)

    def _open(self) -> tuple[Any, str]:
        """Return the file system, which fsspec caches, and the path in it."""
        import fsspec

        try:
            return fsspec.url_to_fs(self.url.rstrip("/"))  # type: ignore[no-any-return]
        except ValueError as error:
            raise InputError(f"--store {self.url}: {error}") from error
        except ImportError as error:
            raise InputError(f"--store {self.url}: {error} (for s3: pip install 'ntksap[s3]')") from error

    @contextmanager
    def _clear_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except NtksapError:
            raise
        except Exception as error:  # each kind of store has errors of its own
            raise StorageError(
                f"cannot {doing} {self.url}: {type(error).__name__}: {error}. Is the address right, can it be reached "
                "from here, and do your credentials allow it? Runs are safe in their folder; the same command resumes"
            ) from error


def _whole(content: bytes) -> bool:
    """Whether it is complete JSON; a result that is being written at this moment is not."""
    try:
        json.loads(content)
    except RecursionError:
        return True  # whatever it is, it is not a result
    except ValueError:
        return False
    return True
