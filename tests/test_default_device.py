"""Torch's default device, which users may set to a GPU, has no say in what happens to a model that is elsewhere.

The meta device stands for the GPU: its tensors mix with none on the CPU either. (Each method is asked the same in
``tests/methods/test_contract.py``.)
"""

from dataclasses import replace

import torch

import ntksap
from ntksap.compaction import channel_groups
from ntksap.training.loop import train
from tests.training.small_training import RECIPE, digits, same_bits, state_of, untimed

SET = replace(RECIPE, epochs=2, regrow="set", regrow_every=3)


def test_training_with_regrowth_and_its_checkpoints(tmp_path):
    expected, other = state_of(SET), state_of(SET)
    records = [untimed(record) for record in train(expected, digits())]
    with torch.device("meta"):
        first = next(train(other, digits()))
        other.save(tmp_path / "after-1")
        other.load(tmp_path / "after-1")
        rest = list(train(other, digits()))
    assert [untimed(record) for record in (first, *rest)] == records
    assert same_bits(other.model, expected.model)
    assert other.masks == expected.masks


def test_from_channels_to_a_smaller_file(tmp_path):
    model = ntksap.models.build("resnet8", input_shape=(3, 16, 16))
    images = torch.randn(2, 3, 16, 16)

    def work():
        masks = ntksap.prune(model, 0.5, "magnitude", pattern="channel", input_shape=(3, 16, 16))
        small = ntksap.compact(model, masks, images).eval()
        single = ntksap.prune(small, 0.9, "ntk-sap-analytic", input_shape=(3, 16, 16))
        single.attach(small)
        ntksap.save_sparse(small, single, tmp_path / "small.safetensors")
        with torch.no_grad(), ntksap.sparse_kernels(small, single) as choices:
            logits = small(images).tolist()
        loaded = ntksap.load_sparse(small, tmp_path / "small.safetensors")
        found = ntksap.diagnose(small, single, input_shape=(3, 16, 16))
        cost = ntksap.cost(small, single, input_shape=(3, 16, 16))
        return loaded.sha256, logits, choices.ways, str(found), cost, str(channel_groups(small, images))

    expected = work()
    with torch.device("meta"):
        assert work() == expected
