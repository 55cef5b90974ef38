import pytest
import torch
from hypothesis import settings

from ntksap.net.kernels.memory import memory_file

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _own_choices(tmp_path_factory):
    """What tests measure on a busy machine must not decide which kernels the user's programs take.

    By the environment, so that the programs that tests start choose alike, and end in the same bits.
    """
    memory_file.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NTKSAP_CHOICES", str(tmp_path_factory.mktemp("choices") / "choices.jsonl"))
        yield
    memory_file.cache_clear()
