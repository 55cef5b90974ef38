"""From an image file to a square of pixels: decoding, random patches, the central crop."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ntksap.data.base import DataError

ATTEMPTS = 10  # to draw a patch that fits the image, before the central one is taken
LONGEST = 16  # an image that is longer than this many widths is cut to that: resizing a line would fill the memory
FORMATS = ("JPEG", "PNG")  # by content, whatever the name says: for others Pillow may call programs, as for PostScript

Box = tuple[int, int, int, int]  # left, top, right, bottom


@dataclass(frozen=True)
class View:
    """How an image of any size becomes size × size pixels.

    Augmented: a patch of random area (a fraction of the image from `scale`) and aspect ratio (width ÷ height from
    `ratio`, uniform in its logarithm) at a random place, resized, then mirrored left to right with probability ½.
    Otherwise: the shorter side is resized to `shorter_side` and the central square is cut out.
    """

    size: int
    shorter_side: int
    scale: tuple[float, float]
    ratio: tuple[float, float]


def decode(path: Path, view: View, rng: torch.Generator | None) -> Tensor:
    """Return the image as uint8 3,S,S: augmented by draws from `rng`, or the central view if that is None."""
    try:
        with Image.open(path, formats=FORMATS) as file:
            image = file.convert("RGB")  # also from greyscale and CMYK
    except Exception as error:  # Pillow raises many kinds for damaged files
        raise DataError(f"{path} is not a readable image: {error}. Replace it or unpack the set again") from error
    square = central_view(image, view) if rng is None else random_view(image, view, rng)
    return torch.from_numpy(np.array(square)).permute(2, 0, 1).contiguous()


def central_view(image: Image.Image, view: View) -> Image.Image:
    """Resize the shorter side and cut out the central square."""
    longest = LONGEST * min(image.size)
    if max(image.size) > longest:
        left, top = ((side - min(side, longest)) // 2 for side in image.size)
        image = image.crop((left, top, left + min(image.width, longest), top + min(image.height, longest)))
    width, height = (int(view.shorter_side * side / min(image.size)) for side in image.size)
    resized = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - view.size) // 2, (height - view.size) // 2
    return resized.crop((left, top, left + view.size, top + view.size))


def random_view(image: Image.Image, view: View, rng: torch.Generator) -> Image.Image:
    """Resize a random patch to the square and mirror it or not."""
    draws = torch.rand(2 * ATTEMPTS + 3, generator=rng, dtype=torch.float64, device="cpu").tolist()
    box = patch(image.width, image.height, view, draws[3:], (draws[0], draws[1]))
    square = image.crop(box).resize((view.size, view.size), Image.Resampling.BILINEAR)
    return square.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if draws[2] < 0.5 else square


def patch(width: int, height: int, view: View, shapes: list[float], place: tuple[float, float]) -> Box:
    """Return the patch that uniform draws from [0, 1) choose in an image of width × height.

    shapes: (area, aspect ratio) for one attempt after another; the first that fits is taken. place: (left, top).
    If none fits, it is the largest central patch with an aspect ratio within bounds.
    """
    low, high = (math.log(bound) for bound in view.ratio)
    for u, v in zip(shapes[::2], shapes[1::2], strict=True):
        area = width * height * (view.scale[0] + u * (view.scale[1] - view.scale[0]))
        ratio = math.exp(low + v * (high - low))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(place[0] * (width - w + 1)), int(place[1] * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * view.ratio[1])), min(height, round(width / view.ratio[0]))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
