"""A small vision transformer in plain torch layers, 0.8 M weights, for CIFAR-10.

    ntksap compare --model studies.transformers.vit:vit --data cifar10 --methods random --sparsities 0.9 \\
        --seeds 0,1,2 --allocation erk-logits --rescale --epochs 5 --out runs/vit

and the same with the other allocations, and without one for the methods' own.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, PATCH = 128, 4, 4, 4


class Block(nn.Module):
    """Attention and two layers, each in a residual branch that begins with a normalisation and ends with none."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches, width) → the same."""
        y = self.first(x)
        q, k, v = (layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in self._heads())
        x = x + self.o_proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))

    def _heads(self) -> tuple[nn.Module, ...]:
        return self.q_proj, self.k_proj, self.v_proj


class ViT(nn.Module):
    """Patches, learnt positions, blocks, the mean over patches, a classifier."""

    def __init__(self, classes: int = 10, size: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn((size // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, size, size) → (batch, classes)."""
        x = self.patches(x).flatten(2).mT + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


def vit() -> nn.Module:
    """Return the network, drawn by torch's global generator."""
    return ViT()
