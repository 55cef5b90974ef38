"""Images held in memory as uint8, cropped and flipped a batch at a time on the device that trains."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from ntksap._base import generator_of
from ntksap.data.base import OrderedSplit


class MemorySplit(OrderedSplit):
    """A split whose images stay in memory.

    images: uint8 N,C,H,W. labels: int64 N. mean, std: per channel, in units where white is 1.
    Augmentation pads every side with `pad` black pixels, crops back to H×W at a random place and, if `flip`, mirrors
    left to right with probability ½: each image on its own, before normalisation.
    """

    def __init__(
        self,
        images: Tensor,
        labels: Tensor,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        pad: int,
        flip: bool,
    ) -> None:
        self.images = images
        self.labels = labels
        self.mean = mean
        self.std = std
        self.pad = pad
        self.flip = flip

    def draw(self, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
        """Draw how each image of the split is augmented: offsets int64 N,2 (down, right) and flips bool N.

        All images are drawn at once, so an image's crop does not depend on which batch it falls in.
        """
        rng = generator_of("augment", seed, epoch)
        offsets = torch.randint(0, 2 * self.pad + 1, (len(self), 2), generator=rng, device="cpu")
        flips = torch.randint(0, 2, (len(self),), generator=rng, device="cpu").bool()
        return offsets, flips & self.flip

    def _batches(
        self, order: tuple[Tensor, ...], key: tuple[int, int] | None, device: torch.device | str
    ) -> Iterator[tuple[Tensor, Tensor]]:
        draws = None if key is None else self.draw(*key)
        for index in order:
            images = self.images[index].to(device)
            if draws is not None:
                offsets, flips = (drawn[index].to(device) for drawn in draws)
                images = crop_and_flip(images, offsets, flips, self.pad)
            yield normalise(images, self.mean, self.std), self.labels[index].to(device)


def crop_and_flip(images: Tensor, offsets: Tensor, flips: Tensor, pad: int) -> Tensor:
    """Cut an H×W window out of each zero-padded image and mirror some of the windows.

    images: N,C,H,W. offsets: int64 N,2, the window's top-left corner in the padded image, each from 0 to 2·pad.
    flips: bool N, True = mirrored left to right. Returns the shape and type of `images`.
    """
    n, c, h, w = images.shape
    padded = F.pad(images, (pad, pad, pad, pad))
    rows = offsets[:, 0, None] + torch.arange(h, device=images.device)
    cols = offsets[:, 1, None] + torch.arange(w, device=images.device)
    cols = torch.where(flips[:, None], cols.flip(1), cols)
    # One gather over flattened pixels does crop and flip together, about twice as fast as indexing by (n, row, col).
    pixels = rows[:, :, None] * (w + 2 * pad) + cols[:, None, :]
    return padded.flatten(2).gather(2, pixels.view(n, 1, h * w).expand(n, c, h * w)).view(n, c, h, w)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return (images / 255 − mean) / std per channel as float32. images: uint8 N,C,H,W."""
    shift = torch.tensor(mean, dtype=torch.float32, device=images.device).mul(255).view(-1, 1, 1)
    scale = torch.tensor(std, dtype=torch.float32, device=images.device).mul(255).view(-1, 1, 1)
    return images.to(torch.float32).sub_(shift).div_(scale)
