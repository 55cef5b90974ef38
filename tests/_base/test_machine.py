"""What a process of our own asks of the machine."""

import platform
import subprocess
import sys

import pytest

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
