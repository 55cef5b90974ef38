import json
import re

import pytest

from ntksap._base.errors import InputError, StorageError
from ntksap.pruning.masks import Masks
from ntksap.report.figures import COLOURS
from ntksap.report.page import build_report
from tests.report.pages import SVG, Page, section, titles


@pytest.fixture(scope="module")
def page(real_runs, tmp_path_factory):
    return Page(build_report(real_runs, tmp_path_factory.mktemp("out") / "page.html"))


def results_of(root):
    return [json.loads(path.read_text()) for path in sorted(root.glob("runs/*/result.json"))]


def test_sections_come_in_order_and_spectra_only_if_there_are_any(page, sample):
    order = ["summary", "accuracy", "table", "densities", "learning", "cost", "runs"]
    assert re.findall(r'<section id="(\w+)">', page.source) == order
    spectra = [{"method": "dense", "sparsity": 0.0, "eigenvalues": [4.0, 2.0, 1e-30], "distance": 0.0}]
    spectra += [{"method": "snip", "sparsity": 0.9, "eigenvalues": [2.0, 0.5, -1e-9], "distance": 0.4321}]
    (sample / "kernel").mkdir()
    (sample / "kernel" / "spectrum.json").write_text(json.dumps({"spectra": spectra}))
    with_spectra = Page(build_report(sample))
    order.insert(5, "spectra")
    assert re.findall(r'<section id="(\w+)">', with_spectra.source) == order
    assert titles(with_spectra.drawing("Spectrum of")) == [
        "snip at 90 %: eigenvalue 0.5 at index 2",
        "dense: eigenvalue 2 at index 2",
    ]
    assert "0.4321" in section(with_spectra.source, "spectra")


def test_nothing_comes_from_outside(page):
    assert not re.search(r"""(?:src|href|action|srcset)\s*=\s*["']?\s*(?:https?:)?//""", page.source)
    assert set(re.findall(r"https?://[^\s\"'<)]+", page.source)) == {"http://www.w3.org/2000/svg"}
    assert "@import" not in page.source
    assert "url(" not in page.source
    assert {attributes.get("href", "#")[0] for tag, attributes in page.tags if tag == "a"} == {"#"}
    assert not [tag for tag, _ in page.tags if tag in ("link", "img", "iframe", "object", "embed", "base")]


def test_the_same_folder_gives_the_same_bytes(sample):
    first = build_report(sample).read_bytes()
    assert build_report(sample).read_bytes() == first
    assert not list(sample.glob(".part-*"))


def test_accuracies_in_figure_and_table_are_those_of_the_runs(page, real_runs):
    mean = {}
    for method, sparsity in (("synflow", 0.5), ("synflow", 0.9), ("random", 0.5), ("random", 0.9)):
        top1 = [r["top1"] for r in results_of(real_runs) if (r["method"], r["sparsity"]) == (method, sparsity)]
        assert len(top1) == 2
        mean[method, sparsity] = 50 * sum(top1)
    texts = titles(page.drawing("Test accuracy against sparsity"))
    assert len(texts) == 5
    for (method, sparsity), value in mean.items():
        assert any(text.startswith(f"{method} at {100 * sparsity:g} %: {value:.2f} ±") for text in texts)
    table = section(page.source, "table")
    values = sorted(float(value) for value in re.findall(r'data-value="([^"]+)"', table))
    assert values == pytest.approx(sorted(mean.values()))
    for sparsity in (0.5, 0.9):
        ranked = sorted(mean[method, sparsity] for method in ("synflow", "random"))
        assert re.search(rf'class="second">{ranked[0]:.2f} ±', table)
        assert re.search(rf'class="best">{ranked[1]:.2f} ±', table)


def test_the_accuracy_figure_has_lines_bands_the_dense_line_and_the_methods_colours(page):
    svg = page.drawing("Test accuracy against sparsity")
    strokes = {line.get("stroke") for line in svg.iter(f"{SVG}polyline")}
    assert strokes == {COLOURS["synflow"], COLOURS["random"]}
    assert len([p for p in svg.iter(f"{SVG}polygon") if p.get("fill-opacity")]) == 2
    dense = [line for line in svg.iter(f"{SVG}line") if "ink-line" in line.get("class", "")]
    assert all(line.get("stroke-dasharray") for line in dense)
    words = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"50 %", "90 %", "test accuracy (%)", "synflow", "random", "dense"} <= set(words)


def test_heat_maps_show_the_densities_of_the_masks(page, real_runs):
    shown = titles(page.drawing("Layer densities at 90 % sparsity"))
    folders = list(real_runs.glob("runs/*synflow-90.00-seed*"))
    both = [Masks.load(folder / "masks.safetensors").layers() for folder in folders]
    for layers in zip(*both, strict=True):
        density = sum(layer["kept"] / layer["total"] for layer in layers) / 2
        assert f"synflow, {layers[0]['name']}: {100 * density:.3g} % kept" in shown
    assert any(text.startswith("magnitude, ") for text in shown)  # pruned, though its training was interrupted


def test_every_run_with_an_epoch_has_its_learning_curves(page):
    accuracy = page.drawing("Test accuracy by epoch, 90 % sparsity")
    names = [text.split(":")[0] for text in titles(accuracy)]
    expected = [f"{method} at 90 %, seed {seed}" for method in ("random", "synflow") for seed in (0, 1)]
    assert sorted(names) == sorted([*expected, "magnitude at 90 %, seed 0", "dense, seed 0", "dense, seed 1"])
    loss = page.drawing("Training loss by epoch, 90 % sparsity")
    points = {len(line.get("points").split()) for line in loss.iter(f"{SVG}polyline")}
    assert points == {1, 2}
    data = [json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page.source)]
    assert len(data) == 4
    assert all(len(curve["x"]) == len(curve["y"]) for chart in data for curve in chart["curves"])


def test_time_and_cost(page, real_runs):
    rows = re.findall(r"<tr>.*?</tr>", section(page.source, "cost").split("<tbody>")[1], re.DOTALL)
    assert len(rows) == 5
    flops = [r["inference_flops"] for r in results_of(real_runs) if (r["method"], r["sparsity"]) == ("random", 0.9)]
    dense = results_of(real_runs)[0]["dense_flops"]
    row = next(row for row in rows if "random" in row and "90 %" in row)
    assert f"{sum(flops) / 2:,.0f}" in row
    assert f"{50 * sum(flops) / dense:.1f} %" in row
    assert "100.0 %" in next(row for row in rows if "dense" in row)


def test_each_run_shows_its_settings_and_state(page, real_runs):
    assert page.count("details", class_="run") == 12
    for path in real_runs.glob("runs/*/settings.toml"):
        assert path.parent.name in page.text
    assert page.text.count('torch = "') == 12
    assert "finished, " not in page.text.split("Settings and versions")[1].replace("unfinished, ", "")
    assert "unfinished, epoch 1 of 2" in page.text
    assert "failed, not pruned yet" in page.text
    assert re.search(r"DataError: cifar10 .*NTKSAP_DATA", page.text)
    assert "12 runs: 10 finished, 1 failed, 1 unfinished." in page.text


def test_no_finished_run_is_no_obstacle(sample):
    for path in sample.glob("runs/*/result.json"):
        path.unlink()
    page = Page(build_report(sample))
    assert "no run of this experiment is finished" in page.text
    assert re.findall(r'<section id="(\w+)">', page.source) == ["summary", "densities", "learning", "runs"]


def test_only_dense_runs(sample):
    for path in sample.glob("runs/*/settings.toml"):
        if "dense" not in path.parent.name:
            path.unlink()
    page = Page(build_report(sample))
    assert "the dense network reaches" in page.text
    assert page.drawing("Test accuracy by epoch, dense") is not None
    assert page.drawing("Test accuracy against sparsity") is not None


def test_a_single_run_folder_is_a_folder_of_runs(sample):
    folder = next(sample.glob("runs/*synflow-50.00-seed0*"))
    page = Page(build_report(folder))
    assert "1 run: 1 finished." in page.text
    assert folder.name in page.text


def test_folders_without_runs_say_what_is_expected(tmp_path):
    with pytest.raises(InputError, match=r"settings\.toml"):
        build_report(tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        build_report(tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_an_error(sample):
    with pytest.raises(StorageError):
        build_report(sample, sample / "no" / "such" / "report.html")
