"""Threads that sleep while they wait if other programs want the cores."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ntksap._base.sharing import CROWDED, PERIOD, QUIET, REST, Sharing

SCHEDSTAT = pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this system does not count waiting")

WATCH = """
import sys, time, torch
from ntksap._base import share_cores
torch.set_num_threads(2)
sharing = share_cores()
assert share_cores() is sharing
deadline = time.monotonic() + 60
numbers = torch.zeros(2**18)
while not sharing.crowded and time.monotonic() < deadline:
    numbers.add_(1)
print("crowded" if sharing.crowded else "quiet")
"""


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_a_crowd_is_noticed_at_once_and_its_end_after_a_while(two_threads):
    sharing = Sharing()
    sharing.notice(CROWDED / 2, 0.0)
    assert not sharing.crowded
    sharing.notice(CROWDED + 0.1, 1.0)
    assert sharing.crowded
    for now in (1.0 + REST / 2, 1.0 + 0.9 * REST):
        sharing.notice(0.0, now)
        assert sharing.crowded
    sharing.notice(QUIET + 0.01, 1.0 + REST)  # disturbed once more
    sharing.notice(0.0, 1.1 + REST)
    assert sharing.crowded
    sharing.notice(0.0, 1.0 + 2 * REST)
    assert not sharing.crowded
    sharing.notice(1.0, 9.0)
    sharing.stop()
    assert not sharing.crowded


@pytest.mark.skipif(sys.platform != "linux", reason="only GNU's OpenMP has threads of which this is known")
@pytest.mark.skipif("OMP_NUM_THREADS" in os.environ, reason="it decides how large the team of a new thread is")
def test_a_team_without_work_exists_while_it_is_crowded(two_threads):
    def threads():
        return len(os.listdir("/proc/self/task"))

    torch.zeros(2**18).add_(1)  # the team of this thread
    before, sharing = threads(), Sharing()
    sharing.notice(1.0, 0.0)
    assert comes_true(lambda: threads() == before + 2)  # a thread, and the other one of its team
    sharing.notice(0.0, REST)
    assert comes_true(lambda: threads() == before)


def test_one_thread_waits_for_nobody():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        sharing = Sharing()
        sharing.notice(1.0, 0.0)
        assert not sharing.crowded
    finally:
        torch.set_num_threads(before)


@SCHEDSTAT
def test_busy_neighbours_are_noticed():
    neighbours = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count() or 1)]
    try:
        assert watch() == "crowded"
    finally:
        for process in neighbours:
            process.kill()
            process.wait()


@SCHEDSTAT
@pytest.mark.parametrize("setting", [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}])
def test_the_setting_of_a_user_wins(setting):
    found = watch(setting, "from ntksap._base import share_cores; print(share_cores())")
    assert found == "None"


def watch(setting=None, program=WATCH):
    others = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={**others, **(setting or {})}, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def comes_true(holds):
    deadline = time.monotonic() + 20
    while not holds() and time.monotonic() < deadline:
        time.sleep(PERIOD)
    return holds()
