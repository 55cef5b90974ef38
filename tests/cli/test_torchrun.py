"""The commands under a real ``torchrun``: the same masks, a killed process, going on with another number of them."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.processes.jobs import environment, free_port

PRUNE = [
    "prune",
    "--model",
    "resnet8",
    "--input-shape",
    "3",
    "8",
    "8",
    "--rounds",
    "2",
    "--batch",
    "4",
    "--sparsity",
    "0.9",
]
TRAIN = ["train", "--data", "digits", "--model", "lenet-300-100", "--method", "magnitude", "--no-channels-last"]


def torchrun(processes, *arguments):
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port",
        str(free_port()), "-m", "ntksap", *arguments,
    ]  # fmt: skip


def finish(command):
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.slow
def test_prune_gives_the_same_mask_under_torchrun(tmp_path):
    alone = finish([sys.executable, "-m", "ntksap", *PRUNE, "--json"])
    both = finish(torchrun(2, *PRUNE, "--json", "--out", str(tmp_path / "out")))
    assert both.returncode == 0, both.stderr
    one, two = json.loads(alone.stdout), json.loads(both.stdout)  # one process speaks: else this is no JSON
    assert two["mask_sha256"] == one["mask_sha256"]
    assert (two["processes"], one["processes"]) == (2, 1)
    assert (tmp_path / "out" / "masks.safetensors").exists()


@pytest.mark.slow
def test_an_error_is_one_clear_message_and_a_failed_job():
    failed = finish(torchrun(2, "prune", "--model", "resnet8", "--method", "snip"))
    assert failed.returncode != 0
    assert "needs labelled data" in failed.stderr
    assert 'Traceback (most recent call last):\n  File "' not in failed.stderr.split("torch/distributed")[0]


@pytest.mark.slow
def test_a_killed_process_ends_the_job_and_the_same_command_goes_on_with_another_number(tmp_path):
    command = [*TRAIN, "--epochs", "40", "--out", str(tmp_path), "--json"]
    job = subprocess.Popen(torchrun(2, *command), env=environment(), stderr=subprocess.PIPE, text=True)
    checkpoint = wait_for(tmp_path, "*/checkpoint.safetensors")
    os.kill(child(job.pid, rank=1), signal.SIGKILL)
    start = time.monotonic()
    _, stderr = job.communicate(timeout=120)
    assert job.returncode != 0
    assert time.monotonic() - start < 60
    assert "resumes from the last checkpoint" in plain(stderr) or "SIGKILL" in stderr
    assert checkpoint.exists()
    assert not list(tmp_path.glob("*/result.json"))
    again = finish([sys.executable, "-m", "ntksap", *command])
    assert again.returncode == 0, again.stderr
    result = json.loads(again.stdout)
    assert result["top1"] > 0.8
    epochs = [json.loads(line)["epoch"] for line in (checkpoint.parent / "metrics.jsonl").read_text().splitlines()]
    assert epochs == list(range(1, 41))


def wait_for(folder: Path, pattern: str) -> Path:
    for _ in range(1200):
        if found := list(folder.glob(pattern)):
            return found[0]
        time.sleep(0.1)
    raise TimeoutError(pattern)


def child(parent: int, rank: int) -> int:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            status, env = (path / "status").read_text(), (path / "environ").read_bytes()
        except OSError:
            continue
        if re.search(rf"^PPid:\s+{parent}$", status, re.MULTILINE) and f"\0RANK={rank}\0".encode() in env:
            return int(path.name)
    raise LookupError(f"no process of rank {rank}")


def plain(text: str) -> str:
    return " ".join(text.split())
