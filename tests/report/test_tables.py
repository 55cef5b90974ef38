import csv
import shutil
import subprocess

import pytest

from ntksap.report.differences import differences
from ntksap.report.experiments import experiments
from ntksap.report.run_files import Spectrum
from ntksap.report.tables import LONG, accuracy_table, cost_table, difference_table, measured_table, spectra_table
from tests.report.finished_runs import seeds, timed


@pytest.fixture
def one():
    runs = [
        *seeds("snip", 0.9, 0.80, 0.84),
        *seeds("grasp", 0.9, 0.7),
        *seeds("a_b & 50 % {c} \\ ~^#$", 0.5, 0.6),
        *seeds("dense", 0.0, 0.9),
    ]
    (found,) = experiments(runs)
    return found


def test_the_accuracy_table_as_latex(one):
    assert accuracy_table(one).latex.splitlines() == [
        r"% needs \usepackage{booktabs}",
        r"\begin{tabular}{lrr}",
        r"\toprule",
        r"method & 50 \% & 90 \% \\",
        r"\midrule",
        r"snip & -- & \textbf{82.00 $\pm$ 2.83} \\",
        r"grasp & -- & \underline{70.00} \\",
        r"a\_b \& 50 \% \{c\} \textbackslash{} \textasciitilde{}\textasciicircum{}\#\$ & \textbf{60.00} & -- \\",
        r"\midrule",
        r"\multicolumn{3}{l}{The dense network, at 0 \% sparsity: 90.00} \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs pdflatex")
def test_latex_takes_it(one, tmp_path):
    text = r"\documentclass{article}\usepackage{booktabs}\begin{document}" + accuracy_table(one).latex
    (tmp_path / "x.tex").write_text(text + r"\end{document}")
    subprocess.run(["pdflatex", "-halt-on-error", "x.tex"], cwd=tmp_path, check=True, capture_output=True)


def test_the_accuracy_table_as_csv_has_all_that_is_known(one):
    rows = {(row["method"], row["sparsity"]): row for row in csv.DictReader(accuracy_table(one).csv.splitlines())}
    assert len(rows) == 4
    assert float(rows["snip", "0.9"]["mean"]) == pytest.approx(82)
    assert float(rows["snip", "0.9"]["std"]) == pytest.approx(8**0.5)
    assert rows["snip", "0.9"]["seeds"] == "2"
    assert rows["dense", "0.0"]["inference_flops"] == "10.0"


def test_other_tables_as_csv_hold_numbers_in_full(one):
    rows = list(csv.DictReader(cost_table(one).csv.splitlines()))
    assert [row["method"] for row in rows] == [cell.method for cell in one.table]
    assert float(rows[1]["share of dense"]) == 0.1
    spectra = spectra_table("x", [Spectrum("snip", 0.9, (1 / 3, 0.1), None), Spectrum("force", 0.9, (), 0.25)])
    first, second = csv.DictReader(spectra.csv.splitlines())
    assert float(first["largest eigenvalue"]) == 1 / 3
    assert first["distance to dense"] == second["largest eigenvalue"] == "–"


def test_what_was_measured_has_a_table_of_its_own(one):
    assert measured_table(one) is None
    runs = [*seeds("dense", 0.0, 0.9, timings=timed(1.0)), *seeds("thin", 0.75, 0.8, timings=timed(0.25))]
    (found,) = experiments([*runs, *seeds("snip", 0.75, 0.8)])
    rows = list(csv.reader(measured_table(found).csv.splitlines()))
    assert rows[2] == ["thin", "0.75", "250.0", "4.0", "250.0", "4.0", "250.0", "4.0", "250.0"]
    assert rows[3][2:] == ["–"] * 7


def test_the_table_of_differences_begins_with_the_closest():
    runs = [
        *seeds("snip", 0.9, 0.8, 0.81, 0.82),
        *seeds("grasp", 0.9, 0.5, 0.5, 0.5),
        *seeds("force", 0.9, 0.7, 0.8, 0.7),
    ]
    (found,) = experiments(runs)
    table = difference_table(found, list(differences(found.table).values()))
    assert [name for name, _ in table.rows] == ["force", "grasp"]
    assert [entry.text for entry in table.rows[1][1]] == ["90 %", "snip", "31.00", "28.52 to 33.48", "3", "yes"]
    assert table.rows[0][1][-1].text == "no"


def test_long_tables_fold():
    def rows(count):
        return cost_table(experiments([run for k in range(count) for run in seeds(f"m{k}", 0.9, 0.5)])[0])

    assert not rows(LONG).long
    assert rows(LONG + 1).long
