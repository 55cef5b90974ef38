"""Where compiled kernels are kept: in folders that nobody else can write to, under a name that says what is inside.

Whatever lies there is loaded into the process and run. So a folder or file is used only if it belongs to the user and
nobody else can change it (as far as the system has owners; Windows itself keeps profile folders private), and a
file only if its contents have the hash in its name: a power cut can leave a file that is short, empty or garbage.
"""

import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path


def private_folders() -> Iterator[Path]:
    """Yield folders for the cache, best first: the user's cache, one beside temporary files, one for this process.

    A relative ``XDG_CACHE_HOME`` is ignored, as its specification asks.
    """
    wanted = []
    with suppress(RuntimeError):  # no home
        given = Path(os.environ.get("XDG_CACHE_HOME", ""))
        wanted.append((given if given.is_absolute() else Path.home() / ".cache") / "ntksap")
    wanted.append(Path(tempfile.gettempdir()) / f"ntksap-{_user()}")
    for folder in wanted:
        with suppress(OSError):
            folder.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(mode=0o700, exist_ok=True)
            folder = folder.resolve()  # so that no link can lead elsewhere later
            if _own(folder.stat()) and not any(_open_to_others(parent.stat()) for parent in folder.parents):
                yield folder
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder_of_process:
        yield Path(folder_of_process)


def find(folder: Path, name: str) -> Path | None:
    """Return the file that `keep` left under this name, if there is one that is whole and nobody else's."""
    for path in sorted(folder.glob(f"{name}-*.so")):
        with suppress(OSError):
            about = path.lstat()
            if stat.S_ISREG(about.st_mode) and _own(about) and path.name == _named(name, path.read_bytes()):
                return path
    return None


def keep(folder: Path, name: str, make: Callable[[Path], None]) -> Path:
    """Let ``make`` write a file, and keep it in the folder, all of it or nothing; return where it is."""
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch) / "library"
        make(made)
        made.chmod(0o600)  # whatever the user's umask is
        with open(made, "r+b") as file:
            path = folder / _named(name, file.read())
            os.fsync(file.fileno())  # or else a power cut may keep the name and lose the contents
        os.replace(made, path)  # at once, as other processes may be looking
    return path


def _named(name: str, content: bytes) -> str:
    return f"{name}-{hashlib.sha256(content).hexdigest()}.so"


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0


def _own(about: os.stat_result) -> bool:
    """Whether a file or folder is the user's, and nobody else can write to it."""
    return not hasattr(os, "getuid") or (about.st_uid == os.getuid() and not about.st_mode & 0o022)


def _open_to_others(about: os.stat_result) -> bool:
    """Whether others could replace what is in this folder."""
    return hasattr(os, "getuid") and bool(about.st_mode & 0o022) and not about.st_mode & stat.S_ISVTX
