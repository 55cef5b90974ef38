"""Downloads from a real server on this machine, with and without Range, interrupted, wrong and absent."""

import functools
import hashlib
import io
import re
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from ntksap.data import DataError, cifar, download, downloads, load
from ntksap.data import downloads as fetch
from ntksap.data.checksums import MD5
from tests.data.tiny_sets import shrink, write_cifar_folder, write_tiny_imagenet

NAME = "cifar-10-binary.tar.gz"
PAYLOAD = np.random.default_rng(0).bytes(300_000)


class Server(ThreadingHTTPServer):
    """Serves `files`; remembers the Range of every request and how many bytes were sent in answer."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {NAME: PAYLOAD}
        self.ranges_honoured = True
        self.length_announced = True
        self.length: str | None = None  # what is announced in place of the true length
        self.break_after: int | None = None  # bytes of a body, after which the connection is cut
        self.asked: list[str | None] = []
        self.sent: list[int] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/mirror"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server = self.server
        wanted = self.headers["Range"]
        server.asked.append(wanted)
        body = server.files.get(self.path.removeprefix("/mirror/"))
        if body is None:
            self.send_error(404)
            return
        start = 0
        if wanted and server.ranges_honoured:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        else:
            self.send_response(200)
        if server.length_announced:
            self.send_header("Content-Length", self.server.length or str(len(body) - start))
        self.end_headers()
        rest = body[start:][: server.break_after]
        server.sent.append(len(rest))  # before the client can have it all and look
        self.wfile.write(rest)

    def log_message(self, *_: object) -> None:
        """Keep stderr for the progress bar."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setitem(MD5, NAME, hashlib.md5(PAYLOAD).hexdigest())
    with Server() as server:
        thread = threading.Thread(target=functools.partial(server.serve_forever, poll_interval=0.01))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def get(server: Server, tmp_path: Path) -> Callable[[], Path]:
    return lambda: download("cifar10", tmp_path, base_url=server.url, progress=False)


def test_a_download_is_verified_and_not_repeated(get: Callable[[], Path], server: Server, tmp_path: Path) -> None:
    path = get()
    assert path == tmp_path / NAME
    assert path.read_bytes() == PAYLOAD
    assert get() == path
    assert server.asked == [None]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("length", ["many", "-5", "1.5", "²", "9" * 5000, "0x10"])
def test_a_length_that_is_no_number_is_a_sentence(get: Callable[[], Path], server: Server, length: str) -> None:
    server.length = length
    sentence = r"could not be fetched: the server says that it sends .* which is not a number"
    with pytest.raises(DataError, match=sentence):
        get()


def test_a_length_beyond_all_archives_is_refused_before_anything_is_fetched(
    get: Callable[[], Path], server: Server, tmp_path: Path
) -> None:
    server.length = str(10**12)
    with pytest.raises(DataError, match="it would have 1,000,000,000,000 bytes, more than any archive"):
        get()
    assert all(path.stat().st_size == 0 for path in tmp_path.iterdir())


def test_a_body_without_an_end_is_cut_and_thrown_away(
    get: Callable[[], Path], server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "LIMIT", 200_000)
    server.length_announced = False
    with pytest.raises(DataError, match="it does not end after 200,000 bytes"):
        get()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [0]
    monkeypatch.setattr(downloads, "LIMIT", 400_000)
    assert get().read_bytes() == PAYLOAD


def test_a_wrong_length_is_an_interrupted_download_or_another_file(get: Callable[[], Path], server: Server) -> None:
    server.length = str(len(PAYLOAD) + 7)
    with pytest.raises(DataError, match="the connection ended after 300,000 of 300,007 bytes"):
        get()
    server.length = None
    assert get().read_bytes() == PAYLOAD


def test_the_folder_is_made_and_a_slash_at_the_end_is_no_matter(server: Server, tmp_path: Path) -> None:
    path = download("cifar10", tmp_path / "new" / "folder", base_url=server.url + "/", progress=False)
    assert path.read_bytes() == PAYLOAD


def test_an_interrupted_download_goes_on_from_where_it_stopped(
    get: Callable[[], Path], server: Server, tmp_path: Path
) -> None:
    server.break_after = 100_001
    with pytest.raises(DataError, match=r"could not be fetched.*running again resumes from there"):
        get()
    assert [path.name for path in tmp_path.iterdir()] == [NAME + ".part"]
    with pytest.raises(DataError, match="could not be fetched"):
        get()
    server.break_after = None
    assert get().read_bytes() == PAYLOAD
    assert server.asked == [None, "bytes=100001-", "bytes=200002-"]
    assert server.sent == [100_001, 100_001, 99_998]  # no byte twice
    assert not (tmp_path / (NAME + ".part")).exists()


def test_a_server_without_range_starts_over(get: Callable[[], Path], server: Server) -> None:
    server.ranges_honoured = False
    server.break_after = 1000
    with pytest.raises(DataError):
        get()
    server.break_after = None
    assert get().read_bytes() == PAYLOAD
    assert server.asked == [None, "bytes=1000-"]
    assert server.sent == [1000, len(PAYLOAD)]


def test_a_server_that_does_not_tell_the_length(get: Callable[[], Path], server: Server) -> None:
    server.length_announced = False
    assert get().read_bytes() == PAYLOAD


def test_a_part_that_was_complete_already_is_taken(get: Callable[[], Path], server: Server, tmp_path: Path) -> None:
    (tmp_path / (NAME + ".part")).write_bytes(PAYLOAD)
    assert get().read_bytes() == PAYLOAD
    assert server.sent == []


@pytest.mark.parametrize("part", [b"", b"another file", PAYLOAD + b"and more"])
def test_a_wrong_file_is_discarded_and_the_next_attempt_starts_afresh(
    get: Callable[[], Path], server: Server, tmp_path: Path, part: bytes
) -> None:
    if part:
        (tmp_path / (NAME + ".part")).write_bytes(part)
    else:
        server.files[NAME] = b"x" + PAYLOAD[1:]
    with pytest.raises(DataError, match=r"is not the published file: its MD5 is \w{32}, expected \w{32}") as error:
        get()
    assert server.url in str(error.value)
    assert list(tmp_path.iterdir()) == []
    server.files[NAME] = PAYLOAD
    assert get().read_bytes() == PAYLOAD
    assert server.asked[-1] is None


def test_a_damaged_archive_under_the_final_name_is_an_error(
    get: Callable[[], Path], server: Server, tmp_path: Path
) -> None:
    (tmp_path / NAME).write_bytes(b"damaged")
    with pytest.raises(DataError, match="Delete it and get it again"):
        get()
    assert (tmp_path / NAME).read_bytes() == b"damaged"
    assert server.asked == []


def test_an_absent_file_is_an_error(get: Callable[[], Path], server: Server, tmp_path: Path) -> None:
    del server.files[NAME]
    with pytest.raises(DataError, match=f"{server.url}/{NAME} could not be fetched: HTTP Error 404") as error:
        get()
    assert str(tmp_path / NAME) in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_no_server_is_an_error(get: Callable[[], Path], server: Server) -> None:
    server.socket.close()
    server.shutdown()
    with pytest.raises(DataError, match="could not be fetched"):
        get()


def test_progress_goes_to_stderr(server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download("cifar10", tmp_path / "a", base_url=server.url)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert NAME in shown.err
    download("cifar10", tmp_path / "b", base_url=server.url, progress=False)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "words"), [("imagenet", "image-net.org"), ("digits", "scikit-learn"), ("x", "cifar10")]
)
def test_what_cannot_be_downloaded(name: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"{name} cannot be downloaded.*{words}"):
        download(name, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_load_downloads_and_reads_cifar(
    server: Server, tmp_path: Path, photo: np.ndarray, publish: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = shrink(cifar.CIFAR10)
    monkeypatch.setattr(cifar, "CIFAR10", spec)
    monkeypatch.setitem(fetch.ARCHIVES, "cifar10", replace(fetch.ARCHIVES["cifar10"], site=server.url))
    folder = write_cifar_folder(spec, tmp_path / "server", photo)
    with tarfile.open(tmp_path / "server" / NAME, "w:gz") as tar:
        tar.add(folder, folder.name)
    publish(folder)
    publish(tmp_path / "server" / NAME)
    server.files[NAME] = (tmp_path / "server" / NAME).read_bytes()
    assert len(load("cifar10", tmp_path / "data", download=True).train) == 150
    assert len(load("cifar10", tmp_path / "data", download=True).train) == 150
    assert len(server.asked) == 1


def test_load_downloads_unpacks_and_reads_tiny_imagenet(
    server: Server, tmp_path: Path, photo: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_imagenet(tmp_path / "server", photo)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder.parent))
        archive.writestr("../../evil", "outside")
    name = "tiny-imagenet-200.zip"
    server.files[name] = packed.getvalue()
    monkeypatch.setitem(MD5, name, hashlib.md5(packed.getvalue()).hexdigest())
    monkeypatch.setitem(fetch.ARCHIVES, "tiny-imagenet", replace(fetch.ARCHIVES["tiny-imagenet"], site=server.url))

    root = tmp_path / "data"
    (root / "tiny-imagenet-200.part" / "left over").mkdir(parents=True)  # from an unpacking that was cut short
    assert len(load("tiny-imagenet", root, download=True).train) == 12
    assert sorted(path.name for path in root.iterdir()) == ["tiny-imagenet-200", name]
    assert not (tmp_path / "evil").exists()
    assert len(load("tiny-imagenet", root, download=True).train) == 12
    assert len(server.asked) == 1
