"""Download the published archives: resumable, verified by MD5, and under their final name only once complete."""

import http.client
import os
import shutil
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from ntksap._base import make_folder
from ntksap.data.base import DataError
from ntksap.data.checksums import MD5, md5, verify

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 16
LIMIT = 1 << 29  # bytes; the largest of the archives has less than half of that


@dataclass(frozen=True)
class Archive:
    """Where a set is published. `unpacked`: the folder that a zip file becomes; None for one that is read as it is."""

    site: str
    file: str
    unpacked: str | None = None


ARCHIVES = {
    "cifar10": Archive("https://www.cs.toronto.edu/~kriz/", "cifar-10-binary.tar.gz"),
    "cifar100": Archive("https://www.cs.toronto.edu/~kriz/", "cifar-100-binary.tar.gz"),
    "tiny-imagenet": Archive("http://cs231n.stanford.edu/", "tiny-imagenet-200.zip", unpacked="tiny-imagenet-200"),
}
BY_HAND = {
    "digits": "The digits ship with scikit-learn",
    "imagenet": "ImageNet needs an account: get the ILSVRC 2012 images from https://image-net.org/download.php and "
    "unpack them as imagenet/train/<wnid>/*.JPEG and imagenet/val/<wnid>/*.JPEG in the data directory",
}


def download(name: str, root: str | Path, *, base_url: str | None = None, progress: bool = True) -> Path:
    """Fetch the archive of a set into `root`, verify it, and return its path (of the unpacked folder for a zip file).

    An interrupted download is kept as a `.part` file and resumed where it stopped. An archive that is already there
    is verified, not fetched. `base_url` replaces the site, for a mirror. `progress` shows a bar on stderr.
    """
    if name not in ARCHIVES:
        how = BY_HAND.get(name, "The sets that can be: " + ", ".join(ARCHIVES))
        raise DataError(f"{name} cannot be downloaded. {how}")
    archive = ARCHIVES[name]
    path = Path(root).expanduser() / archive.file
    make_folder(path.parent)
    if path.exists():
        with path.open("rb") as stream:
            verify(archive.file, path, stream)
    else:
        _fetch(f"{(base_url or archive.site).rstrip('/')}/{archive.file}", path, progress)
    return path if archive.unpacked is None else _unzip(path, path.parent / archive.unpacked)


def _fetch(url: str, path: Path, progress: bool) -> None:
    """Put the published file at `path`, by way of a `.part` file beside it."""
    part = path.with_name(path.name + ".part")
    try:
        _complete(url, part, progress)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(
            f"{url} could not be fetched: {error}. What has arrived is kept and running again resumes from there; "
            f"or put the file at {path.absolute()} by other means"
        ) from error
    with part.open("rb") as stream:
        actual = md5(stream)
    if actual != MD5[path.name]:
        part.unlink()  # nothing to resume from: the next attempt starts afresh
        raise DataError(
            f"{url} is not the published file: its MD5 is {actual}, expected {MD5[path.name]}. It was discarded; "
            f"try again, or put the file at {path.absolute()} by other means"
        )
    os.replace(part, path)


def _complete(url: str, part: Path, progress: bool) -> None:
    """Make `part` complete, asking only for what it lacks; raise OSError or HTTPException if that fails."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        with error:
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
        return  # nothing is left to send; the checksum shows whether that is because `part` is complete
    resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT  # if not, the server ignored Range and sends it all
    with response, part.open("ab" if resumed else "wb") as file:
        length = _length(response.headers.get("Content-Length"))
        total = None if length is None else file.tell() + length
        if total is not None and total > LIMIT:
            raise OSError(f"it would have {total:,} bytes, more than any archive in the table")
        columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), disable=not progress) as bar:
            task = bar.add_task(part.stem, total=total, completed=file.tell())
            while chunk := response.read(CHUNK):
                if file.tell() + len(chunk) > LIMIT:
                    file.truncate(0)  # nothing to resume from
                    raise OSError(f"it does not end after {LIMIT:,} bytes, more than any archive in the table")
                file.write(chunk)
                bar.advance(task, len(chunk))
        if total is not None and file.tell() != total:
            raise OSError(f"the connection ended after {file.tell():,} of {total:,} bytes")


def _length(header: str | None) -> int | None:
    """Return the number of bytes that a server announces, None if it announces none."""
    if header is None:
        return None
    if not (header.isascii() and header.isdigit() and len(header) < 20):
        raise OSError(f"the server says that it sends {header[:40]!r} bytes, which is not a number")
    return int(header)


def _unzip(path: Path, folder: Path) -> Path:
    """Unpack a zip file that holds one folder; the folder appears under its name only once complete."""
    if not folder.exists():
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        with zipfile.ZipFile(path) as archive:
            archive.extractall(part)
        os.replace(part / folder.name, folder)
        shutil.rmtree(part)
    return folder
