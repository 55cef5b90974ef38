"""``ntksap cost --methods``: the paper's tables of multiply-adds."""

import csv
import json

import ntksap
from ntksap.analysis.budget import Budget
from ntksap.cli import main
from ntksap.cli.budgets import _marked, print_budgets
from ntksap.runs import BudgetRow


def failure(capsys, *arguments: str) -> str:
    assert main(arguments) == 1
    return " ".join(capsys.readouterr().err.split())


def test_cost_of_every_method(capsys, tmp_path):
    arguments = [
        "cost",
        "--model",
        "lenet-300-100",
        "--data",
        "digits",
        "--recipe",
        "quick",
        "--draws",
        "1",
        "--batch",
        "4",
    ]
    plan = ["--methods", "random,snip,force,ntk-sap-s", "--sparsities", "0.5,0.9"]
    assert main([*arguments, *plan, "--out", str(tmp_path / "cost"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "cost" / "cost.json").read_text()) == result
    rows = {(row["method"], row["sparsity"]): row for row in result["rows"]}
    assert len(rows) == 1 + 4 * 2
    seen = result["epochs"] * 1437  # images in training
    dense = rows["dense", 0.0]
    model = ntksap.models.build("lenet-300-100", input_shape=(1, 8, 8))
    assert dense["inference_flops"] == ntksap.cost(model, input_shape=(1, 8, 8)).dense
    masks = ntksap.prune(model, 0.9, "ntk-sap-s", input_shape=(1, 8, 8), draws=1, batch=4)
    found = rows["ntk-sap-s", 0.9]
    assert found["inference_flops"] == ntksap.cost(model, masks, input_shape=(1, 8, 8)).sparse
    assert found["paper_training_flops"] == 3 * seen * found["inference_flops"]
    assert found["paper_total_flops"] == found["paper_training_flops"] + 6 * 2000 * 20 * dense["inference_flops"]
    assert rows["force", 0.5]["paper_total_flops"] is None
    for row in rows.values():
        assert row["evaluated_training_flops"] == dense["evaluated_training_flops"]
    snip, force = rows["snip", 0.9]["evaluated_pruning_flops"], rows["force", 0.9]["evaluated_pruning_flops"]
    assert force == 100 * snip > 0 == rows["random", 0.5]["evaluated_pruning_flops"]
    with open(tmp_path / "cost" / "cost.csv") as file:
        lines = list(csv.DictReader(file))
    texts = [{key: "" if value is None else str(value) for key, value in row.items()} for row in result["rows"]]
    assert lines == texts


def test_the_cost_tables_mark_the_smallest_and_the_largest(capsys):
    def row(method: str, inference: int, pruning: int | None) -> BudgetRow:
        paper = None if pruning is None else Budget(inference, pruning, 30 * inference)
        return BudgetRow(method, 0.9, inference, paper, Budget(1, 5, 7))

    dense = BudgetRow("dense", 0.0, 41_288_330, Budget(41_288_330, 0, 30 * 41_288_330), Budget(1, 0, 7))
    print_budgets(
        [dense, row("snip", 3_770_000, 10**12), row("force", 2_000_000, None), row("mine", 31_900_000, 0)], "no"
    )
    printed = capsys.readouterr().out
    tables = [part.splitlines() for part in printed.split("\n\n")[:3]]
    pruning, inference, total = ({line.split()[0]: line.split()[1:] for line in table} for table in tables)
    assert pruning["snip"] == ["1.00×10¹²", "5.00×10⁰", "1.20×10¹"]
    assert pruning["force"][0] == total["force"][0] == "–"
    assert (inference["dense"], inference["snip"], inference["mine"]) == (["41.3"], ["3.77"], ["31.9"])
    assert total["snip"] == ["1,000"]
    marked = _marked(1, [1, 2, 3, None], str), _marked(2, [1, 2, 3, None], str), _marked(3, [1, 2, 3, None], str)
    assert marked == ("[bold]1[/]", "2", "[blue]3[/]")
    assert _marked(1, [1, 1], str) == "1"


def test_bad_arguments_of_cost(capsys, tmp_path):
    assert "needs data: add --data" in failure(capsys, "cost", "--methods", "snip")
    assert "Did you mean 'synflow'" in failure(capsys, "cost", "--methods", "synflo")
    assert "0 ≤ sparsity < 1" in failure(capsys, "cost", "--methods", "random", "--sparsities", "0.5,1")
    assert "makes its own masks" in failure(capsys, "cost", "--methods", "random", "--masks", "some")
    assert "--out is for the tables" in failure(capsys, "cost", "--out", str(tmp_path / "out"))
    assert "already exists" in failure(capsys, "cost", "--methods", "random", "--out", str(tmp_path))
