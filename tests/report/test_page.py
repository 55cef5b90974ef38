import json
import re

import pytest
import tomli_w

from ntksap._base import sealed, toml, unsealed
from ntksap._base.errors import InputError, StorageError
from ntksap.pruning.masks import Masks
from ntksap.report.figures import COLOURS
from ntksap.report.page import build_report
from tests.report.pages import Page, section, texts


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
    drawn = with_spectra.chart("Spectrum of")["data"]
    assert [(trace["meta"], trace["x"], trace["y"]) for trace in drawn] == [
        ("snip at 90 %", [1, 2], [2.0, 0.5]),
        ("dense", [1, 2], [4.0, 2.0]),
    ]
    assert "0.4321" in section(with_spectra.source, "spectra")


def test_nothing_comes_from_outside(page):
    assert not re.search(r"""(?:src|href|action|srcset)\s*=\s*["']?\s*(?:https?:)?//""", page.own)
    assert re.findall(r"https?://[^\s\"'<)]+", page.own) == []
    assert "@import" not in page.own
    assert "url(" not in page.own
    # the library knows addresses; the browser lets it ask for none of them, nor run what is not in the page
    policy = next(own["content"] for tag, own in page.tags if tag == "meta" and "http-equiv" in own)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-\S+' 'sha256-\S+'", rules["script-src"])
    assert rules["img-src"] == "data: blob:"
    assert set(rules) == {"default-src", "style-src", "script-src", "img-src"}
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
    said = texts(page.chart("Test accuracy against sparsity"))
    assert len(set(said)) == 5
    for (method, sparsity), value in mean.items():
        assert any(text.startswith(f"{method} at {100 * sparsity:g} %: {value:.2f} ±") for text in said)
    table = section(page.source, "table")
    values = sorted(float(value) for value in re.findall(r'data-value="([^"]+)"', table))
    assert values == pytest.approx(sorted(mean.values()))
    for sparsity in (0.5, 0.9):
        ranked = sorted(mean[method, sparsity] for method in ("synflow", "random"))
        assert re.search(rf'class="second">{ranked[0]:.2f} ±', table)
        assert re.search(rf'class="best">{ranked[1]:.2f} ±', table)


def test_the_accuracy_chart_has_lines_error_bars_the_dense_line_and_the_methods_colours(page, real_runs):
    chart = page.chart("Test accuracy against sparsity")
    lines = {trace["name"]: trace for trace in chart["data"] if trace["showlegend"]}
    assert {name: trace["line"]["color"] for name, trace in lines.items()} == {
        "synflow": COLOURS["synflow"], "random": COLOURS["random"], "dense": "ink",
    }  # fmt: skip
    top1 = [r["top1"] for r in results_of(real_runs) if (r["method"], r["sparsity"]) == ("random", 0.5)]
    assert lines["random"]["error_y"]["array"][0] == pytest.approx(100 * abs(top1[0] - top1[1]) / 2**0.5)
    assert lines["dense"]["line"]["dash"] == "dash"
    assert chart["layout"]["xaxis"]["ticktext"] == ["50 %", "90 %"]
    assert chart["layout"]["yaxis"]["title"]["text"] == "test accuracy (%)"


def test_accuracy_is_also_drawn_against_multiply_adds_and_weights(page, real_runs):
    found = results_of(real_runs)
    for label, key in (("multiply-adds", "inference_flops"), ("weights", "kept")):
        chart = page.chart(f"Test accuracy against {label}")
        random = next(trace for trace in chart["data"] if trace["name"] == "random")
        for x, sparsity in zip(random["x"], (0.5, 0.9), strict=True):
            values = [r[key] for r in found if (r["method"], r["sparsity"]) == ("random", sparsity)]
            assert x == pytest.approx(sum(values) / 2)
        assert chart["data"][-1]["name"] == "Pareto front"


def test_the_page_says_how_many_test_images_stand_behind_a_number(page):
    assert "360 test images: one image more or less is 0.28 points." in page.text
    assert "Each is a share of 360 test images: one image is 0.28 points." in page.text


def test_heat_maps_show_the_densities_of_the_masks(page, real_runs):
    shown = [text for row in page.chart("Layer densities at 90 % sparsity")["data"][0]["customdata"] for text in row]
    folders = list(real_runs.glob("runs/*synflow-90.00-seed*"))
    both = [Masks.load(folder / "masks.safetensors").layers() for folder in folders]
    for layers in zip(*both, strict=True):
        density = sum(layer["kept"] / layer["total"] for layer in layers) / 2
        assert f"synflow, {layers[0]['name']}: {100 * density:.3g} % kept" in shown
    assert any(text.startswith("magnitude, ") for text in shown)  # pruned, though its training was interrupted


def test_every_run_with_an_epoch_has_its_learning_curves(page):
    accuracy = page.chart("Test accuracy by epoch, 90 % sparsity")
    names = [trace["meta"] for trace in accuracy["data"]]
    expected = [f"{method} at 90 %, seed {seed}" for method in ("random", "synflow") for seed in (0, 1)]
    assert sorted(names) == sorted([*expected, "magnitude at 90 %, seed 0", "dense, seed 0", "dense, seed 1"])
    loss = page.chart("Training loss by epoch, 90 % sparsity")
    assert {len(trace["x"]) for trace in loss["data"]} == {1, 2}
    learning = [chart for name, chart in page.charts.items() if "by epoch" in name]
    assert len(learning) == 4
    assert all(len(trace["x"]) == len(trace["y"]) for chart in learning for trace in chart["data"])


def test_tables_can_be_had_as_latex_and_csv(page):
    files = {own["data-file"]: own["data-text"] for tag, own in page.tags if tag == "button" and "data-file" in own}
    assert set(files) == {
        f"{name}-lenet-300-100-on-digits-2-epochs.{kind}"
        for name in ("Test-accuracy-of", "Time-and-multiply-adds-of")
        for kind in ("tex", "csv")
    }
    latex = files["Test-accuracy-of-lenet-300-100-on-digits-2-epochs.tex"]
    assert latex.count(r"\textbf{") == 2
    assert latex.splitlines()[1] == r"\begin{tabular}{lrr}"
    header, *rows = files["Test-accuracy-of-lenet-300-100-on-digits-2-epochs.csv"].splitlines()
    assert header.startswith("method,sparsity,mean,std,seeds,")
    assert len(rows) == 5


def test_the_list_of_runs_and_long_tables_fold(page, sample):
    runs = section(page.source, "runs")
    assert runs.index('<details class="long"><summary>12 runs</summary>') < runs.index('<details class="run">')
    assert '<details class="long">' not in section(page.source, "cost")
    settings = next(sample.glob("runs/*synflow-90.00-seed0*"))
    for seed in range(20):
        folder = sample / "runs" / f"more-{seed}"
        folder.mkdir()
        result = unsealed(json.loads((settings / "result.json").read_text()))
        (folder / "result.json").write_text(json.dumps(sealed({**result, "method": f"mine-{seed}"})))
        about = unsealed(toml.loads((settings / "settings.toml").read_text()))
        (folder / "settings.toml").write_text(tomli_w.dumps(sealed({**about, "method": f"mine-{seed}"})))
    assert '<details class="long">' in section(Page(build_report(sample)).source, "cost")


def test_the_whole_page_is_far_below_five_megabytes(page):
    assert len(page.source.encode()) < 2_000_000


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
    assert page.chart("Test accuracy by epoch, dense")["data"]
    assert page.chart("Test accuracy against sparsity")["data"]


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
