"""A small network, noise to train it on, and masks for it."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ntksap import Masks, prune


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def samples() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(48, 8, generator=generator), torch.randint(0, 3, (48,), generator=generator)


def loader() -> DataLoader:
    return DataLoader(TensorDataset(*samples()), batch_size=8)


def masks_of(model: nn.Module, sparsity: float = 0.5) -> Masks:
    return prune(model, sparsity, "magnitude", input_shape=(8,))


def zeros(model: nn.Module) -> int:
    return sum(int((p == 0).sum()) for p in model.parameters() if p.dim() > 1)
