"""`ntksap.integrations.huggingface` in the real Trainer."""

import pytest
import torch
from torch import nn

from ntksap import MaskError
from tests.integrations.small_net import masks_of, network, samples

pytestmark = pytest.mark.slow
HOW = {"sparsity": 0.5, "method": "magnitude", "part": "net", "input_shape": (8,)}
WHERE = "needs the extra `transformers`, which `make test-slow` installs"


class Classifier(nn.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = network(seed)

    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def train(folder, epochs, *more, seed=0, resume=False, masks=None, **how):
    transformers = pytest.importorskip("transformers", reason=WHERE)
    from ntksap.integrations.huggingface import PruningCallback

    pruning = PruningCallback(masks, **how)
    settings = transformers.TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=epochs,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-2,
        weight_decay=0.1,
        lr_scheduler_type="constant",
        save_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        use_cpu=True,
    )
    data = [{"inputs": x, "labels": int(y)} for x, y in zip(*samples(), strict=True)]
    trainer = transformers.Trainer(Classifier(seed), settings, train_dataset=data, callbacks=[*more, pruning])
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model, pruning


def test_a_training_that_was_stopped_ends_like_one_that_was_not(tmp_path):
    straight, whole = train(tmp_path / "whole", 4, **HOW)
    assert whole.masks == masks_of(network())
    train(tmp_path / "half", 2, **HOW)
    # Other initial weights, by which other masks would be made.
    resumed, pruning = train(tmp_path / "half", 4, seed=1, resume=True, **HOW)
    assert pruning.masks == whole.masks
    assert pruning.masks.obeyed_by(resumed.net)
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), resumed.parameters(), strict=True))


def test_given_masks_must_be_those_of_the_checkpoint(tmp_path):
    model, _ = train(tmp_path, 1, masks=masks_of(network()), part="net")
    assert masks_of(network()).obeyed_by(model.net)
    with pytest.raises(MaskError, match="trained with masks other than"):
        train(tmp_path, 2, resume=True, masks=masks_of(network(), 0.25), part="net")


def test_a_save_checks(tmp_path):
    transformers = pytest.importorskip("transformers", reason=WHERE)

    class Vandal(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, model, **kwargs):
            with torch.no_grad():
                model.net[0].weight += 1.0

    with pytest.raises(MaskError, match="no longer zero"):
        train(tmp_path, 1, Vandal(), **HOW)
