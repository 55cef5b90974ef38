"""``--model hf:…`` and ``--model timm:…``: untrained models of others, without network."""

import json
import sys
from pathlib import Path

import pytest
import torch

from ntksap import InputError, Masks, models
from ntksap.cli import main

GPT2 = {
    "model_type": "gpt2",
    "architectures": ["GPT2LMHeadModel"],
    "vocab_size": 64,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 12,
}
VIT = {
    "model_type": "vit",
    "architectures": ["ViTForImageClassification"],
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 1,
}
BERT = {
    "model_type": "bert",
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}


def saved(folder: Path, config: dict, name: str = "config.json") -> str:
    (folder / name).write_text(json.dumps(config))
    return f"hf:{folder / name}"


def failure(model: str, **how) -> str:
    with pytest.raises(InputError) as raised:
        models.model_for(model, **how)
    return str(raised.value)


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="needs the extra `transformers`, which `make test-slow` installs")


@pytest.mark.slow
def test_a_language_model_is_built_from_its_configuration_by_the_seed(tmp_path, transformers):
    one, same, other = (models.model_for(saved(tmp_path, GPT2), seed=seed) for seed in (0, 0, 1))
    assert type(one.module) is transformers.GPT2LMHeadModel
    assert one.shape == (12,)
    weights = [built.module.transformer.h[0].attn.c_attn.weight for built in (one, same, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    drawn = one.inputs(500, torch.Generator().manual_seed(0))["input_ids"]
    assert drawn.shape == (500, 12)
    assert set(drawn.flatten().tolist()) == set(range(1, 64))  # 0 stands for padding here
    assert one.module(**one.inputs(2, torch.Generator())).logits.shape == (2, 12, 64)


@pytest.mark.slow
def test_the_class_comes_from_the_configuration_or_from_the_user(tmp_path, transformers):
    images = models.model_for(saved(tmp_path, VIT, "vit.json"), num_classes=7, input_shape=(3, 16, 16))
    assert type(images.module) is transformers.ViTForImageClassification
    assert images.module(torch.zeros(2, 3, 16, 16)).logits.shape == (2, 7)
    assert models.model_for(saved(tmp_path, VIT, "vit.json")).shape == (1, 8, 8)
    texts = models.model_for(saved(tmp_path, BERT) + ":BertForSequenceClassification", num_classes=3)
    assert texts.module(**texts.inputs(2, torch.Generator())).logits.shape == (2, 3)
    assert "names no architecture" in failure(saved(tmp_path, BERT))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ntksap.NotPrunableWarning")  # position tables are large in models this small
@pytest.mark.parametrize("config", [GPT2, VIT], ids=["tokens", "images"])
def test_commands_take_such_a_model(tmp_path, transformers, capsys, config):
    model = saved(tmp_path, config)
    out = tmp_path / "pruned"
    for method in ("ntk-sap", "ntk-sap-analytic", "synflow", "magnitude"):
        quick = ["--method", method, "--rounds", "1", "--sparsity", "0.5", "--floor", "1", "--quiet", "--json"]
        assert main(["prune", "--model", model, *quick, "--out", str(out / method)]) == 0
        kept = json.loads(capsys.readouterr().out)
        assert kept["kept"] == round(0.5 * kept["total"])
    file = str(out / "ntk-sap" / "masks.safetensors")
    assert main(["allocate", "--model", model, "--rule", "ntk-sap", "--rounds", "1", "--json"]) == 0
    assert main(["cost", "--model", model, "--masks", file]) == 0
    capsys.readouterr()
    assert main(["diagnose", file, "--model", model, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"]["distance"] > 0
    assert main(["diagnose", file]) == 1  # what a file names is not built, wherever it comes from
    assert "If it is your own, and you trust it, add --model" in " ".join(capsys.readouterr().err.split())
    assert Masks.load(file).info["model"] == model


@pytest.mark.slow
def test_what_cannot_be_built_is_a_sentence(tmp_path, transformers):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    names = (f"{number}.json" for number in range(9))
    for model, message in [
        (f"hf:{tmp_path}/none.json", "cannot be read as the configuration of a model"),
        (f"hf:{tmp_path}/broken.json", "cannot be read as the configuration of a model"),
        (f"hf:{tmp_path}/list.json", "holds no JSON object"),
        (saved(tmp_path, {"vocab_size": 3}, next(names)), "model_type 'None' is not one of"),
        (saved(tmp_path, {**GPT2, "model_type": "gpt-2"}, next(names)), "Did you mean 'gpt2'?"),
        (
            saved(tmp_path, {**GPT2, "architectures": ["GPT2ForChess"]}, next(names)),
            "no model class 'GPT2ForChess'",
        ),
        (saved(tmp_path, {**GPT2, "architectures": ["pipeline"]}, next(names)), "has no model class 'pipeline'"),
        (saved(tmp_path, {**GPT2, "n_head": 3}, next(names)), "cannot be built"),
        (saved(tmp_path, {**VIT, "patch_size": 0}, next(names)), "cannot be built"),
    ]:
        assert message in failure(model)
    assert "--input-shape is their number" in failure(saved(tmp_path, GPT2), input_shape=(3, 8, 8))


@pytest.mark.slow
def test_code_beside_a_configuration_is_not_touched(tmp_path, transformers):
    (tmp_path / "trap.py").write_text("from pathlib import Path\nPath('sprung').write_text('')\nclass Model: ...\n")
    mapped = {**GPT2, "auto_map": {"AutoModelForCausalLM": "trap.Model", "AutoConfig": "trap.Model"}}
    assert type(models.model_for(saved(tmp_path, mapped)).module) is transformers.GPT2LMHeadModel
    assert not list(tmp_path.rglob("sprung"))


FAKE = """
import torch
def is_model(name): return name == "tiny"
def list_models(): return ["tiny", "small"]
def create_model(name, pretrained, num_classes=10, in_chans=3):
    assert not pretrained
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(in_chans * 16, num_classes))
    module.default_cfg = {"input_size": (3, 4, 4)}
    return module
"""


@pytest.fixture
def no_timm(tmp_path, monkeypatch):
    """A folder on the path in which timm may be put; the real one, where it is, is not found."""
    monkeypatch.setitem(sys.modules, "timm", None)
    monkeypatch.delitem(sys.modules, "timm")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("timm", None)


def test_names_of_timm_are_looked_up_in_its_own_table(no_timm):
    """A stand-in for timm, whose torchvision cannot be imported beside the CPU build of torch: names and errors."""
    (no_timm / "timm.py").write_text(FAKE)
    built = models.model_for("timm:tiny", num_classes=5, input_shape=(1, 4, 4))
    assert built.module(torch.zeros(2, 1, 4, 4)).shape == (2, 5)
    assert models.model_for("timm:tiny").shape == (3, 4, 4)
    assert "Did you mean 'tiny'?" in failure("timm:tinny")
    assert "model 'hf-hub:someone/tiny' is not one of the 2 that timm has here" in failure("timm:hf-hub:someone/tiny")


def test_a_timm_that_cannot_be_imported_is_a_sentence(no_timm):
    (no_timm / "timm.py").write_text("raise RuntimeError('operator torchvision::nms does not exist')")
    assert "timm cannot be imported here (operator torchvision::nms does not exist)" in failure("timm:tiny")
    (no_timm / "timm.py").write_text("import a_package_that_is_not_there")
    assert "timm cannot be imported here (No module named" in failure("timm:tiny")


def test_packages_that_are_missing_are_named(monkeypatch, tmp_path):
    for name in ("timm", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "needs the package timm: pip install 'timm'" in failure("timm:tiny")
    assert "needs the package transformers: pip install 'ntksap[transformers]'" in failure(saved(tmp_path, GPT2))
