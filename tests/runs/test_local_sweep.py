import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import ntksap
from ntksap._base import cores
from ntksap.cli import main
from ntksap.report.rows import to_csv
from ntksap.report.table import cells, formatted, ranks
from ntksap.runs.folder import read_result
from ntksap.runs.local_sweep import sweep
from tests.runs.small_runs import small_settings

COMPARE = ["compare", "--model", "lenet-300-100", "--epochs", "1", "--no-channels-last", "--jobs", "2"]


def make_result(method, sparsity, seed, top1, sanity="none"):
    return {
        "method": method, "sparsity": sparsity, "seed": seed, "sanity": sanity, "top1": top1, "train_accuracy": 0.5,
        "inference_flops": 100.0, "prune_seconds": 1.0, "train_seconds": 2.0, "collapsed": [],
    }  # fmt: skip


def test_cells_are_means_and_sample_deviations_over_seeds():
    results = [make_result("snip", 0.9, seed, top1) for seed, top1 in enumerate((0.70, 0.74, 0.72))]
    results += [make_result("dense", 0.0, 0, 0.9), make_result("grasp", 0.9, 0, 0.8), make_result("snip", 0.5, 0, 0.85)]
    results += [make_result("snip", 0.9, 0, 0.71, sanity="shuffle")]
    table = cells(results)
    assert [(c.method, c.sparsity) for c in table] == [
        ("snip", 0.5), ("snip", 0.9), ("dense", 0.0), ("grasp", 0.9), ("snip (shuffle)", 0.9),
    ]  # fmt: skip
    assert table[1].mean == pytest.approx(72)
    assert table[1].std == pytest.approx(2)
    assert formatted(table[1]) == "72.00 ± 2.00"
    assert formatted(table[2]) == "90.00"
    assert ranks(table) == {("snip", 0.5): 1, ("grasp", 0.9): 1, ("snip", 0.9): 2, ("snip (shuffle)", 0.9): 3}
    rows = list(csv.DictReader(to_csv(table).splitlines()))
    assert [row["method"] for row in rows] == [c.method for c in table]
    assert float(rows[1]["mean"]) == pytest.approx(72)


def test_one_run_that_fails_and_one_whose_process_dies_do_not_stop_the_others(tmp_path):
    good = [small_settings(method, epochs=1) for method in ("random", "magnitude")]
    failing = small_settings(epochs=1, data="cifar10")
    victim = small_settings(epochs=500)
    events = sweep([victim, failing, *good], tmp_path, ntksap.runs.folder.Place(data_dir=tmp_path), jobs=2)
    outcome = {}
    for event in events:
        outcome[event.settings.name] = event
        if event.settings == victim and event.kind == "progress" and event.progress.stage == "train":
            os.kill(int((tmp_path / victim.name / "owner").read_text()), signal.SIGKILL)
    assert outcome[victim.name].kind == "failed"
    assert "SIGKILL" in outcome[victim.name].error
    assert outcome[failing.name].kind == "failed"
    assert "NTKSAP_DATA" in outcome[failing.name].error
    assert [outcome[settings.name].kind for settings in good] == ["finished", "finished"]

    again = {event.settings.name: event.kind for event in sweep([*good, good[0]], tmp_path)}
    assert again == {settings.name: "skipped" for settings in good}


def test_a_run_has_no_more_threads_than_the_program_that_asks_for_it(tmp_path):
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            *_, last = sweep([small_settings(epochs=1, seed=threads)], tmp_path)
            assert last.result["threads"] == min(threads, cores())
    finally:
        torch.set_num_threads(before)


def test_compare(tmp_path, capsys):
    arguments = [*COMPARE, "--methods", "random,synflow", "--sparsities", "0.5,0.9", "--seeds", "0,1"]
    arguments += ["--sanity", "shuffle", "--out", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert len(outcome["results"]) == 2 + 2 * 2 * 2 * 2
    labels = list(dict.fromkeys(cell["method"] for cell in outcome["table"]))
    assert labels == ["dense", "random", "random (shuffle)", "synflow", "synflow (shuffle)"]
    assert all(cell["seeds"] == 2 for cell in outcome["table"])
    assert outcome["failed"] == []
    assert {path.name for path in tmp_path.iterdir()} == {
        "runs",
        "table.csv",
        "results.json",
        "accuracy.png",
        "accuracy.svg",
        "report.html",
    }
    assert (tmp_path / "accuracy.png").read_bytes().startswith(b"\x89PNG")
    assert "synflow" in (tmp_path / "accuracy.svg").read_text()

    start = time.perf_counter()
    assert main(arguments) == 0  # everything is finished: only tables are made
    assert time.perf_counter() - start < 60
    printed = capsys.readouterr().out
    assert "dense" in printed
    assert "±" in printed
    assert str(tmp_path / "accuracy.png") in printed


def test_compare_lists_failures_and_says_so_by_its_status(tmp_path, capsys):
    arguments = [*COMPARE, "--data", "cifar10", "--data-dir", str(tmp_path / "no"), "--methods", "random"]
    assert main([*arguments, "--out", str(tmp_path / "out"), "--json"]) == 1
    printed = capsys.readouterr()
    failed = json.loads(printed.out)["failed"]
    assert len(failed) == 2
    assert all("NTKSAP_DATA" in one["error"] for one in failed)
    assert "2 of 2 runs failed" in printed.err


def test_bad_lists_and_settings_fail_at_once(tmp_path, capsys):
    for change, message in [
        (["--sparsities", "high"], "numbers separated by commas"),
        (["--seeds", ","], "empty"),
        (["--methods", "snp"], "Did you mean 'snip'"),
        (["--sanity", "scramble"], "unknown sanity check"),
        (["--recipe", "quik"], "Did you mean 'quick'"),
        (["--jobs", "0"], "at least 1"),
        (["--lr", "-1"], "positive"),
    ]:
        assert main([*COMPARE, "--out", str(tmp_path / "out"), *change]) == 1
        assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


def test_train_prints_its_result_and_goes_on(tmp_path, capsys):
    arguments = ["train", "--model", "lenet-300-100", "--method", "synflow", "--rounds", "3", "--epochs", "1"]
    arguments += ["--no-channels-last", "--out", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["recipe"]["epochs"] == 1
    assert first["recipe"]["channels_last"] is False
    assert first["rounds"] == 3
    assert read_result(tmp_path / first["name"]) == first
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "already finished" in printed.err
    assert f"{first['top1']:.2%}" in printed.out


def test_ctrl_c_stops_a_sweep_and_leaves_no_process(tmp_path):
    arguments = [*COMPARE, "--epochs", "500", "--methods", "random", "--out", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "ntksap", *arguments], stderr=subprocess.PIPE, text=True)
    begun: list[Path] = []
    while len(begun) < 2:
        begun = list(tmp_path.glob("runs/*/metrics.jsonl"))
        time.sleep(0.1)
    owners = [int((path.parent / "owner").read_text()) for path in begun]
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command resumes them" in message
    assert "Traceback" not in message
    for pid in owners:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_workers_die_with_a_sweep_that_is_killed(tmp_path):
    arguments = [*COMPARE, "--epochs", "500", "--methods", "random", "--out", str(tmp_path)]
    process = subprocess.Popen([sys.executable, "-m", "ntksap", *arguments], stderr=subprocess.DEVNULL)
    while len(list(tmp_path.glob("runs/*/metrics.jsonl"))) < 2:
        time.sleep(0.1)
    owners = [int(path.read_text()) for path in tmp_path.glob("runs/*/owner")]
    process.kill()
    process.wait()
    for _ in range(100):
        alive = [pid for pid in owners if Path(f"/proc/{pid}").exists()]
        if not alive:
            break
        time.sleep(0.1)
    assert not alive
