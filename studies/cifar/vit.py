"""A small vision transformer in plain torch layers, 0.5 M weights, for images of 32×32 pixels."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, LAYERS, HEADS, PATCH = 96, 4, 4, 8


class Block(nn.Module):
    """Attention and two layers, each in a residual branch that begins with a normalisation and ends with none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, patches, width) → the same."""
        y = self.first(x)
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in projections)
        x = x + self.o_proj(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class ViT(nn.Module):
    """Patches, learnt positions, blocks, the mean over patches, a classifier."""

    def __init__(self, width: int = WIDTH, layers: int = LAYERS) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.positions = nn.Parameter(0.02 * torch.randn((32 // PATCH) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 32, 32) → (batch, 10)."""
        x = self.patches(x).flatten(2).mT + self.positions
        return self.head(self.norm(self.blocks(x)).mean(1))


def vit() -> nn.Module:
    """Return the network, drawn by torch's global generator; ``--model studies.cifar.vit:vit``."""
    return ViT()
