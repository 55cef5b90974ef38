"""What the processes of the tests do: each function runs in every process of a gloo group and returns plain values."""

import os
import pickle
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import ntksap
from ntksap._base.ranks import Ranks, RanksError
from ntksap.data import load
from ntksap.integrations.keeper import MaskKeeper
from ntksap.pruning.masks import Masks
from ntksap.training.evaluation import evaluate
from ntksap.training.loop import train
from ntksap.training.recipe import Recipe
from ntksap.training.state import TrainState
from ntksap.training.sync_norm import synchronise_norms


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Flatten(), nn.Linear(8 * 16, 10),
    )  # fmt: skip


def labelled(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(1)
    return [(torch.randn(6, 1, 8, 8, generator=made), torch.randint(10, (6,), generator=made)) for _ in range(count)]


def summed(group, count):
    """The sum of ``count`` vectors whose exact sum depends on the order of addition."""

    def part(index):
        made = torch.Generator().manual_seed(index)
        return {"a": torch.randn(3, 5, generator=made) * 10.0 ** (index % 7), "b": torch.randn(2, generator=made)}

    return {name: value.numpy().tobytes() for name, value in Ranks(group).sum(part, range(count)).items()}


def kept(group):
    """Pruned after DDP has wrapped the module, as trainers do it, then trained on batches of one's own."""
    model = net()
    with torch.no_grad():
        model[0].weight += dist.get_rank(group)  # until DDP copies the first one's
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=group)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.1, weight_decay=0.1)
    keeper = MaskKeeper(None, "", {"sparsity": 0.8, "method": "ntk-sap-s", "input_shape": (1, 8, 8)})
    keeper.begin(wrapped)
    for images, labels in labelled(2 + dist.get_rank(group))[-2:]:
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(images), labels).backward()
        optimizer.step()
    keeper.check()
    return keeper.masks.sha256, model[0].weight.detach().numpy().tobytes()


def hashes(group, methods, settings):
    return {
        method: ntksap.prune(
            net(),
            0.8,
            method,
            input_shape=(1, 8, 8),
            data=labelled(5),
            rounds=2,
            group=group,
            **settings.get(method, {}),
        ).sha256
        for method in methods
    }


def different_weights(group):
    module = net()
    with torch.no_grad():
        module[0].weight += dist.get_rank()
    return _error(lambda: ntksap.prune(module, 0.5, "magnitude", group=group))


def different_masks(group):
    module = net()
    masks = Masks({"7.weight": torch.rand(10, 128) < (0.5 if dist.get_rank() else 0.2)})
    return _error(lambda: TrainState(module, Recipe(epochs=1, batch=8, lr=0.1), masks=masks, group=group))


def failing_first(group):
    def fail():
        raise ValueError("no disk")

    return _error(lambda: Ranks(group).from_first(fail))


def trained(group, sync_norm, epochs, batch):
    data = load("digits")
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )
    masks = ntksap.prune(module, 0.7, "magnitude")
    state = TrainState(
        module, Recipe(epochs=epochs, batch=batch, lr=0.05), masks=masks, seed=3, group=group, sync_norm=sync_norm
    )
    records = [{"loss": r.train_loss, "top1": r.top1, "accuracy": r.train_accuracy} for r in train(state, data)]
    return {
        "records": records,
        "weights": {name: value.numpy() for name, value in module.state_dict().items()},
        "hold": masks.obeyed_by(module),
        "evaluated": evaluate(state, data.test),
    }


def normalised(group):
    """A float64 net with BatchNorm on this process's rows of a batch: its output, gradients and running statistics."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.BatchNorm2d(3, affine=False)).double()
    images = torch.randn(7, 2, 6, 6, dtype=torch.float64)
    rows = Ranks(group).share(7)
    if dist.get_world_size() > 1:
        synchronise_norms(module, group)
    output = module(images[rows.start : rows.stop])
    output.pow(3).sum().backward()
    found = {f"gradient of {name}": Ranks(group).add(p.grad).numpy() for name, p in module.named_parameters()}
    found |= {name: buffer.numpy() for name, buffer in module.named_buffers()}
    return output.detach().numpy(), found


def regrowing_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 4)).double()


def regrown(group):
    """Masks of SET and RigL, in a loop of one's own with DDP and in ours."""
    return {f"{method} {kind.__name__}": kind(group, method) for kind in (_by_hand, _by_recipe) for method in _REGROW}


_REGROW = ("rigl", "set")


def _by_hand(group, method):
    """Every process has its rows of each batch, the loss is a mean over all rows."""
    module = regrowing_net()
    masks = ntksap.prune(module, 0.6, "random")
    optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    learner = module if group is None else nn.parallel.DistributedDataParallel(module, process_group=group)
    regrowth = ntksap.Regrowth(learner, masks, optimizer, method=method, steps=30, interval=3)
    made = torch.Generator().manual_seed(1)
    rows = Ranks(group).share(8)
    for _ in range(30):
        inputs, labels = torch.randn(8, 6, generator=made, dtype=torch.float64), torch.randint(4, (8,), generator=made)
        optimizer.zero_grad()
        nn.functional.cross_entropy(learner(inputs)[rows], labels[rows]).backward()
        optimizer.step()
        regrowth.step()
    return _regrown(masks, regrowth.masks, module)


def _by_recipe(group, method):
    module = net()
    masks = ntksap.prune(module, 0.7, "magnitude")
    recipe = Recipe(epochs=1, batch=100, lr=0.05, regrow=method, regrow_every=3)
    state = TrainState(module, recipe, masks=masks, seed=3, group=group)
    for _ in train(state, load("digits")):
        pass
    return _regrown(masks, state.masks, module)


def _regrown(start, masks, module):
    return {
        "masks": {name: mask.numpy() for name, mask in masks.items()},
        "weights": {name: value.numpy() for name, value in module.state_dict().items()},
        "hold": masks.obeyed_by(module) and [m.sum() for m in masks.values()] == [m.sum() for m in start.values()],
        "stayed": sum(int((masks[name] & start[name]).sum()) for name in masks) / masks.kept,
    }


def sharded(group, steps):
    """FSDP2: masks on sharded parameters, held by AdamW with weight decay; returns the whole weights."""
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 33), nn.ReLU(), nn.Linear(33, 4))
    masks = ntksap.prune(module, 0.8, "magnitude", scope="layer")
    fully_shard(module[0])
    fully_shard(module)
    masks.attach(module)
    held = [masks.obeyed_by(module)]
    optimizer = torch.optim.AdamW(module.parameters(), 0.05, weight_decay=0.1)
    made = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(steps):
        inputs = torch.randn(16, 8, generator=made)
        optimizer.zero_grad()
        (module(inputs) - inputs[:, :4]).square().mean().backward()
        optimizer.step()
        held.append(masks.obeyed_by(module))
    moved = {name: p.full_tensor().detach().numpy() for name, p in module.named_parameters()}
    return {"held": held, "weights": moved, "masks": {name: mask.numpy() for name, mask in masks.items()}}


def _error(call):
    try:
        call()
    except (RanksError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return None


if __name__ == "__main__":
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch")
    arguments = pickle.load(sys.stdin.buffer)
    dist.init_process_group("gloo")
    returned = globals()[sys.argv[1]](dist.group.WORLD, *arguments)
    Path(sys.argv[2]).write_bytes(pickle.dumps(returned))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # torch's threads do not always survive an orderly end
