"""What holds for every data set of the table."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ntksap import InputError
from ntksap.data import TABLE, DataError, Dataset, data_root, load, pruning_batches
from ntksap.data import downloads as fetch


@pytest.fixture(params=list(TABLE))
def dataset(request: pytest.FixtureRequest, tiny_load: Callable[..., Dataset]) -> Dataset:
    return tiny_load(request.param)


def whole(batches) -> tuple[Tensor, Tensor]:
    images, labels = zip(*batches, strict=True)
    return torch.cat(images), torch.cat(labels)


def test_batches_in_order(dataset: Dataset) -> None:
    for split in (dataset.train, dataset.test):
        n = len(split)
        sizes = [len(labels) for _, labels in split.batches(4)]
        images, labels = whole(split.batches(4))
        assert sizes == [4] * (n // 4) + ([n % 4] if n % 4 else [])
        assert images.shape == (n, *dataset.input_shape)
        assert images.dtype == torch.float32
        assert split.labels.dtype == labels.dtype == torch.int64
        assert torch.equal(labels, split.labels)
        assert 0 <= int(labels.min()) <= int(labels.max()) < dataset.num_classes
        assert 0.2 < images.std() < 2  # normalised


def test_a_seed_shuffles_images_with_their_labels(dataset: Dataset) -> None:
    split = dataset.train
    images, labels = whole(split.batches(5))
    mixed, mixed_labels = whole(split.batches(5, seed=3))
    assert not torch.equal(mixed, images)
    order = [int((images == image).flatten(1).all(1).nonzero()[0]) for image in mixed[:40]]
    assert torch.equal(mixed_labels[:40], labels[order])
    assert torch.equal(mixed_labels.sort().values, labels.sort().values)


@pytest.mark.parametrize("augment", [False, True])
def test_seed_and_epoch_decide_everything(dataset: Dataset, augment: bool) -> None:
    def run(seed: int, epoch: int, batch_size: int = 5) -> Tensor:
        return whole(dataset.train.batches(batch_size, seed=seed, epoch=epoch, augment=augment))[0]

    first = run(0, 0)
    before = torch.get_rng_state()
    assert torch.equal(run(0, 0), first)
    assert torch.equal(run(0, 0, batch_size=3), first)
    assert torch.equal(torch.get_rng_state(), before)  # the global generator is not used
    assert not torch.equal(run(1, 0), first)
    assert not torch.equal(run(0, 1), first)


def test_indices_restrict_and_keep_their_order(dataset: Dataset) -> None:
    split = dataset.train
    images, labels = whole(split.batches(100))
    chosen = torch.tensor([4, 0, 2])
    few, few_labels = whole(split.batches(2, indices=chosen))
    assert torch.equal(few, images[chosen])
    assert torch.equal(few_labels, labels[chosen])
    assert list(split.batches(2, indices=chosen[:0])) == []


def test_an_image_is_augmented_alike_alone_and_in_the_epoch(dataset: Dataset) -> None:
    everything = whole(dataset.train.batches(100, seed=1, epoch=2, augment=True))[0]
    alone = whole(dataset.train.batches(1, seed=1, epoch=2, augment=True, indices=torch.tensor([3])))[0]
    assert (everything == alone).flatten(1).all(1).any()


def test_wrong_arguments_fail_at_the_call(dataset: Dataset) -> None:
    split = dataset.train
    with pytest.raises(ValueError, match="batch_size"):
        split.batches(0)
    with pytest.raises(ValueError, match="needs a seed"):
        split.batches(2, augment=True)
    with pytest.raises(ValueError, match="from 0 to"):
        split.batches(2, indices=torch.tensor([-1]))
    with pytest.raises(ValueError, match="from 0 to"):
        split.batches(2, indices=torch.tensor([len(split)]))
    with pytest.raises(ValueError, match="int64"):
        split.batches(2, indices=torch.ones(len(split), dtype=torch.bool))


def test_pruning_set_is_balanced_and_not_augmented(dataset: Dataset) -> None:
    per_class = min(int(dataset.train.labels.bincount(minlength=dataset.num_classes).min()), 3)
    if per_class == 0:  # the tiny cifar100 has 30 training images for 100 classes
        with pytest.raises(DataError, match="smallest class has 0"):
            pruning_batches(dataset, per_class=1)
        return
    batches = pruning_batches(dataset, per_class=per_class, batch_size=4, seed=5)
    images, labels = whole(batches)
    assert labels.bincount().tolist() == [per_class] * dataset.num_classes
    assert max(len(y) for _, y in batches) == 4
    plain = {image.numpy().tobytes() for image in whole(dataset.train.batches(100))[0]}
    assert {image.numpy().tobytes() for image in images} <= plain


def test_pruning_set_depends_on_the_seed_and_is_shuffled() -> None:
    digits = load("digits")
    images, labels = whole(pruning_batches(digits, seed=0))
    again, _ = whole(pruning_batches(digits, seed=0))
    other, _ = whole(pruning_batches(digits, seed=1))
    assert len(images) == 100
    assert torch.equal(images, again)
    assert not torch.equal(images, other)
    assert not torch.equal(labels, labels.sort().values)
    assert len(pruning_batches(digits, batch_size=30)) == 4


def test_a_pruning_set_larger_than_a_class_is_refused() -> None:
    with pytest.raises(DataError, match=r"digits.*smallest class has 138"):
        pruning_batches(load("digits"), per_class=139)


def test_every_training_image_can_be_chosen_for_pruning() -> None:
    digits = load("digits")
    smallest = digits.train.labels == 8
    images, labels = whole(pruning_batches(digits, per_class=138))
    eights = whole(digits.train.batches(200, indices=smallest.nonzero().flatten()))[0]
    assert torch.equal(images[labels == 8].flatten(1).sort(0).values, eights.flatten(1).sort(0).values)


@pytest.mark.parametrize(("wrong", "near"), [("cifar-10", "cifar10"), ("imagnet", "imagenet"), ("digit", "digits")])
def test_an_unknown_name_answers_with_the_known_ones(wrong: str, near: str) -> None:
    with pytest.raises(InputError, match=f"Did you mean '{near}'") as error:
        load(wrong)
    assert all(name in str(error.value) for name in TABLE)


def test_a_name_like_no_other_still_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="Known: cifar10, cifar100, digits") as error:
        load("zzz")
    assert "Did you mean" not in str(error.value)


def test_root_is_the_argument_then_the_environment_then_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NTKSAP_DATA", str(tmp_path / "environment"))
    assert data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data_root() == tmp_path / "environment"
    monkeypatch.delenv("NTKSAP_DATA")
    assert data_root() == Path("data")


@pytest.mark.parametrize("name", [name for name in TABLE if name != "digits"])
def test_a_missing_set_says_what_to_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NTKSAP_DATA", str(tmp_path))
    with pytest.raises(DataError) as error:
        load(name)
    message = str(error.value)
    assert all(words in message for words in (name, str(tmp_path), "--data-dir", "NTKSAP_DATA", TABLE[name].places[0]))
    assert ("image-net.org" if name == "imagenet" else "--download") in message


def test_imagenet_cannot_be_downloaded(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be downloaded.*image-net\.org"):
        load("imagenet", tmp_path, download=True)


@pytest.mark.parametrize("name", TABLE)
def test_nothing_is_fetched_for_a_set_that_is_there(
    name: str, tiny_load: Callable[..., Dataset], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "download", lambda *_: pytest.fail("tried to download"))
    assert len(tiny_load(name, download=True).train) > 0
