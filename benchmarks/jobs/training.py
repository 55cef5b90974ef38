"""Training ResNet-20 for some steps: against a plain script with a loop over images."""

import copy

import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ntksap
from benchmarks.harness import Job
from ntksap.data.base import Dataset, batch_order
from ntksap.data.memory import MemorySplit
from ntksap.training.loop import train
from ntksap.training.recipe import Recipe
from ntksap.training.state import TrainState

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
STEPS, BATCH, LR, MOMENTUM, DECAY = 6, 128, 0.05, 0.9, 1e-4


class Images(torch.utils.data.Dataset[tuple[Tensor, int]]):
    """Images one by one as in a plain script: PIL, crop with padding 4, mirror, to tensor, normalise.

    Crops, flips and their order come from the product's generators, so that both sides train on the same pixels.
    """

    def __init__(self, split: MemorySplit, seed: int) -> None:
        self.pictures = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in split.images]
        self.labels = split.labels.tolist()
        self.offsets, self.flips = (drawn.tolist() for drawn in split.draw(seed, epoch=0))
        self.mean, self.std = (torch.tensor(v).view(3, 1, 1) for v in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        down, right = self.offsets[index]
        picture = ImageOps.expand(self.pictures[index], 4).crop((right, down, right + 32, down + 32))
        if self.flips[index]:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(32, 32, 3).permute(2, 0, 1)
        return (pixels.float().div(255) - self.mean) / self.std, self.labels[index]


def textbook(model: nn.Module, masks: dict[str, Tensor], split: MemorySplit) -> list[float]:
    """SGD on NCHW float32, masks multiplied after each step; the losses."""
    model = copy.deepcopy(model).train()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=MOMENTUM, weight_decay=DECAY)
    order = batch_order(len(split), BATCH, seed=0, epoch=0, augment=True, indices=None)
    loader = torch.utils.data.DataLoader(Images(split, 0), batch_sampler=[batch.tolist() for batch in order])
    losses = []
    for name, mask in masks.items():
        parameters[name].data.mul_(mask)
    for images, labels in loader:
        optimizer.zero_grad()
        loss = cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        for name, mask in masks.items():
            parameters[name].data.mul_(mask)
        losses.append(loss.item())
    return losses


def product(model: nn.Module, masks: dict[str, Tensor], split: MemorySplit) -> list[float]:
    recipe = Recipe(epochs=1, batch=BATCH, lr=LR, momentum=MOMENTUM, weight_decay=DECAY, channels_last=True)
    state = TrainState(copy.deepcopy(model), recipe, masks=ntksap.Masks(masks))
    one = MemorySplit(split.images[:1], split.labels[:1], mean=MEAN, std=STD, pad=4, flip=True)  # little to test on
    (record,) = train(state, Dataset("noise", 10, (3, 32, 32), split, one))
    return [record.train_loss]


def train_resnet20() -> Job:
    generator = torch.Generator().manual_seed(0)
    count = STEPS * BATCH
    images = torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (count,), generator=generator)
    split = MemorySplit(images, labels, mean=MEAN, std=STD, pad=4, flip=True)
    model = ntksap.models.build("resnet20", input_shape=(3, 32, 32), seed=0)
    masks = dict(ntksap.prune(model, 0.982, "ntk-sap-analytic", scope="global", input_shape=(3, 32, 32)))
    return Job(
        name="train-resnet20",
        title=f"training, ResNet-20 at 98.20 %, {STEPS} batches of 128 with augmentation",
        target="≥ 3×",
        textbook=lambda: textbook(model, masks, split),
        product=lambda: product(model, masks, split),
        agreement=lambda theirs, ours: {"mean_loss_differs_by": abs(sum(theirs) / STEPS - ours[0])},
        repeats=5,
    )


def infer_resnet20() -> Job:
    """Not a target, but what a pruned network is for: torch's dense kernels against those for kept weights."""
    images = torch.randn(128, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    model = ntksap.models.build("resnet20", input_shape=(3, 32, 32), seed=0).eval()
    masks = ntksap.prune(model, 0.982, "ntk-sap-analytic", scope="global", input_shape=(3, 32, 32))
    masks.attach(model)

    @torch.no_grad()
    def dense() -> Tensor:
        return torch.cat([model(images) for _ in range(4)])

    @torch.no_grad()
    def sparse() -> Tensor:
        with ntksap.sparse_kernels(model, masks):
            return dense()

    def gap(theirs: Tensor, ours: Tensor) -> dict[str, float]:
        return {"outputs_differ_by": float((ours - theirs).norm() / theirs.norm())}

    title = "inference, ResNet-20 at 98.20 %, 4 batches of 128"
    return Job("infer-resnet20", title, "faster", dense, sparse, gap, repeats=10)
