"""Sweeps on real Ray clusters: separate processes, real kills."""

import json
import os
import shutil
import signal
import subprocess

import pytest

from ntksap._base.machine import cores
from ntksap.cli import main
from tests.runs.ray_nodes import LONG, Cluster, kill_node, node_of, until
from tests.runs.small_runs import outcome

pytestmark = pytest.mark.slow
COMPARE = ["compare", "--model", "lenet-300-100", "--no-channels-last", "--methods", "random,magnitude"]
COMPARE += ["--seeds", "0,1"]
RUNS = 6


@pytest.fixture
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'ntksap[ray]'")
    found = Cluster()
    try:
        yield found
    finally:
        found.end()


def compare(cluster, out, *arguments):
    return cluster.python("driver", "-m", "ntksap", *COMPARE, "--engine", "ray", "--out", str(out), *arguments)


def at_work(out, node):
    """A run that a process of this node is at, with a checkpoint behind it: its folder, the process, its records."""
    for checkpoint in out.glob("runs/*/checkpoint.safetensors"):
        folder = checkpoint.parent
        owner = (folder / "owner").read_text() if (folder / "owner").exists() else ""
        if owner and node_of(owner).endswith(node) and not (folder / "result.json").exists():
            return folder, int(owner), (folder / "metrics.jsonl").read_text().splitlines()
    return None


def went_on(folder, records):
    """Whether a run kept its records (they hold times, so they are not made again) but for the last."""
    kept = (folder / "metrics.jsonl").read_text().splitlines()
    return len(kept) > len(records) and kept[: len(records) - 1] == records[:-1]


def test_a_killed_worker_and_a_killed_node_change_no_bit(cluster, tmp_path):
    cluster.start("head")
    cluster.start("second")
    out, epochs = tmp_path / "ray", ["--epochs", "150"]
    process = compare(cluster, out, *epochs, "--address", cluster.address, "--json")

    first, worker, first_records = until("a run on the second node", lambda: at_work(out, "second"), process)
    os.kill(worker, signal.SIGKILL)
    until("the killed worker is gone", lambda: not node_of(worker), process)
    second, _, second_records = until("another run on that node", lambda: at_work(out, "second"), process)
    kill_node(f"{cluster.name}-second")

    printed, messages = process.communicate(timeout=LONG)
    assert process.returncode == 0, messages
    assert "Traceback" not in messages
    found = json.loads(printed)
    assert len(found["results"]) == RUNS
    assert found["failed"] == []
    assert went_on(first, first_records)
    assert went_on(second, second_records)

    local = tmp_path / "local"
    assert main([*COMPARE, *epochs, "--out", str(local), "--jobs", str(cores())]) == 0
    folders = sorted((local / "runs").iterdir())
    assert [folder.name for folder in folders] == sorted(folder.name for folder in (out / "runs").iterdir())
    for folder in folders:
        assert outcome(out / "runs" / folder.name) == outcome(folder)


def test_ray_on_this_machine_ends_with_its_command_which_goes_on_later(cluster, tmp_path):
    arguments = ["--epochs", "60"]
    process = compare(cluster, tmp_path, *arguments)
    until("a run at work", lambda: at_work(tmp_path, "driver"), process)
    process.kill()
    process.communicate()
    until("its workers are gone", lambda: not at_work(tmp_path, "driver"))

    process = compare(cluster, tmp_path, *arguments)
    seen = {}

    def news():
        """A run at work that has gone on for some epochs since it was first seen, so that the command knows of it."""
        found = at_work(tmp_path, "driver")
        return found if found and len(found[2]) > seen.setdefault(found[0], len(found[2])) + 5 else None

    folder, worker, records = until("news of a run", news, process)
    process.send_signal(signal.SIGINT)
    _, messages = process.communicate(timeout=LONG)
    assert process.returncode == 130
    assert "the same command resumes them" in messages
    assert "Traceback" not in messages
    until("the worker is gone", lambda: not node_of(worker))

    process = compare(cluster, tmp_path, *arguments, "--json")
    printed, messages = process.communicate(timeout=LONG)
    assert process.returncode == 0, messages
    assert len(json.loads(printed)["results"]) == RUNS
    assert went_on(folder, records)


def test_an_error_of_a_run_is_reported_and_not_tried_again(cluster, tmp_path):
    process = compare(cluster, tmp_path, "--data", "cifar10", "--data-dir", str(tmp_path / "nothing"), "--json")
    printed, messages = process.communicate(timeout=LONG)
    assert process.returncode == 1
    failed = json.loads(printed)["failed"]
    assert len(failed) == RUNS
    assert all("NTKSAP_DATA" in one["error"] for one in failed)
    assert f"{RUNS} of {RUNS} runs failed" in messages


def test_machines_that_share_only_a_store_bring_their_results_home(cluster, tmp_path):
    own_mount = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"']
    if not shutil.which("unshare") or subprocess.run([*own_mount, str(tmp_path), "true"]).returncode:
        pytest.skip("this system gives no mounts of our own, which make a folder that another node does not see")
    out = tmp_path / "out"
    out.mkdir()
    cluster.start("head", cpus=0)
    cluster.start("second", before=[*own_mount, str(out)])
    arguments = ["--epochs", "1", "--address", cluster.address, "--json"]
    process = compare(cluster, out, *arguments)
    printed, messages = process.communicate(timeout=LONG)
    assert process.returncode == 1
    assert len(json.loads(printed)["failed"]) == RUNS
    assert "one that all machines share, or give --store" in " ".join(messages.split())

    process = compare(cluster, out, *arguments, "--store", f"file://{tmp_path}/store")
    printed, messages = process.communicate(timeout=LONG)
    assert process.returncode == 0, messages
    assert len(json.loads(printed)["results"]) == RUNS
    assert len(list(out.glob("runs/*/result.json"))) == RUNS
    assert len(list(out.glob("runs/*/masks.safetensors"))) == 4
    assert not list(out.glob("runs/*/checkpoint.safetensors"))
