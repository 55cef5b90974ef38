"""Damaged files cost their run and nothing else; hostile names are only names."""

import json
import re

import pytest

from ntksap._base.seals import unsealed
from ntksap.report.page import build_report
from ntksap.report.reading import read_folder
from tests.report.pages import Page, section

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</script><script>alert(2)</script>",
    "a\x1b[31m'&amp;",
]
VICTIM = "synflow-90.00-seed0"

DAMAGES = {
    "settings.toml": [b"", b"method = ", b"\xff\xfe", b"model = 3\n", b'sparsity = "high"\n'],
    "metrics.jsonl": [b'{"epoch": 1, "top1": 0.5, "train_loss": 1.0}\n{"epo', b"[]\n", b'{"epoch": 1}\n', b"\xff"],
    "masks.safetensors": [b"", b"xx", b"\x08\0\0\0\0\0\0\0{}      "],
    "result.json": [b"", b"{", b"[]", b"{}", b'{"top1": NaN}', b'{"top1": 1e400}', b"[" * 100_000],
}


def unsealed_text(text: str) -> str:
    """Settings without their hash, as they were written before there were hashes."""
    return re.sub(r"(?m)^sha256 = .*\n", "", text)


@pytest.mark.parametrize(("name", "content"), [(name, content) for name, all_ in DAMAGES.items() for content in all_])
def test_a_damaged_file_is_listed_and_breaks_nothing(sample, name, content):
    folder = next(sample.glob(f"runs/*{VICTIM}*"))
    (folder / name).write_bytes(content)
    page = Page(build_report(sample))
    listed = section(page.source, "runs").split("Files that could not be read")[1].split("<h3>")[0]
    assert folder.name in listed
    assert name in listed
    assert str(sample) not in page.source
    assert len(page.charts) == 3 + 2 + 4
    run = next(run for run in read_folder(sample).runs if folder.name in run.name)
    assert run.status == ("damaged" if name == "result.json" else "finished")


def test_a_run_without_settings_and_result_is_damaged(sample):
    folder = next(sample.glob(f"runs/*{VICTIM}*"))
    (folder / "settings.toml").write_bytes(b"\xff")
    (folder / "result.json").unlink()
    page = Page(build_report(sample))
    assert "9 finished, 1 failed, 1 unfinished, 1 damaged" in page.text
    assert "settings.toml could not be read" in page.text


def test_settings_come_from_the_result_when_their_file_is_damaged(sample):
    whole = read_folder(sample).runs
    folder = next(sample.glob(f"runs/*{VICTIM}*"))
    (folder / "settings.toml").write_bytes(b"\0")
    for before, after in zip(whole, read_folder(sample).runs, strict=True):
        assert before.settings == after.settings


def test_a_metrics_file_counts_up_to_its_first_bad_line(sample):
    path = next(sample.glob(f"runs/*{VICTIM}*")) / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0] + '\n{"epoch": 2, "top1": "high", "train_loss": 1}\n')
    run = next(run for run in read_folder(sample).runs if VICTIM in run.name)
    assert len(run.records) == 1
    (problem,) = run.problems
    assert problem.startswith("metrics.jsonl: line 2 is not a record of an epoch ('top1' is missing")


@pytest.mark.parametrize("content", ["{", '{"spectra": 3}', '{"spectra": [{"method": "snip"}]}', '{"spectra": [7]}'])
def test_a_damaged_spectrum_is_listed(sample, content):
    (sample / "spectrum.json").write_text(content)
    page = Page(build_report(sample))
    assert "spectrum.json: " in section(page.source, "runs")
    assert 'id="spectra"' not in page.source


def test_a_damaged_error_file_still_is_a_failure(sample):
    path = next(sample.glob("runs/*/error.json"))
    path.write_text("{")
    run = next(run for run in read_folder(sample).runs if path.parent.name in run.name)
    assert run.status == "failed"
    assert run.problems


@pytest.mark.parametrize("name", HOSTILE)
def test_names_are_only_names(sample, name):
    plain = Page(build_report(sample))
    folder = next(sample.glob(f"runs/*{VICTIM}*"))
    for path in sample.glob("runs/*/settings.toml"):
        path.write_text(unsealed_text(path.read_text()).replace('"lenet-300-100"', json.dumps(name)))
    settings = folder / "settings.toml"
    settings.write_text(settings.read_text().replace('method = "synflow"', f"method = {json.dumps(name)}"))
    error = next(sample.glob("runs/*/error.json"))
    error.write_text(json.dumps({"type": name, "error": f"\ud800{name}"}))
    result = unsealed(json.loads((folder / "result.json").read_text()))
    result["layers"][0]["name"] = name
    result["layers"][1]["kept"] = 0
    result["layers"][1]["name"] = f"{name}.weight"
    (folder / "result.json").write_text(json.dumps(result))
    spectrum = {"method": name, "sparsity": 0.9, "eigenvalues": [2.0, 1.0], "distance": 0.1}
    (sample / "spectrum.json").write_text(json.dumps({"spectra": [spectrum]}))

    page = Page(build_report(sample))
    assert f"left nothing of {name}" in "".join(page.texts)
    assert f"{name}: ?{name}" in "".join(page.texts)
    assert page.count("img") == 0
    assert not [attributes for _, attributes in page.tags if any(key.startswith("on") for key in attributes)]
    assert [a for tag, a in page.tags if tag == "script" and a.get("type") != "application/json"] == [{}, {}]
    assert len(page.charts) == len(re.findall(r'<script type="application/json">', page.source))
    for text in re.findall(r'<script type="application/json">(.*?)</script>', page.source):
        assert "<" not in text
    assert len(page.charts) > len(plain.charts)
    (spectrum,) = page.chart("Spectrum of")["data"]
    clean = name.replace("\x1b", "\N{REPLACEMENT CHARACTER}").replace("&", "&amp;").replace("<", "&lt;")
    assert spectrum["meta"] == f"{clean} at 90 %"  # Plotly would take tags for markup
    assert "<" not in spectrum["name"]
