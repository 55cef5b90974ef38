import os

import pytest
import torch
from hypothesis import settings

from ntksap._base.machine import bfloat16_crashes
from ntksap.net.kernels import choice, memory
from ntksap.net.kernels.memory import memory_file

if bfloat16_crashes():  # by the environment, so that it holds for the programs that tests start
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    bfloat16_crashes.cache_clear()

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


@pytest.fixture
def fastest(tmp_path, monkeypatch):
    """Sets which kernels are found to be the fastest, the later of several, on a machine that remembers nothing.

    Without it that is measured, and a busy machine may find anything.
    """

    def is_always(*best):
        def measured(ways):
            for work in ways.values():
                work()
            return {way: 0.5 ** best.index(way) if way in best else 2.0 for way in ways}

        monkeypatch.setattr(memory, "memory_file", lambda: tmp_path / f"{' '.join(best)} is fastest")
        monkeypatch.setattr(choice, "measure", measured)

    return is_always
