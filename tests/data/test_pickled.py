"""The unpickler: reads what CIFAR's files hold, runs nothing else."""

import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from ntksap.data.pickled import unpickle

DATA = np.random.default_rng(0).integers(0, 256, (3, 3072), dtype=np.uint8)
LABELS = [6, 9, 200]


def python2_pickle(data: np.ndarray, labels: list[int], key: str) -> bytes:
    """A batch as Python 2's cPickle wrote the published ones: every string of bytes is a str, numpy.core by name."""

    def text(s: str) -> bytes:
        return b"U" + bytes([len(s)]) + s.encode()

    def number(n: int) -> bytes:
        return b"J" + struct.pack("<i", n)

    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text("b") + b"\x87R"
    dtype = b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R"
    dtype += b"(" + number(3) + text("|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    state = b"(" + number(1) + number(data.shape[0]) + number(data.shape[1]) + b"\x86" + dtype + b"\x89"
    state += b"T" + struct.pack("<i", data.size) + data.tobytes() + b"tb"
    listed = b"](" + b"".join(map(number, labels)) + b"e"
    return b"\x80\x02}(" + text(key) + listed + text("data") + array + state + text("batch_label") + text("one") + b"u."


def test_reads_what_python_2_wrote() -> None:
    blob = python2_pickle(DATA, LABELS, "labels")
    reference = pickle.loads(blob.replace(b"numpy.core.", b"numpy._core."), encoding="latin1")  # our own bytes
    assert np.array_equal(reference["data"], DATA)
    data, labels = unpickle(blob, "labels")
    assert np.array_equal(data, DATA)
    assert labels.tolist() == LABELS
    assert labels.dtype == np.int64


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
def test_reads_what_python_3_writes(protocol: int) -> None:
    data, labels = unpickle(pickle.dumps({"fine_labels": LABELS, "data": DATA}, protocol), "fine_labels")
    assert np.array_equal(data, DATA)
    assert labels.tolist() == LABELS


class Calls:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return self.call


def calls_by_name(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls module.name(argument), whether or not such a function can be pickled by name."""
    return f"c{module}\n{name}\n(V{argument}\ntR.".encode()


def hostile(marker: Path) -> dict[str, bytes]:
    code = f"open({str(marker)!r}, 'w').close()"
    return {
        "os.system": pickle.dumps(Calls(os.system, f"touch {marker}")),
        "inside a batch": pickle.dumps({"labels": LABELS, "data": Calls(os.system, f"touch {marker}")}),
        "builtins.eval": pickle.dumps(Calls(eval, code)),
        "builtins.exec": pickle.dumps(Calls(exec, code)),
        "__builtin__.eval": calls_by_name("__builtin__", "eval", code),
        "numpy runs strings": calls_by_name("numpy.testing._private.utils", "runstring", code),
        "numpy re-exports os": calls_by_name("numpy.lib._datasource", "os.system", f"touch {marker}"),
        "numpy.core function": calls_by_name("numpy.core.multiarray", "fromfile", str(marker)),
        "numpy._core function": calls_by_name("numpy._core.multiarray", "fromfile", str(marker)),
        "numpy.load": calls_by_name("numpy", "load", str(marker)),
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x17ndarray.__init__.__self\x93.",
        "attribute of an admitted name": b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__base__\x93.",
        "codecs": calls_by_name("_codecs", "decode", "x"),
        "getattr": calls_by_name("builtins", "getattr", "x"),
        "copyreg": calls_by_name("copyreg", "_reconstructor", "x"),
        "persistent id": b"Pname\n.",
    }


@pytest.mark.parametrize("kind", hostile(Path("x")))
def test_a_hostile_file_runs_nothing(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    with pytest.raises(pickle.UnpicklingError, match=r"asks for .* does not need|persistent"):
        unpickle(hostile(marker)[kind], "labels")
    assert not marker.exists()


def test_the_attack_is_real(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    pickle.loads(hostile(marker)["os.system"])  # our own bytes: what the plain unpickler would have done
    assert marker.exists()


@pytest.mark.parametrize(
    "batch",
    [
        {"labels": LABELS},
        {"data": DATA},
        [LABELS, DATA],
        {"labels": [1.5, 2.0, 3.0], "data": DATA},
        {"labels": [True, 2, 3], "data": DATA},
        {"labels": [2**70], "data": DATA},
        {"labels": None, "data": DATA},
        {"labels": LABELS, "data": DATA.astype(np.int16)},
        {"labels": LABELS, "data": np.asfortranarray(DATA)},
        {"labels": LABELS, "data": np.array([LABELS, None], dtype=object)},
        {"labels": LABELS, "data": DATA.tobytes()},
    ],
    ids=str,
)
def test_anything_but_a_batch_is_refused(batch: object) -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickle(pickle.dumps(batch, 2), "labels")


@pytest.mark.parametrize("cut", [0, 1, 50, 5000])
def test_a_truncated_file_is_refused(cut: int) -> None:
    with pytest.raises(pickle.UnpicklingError):
        unpickle(python2_pickle(DATA, LABELS, "labels")[:cut], "labels")


def test_other_encodings_are_refused() -> None:
    blob = pickle.dumps({"labels": LABELS, "data": DATA}, 2).replace(b"latin1", b"rot_13")
    with pytest.raises(pickle.UnpicklingError, match="rot_13"):
        unpickle(blob, "labels")
