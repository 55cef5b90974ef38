import pytest
import torch
from hypothesis import settings

# How long an example takes says more about the machine's other work than about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)
