"""`ntksap.integrations.lightning` in the Trainer of both of its packages, and in Fabric."""

import importlib.util
import warnings

import pytest
import torch
from torch import nn

from ntksap import MaskError
from tests.integrations.small_net import loader, masks_of, network, samples, zeros

pytestmark = pytest.mark.slow
NEEDS = "needs the extra `lightning`, which `make test-slow` installs"
HOW = {"sparsity": 0.5, "method": "magnitude", "part": "net", "input_shape": (8,)}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():  # Lightning advises on workers, loggers and accumulation
        warnings.simplefilter("ignore")
        yield


def callback(*args, **how):
    pytest.importorskip("lightning", reason=NEEDS)
    from ntksap.integrations.lightning import PruningCallback

    return PruningCallback(*args, **how)


def module_of(base: type, seed: int):
    class Classifier(base):
        def __init__(self) -> None:
            super().__init__()
            self.net = network(seed)

        def training_step(self, batch, index):
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2, weight_decay=0.1)

    return Classifier()


def fit(package, folder, epochs, callbacks, seed=0, path=None):
    lightning = pytest.importorskip(package, reason=NEEDS)
    module = module_of(lightning.LightningModule, seed)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=callbacks,
        default_root_dir=folder,
        accelerator="cpu",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loader(), ckpt_path=path)
    return trainer, module


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_a_training_that_was_stopped_ends_like_one_that_was_not(tmp_path, package):
    pytest.importorskip(package, reason=NEEDS)
    whole = callback(**HOW)
    _, straight = fit(package, tmp_path / "whole", 4, [whole])
    trainer, _ = fit(package, tmp_path / "half", 2, [callback(**HOW)])
    trainer.save_checkpoint(tmp_path / "half.ckpt")
    pruning = callback(**HOW)
    # Another process would have other initial weights here, by which other masks would be made.
    _, resumed = fit(package, tmp_path / "rest", 4, [pruning], seed=1, path=str(tmp_path / "half.ckpt"))
    assert pruning.masks == whole.masks == masks_of(network())
    assert zeros(resumed) == pruning.masks.total - pruning.masks.kept
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_given_masks_are_attached_and_must_be_those_of_the_checkpoint(tmp_path):
    masks = masks_of(network())
    trainer, module = fit("lightning.pytorch", tmp_path, 1, [callback(masks, part="net")])
    assert masks.obeyed_by(module.net)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    others = callback(masks_of(network(), 0.25), part="net")
    with pytest.raises(MaskError, match="trained with masks other than"):
        fit("lightning.pytorch", tmp_path, 2, [others], path=str(tmp_path / "one.ckpt"))


@pytest.mark.parametrize("weights_alone", [False, True])
def test_no_checkpoint_is_written_once_a_pruned_weight_has_moved(tmp_path, weights_alone):
    lightning = pytest.importorskip("lightning.pytorch", reason=NEEDS)

    class Vandal(lightning.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            with torch.no_grad():
                pl_module.net[0].weight += 1.0

    writer = lightning.callbacks.ModelCheckpoint(tmp_path / "saved", save_weights_only=weights_alone)
    with pytest.raises(MaskError, match="no longer zero"):
        fit("lightning.pytorch", tmp_path, 1, [Vandal(), callback(**HOW), writer])
    assert not list(tmp_path.rglob("*.ckpt"))


def fabric_run(pruning, epochs, seed=0, state_from=None):
    fabric = pytest.importorskip("lightning_fabric", reason=NEEDS).Fabric(accelerator="cpu", callbacks=[pruning])
    model = network(seed)
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    state = {"model": model, "optimizer": optimizer, "pruning": pruning, "epoch": 0}
    if state_from:
        fabric.load(state_from, state)
    inputs, targets = samples()
    for _ in range(state["epoch"], epochs):
        optimizer.zero_grad()
        fabric.backward(nn.functional.cross_entropy(model(inputs), targets))
        optimizer.step()
        state["epoch"] += 1
    return fabric, state


def test_fabric_prunes_in_setup_saves_and_resumes(tmp_path):
    how = {"sparsity": 0.5, "method": "magnitude", "input_shape": (8,)}
    fabric, state = fabric_run(callback(**how), 2)
    masks = state["pruning"].masks
    assert masks == masks_of(network())
    fabric.save(tmp_path / "state", state)
    _, straight = fabric_run(callback(**how), 4)
    _, resumed = fabric_run(callback(masks), 4, seed=1, state_from=tmp_path / "state")
    pairs = zip(straight["model"].parameters(), resumed["model"].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert masks.obeyed_by(resumed["model"])
    with pytest.raises(MaskError, match="trained with masks other than"):
        fabric_run(callback(**how), 4, seed=1, state_from=tmp_path / "state")
    with torch.no_grad():
        state["model"].module[0].weight += 1.0
    with pytest.raises(MaskError, match="no longer zero"):
        fabric.save(tmp_path / "broken", state)


def test_without_lightning_the_error_says_what_to_install(monkeypatch):
    pytest.importorskip("lightning", reason=NEEDS)
    module = importlib.import_module("ntksap.integrations.lightning")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'ntksap\[lightning\]'"):
        module._callback()
