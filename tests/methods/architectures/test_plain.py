import pytest

from tests.methods.architectures.architecture import (
    SAID_ELSEWHERE,
    Architecture,
    assert_that_a_pruned_network_trains_and_stays_pruned,
    assert_that_compiled_training_keeps_the_masks,
    assert_that_cost_and_diagnosis_see_every_layer,
    assert_that_the_prunable_weights_are_the_expected_ones,
    each_method,
)
from tests.methods.architectures.plain import PLAIN

# torch says so when such an LSTM is trained on a CPU, with masks or without
pytestmark = [
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning"),
    *SAID_ELSEWHERE,
]

each_architecture = pytest.mark.parametrize("architecture", PLAIN, ids=lambda architecture: architecture.name)


@each_architecture
def test_what_is_prunable(architecture: Architecture):
    assert_that_the_prunable_weights_are_the_expected_ones(architecture)


@each_method
@each_architecture
def test_every_method_prunes_it_and_it_trains(architecture: Architecture, method, tmp_path):
    assert_that_a_pruned_network_trains_and_stays_pruned(architecture, method, tmp_path)


@each_architecture
def test_cost_and_diagnosis(architecture: Architecture):
    assert_that_cost_and_diagnosis_see_every_layer(architecture)


@pytest.mark.slow
@each_architecture
def test_compiled_training(architecture: Architecture):
    assert_that_compiled_training_keeps_the_masks(architecture)
