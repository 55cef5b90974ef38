import os
import stat

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ntksap import MaskError, Masks


@pytest.fixture
def masks():
    generator = torch.Generator().manual_seed(0)
    return Masks(
        {"z.weight": torch.rand(3, 2, 2, generator=generator) < 0.5, "b.weight": torch.zeros(5, 7, dtype=torch.bool)},
        {"method": "snip", "sparsity": 0.9},
    )


def test_counts(masks):
    kept = int(masks["z.weight"].sum())
    assert (masks.kept, masks.total, masks.density) == (kept, 47, kept / 47)
    assert masks.sparsity == 1 - masks.density
    assert masks.collapsed == ["b.weight"]
    assert masks.layers()[1] == {"name": "b.weight", "shape": [5, 7], "kept": 0, "total": 35}


def test_the_table_names_every_layer_and_ends_with_the_total(masks):
    lines = str(masks).splitlines()
    assert lines[0].split() == ["layer", "shape", "kept/total", "density"]
    assert lines[2].split()[:3] == ["z.weight", "3×2×2", f"{masks.kept}/12"]
    assert lines[3].split() == ["b.weight", "5×7", "0/35", "0.00%"]
    assert lines[-1].split()[:2] == ["total", f"{masks.kept}/47"]
    assert "2 layers" in repr(masks)


def test_round_trip(masks, tmp_path):
    path = tmp_path / "masks.safetensors"
    masks.save(path)
    loaded = Masks.load(path)
    assert loaded == masks
    assert loaded.info == masks.info
    assert loaded.sha256 == masks.sha256
    assert list(loaded) == list(masks)
    assert os.listdir(tmp_path) == ["masks.safetensors"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~os.umask(os.umask(0o022))


def test_the_hash_sees_names_shapes_and_bits():
    bits = torch.tensor([True, False, True, True])
    masks = [Masks({"a": bits}), Masks({"b": bits}), Masks({"a": bits.view(2, 2)}), Masks({"a": ~bits})]
    assert len({m.sha256 for m in masks}) == 4
    assert Masks({"a": bits, "b": ~bits}).sha256 == Masks({"b": ~bits, "a": bits}).sha256
    assert Masks({"a": bits}).sha256 == Masks({"a": bits.clone()}, {"note": 1}).sha256


def test_only_bool():
    with pytest.raises(MaskError, match=r"'a' is torch\.float32"):
        Masks({"a": torch.ones(2)})


@pytest.mark.parametrize("keep", [0, 5, 60, -3])
def test_truncated_files_are_refused(masks, tmp_path, keep):
    path = tmp_path / "masks.safetensors"
    masks.save(path)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(MaskError, match=r"not a mask file, or damaged .*prune again"):
        Masks.load(path)


def test_files_that_are_not_ours_are_refused(tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(MaskError, match="holds no masks of ours"):
        Masks.load(path)
    path.write_text("hello, this is a text file and nothing else")
    with pytest.raises(MaskError, match="not a mask file"):
        Masks.load(path)
    with pytest.raises(MaskError, match="no such file"):
        Masks.load(tmp_path / "nowhere")
    with pytest.raises(MaskError, match="is a folder: give the file"):
        Masks.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(masks, tmp_path, monkeypatch):
    path = tmp_path / "masks.safetensors"
    masks.save(path)
    before = path.read_bytes()

    def full_disk(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        Masks({"x": torch.ones(99, dtype=torch.bool)}).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["masks.safetensors"]


def test_masks_for_another_model(masks):
    with pytest.raises(MaskError, match=r"another model: it has no parameter 'z\.weight' \(2 of 2"):
        masks.attach(nn.Linear(2, 2))
    module = nn.ModuleDict({"z": nn.Conv1d(2, 3, 3), "b": nn.Linear(7, 5)})
    with pytest.raises(MaskError, match=r"'z\.weight' has shape \(3, 2, 3\), its mask \(3, 2, 2\) \(1 of 2"):
        masks.attach(module)
    assert all((p != 0).any() for p in module.parameters())  # nothing was changed
