"""The command as users run it: real processes, real files."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ntksap
from ntksap.analysis.kernel_change import kernel_change
from ntksap.cli import COMMANDS, main
from ntksap.cli.options import choose_methods
from ntksap.methods import METHODS
from ntksap.net.kernels import library

TINY = ["--model", "lenet-300-100", "--method", "synflow", "--rounds", "3", "--sparsity", "0.9"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ntksap", *arguments], capture_output=True, text=True, cwd=cwd)


def failure(capsys, *arguments: str) -> str:
    """The message of a command that must fail with status 1 and print nothing on stdout."""
    assert main(arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    return " ".join(printed.err.split())


def test_prune_json(tmp_path):
    done = run("prune", *TINY, "--seed", "3", "--out", str(tmp_path / "runs" / "first"), "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["method"] == "synflow"
    assert result["model"] == "lenet-300-100"
    assert result["sparsity"] == 0.9
    assert result["kept"] == round(0.1 * result["total"]) == sum(layer["kept"] for layer in result["layers"])
    assert result["density"] == result["kept"] / result["total"]
    assert 0 < result["inference_flops"] < result["dense_flops"]
    assert result["prune_seconds"] > 0
    assert result["peak_memory_mib"] > 10
    assert result["collapsed"] == []
    assert result["layers"][0].keys() == {"name", "shape", "kept", "total"}
    assert [layer["total"] for layer in result["layers"]] == [235200, 30000, 1000]
    masks = ntksap.Masks.load(tmp_path / "runs" / "first" / "masks.safetensors")
    assert masks.sha256 == result["mask_sha256"]
    assert masks.info == result["info"]
    assert masks.info | {"seconds": 0.0} == {
        "method": "synflow",
        "model": "lenet-300-100",
        "seed": 3,
        "sparsity": 0.9,
        "input_shape": [1, 28, 28],
        "classes": None,
        "precision": "float32",
        "round": 3,
        "rounds": 3,
        "seconds": 0.0,
    }
    assert json.loads((tmp_path / "runs" / "first" / "prune.json").read_text()) == result
    assert os.listdir(tmp_path / "runs") == ["first"]

    model = ntksap.models.build("lenet-300-100", seed=3)
    assert ntksap.prune(model, 0.9, "synflow", rounds=3, input_shape=(1, 28, 28), seed=3) == masks


def test_prune_prints_the_table(capsys):
    assert main(["prune", *TINY]) == 0
    printed = capsys.readouterr().out
    assert "300×784" in printed
    assert "multiply-adds" in printed


def test_method_options(capsys):
    arguments = ["prune", "--model", "lenet-300-100", "--method", "ntk-sap", "--rounds", "1", "--json"]
    hashes = []
    for options in ([], ["--draws", "1"], ["--draws", "1", "--tangent", "True"], ["--draws", "1", "--epsilon", "0.1"]):
        assert main([*arguments, *options, "--batch", "4"]) == 0
        result = json.loads(capsys.readouterr().out)
        hashes.append(result["mask_sha256"])
    assert len(set(hashes)) == 4
    assert result["options"].items() >= {"draws": 1, "epsilon": 0.1, "batch": 4, "tangent": False}.items()
    assert "has no option 'draws'" in failure(capsys, "prune", *TINY, "--draws", "2")


def test_methods(capsys):
    assert main(["methods"]) == 0
    table = capsys.readouterr().out
    assert main(["methods", "--json"]) == 0
    methods = {m["name"]: m for m in json.loads(capsys.readouterr().out)["methods"]}
    assert all(name in table for name in methods)
    overview = {
        name: (m["weight_agnostic"], m["data_free"], m["iterative"]) for name, m in methods.items()
    }  # the paper's table
    assert overview["snip"] == overview["grasp"] == (False, False, False)
    assert overview["force"] == overview["iterative-snip"] == (False, False, True)
    assert overview["synflow"] == (False, True, True)
    assert overview["ntk-sap"] == (True, True, True)
    assert (methods["ntk-sap"]["rounds"], methods["ntk-sap-s"]["rounds"], methods["synflow"]["rounds"]) == (20, 4, 100)
    assert methods["ntk-sap"]["options"]["epsilon"]["default"] == 1e-4
    assert (methods["ntt"]["data"], methods["ntt"]["labels"]) == ("training set", False)
    assert [name for name, m in methods.items() if m["returns_weights"]] == ["ntt", "imp"]
    assert [name for name, m in methods.items() if m["allocation"]] == [
        "ntk-sap-analytic",
        "random-erk",
        "random-erk-logits",
        "magnitude-erk",
        "dpai",
    ]


def test_seeds_that_are_no_numbers_get_an_example_of_seeds(capsys):
    said = failure(capsys, "compare", "--seeds", "0,x")
    assert "--seeds takes whole numbers separated by commas, such as 0,1,2, not '0,x'" in said
    assert "such as 0.9,0.98" in failure(capsys, "compare", "--sparsities", "x")


@pytest.mark.parametrize("option", ["--regrow", "--places", "--kernel"])
def test_the_choices_of_an_option_are_those_that_it_has(capsys, option):
    with pytest.raises(SystemExit):
        main(["compare", option, "rigel"])
    said = capsys.readouterr().err
    assert "invalid choice 'rigel'" in said
    assert "None" not in said


def test_degree_decay_is_in_the_masks(capsys):
    assert main(["prune", *TINY, "--degree-decay", "0.2", "--json", "--quiet"]) == 0
    result = json.loads(capsys.readouterr().out)
    model = ntksap.models.build("lenet-300-100", seed=0)
    masks = ntksap.prune(model, 0.9, "synflow", rounds=3, degree_decay=0.2, input_shape=(1, 28, 28))
    assert result["info"]["degree_decay"] == 0.2
    assert result["mask_sha256"] == masks.sha256


def test_a_method_that_trains_needs_a_recipe_and_all_leaves_it_out(capsys):
    said = failure(capsys, "prune", "--model", "lenet-300-100", "--data", "digits", "--method", "imp", "--quiet")
    assert "use `ntksap train` or `ntksap compare`" in said
    assert set(METHODS) - set(choose_methods("all")) == {"imp"}


def test_a_method_that_returns_weights_says_so_and_saves_them(capsys, tmp_path):
    arguments = ["prune", "--model", "lenet-300-100", "--data", "digits", "--method", "ntt", "--rounds", "1"]
    arguments += ["--epoch-steps", "1", "--kernel", "projected", "--projections", "2"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "kernel: projected 2 times" in printed
    assert "kernel distance before: 0." in printed
    assert "see Masks.load_weights" in printed
    masks = ntksap.Masks.load(tmp_path / "run" / "masks.safetensors")
    masks.load_weights(ntksap.models.build("lenet-300-100", num_classes=10, input_shape=(1, 8, 8)))
    assert masks.info["steps"] == 1


def test_scores_that_are_only_approximate_are_said_to_be(capsys):
    assert (
        main(
            [
                "prune",
                "--model",
                "tests.cli.test_cli:bent",
                "--input-shape",
                "4",
                "--method",
                "synflow",
                "--rounds",
                "2",
            ]
        )
        == 0
    )
    assert "because of GELU" in " ".join(capsys.readouterr().err.split())


def bent() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 40), torch.nn.GELU(), torch.nn.Linear(40, 40))


def test_cost(capsys, tmp_path):
    assert main(["cost", "--model", "lenet-300-100", "--json"]) == 0
    dense = json.loads(capsys.readouterr().out)
    assert dense["inference_flops"] == dense["dense_flops"] == 266_610
    assert main(["prune", *TINY, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    arguments = ["cost", "--model", "lenet-300-100", "--masks", str(tmp_path / "run" / "masks.safetensors")]
    assert main([*arguments, "--json"]) == 0
    sparse = json.loads(capsys.readouterr().out)
    assert sparse["inference_flops"] == 410 + round(0.1 * 266_200)
    assert main(arguments) == 0
    assert "266,610" in capsys.readouterr().out


def test_diagnose(capsys, tmp_path):
    arguments = ["prune", "--model", "lenet-300-100", "--classes", "7", "--method", "random", "--sparsity", "0.99"]
    assert main([*arguments, "--seed", "3", "--out", str(tmp_path / "run")]) == 0
    assert "lie on no path" in capsys.readouterr().out
    masks, picture = str(tmp_path / "run" / "masks.safetensors"), str(tmp_path / "picture.png")
    assert main(["diagnose", masks, "--picture", picture, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"] == "lenet-300-100"
    assert found["effective_sparsity"] > found["sparsity"] == pytest.approx(0.99, abs=1e-5)
    assert Path(picture).read_bytes().startswith(b"\x89PNG")
    model = ntksap.models.build("lenet-300-100", num_classes=7, seed=3)
    change = kernel_change(model, ntksap.Masks.load(masks), input_shape=(1, 28, 28), seed=3)
    assert found["seed"] == 3
    assert found["kernel"]["inputs"] == 10
    assert found["kernel"]["distance"] == change.distance > 0.5
    assert found["kernel"]["eigenvalues"] == change.pruned.eigenvalues.tolist()
    assert main(["diagnose", masks]) == 0
    printed = capsys.readouterr().out
    assert "live channels" in printed
    assert "neural tangent kernel" in printed
    assert main(["diagnose", masks, "--no-kernel", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] is None
    assert main(["diagnose", masks, "--seed", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"]["distance"] != change.distance
    assert "another model" in failure(capsys, "diagnose", masks, "--model", "lenet-5")


def test_diagnose_sets_several_masks_beside_each_other(capsys, tmp_path):
    files = []
    for method, sparsity in (("random", "0.9"), ("magnitude", "0.9"), ("magnitude", "0.98")):
        out = tmp_path / f"{method}-{sparsity}"
        arguments = ["--model", "lenet-300-100", "--method", method, "--sparsity", sparsity, "--out", str(out)]
        assert main(["prune", *arguments]) == 0
        files.append(str(out / "masks.safetensors"))
    capsys.readouterr()
    plot = tmp_path / "nodes.svg"
    assert main(["diagnose", *files, "--plot", str(plot), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["masks"]
    assert [one["masks"] for one in found] == files
    assert [round(one["sparsity"], 3) for one in found] == [0.9, 0.9, 0.98]
    assert found[1]["log10_paths"] > found[2]["log10_paths"] > 0
    assert found[2]["units"][0] < found[2]["units"][1] == 410
    assert {one["kernel"] for one in found} == {None}
    assert plot.read_text().startswith("<?xml")
    assert main(["diagnose", *files]) == 0
    printed = capsys.readouterr().out
    assert "log₁₀ paths" in printed
    assert all(sparsity in printed for sparsity in ("90.00%", "98.00%"))
    assert "magnitude" in printed
    assert "--plot compares several" in failure(capsys, "diagnose", *files, "--picture", str(plot))
    assert "at least one mask file" in failure(capsys, "diagnose")


def test_a_model_of_ones_own(capsys, tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n\ndef make():\n    return nn.Sequential(nn.Linear(5, 9), nn.ReLU(), nn.Linear(9, 2))\n"
        "number = 3\ndef wrong():\n    return 3\n"
    )
    arguments = ["prune", "--model", "mine:make", "--method", "magnitude", "--sparsity", "0.5", "--json"]
    done = run(*arguments, "--input-shape", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["total"] == 63
    monkeypatch.chdir(tmp_path)
    assert "--input-shape" in failure(capsys, "prune", "--model", "mine:make")
    for model, message in [
        ("mine:nothing", "no attribute 'nothing'"),
        ("nowhere:make", "No module named 'nowhere'"),
        ("mine:number", "not a function or class"),
        ("mine:wrong", "not an nn.Module"),
    ]:
        assert message in failure(capsys, "prune", "--model", model, "--input-shape", "5")


def test_bad_input(capsys, tmp_path):
    assert "0 ≤ sparsity < 1" in failure(capsys, "prune", *TINY, "--sparsity", "1.0")
    assert "Did you mean 'synflow'" in failure(capsys, "prune", "--method", "synflo")
    assert "Did you mean 'resnet20'" in failure(capsys, "prune", "--model", "resnet-20")
    assert "labelled data" in failure(capsys, "prune", *TINY, "--method", "snip")
    assert "C H W" in failure(capsys, "prune", *TINY, "--input-shape", "3", "4")
    existing = tmp_path / "run"
    existing.mkdir()
    assert "already exists" in failure(capsys, "prune", *TINY, "--out", str(existing))
    assert os.listdir(tmp_path) == ["run"]
    assert not os.listdir(existing)

    file = tmp_path / "masks.safetensors"
    assert "no such file" in failure(capsys, "cost", "--masks", str(file))
    file.write_bytes(b"x" * 40)
    assert "not a mask file" in failure(capsys, "cost", "--masks", str(file))
    ntksap.Masks({"conv.weight": torch.ones(3, dtype=torch.bool)}).save(file)
    assert "another model" in failure(capsys, "cost", "--masks", str(file))


def test_collapse_warns_and_strict_fails(capsys, tmp_path):
    arguments = ["prune", "--model", "lenet-300-100", "--method", "random", "--sparsity", "0.99999"]
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    collapsed = json.loads(printed.out)["collapsed"]
    assert collapsed
    assert all(name in printed.err for name in collapsed)
    message = failure(capsys, *arguments, "--strict", "--out", str(tmp_path / "run"))
    assert all(name in message for name in collapsed)
    assert not os.listdir(tmp_path)


def test_unknown_options_are_errors():
    done = run("prune", "--sparsty", "0.5")
    assert done.returncode == 2
    assert "--sparsity" in done.stderr


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], []])
def test_the_front_door_lists_the_commands_without_waiting_for_torch(arguments):
    code = f"import sys; from ntksap.cli import main; main({arguments}); print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert all(name in done.stdout for name in ("methods", "prune", "train", "compare", "reproduce", "--json"))
    assert done.stderr.strip() == "False"


def test_version_and_unknown_commands(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"ntksap {ntksap.__version__}\n"
    assert main(["prnue"]) == 2
    assert "Did you mean 'prune'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "command", [["methods"], ["prune"], ["train"], ["compare"], ["diagnose"], ["cost"], ["spectrum"], ["report"]]
)
def test_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        main([*command, "--help"])
    assert stop.value.code == 0
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_breaks_no_line_early(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    early, above = [], ""
    for line in capsys.readouterr().out.splitlines():
        column = len(line) - len(line.lstrip())  # where descriptions begin, if this line continues one
        if line.strip() and column > 10 and above.strip() and not above[column - 2 : column].strip():
            early += [above] if len(f"{above.rstrip()} {line.split()[0]}") < len(line) - 1 else []
        above = line
    assert not early


def test_ctrl_c_ends_cleanly(tmp_path):
    (tmp_path / "mine.py").write_text("import torch\ndef make():\n    return torch.nn.Linear(2000, 2000)\n")
    arguments = ["prune", "--model", "mine:make", "--input-shape", "2000", "--rounds", "1000", "--out", "out/run"]
    process = subprocess.Popen(
        [sys.executable, "-m", "ntksap", *arguments], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    while "round" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, message = process.communicate(timeout=60)
    # Python ends by the signal itself where it came inside exec("..."); a shell sees 130 in either case
    assert process.returncode in (130, -signal.SIGINT)
    assert "stopped" in message
    assert "Traceback" not in message
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(library() is None, reason="no C compiler here, or NTKSAP_NATIVE=0")
def test_a_run_goes_on_with_other_kernels_only_if_the_user_insists(tmp_path, capsys, monkeypatch):
    command = ["train", *TINY, "--epochs", "1", "--out", str(tmp_path), "--json"]
    assert main(command) == 0
    name = json.loads(capsys.readouterr().out)["name"]
    (tmp_path / name / "result.json").unlink()  # as if it had been stopped before
    monkeypatch.setattr("ntksap.net.kernels.compiler.library", lambda: None)
    assert "insist with --other-kernels" in failure(capsys, *command)
    assert main([*command, "--other-kernels"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["name"], result["versions"]["kernels"]) == (name, "ntksap and torch, then torch")


def test_allocate(capsys, tmp_path):
    arguments = ["allocate", "--model", "resnet8", "--sparsity", "0.9", "--rule", "ntk-sap", "--rounds", "3"]
    assert main([*arguments, "--json", "--out", str(tmp_path / "plan.json")]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rule"] == "ntk-sap"
    assert result["kept"] == sum(layer["kept"] for layer in result["layers"]) == round(0.1 * result["total"])
    assert json.loads((tmp_path / "plan.json").read_text()) == result
    path = tmp_path / "masks"
    assert main([*arguments[:5], "--block-floor", "0.05", "--masks", str(path), "--places", "balanced"]) == 0
    printed = capsys.readouterr().out
    assert "blocks.0.conv1.weight" in printed
    assert str(path) in printed.replace("\n", "")
    assert ntksap.Masks.load(path).kept == result["kept"]
    assert "Did you mean 'erk'" in failure(capsys, "allocate", "--rule", "erq")


def test_prune_inside_an_allocation_in_a_pattern(capsys):
    keep = ["--allocation", "erk", "--places", "balanced", "--pattern", "fan-in", "--rescale"]
    assert main(["prune", "--model", "lenet-300-100", "--method", "random", "--sparsity", "0.9", *keep, "--json"]) == 0
    info = json.loads(capsys.readouterr().out)["info"]
    assert (info["allocation"], info["places"], info["pattern"], info["rescale"]) == (
        "erk",
        "balanced",
        "fan-in",
        "layer",
    )
