"""CIFAR in all its published forms, whole and damaged."""

import hashlib
import io
import os
import pickle
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from ntksap.data import DataError, Dataset, cifar, load
from ntksap.data.checksums import MD5
from tests.data.tiny_sets import CIFAR_COUNT, binary_records, shrink, write_cifar_folder

Publish = Callable[[Path], None]
SPECS = pytest.mark.parametrize("spec", [shrink(cifar.CIFAR10), shrink(cifar.CIFAR100)], ids=["cifar10", "cifar100"])


def decoded(spec: cifar.Cifar, photo: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The pixels N,3072 and classes N of one tiny file."""
    blob = binary_records(spec, photo, CIFAR_COUNT, seed)
    records = np.frombuffer(blob, np.uint8).reshape(CIFAR_COUNT, -1)
    return records[:, len(spec.label_bounds) :], records[:, len(spec.label_bounds) - 1]


def write_pickled_folder(spec: cifar.Cifar, root: Path, photo: np.ndarray) -> Path:
    """Write the same images as `write_cifar_folder` in the python version."""
    version = spec.versions[1]
    folder = root / version.folder
    folder.mkdir()
    for seed, name in enumerate([*version.train, *version.test]):
        pixels, labels = decoded(spec, photo, seed)
        (folder / name).write_bytes(pickle.dumps({spec.labels_key: labels.tolist(), "data": pixels}, 2))
    return folder


def pack(folder: Path, version: cifar.Version) -> Path:
    """Make the archive of a folder, and remove the folder."""
    archive = folder.parent / version.archive
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, folder.name)
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return archive


@pytest.fixture(params=["binary folder", "binary archive", "python folder", "python archive"])
def form(request: pytest.FixtureRequest, tmp_path: Path, photo: np.ndarray, publish: Publish) -> Callable[..., Path]:
    """Write a tiny set in one of its published forms, publish its checksums, and return where it is."""

    def write(spec: cifar.Cifar) -> Path:
        kind, place = request.param.split()
        path = (write_cifar_folder if kind == "binary" else write_pickled_folder)(spec, tmp_path, photo)
        publish(path)
        if place == "archive":
            path = pack(path, spec.versions[0 if kind == "binary" else 1])
            publish(path)
        return path

    return write


@SPECS
def test_every_form_reads_alike(spec: cifar.Cifar, form: Callable[..., Path], photo: np.ndarray) -> None:
    path = form(spec)
    before = sorted(path.parent.rglob("*"))
    dataset = cifar.read(spec, path.parent)
    assert sorted(path.parent.rglob("*")) == before  # an archive is not unpacked
    assert (dataset.name, dataset.num_classes) == (spec.name, spec.label_bounds[-1])
    assert dataset.input_shape == (3, 32, 32)
    batches = len(spec.versions[0].train)
    assert (len(dataset.train), len(dataset.test)) == (batches * CIFAR_COUNT, CIFAR_COUNT)
    files = [decoded(spec, photo, seed) for seed in range(batches + 1)]
    for split, part in ((dataset.train, files[:-1]), (dataset.test, files[-1:])):
        assert np.array_equal(split.images.flatten(1).numpy(), np.concatenate([pixels for pixels, _ in part]))
        assert split.labels.tolist() == np.concatenate([labels for _, labels in part]).tolist()


@SPECS
def test_an_image_is_the_right_way_up(spec: cifar.Cifar, tmp_path: Path, photo: np.ndarray, publish: Publish) -> None:
    publish(write_cifar_folder(spec, tmp_path, photo))
    image = cifar.read(spec, tmp_path).train.images[0].permute(1, 2, 0).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(photo, (32, 32, 3))[:, :, 0]
    assert (windows[:, :, 0, 0] == image[0, 0]).all(-1).any()
    rows, cols = (windows[:, :, 0, 0] == image[0, 0]).all(-1).nonzero()
    assert any(np.array_equal(windows[y, x], image) for y, x in zip(rows, cols, strict=True))


@SPECS
def test_augmentation_is_the_papers(spec: cifar.Cifar, tmp_path: Path, photo: np.ndarray, publish: Publish) -> None:
    """Random crops after padding by 4, and mirror images."""
    publish(write_cifar_folder(spec, tmp_path, photo))
    split = cifar.read(spec, tmp_path).train
    draws = [split.draw(0, epoch) for epoch in range(40)]
    assert {int(o) for offsets, _ in draws for o in offsets.flatten()} == set(range(9))
    assert torch.cat([flips for _, flips in draws]).float().mean() == pytest.approx(0.5, abs=0.05)


@SPECS
def test_a_flipped_bit_is_found(spec: cifar.Cifar, form: Callable[..., Path]) -> None:
    path = form(spec)
    file = path if path.is_file() else sorted(path.iterdir())[0]
    blob = bytearray(file.read_bytes())
    blob[len(blob) // 2] ^= 1
    file.write_bytes(blob)
    with pytest.raises(
        DataError, match=r"is damaged: its MD5 is \w{32}, the published .* has \w{32}.*--download"
    ) as error:
        cifar.read(spec, path.parent)
    assert str(file) in str(error.value)


@SPECS
def test_a_missing_file_is_named(spec: cifar.Cifar, form: Callable[..., Path]) -> None:
    path = form(spec)
    version = spec.versions["py" in path.name]
    name = next(iter(version.test))
    if path.is_dir():
        (path / name).unlink()
    else:
        spec = replace(spec, versions=(replace(version, test={"absent": 1}),))
        name = "absent"
    with pytest.raises(DataError, match=f"{name} is missing.*{', '.join(version.train)}.*--download"):
        cifar.read(spec, path.parent)


def test_the_real_sizes_and_checksums_are_demanded(tmp_path: Path, photo: np.ndarray, publish: Publish) -> None:
    """Without a test's help, tiny files under the canonical names are refused: by checksum, and by size."""
    folder = write_cifar_folder(shrink(cifar.CIFAR10), tmp_path, photo)
    with pytest.raises(DataError, match=r"data_batch_1\.bin is damaged: its MD5"):
        load("cifar10", tmp_path)
    publish(folder)
    with pytest.raises(DataError, match=r"data_batch_1\.bin is damaged: 92,190 bytes, expected 30,730,000 \(10,000"):
        load("cifar10", tmp_path)
    write_cifar_folder(shrink(cifar.CIFAR100), tmp_path, photo)  # published without checksums of its two files
    with pytest.raises(DataError, match=r"train\.bin is damaged: 92,220 bytes, expected 153,700,000 \(50,000"):
        load("cifar100", tmp_path)


@SPECS
@pytest.mark.parametrize("column", [0, -1])
def test_a_label_out_of_range_is_found(
    spec: cifar.Cifar, column: int, tmp_path: Path, photo: np.ndarray, publish: Publish
) -> None:
    folder = write_cifar_folder(spec, tmp_path, photo)
    file = folder / next(iter(spec.versions[0].test))
    records = np.frombuffer(file.read_bytes(), np.uint8).reshape(CIFAR_COUNT, -1).copy()
    bound = spec.label_bounds[column]
    records[7, column % len(spec.label_bounds)] = bound
    file.write_bytes(records.tobytes())
    publish(folder)
    with pytest.raises(DataError, match=rf"{file.name} is damaged: a label is {bound}, expected 0 to {bound - 1}"):
        cifar.read(spec, tmp_path)


@SPECS
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda pixels, labels: (pixels, [*labels[:-1], -1]), "a label is -1"),
        (lambda pixels, labels: (pixels, [*labels[:-1], 100]), "a label is 100"),
        (lambda pixels, labels: (pixels, labels[1:]), r"labels \(29,\)"),
        (lambda pixels, labels: (pixels[1:], labels), r"images \(29, 3072\)"),
        (lambda pixels, labels: (pixels[:, 1:], labels), r"images \(30, 3071\)"),
        (lambda pixels, labels: (Path("x"), labels), "asks for pathlib"),
    ],
)
def test_a_damaged_pickle_is_found(
    spec: cifar.Cifar, change: Callable, message: str, tmp_path: Path, photo: np.ndarray, publish: Publish
) -> None:
    folder = write_pickled_folder(spec, tmp_path, photo)
    file = folder / next(iter(spec.versions[1].train))
    pixels, labels = decoded(spec, photo, 0)
    data, classes = change(pixels, labels.tolist())
    file.write_bytes(pickle.dumps({"data": data, spec.labels_key: classes}, 2))
    publish(folder)
    with pytest.raises(DataError, match=f"{file.name} is damaged: .*{message}"):
        cifar.read(spec, tmp_path)


def test_a_hostile_archive_writes_nothing(tmp_path: Path, photo: np.ndarray, publish: Publish) -> None:
    """Members that point elsewhere are passed over, and a link in place of a file is not followed."""
    spec = shrink(cifar.CIFAR10)
    folder = write_cifar_folder(spec, tmp_path / "data", photo)
    publish(folder)
    blobs = {file.name: file.read_bytes() for file in folder.iterdir()}
    secret = tmp_path / "secret"
    secret.write_bytes(blobs.pop("test_batch.bin"))
    pack(folder, spec.versions[0]).unlink()
    archive = tmp_path / "data" / spec.versions[0].archive
    with tarfile.open(archive, "w:gz") as tar:
        for name, blob in {**blobs, "../../../evil": b"x", str(tmp_path / "evil"): b"x"}.items():
            member = tarfile.TarInfo(name if "evil" in name else f"{folder.name}/{name}")
            member.size = len(blob)
            tar.addfile(member, io.BytesIO(blob))
        link = tarfile.TarInfo(f"{folder.name}/test_batch.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
    publish(archive)
    with pytest.raises(DataError, match=r"test_batch\.bin is missing"):
        cifar.read(spec, tmp_path / "data")
    assert not list(tmp_path.parent.rglob("*evil*"))


def test_the_first_place_found_is_read(tmp_path: Path, photo: np.ndarray, publish: Publish) -> None:
    spec = shrink(cifar.CIFAR10)
    publish(pack(write_cifar_folder(spec, tmp_path, photo), spec.versions[0]))
    folder = write_pickled_folder(spec, tmp_path, photo)
    publish(folder)
    (tmp_path / spec.versions[0].archive).write_bytes(b"damaged, but a folder comes first")
    assert len(cifar.read(spec, tmp_path).test) == CIFAR_COUNT


def test_published_checksums_are_pinned() -> None:
    """A slip of the keyboard in the table would lock everyone out."""
    assert len(MD5) == len(set(MD5.values())) == 19
    assert all(len(md5) == 32 and int(md5, 16) >= 0 for md5 in MD5.values())
    expected = {f"{v.folder}/{name}" for v in cifar.CIFAR10.versions for name in [*v.train, *v.test]}
    assert expected <= MD5.keys()
    assert {v.archive for spec in (cifar.CIFAR10, cifar.CIFAR100) for v in spec.versions} <= MD5.keys()


SHA1 = {
    "data_batch_1.bin": "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
    "data_batch_2.bin": "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
    "data_batch_3.bin": "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
    "data_batch_4.bin": "aab85764eb3584312d3c7f65fd2fd016e36a258e",
    "data_batch_5.bin": "26e2849e66a845b7f1e4614ae70f4889ae604628",
    "test_batch.bin": "67eb016db431130d61cd03c7ad570b013799c88c",
}


@pytest.fixture(scope="module")
def real_cifar10() -> Dataset:
    root = os.environ.get("NTKSAP_DATA")
    if not root or not any((Path(root) / place).exists() for place in cifar.CIFAR10.places):
        pytest.skip("NTKSAP_DATA is not set to a data directory that holds CIFAR-10")
    return load("cifar10", root)


def test_real_cifar10(real_cifar10: Dataset) -> None:
    """The published set, whatever form it lies in: contents by SHA-1, balance, and the constants of its pixels."""
    train, test = real_cifar10.train, real_cifar10.test
    assert train.labels.bincount().tolist() == [5000] * 10
    assert test.labels.bincount().tolist() == [1000] * 10
    parts = [(train, i) for i in range(0, 50_000, 10_000)] + [(test, 0)]
    for (split, start), sha1 in zip(parts, SHA1.values(), strict=True):
        labels = split.labels[start : start + 10_000, None].byte()
        records = torch.cat([labels, split.images[start : start + 10_000].flatten(1)], dim=1)
        assert hashlib.sha1(records.numpy().tobytes()).hexdigest() == sha1
    for channel, (mean, std) in enumerate(zip(cifar.CIFAR10.mean, cifar.CIFAR10.std, strict=True)):
        pixels = train.images[:, channel].numpy() / np.float32(255)
        assert float(pixels.mean(dtype=np.float64)) == pytest.approx(mean, abs=5.1e-5)
        assert float(pixels.std(dtype=np.float64)) == pytest.approx(std, abs=5.1e-5)
