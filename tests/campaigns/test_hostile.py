"""Files that someone made on purpose: masks, checkpoints, stores, recipes, plans and settings that say absurd things.

Each is handed to the command (or function) that reads such a file. It may succeed or stop with a sentence; it must not
crash, show a traceback, run what the file names, write outside its folder or take much memory.
"""

import json
import os
import sys
from collections import Counter

import pytest
import torch
from safetensors.torch import save, save_file

from ntksap import Masks, models
from ntksap._base import NtksapError, peak_memory_mib
from ntksap._base.seals import sealed
from ntksap.cli import main
from ntksap.report import build_report
from ntksap.runs import Store, run
from ntksap.runs.folder import read_result
from ntksap.runs.settings import read_settings
from ntksap.training import TrainState, load_recipe
from tests.runs.small_runs import small_settings

pytestmark = pytest.mark.slow

DEEP = "[" * 100_000
NUMBERS = [-1, 0, 1, 3, 2**31, 2**63, 2**64, 10**30, -(10**30), 1.5, float("nan"), float("inf"), -0.0, 1e308]
VALUES = [
    *NUMBERS,
    None,
    True,
    "",
    "x" * 5000,
    "trap:spring",
    "../../../x",
    "\x1b[31m\0",
    "$\\bad{$",
    [],
    [[]],
    {},
    {"a": {}},
]
TRAP = "open('sprung', 'w').close()\ndef spring(*args):\n    open('sprung', 'w').close()\n"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder deep enough to climb out of, with a trap that leaves a trace when it is imported or called."""
    inner = tmp_path / "a" / "b" / "c"
    inner.mkdir(parents=True)
    (inner / "trap.py").write_text(TRAP)
    monkeypatch.chdir(inner)
    monkeypatch.syspath_prepend(str(inner))
    before = peak_memory_mib()
    yield inner
    sys.modules.pop("trap", None)
    assert not list(tmp_path.rglob("sprung"))
    assert os.listdir(tmp_path) == ["a"]
    assert os.listdir(tmp_path / "a") == ["b"]
    assert os.listdir(tmp_path / "a" / "b") == ["c"]
    assert peak_memory_mib() < before + 1000


class Tally:
    """Counts files, and how what reads them ended: in a sentence, which is returned as True, or harmlessly.

    Any other exception than ours would end the test.
    """

    def __init__(self, capsys) -> None:
        self.capsys = capsys
        self.counts: Counter[str] = Counter({"hostile files": 0, "sentences": 0, "harmless": 0})

    def command(self, *arguments: object) -> bool:
        self.counts["hostile files"] += 1
        status = main([str(argument) for argument in arguments])
        printed = self.capsys.readouterr()
        assert status in (0, 1)
        assert "Traceback" not in printed.err + printed.out
        assert "\x1b[31m\0" not in printed.err + printed.out
        assert status == 0 or "error:" in printed.err
        self.counts["sentences" if status else "harmless"] += 1
        return status != 0

    def call(self, function, *arguments: object) -> bool:
        self.counts["hostile files"] += 1
        try:
            function(*arguments)
        except NtksapError as error:
            assert str(error)  # noqa: PT017
            self.counts["sentences"] += 1
            return True
        self.counts["harmless"] += 1
        return False


@pytest.fixture
def tally(capsys, tell):
    made = Tally(capsys)
    yield made
    tell(made.counts)


def some_masks(**info: object) -> Masks:
    module = models.build("lenet-300-100", input_shape=(1, 8, 8))
    masks = {name: p.detach() > 0 for name, p in module.named_parameters() if p.dim() > 1}
    return Masks(masks, {"model": "lenet-300-100", "input_shape": [1, 8, 8], "classes": 10, "seed": 0, **info})


def test_mask_files(place, tally):
    path = place / "masks.safetensors"
    for key in ("model", "input_shape", "classes", "seed"):
        for value in VALUES:
            some_masks(**{key: value}).save(path)
            tally.command("diagnose", path, "--no-kernel")
    bits = torch.zeros(3, dtype=torch.uint8)
    for header in ("", "[]", "{}", "null", DEEP, '{"masks": 3}', json.dumps(sealed({"masks": {"w": [[2**62], ""]}}))):
        for key in ("ntksap-masks-2", "format"):
            path.write_bytes(save({"masks/w": bits}, {key: header}))
            assert tally.command("diagnose", path)
            assert tally.command("cost", "--model", "lenet-300-100", "--masks", path)
    for masks in ({}, {"w": torch.zeros(0, dtype=torch.bool)}, {"": torch.ones(2, dtype=torch.bool)}):
        Masks(masks).save(path)
        assert tally.command("diagnose", path)
        tally.command("cost", "--model", "lenet-300-100", "--masks", path)
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")  # a header of exabytes
    assert tally.command("diagnose", path)


def test_checkpoints(place, tally):
    recipe = load_recipe("quick", {"epochs": 2, "channels_last": False})
    state = TrainState(models.build("lenet-300-100", input_shape=(1, 8, 8)), recipe)
    state.save(place / "checkpoint")
    from ntksap.training import checkpoint

    tensors, facts = checkpoint._read(place / "checkpoint")
    path = place / "hostile"

    def write(tensors: dict[str, torch.Tensor], facts: object) -> None:
        header = {"facts": facts, "sha256": checkpoint._hash(tensors, facts)}
        save_file(tensors, path, {checkpoint._FORMAT: json.dumps(header)})

    for value in VALUES:
        for key in ("epoch", "identity"):
            write(tensors, {**facts, key: value})
            tally.call(state.load, path)
        write(tensors, value)
        assert tally.call(state.load, path)
    first = next(iter(tensors))
    for name, tensor in (
        ("optimizer", torch.zeros(3)),
        ("optimizer.momentum_buffer", torch.zeros(3)),
        ("optimizer.momentum_buffer.nowhere", torch.zeros(3)),
        (first.replace("model.", "optimizer.momentum_buffer."), torch.zeros(3)),
        (first.replace("model.", "optimizer.."), torch.zeros(1, 1)),
        (first, torch.zeros(2)),
        ("model.more", torch.zeros(2)),
        ("", torch.zeros(2)),
    ):
        write({**tensors, name: tensor}, facts)
        assert tally.call(state.load, path)
    for header in ("", "[]", "{}", "3", DEEP):
        save_file(tensors, path, {checkpoint._FORMAT: header})
        assert tally.call(state.load, path)
    state.load(place / "checkpoint")  # it has survived all that
    state.save(path)
    assert path.read_bytes() == (place / "checkpoint").read_bytes()


def test_stores_and_results(place, tally):
    settings = small_settings("magnitude", epochs=1)
    run(settings, place / "runs")
    result = read_result(place / "runs" / settings.name)
    store = Store(f"file://{place}/store")
    store.check()
    for number, value in enumerate(VALUES):
        for key in ("name", "top1", "mask_sha256", "recipe", "layers", "collapsed"):
            store.publish(place / "runs" / settings.name)
            path = place / "store" / settings.name / "result.json"
            path.write_text(json.dumps(sealed({**result, key: value})))
            tally.call(store.fetch, settings.name, place / "fetched" / f"{number}-{key}")
            folder = place / "read" / f"{number}-{key}" / settings.name
            folder.mkdir(parents=True)
            (folder / "result.json").write_bytes(path.read_bytes())
            (folder / "settings.toml").write_bytes((place / "runs" / settings.name / "settings.toml").read_bytes())
            tally.call(build_report, folder)
    for content in ("[]", "{}", "null", "3", DEEP, '{"sha256": "x"}'):
        path.write_text(content)
        assert tally.call(store.fetch, settings.name, place / "more")
    (place / "store" / settings.name / "result.json").unlink()
    (place / "store" / settings.name / "result.json").mkdir()
    assert tally.call(store.fetch, settings.name, place / "more")


def toml_of(value: object) -> str:
    if isinstance(value, float):
        return {"inf": "inf", "nan": "nan"}.get(repr(value), repr(value))
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {toml_of(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml_of, value))}]"
    return json.dumps(value)


def test_recipes(place, tally):
    path = place / "recipe.toml"
    plain = {"epochs": 1, "batch": 500, "lr": 0.1}
    keys = ["batch", "lr", "optimizer", "momentum", "weight_decay", "schedule", "drops", "drop_factor", "warmup"]
    train = ["train", "--model", "lenet-300-100", "--method", "dense", "--epochs", "1", "--recipe", path]
    count = 0
    for key in keys:
        for value in [*(one for one in VALUES if one is not None), [1, 1], [-5], [2**64], ["x"]]:
            path.write_text("".join(f"{name} = {toml_of(one)}\n" for name, one in {**plain, key: value}.items()))
            tally.call(load_recipe, path)
            if isinstance(value, int | float) and not isinstance(value, bool):
                count += 1
                tally.command(*train, "--out", place / f"runs{count}")
    many = "drop_factor = 1e9\ndrops = [" + ", ".join(map(str, range(1, 100))) + "]\n"
    for text in (many, "x = 1\n", "epochs = 0x" + "F" * 5000, "epochs = " + "9" * 5000, "lr = " + DEEP, "\0", "=", ""):
        path.write_text("epochs = 1\nbatch = 9\nlr = 0.1\n" + text if text == many else text)
        assert tally.command(*train, "--out", place / "runs")
    path.write_bytes(b"\xff\xfe")
    assert tally.command(*train, "--out", place / "runs")


PLAN = {"title": "t", "where": "table 1", "kind": "inference-flops"}
PANEL = {
    "name": "p",
    "model": "lenet-300-100",
    "data": "digits",
    "input_shape": [1, 8, 8],
    "classes": 10,
    "images": 100,
    "recipe": "quick",
    "steps": [2],
    "seeds": [0],
    "rows": [{"method": "random"}],
    "reported": {"random": [1.0]},
}


def test_plans(place, tally):
    path = place / "plan.toml"

    def attempt(plan: dict, panel: dict) -> None:
        path.write_text("".join(f"{k} = {toml_of(v)}\n" for k, v in {**plan, "panels": [panel]}.items()))
        tally.command("reproduce", path, "--jobs", "1", "--out", place / "out")

    values = [value for value in VALUES if value is not None]
    wrong = [*values, [-1], [2**64], ["x"], [[1]], [0, 0, 0], [10**6, 8, 8]]
    quick = {**PANEL, "rows": []}  # nothing to prune, so that only what is wrong costs time
    for key in (*PLAN, "claims", "note", "quick"):
        for value in values:
            attempt({**PLAN, key: value}, PANEL if key == "title" else quick)
    for key in (*PANEL, "unit", "inputs", "epochs", "columns", "samples_per_class", "reported_std"):
        for value in wrong:
            attempt(PLAN, {**quick, key: value})
    for key in ("method", "label", "rounds", "schedule", "options", "times"):
        for value in values:
            attempt(PLAN, {**PANEL, "rows": [{"method": "random", "label": "row", key: value}]})
    for kind in (
        "accuracy",
        "pruning-flops",
        "total-flops",
        "pruning-time",
        "spectrum",
        "spectrum-during",
        "overview",
        "recipes",
    ):
        for lacking in PANEL:
            attempt({**PLAN, "kind": kind}, {key: value for key, value in quick.items() if key != lacking})
    path.write_text("panels = " + DEEP)
    assert tally.command("reproduce", path, "--out", place / "out")


def test_settings(place, tally):
    run(small_settings("magnitude", epochs=1), place / "runs")
    (source,) = (place / "runs").glob("*/settings.toml")
    lines = source.read_text().splitlines()
    path = place / "hostile" / "settings.toml"
    path.parent.mkdir()
    (path.parent / "epoch-0001.safetensors").write_text("")
    for index, line in enumerate(lines):
        if " = " not in line or line.startswith("sha256"):
            continue
        for value in VALUES[::3]:
            text = [f"{line.split(' = ')[0]} = {toml_of(value)}" if i == index else one for i, one in enumerate(lines)]
            path.write_text("\n".join(one for one in text if not one.startswith("sha256")))
            tally.call(read_settings, path)
            tally.call(build_report, path.parent)
            assert tally.command("spectrum", "--during", path.parent)  # its checkpoint is empty
