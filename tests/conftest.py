import pytest
import torch
from hypothesis import settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_choices(tmp_path_factory):
    """What tests measure on a busy machine must not decide which kernels the user's programs take."""
    file = tmp_path_factory.mktemp("choices") / "choices.jsonl"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ntksap.net.kernels.memory.memory_file", lambda: file)
        yield
