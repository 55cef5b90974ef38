"""Masks with Lightning Fabric: a recurrent network that reads handwritten digits row by row.

pip install 'ntksap[fabric]'
python examples/fabric_loop.py
"""

import torch
from lightning_fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ntksap.integrations.lightning import PruningCallback


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(rows)
        return self.head(states[:, -1])


def main(epochs: int = 10) -> dict[str, float | bool]:
    torch.manual_seed(0)
    pixels, numbers = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(pixels).float().view(-1, 8, 8) / 8 - 1, torch.from_numpy(numbers)
    test = torch.arange(len(labels)) % 5 == 0

    pruning = PruningCallback(sparsity=0.8, method="ntk-sap-s", input_shape=(8, 8))
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[pruning])
    fabric.launch()
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, optimizer = fabric.setup(model, optimizer)  # prunes
    loader = fabric.setup_dataloaders(
        DataLoader(TensorDataset(images[~test], labels[~test]), batch_size=64, shuffle=True)
    )
    for _ in range(epochs):
        for rows, targets in loader:
            optimizer.zero_grad()
            fabric.backward(nn.functional.cross_entropy(model(rows), targets))
            optimizer.step()

    model.eval()
    with torch.no_grad():
        accuracy = (model(images[test]).argmax(1) == labels[test]).double().mean().item()
    return {"accuracy": accuracy, "sparsity": pruning.masks.sparsity, "model holds": pruning.masks.obeyed_by(model)}


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value if isinstance(value, bool) else f'{value:.4f}'}")
