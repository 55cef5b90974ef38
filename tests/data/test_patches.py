"""Random patches and central crops of single images."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from ntksap._base.machine import peak_memory_mib
from ntksap._base.seeds import generator_of
from ntksap.data import DataError
from ntksap.data.imagenet import IMAGENET, TINY
from ntksap.data.patches import ATTEMPTS, LONGEST, View, central_view, decode, patch, random_view

VIEWS = pytest.mark.parametrize("view", [TINY, IMAGENET], ids=["tiny", "imagenet"])
unit = st.floats(0, 1, exclude_max=True)


@VIEWS
@given(
    width=st.integers(1, 700),
    height=st.integers(1, 700),
    shapes=st.lists(unit, min_size=20, max_size=20),
    x=unit,
    y=unit,
)
@settings(deadline=None)
def test_a_patch_lies_in_the_image(
    view: View, width: int, height: int, shapes: list[float], x: float, y: float
) -> None:
    left, top, right, bottom = patch(width, height, view, shapes, (x, y))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


@pytest.mark.parametrize(
    ("view", "scale", "ratio_bounds"),
    [(TINY, 0.1, (0.8, 1.25)), (IMAGENET, 0.08, (3 / 4, 4 / 3))],
    ids=["tiny", "imagenet"],
)
def test_patches_have_the_area_ratio_and_place_of_the_paper(
    view: View, scale: float, ratio_bounds: tuple[float, float]
) -> None:
    side = 1000
    low, high = ratio_bounds
    rng = torch.Generator().manual_seed(0)
    draws = torch.rand(4000, 22, generator=rng, dtype=torch.float64).tolist()
    boxes = np.array([patch(side, side, view, row[2:], (row[0], row[1])) for row in draws], float)
    width, height = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, ratio = width * height / side**2, width / height
    assert scale - 2e-3 < area.min() < scale + 0.01
    assert 0.97 < area.max() <= 1
    assert low * 0.99 < ratio.min() < low * 1.02
    assert high * 0.98 < ratio.max() < high * 1.01
    small = area < 0.5  # whatever the ratio, these fit: area and log ratio are uniform among them
    assert area[small].mean() == pytest.approx((scale + 0.5) / 2, abs=0.01)
    assert np.log(ratio[small]).std() == pytest.approx(math.log(high / low) / math.sqrt(12), rel=0.03)
    assert np.log(ratio).mean() == pytest.approx(0, abs=0.015)
    place = boxes[small, 0] / (side - width[small])
    assert place.mean() == pytest.approx(0.5, abs=0.02)
    assert place.std() == pytest.approx(1 / math.sqrt(12), rel=0.03)


@pytest.mark.parametrize(
    ("width", "height", "expected"), [(1000, 10, (493, 0, 506, 10)), (10, 1000, (0, 493, 10, 506))]
)
def test_an_image_too_long_for_any_patch_gives_its_middle(width: int, height: int, expected: tuple[int, ...]) -> None:
    shapes = [0.9, 0.5] * ATTEMPTS  # 90 % of the area as a square never fits
    assert patch(width, height, IMAGENET, shapes, (0.0, 0.0)) == expected


def test_random_view_is_the_patch_resized_and_half_of_them_mirrored(photo: np.ndarray) -> None:
    image = Image.fromarray(photo)
    mirrored = 0
    for i in range(60):
        draws = torch.rand(23, generator=generator_of("x", i), dtype=torch.float64).tolist()
        box = patch(image.width, image.height, TINY, draws[3:], (draws[0], draws[1]))
        plain = np.array(image.crop(box).resize((64, 64), Image.Resampling.BILINEAR))
        view = np.array(random_view(image, TINY, generator_of("x", i)))
        mirrored += np.array_equal(view, plain[:, ::-1])
        assert np.array_equal(view, plain) != np.array_equal(view, plain[:, ::-1])
    assert 18 <= mirrored <= 42


def test_central_view_of_a_picture_of_its_own_size_is_the_picture(photo: np.ndarray) -> None:
    square = Image.fromarray(photo[:64, :64])
    assert np.array_equal(np.array(central_view(square, TINY)), photo[:64, :64])


@pytest.mark.parametrize(("width", "height"), [(512, 256), (256, 512)])
def test_central_view_is_the_middle(photo: np.ndarray, width: int, height: int) -> None:
    piece = np.resize(photo, (height, width, 3))  # the shorter side is 256 already: only the crop is left
    top, left = (height - 224) // 2, (width - 224) // 2
    view = np.array(central_view(Image.fromarray(piece), IMAGENET))
    assert np.array_equal(view, piece[top : top + 224, left : left + 224])


def test_central_view_resizes_the_shorter_side(photo: np.ndarray) -> None:
    image = Image.fromarray(photo[:100, :150])
    expected = image.resize((384, 256), Image.Resampling.BILINEAR).crop((80, 16, 304, 240))
    assert np.array_equal(np.array(central_view(image, IMAGENET)), np.array(expected))


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
def test_every_colour_mode_becomes_rgb(photo: np.ndarray, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "picture.JPEG"
    Image.fromarray(photo[:64, :64]).convert(mode).save(path, quality=95)
    with Image.open(path) as saved:
        assert saved.mode == mode
    pixels = decode(path, TINY, None)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (3, 64, 64)
    if mode == "L":
        assert torch.equal(pixels[0], pixels[1])
        assert torch.equal(pixels[0], pixels[2])
    else:
        error = pixels.permute(1, 2, 0).numpy().astype(float) - photo[:64, :64]
        assert np.abs(error).mean() < 8  # close to the photo it was made from


def test_a_damaged_image_is_named(photo: np.ndarray, tmp_path: Path) -> None:
    whole, cut, text = tmp_path / "whole.JPEG", tmp_path / "cut.JPEG", tmp_path / "text.JPEG"
    Image.fromarray(photo[:64, :64]).save(whole)
    cut.write_bytes(whole.read_bytes()[:-400])
    text.write_text("not an image")
    for path in (cut, text, tmp_path / "absent.JPEG"):
        with pytest.raises(DataError, match=path.name):
            decode(path, TINY, None)


@VIEWS
@pytest.mark.parametrize("size", [(1, 60_000), (60_000, 1), (3, 5000)])
def test_an_image_that_is_a_line_is_cut_before_it_fills_the_memory(
    view: View, size: tuple[int, int], tmp_path: Path
) -> None:
    before = peak_memory_mib()
    Image.new("RGB", size, (10, 200, 30)).save(tmp_path / "line.png")
    for rng in (None, generator_of("line")):
        pixels = decode(tmp_path / "line.png", view, rng)
        assert pixels.shape == (3, view.size, view.size)
        assert pixels.flatten(1).unique(dim=1).flatten().tolist() == [10, 200, 30]
    assert peak_memory_mib() < before + 100  # resized as a whole it would have 46,080 MiB


@VIEWS
def test_cutting_a_long_image_first_leaves_its_middle(view: View) -> None:
    """The central square of a long image is the same whether it is cut before or after it is resized."""
    generator = np.random.default_rng(0)
    strip = Image.fromarray(generator.integers(0, 255, (4, 4 * LONGEST + 2, 3), np.uint8))
    cut = central_view(strip, view)
    width = int(view.shorter_side * strip.width / strip.height)
    whole = strip.resize((width, view.shorter_side), Image.Resampling.BILINEAR)
    left, top = (width - view.size) // 2, (view.shorter_side - view.size) // 2
    expected = whole.crop((left, top, left + view.size, top + view.size))
    assert np.abs(np.asarray(cut, int) - np.asarray(expected, int)).max() <= 1


def test_only_photographs_are_decoded_whatever_their_name_says(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "image.eps")
    (tmp_path / "image.eps").rename(tmp_path / "image.jpeg")  # Pillow would call Ghostscript to read it
    with pytest.raises(DataError, match="is not a readable image"):
        decode(tmp_path / "image.jpeg", TINY, None)
