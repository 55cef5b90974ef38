"""The mask file: one bit per weight, and no bit of it can change unnoticed."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

import ntksap
from ntksap import Masks
from ntksap._base.errors import MaskError
from ntksap._base.seals import sealed
from ntksap.pruning.mask_file import pack, unpack

FORMAT = "ntksap-masks-2"


def some_masks() -> Masks:
    generator = torch.Generator().manual_seed(0)
    masks = {name: torch.rand(*shape, generator=generator) < 0.4 for name, shape in [("z", (3, 5)), ("a", (2, 3, 2))]}
    start = {"z": torch.randn(3, 5, generator=generator)}
    return Masks(masks, {"model": "resnet20", "seed": 3, "share": 0.1}, start, {"step/z": torch.tensor(7.0)})


def assert_equal(found: Masks, masks: Masks) -> None:
    assert found == masks
    assert list(found) == list(masks)
    assert found.info == masks.info
    for ours, theirs in ((found.weights, masks.weights), (found.state, masks.state)):
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


@pytest.mark.parametrize("shape", [(), (1,), (8,), (3, 3), (0, 4), (2, 5, 7)])
def test_masks_of_any_size_come_back_from_their_bits(shape):
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5
    bits = pack(mask)
    assert bits.numel() == -(-mask.numel() // 8)
    assert torch.equal(unpack(bits, list(shape)), mask)


def test_a_file_takes_a_bit_per_weight_and_gives_back_everything(tmp_path):
    large = Masks({"w": torch.rand(1000, 1000) < 0.1})
    large.save(tmp_path / "large")
    assert (tmp_path / "large").stat().st_size < 1_000_000 / 8 + 1000
    assert Masks.load(tmp_path / "large") == large
    masks = some_masks()
    masks.save(tmp_path / "masks")
    assert_equal(Masks.load(tmp_path / "masks"), masks)
    assert Masks.load(tmp_path / "masks").sha256 == masks.sha256


def test_equal_masks_give_equal_bytes(tmp_path):
    for index in range(4):
        some_masks().save(tmp_path / str(index))
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


def test_no_flipped_bit_goes_unnoticed(tmp_path):
    """Every single bit of a whole file: an error, or the very same masks, info and weights (a blank in the header)."""
    masks, path = some_masks(), tmp_path / "masks"
    masks.save(path)
    content = path.read_bytes()
    errors = []
    for place in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            found = Masks.load(path)
        except MaskError as error:
            errors.append(str(error))
            continue
        assert_equal(found, masks)
    assert len(errors) > 0.97 * 8 * len(content)
    assert all(str(path) in error for error in errors)


def test_files_of_the_first_format_can_still_be_read(tmp_path):
    masks = some_masks()
    tensors = {**masks.to("cpu"), "weights/z": masks.weights["z"], "weights/state/step/z": masks.state["step/z"]}
    metadata = {"format": "ntksap-masks", "order": json.dumps(list(masks)), "info": json.dumps(masks.info)}
    save_file(tensors, tmp_path / "old", metadata)
    assert_equal(Masks.load(tmp_path / "old"), masks)


def test_the_file_is_a_safetensors_file_that_others_can_read(tmp_path):
    masks = some_masks()
    masks.save(tmp_path / "masks")
    with safe_open(tmp_path / "masks", framework="pt") as file:
        assert set(file.keys()) == {"masks/z", "masks/a", "weights/z", "state/step/z"}
        header = json.loads(file.metadata()[FORMAT])
    assert [shape for shape, _ in header["masks"].values()] == [[3, 5], [2, 3, 2]]


def header(masks: object, weights: object = (), info: object = None) -> str:
    return json.dumps(sealed({"masks": masks, "weights": weights or {}, "state": {}, "info": info or {}}))


BITS = pack(torch.tensor([True, False, True]))
ABSURD = {
    "no object": "[]",
    "no JSON": "{",
    "nested deeply": "[" * 100_000,
    "nothing in it": "{}",
    "a number for masks": header(3),
    "no shape": header({"w": []}),
    "an immense shape": json.dumps(
        sealed({"masks": {"w": [[10**9, 10**9, 10**9], ""]}, "weights": {}, "state": {}, "info": {}})
    ),
    "a negative shape": header({"w": [[-1, -3], ""]}),
    "a text for a shape": header({"w": ["33", ""]}),
    "a wrong hash": header({"w": [[3], "0" * 64]}),
    "a tensor that is not there": json.dumps(
        sealed({"masks": {"v": [[3], "0" * 64]}, "weights": {}, "state": {}, "info": {}})
    ),
    "info that is a list": header({}, info=[1]),
    "weights that are a list": header({}, weights=["w"]),
}


@pytest.mark.parametrize("header", ABSURD.values(), ids=list(ABSURD))
def test_absurd_metadata_is_an_error_that_names_the_file(tmp_path, header):
    save_file({"masks/w": BITS}, tmp_path / "hostile", {FORMAT: header})
    with pytest.raises(MaskError, match=r"hostile: not a mask file, or damaged .*prune again"):
        Masks.load(tmp_path / "hostile")


@pytest.mark.parametrize(
    ("order", "info"), [("3", "{}"), ("[1]", "{}"), ("{", "{}"), ('["w"]', "[]"), ('["w"]', "[" * 99_999)]
)
def test_absurd_metadata_of_the_first_format_too(tmp_path, order, info):
    save_file(
        {"w": torch.ones(3, dtype=torch.bool)},
        tmp_path / "old",
        {"format": "ntksap-masks", "order": order, "info": info},
    )
    with pytest.raises(MaskError, match="not a mask file, or damaged"):
        Masks.load(tmp_path / "old")


def test_info_that_json_cannot_hold_is_an_error(tmp_path):
    with pytest.raises(MaskError, match="JSON, which cannot hold this"):
        Masks({"w": torch.ones(2, dtype=torch.bool)}, {"function": print}).save(tmp_path / "masks")
    assert not list(tmp_path.iterdir())


def test_no_masks_at_all_have_a_density():
    assert Masks({}).density == 1.0
    assert "0 layers" in repr(ntksap.Masks({}))


def test_a_file_is_what_safetensors_itself_would_write(tmp_path):
    masks = some_masks()
    plain = Masks(dict(masks), masks.info)
    for index, one in enumerate((masks, plain)):
        one.save(tmp_path / str(index))
        with safe_open(tmp_path / str(index), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            save_file(tensors, tmp_path / "again", file.metadata())
        assert (tmp_path / "again").read_bytes() == (tmp_path / str(index)).read_bytes()
