"""Masks in a plain PyTorch loop, with all that such loops have: accumulation, clipping, loss scaling, averaged weights.

python examples/plain_loop.py
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import ntksap


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1,797 handwritten digits, 1×8×8, that ship with scikit-learn."""
    pixels, labels = load_digits(return_X_y=True)
    return torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 8 - 1, torch.from_numpy(labels)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 16, 10),
    )


def main(epochs: int = 6) -> dict[str, float | bool]:
    torch.manual_seed(0)
    images, labels = digits()
    test = torch.arange(len(labels)) % 5 == 0
    model = network()
    masks = ntksap.prune(model, sparsity=0.9, method="ntk-sap-s", input_shape=(1, 8, 8))

    # The one line. Put it before the optimizer, and before copies of the model are made.
    masks.attach(model)

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    averaged = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.95), use_buffers=True
    )
    scaler = torch.amp.GradScaler("cpu")  # "cuda" on a GPU, together with torch.autocast
    generator = torch.Generator().manual_seed(0)
    for _ in range(epochs):
        order = (~test).nonzero().flatten()
        order = order[torch.randperm(len(order), generator=generator)]
        for number, chosen in enumerate(order.split(64)):
            loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
            scaler.scale(loss / 2).backward()
            if number % 2:  # one step for two batches
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                averaged.update_parameters(model)

    averaged.eval()
    with torch.no_grad():
        accuracy = (averaged(images[test]).argmax(1) == labels[test]).double().mean().item()
    return {
        "accuracy": accuracy,
        "sparsity": masks.sparsity,
        "model holds": masks.obeyed_by(model),
        "average holds": masks.obeyed_by(averaged.module),
    }


if __name__ == "__main__":
    for name, value in main().items():
        print(f"{name}: {value if isinstance(value, bool) else f'{value:.4f}'}")
