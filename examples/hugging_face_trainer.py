"""Masks in the Trainer of transformers: a small ViT on handwritten digits, stopped and resumed.

pip install 'ntksap[transformers]'
python examples/hugging_face_trainer.py
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification
from transformers.trainer_utils import get_last_checkpoint

from ntksap.integrations.huggingface import PruningCallback


def digits() -> list[dict[str, Any]]:
    pixels, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(pixels).float().view(-1, 1, 8, 8) / 8 - 1
    return [{"pixel_values": image, "labels": int(label)} for image, label in zip(images, labels, strict=True)]


def network() -> ViTForImageClassification:
    config = ViTConfig(
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=8,
        patch_size=2,
        num_channels=1,
        num_labels=10,
    )
    return ViTForImageClassification(config)


def main(folder: Path, epochs: int = 10) -> dict[str, float | bool]:
    torch.manual_seed(0)
    samples = digits()
    train = [sample for number, sample in enumerate(samples) if number % 5]
    test = [sample for number, sample in enumerate(samples) if not number % 5]
    model = network()

    def trainer(model: ViTForImageClassification, until: int) -> tuple[Trainer, PruningCallback]:
        settings = TrainingArguments(
            output_dir=str(folder),
            num_train_epochs=until,
            per_device_train_batch_size=64,
            learning_rate=3e-3,
            lr_scheduler_type="constant",
            weight_decay=0.05,
            save_strategy="epoch",
            save_total_limit=1,
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=True,
        )
        # Ranked over all layers, queries and keys of the last one would lose every weight: keep some in each.
        pruning = PruningCallback(sparsity=0.9, method="ntk-sap-s", input_shape=(1, 8, 8), floor=100)
        return Trainer(model, settings, train_dataset=train, callbacks=[pruning]), pruning

    trainer(model, epochs // 2)[0].train()
    # Another process would go on like this. The weights come from from_pretrained, since the Trainer itself does not
    # find them in a checkpoint whose names differ from the model's (ViT has such names); it restores all else.
    model = ViTForImageClassification.from_pretrained(get_last_checkpoint(str(folder)))
    resumed, pruning = trainer(model, epochs)
    resumed.train(resume_from_checkpoint=True)  # with the masks of the checkpoint: nothing is pruned anew
    resumed.save_model(str(folder / "final"))

    loaded = ViTForImageClassification.from_pretrained(folder / "final").eval()
    with torch.no_grad():
        logits = loaded(torch.stack([sample["pixel_values"] for sample in test])).logits
    masks = pruning.masks
    accuracy = (logits.argmax(1) == torch.tensor([sample["labels"] for sample in test])).double().mean().item()
    return {
        "accuracy": accuracy,
        "sparsity": masks.sparsity,
        "model holds": masks.obeyed_by(model),
        "saved model holds": masks.obeyed_by(loaded),
        "steps": resumed.state.global_step,
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        for name, value in main(Path(sys.argv[1] if len(sys.argv) > 1 else temporary)).items():
            print(f"{name}: {value:.4f}" if isinstance(value, float) else f"{name}: {value}")
