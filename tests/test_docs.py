"""Every Python block of README and site runs by itself, as it stands, from its first line; so does every notebook."""

import ast
import importlib.util
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ntksap.methods import METHODS

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SLOW = {"experiments.md", "other-libraries.md"}  # sweeps; imports of many other packages
EXTRAS = {"lightning", "onnxruntime", "torch_pruning", "transformers"}


def blocks() -> Iterator[object]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"^( *)```python\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE):
            code = re.sub(rf"^{found[1]}", "", found[2], flags=re.MULTILINE)
            name = f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
            yield pytest.param(code, id=name, marks=pytest.mark.slow if page.name in SLOW else ())


def foreign(code: str) -> set[str]:
    """Return the optional packages of others that the code imports; skip where one of them is not installed."""
    modules = set()
    for node in ast.walk(ast.parse(code)):
        modules |= {node.module} if isinstance(node, ast.ImportFrom) else set()
        modules |= {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
    packages = {str(module).split(".")[0] for module in modules} & EXTRAS
    for package in packages:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    return packages


@pytest.fixture
def registry():
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.mark.parametrize("code", [*blocks()])
def test_a_block_runs_by_itself(code, tmp_path, monkeypatch, registry):
    packages = foreign(code)
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    with warnings.catch_warnings():
        if packages:
            warnings.simplefilter("ignore")  # theirs to mend
        exec(compile(code, "block", "exec"), {"__name__": "__main__"})  # what it raises fails the test


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    nbclient = pytest.importorskip("nbclient", reason="needs the extra `docs`")
    nbformat = pytest.importorskip("nbformat", reason="needs the extra `docs`")
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source]
    foreign("\n".join(cell.source for cell in cells))
    nbclient.NotebookClient(notebook, resources={"metadata": {"path": tmp_path}}).execute()  # in place
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]  # tagged as such


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    nbformat = pytest.importorskip("nbformat", reason="needs the extra `docs`")
    for cell in nbformat.read(path, as_version=4).cells:
        assert cell.cell_type == "markdown" or (cell.outputs == [] and cell.execution_count is None)


def test_there_are_blocks_and_notebooks():
    assert len(list(blocks())) > 25
    assert len(NOTEBOOKS) == 3


def test_python_is_fenced_as_python():
    for page in PAGES:
        for language, code in re.findall(r"^ *```([a-z]*)\n(.*?)^ *```", page.read_text(), re.DOTALL | re.MULTILINE):
            if language != "python":
                assert not re.search(r"^ *(import|from) \w+.*|ntksap\.\w+\(", code, re.MULTILINE), (page.name, code)
