"""docs/methods tells what the registry says: `python tests/test_method_docs.py` prints the table of the index."""

import re
from pathlib import Path

import pytest

from ntksap.methods import METHODS, Method

FOLDER = Path(__file__).parents[1] / "docs" / "methods"
SHARED = {
    "iterative-snip": "snip",
    "force": "snip",
    "ntk-sap-s": "ntk-sap",
    "random-erk": "random",
    "random-erk-logits": "random",
    "magnitude-erk": "magnitude",
}

each_method = pytest.mark.parametrize("method", METHODS.values(), ids=lambda method: method.name)


def page(method: Method) -> str:
    return SHARED.get(method.name, method.name) + ".md"


def row(method: Method) -> str:
    needs = method.data if method.labels or method.data_free else f"{method.data}, no labels"
    agnostic = "✓" if method.weight_agnostic else ""
    weights = "✓" if method.returns_weights else ""
    schedule = method.schedule if method.iterative else "one-shot"
    name = f"[`{method.name}`]({page(method)})"
    return f"| {name} | {needs} | {agnostic} | {weights} | {method.rounds} | {schedule} | {method.summary} |"


def test_the_index_is_the_registry():
    lines = (FOLDER / "README.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("| [`")] == [row(method) for method in METHODS.values()]


def test_every_page_is_of_a_method():
    assert {path.name for path in FOLDER.glob("*.md")} == {"README.md", *(page(method) for method in METHODS.values())}


@each_method
def test_a_page_has_each_option_with_its_default_and_no_other(method):
    text = (FOLDER / page(method)).read_text()
    assert f"{method.name}" in text.splitlines()[0]
    table = re.search(r"\| option \| default \|.*?\n\n", text, re.DOTALL)
    found = re.findall(r"\| `(\w+)` \| (\S+) \|", table.group()) if table else []
    assert found == [(option.name, str(option.default)) for option in method.options.values()]
    assert ("**Options**: none" in text) == (not method.options)
    for part in ("**Cost**", "**Limits**", *(["**Reference"] if method.name not in ("random", "magnitude") else [])):
        assert part in text


if __name__ == "__main__":
    print("\n".join(row(method) for method in METHODS.values()))
