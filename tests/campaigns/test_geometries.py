"""A thousand and more random geometries of every kernel, in a process of its own: it may end before pytest would."""

import os
import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ntksap.net.kernels import library

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0"),
]

EACH = 250
"""Of each of the five kinds."""


@pytest.mark.parametrize("vectors", ["this machine's", "256 bits"])
def test_every_kernel_agrees_with_float64_on_random_geometries(vectors, tmp_path, tell):
    # Threads that wait without spinning, as two of them on a busy machine would.
    environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "XDG_CACHE_HOME": str(tmp_path)}
    first = 0
    if vectors != "this machine's":
        if platform.machine() not in ("x86_64", "AMD64"):
            pytest.skip("no choice of vectors here")
        compiler = tmp_path / "cc"
        compiler.write_text('#!/bin/sh\nexec cc "$@" -mno-avx512f\n')
        compiler.chmod(0o755)
        environment |= {"CC": str(compiler), "ONEDNN_MAX_CPU_ISA": "AVX2"}
        first = 10000
    command = [sys.executable, "-m", "tests.campaigns.geometries", str(EACH), str(first)]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-2000:]}"
    assert f"{5 * EACH} geometries, 0 differences" in done.stdout
    tell(Counter({"geometries of kernels against float64": 5 * EACH}))
