"""What a process of our own asks of the machine."""

import platform
import subprocess
import sys

import pytest
import torch
from torch import nn

import ntksap
from ntksap._base import machine
from ntksap.training import TrainState, load_recipe

FAULTS = """
import resource, torch
from ntksap._base import keep_memory
keep_memory()
for _ in range(12):  # until small pieces have found a place beside the large one
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_that_was_freed_is_taken_again_without_new_pages():
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1000, "of 3 × 16384 pages"


@pytest.fixture
def no_memory():
    machine.bfloat16_crashes.cache_clear()
    yield
    machine.bfloat16_crashes.cache_clear()


def test_a_torch_that_crashes_in_bfloat16_is_noticed_by_a_process_that_may(tmp_path, monkeypatch, no_memory):
    promises = tmp_path / "cpuinfo"
    promises.write_text("flags: fpu amx_tile")
    monkeypatch.setattr(machine, "Path", lambda name: promises)
    for does, crashes in (("kill -ILL $$", True), ("exit 1", False), ("exit 0", False)):
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\n{does}\n")
        python.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(python))
        machine.bfloat16_crashes.cache_clear()
        assert machine.bfloat16_crashes() is crashes
    promises.write_text("flags: fpu")
    python.unlink()  # nothing is tried
    machine.bfloat16_crashes.cache_clear()
    assert not machine.bfloat16_crashes()


def test_where_torch_would_crash_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(machine, "bfloat16_crashes", lambda: True)
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.raises(ntksap.InputError, match="ONEDNN_MAX_CPU_ISA"):
        ntksap.prune(model, 0.5, "synflow", input_shape=(4,), precision="bfloat16")
    with pytest.raises(ntksap.InputError, match="ONEDNN_MAX_CPU_ISA"):
        TrainState(model, load_recipe("quick", {"precision": "bf16"}))
    machine.check_bfloat16(torch.device("cuda"))
    assert ntksap.prune(model, 0.5, "synflow", input_shape=(4,)).kept == 9
