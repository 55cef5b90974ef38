"""The shape of the package: imports point one way, and the files tell nothing about a machine."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

import ntksap
from ntksap.methods import METHODS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ntksap"

# Lower imports nothing from above. A name covers the file or the whole folder.
LEVELS = [
    ["errors", "seeds", "files", "machine", "native", "threshold", "toml", "hashing", "sums", "_version"],
    ["batch_norm"],
    ["ranks", "sync_norm"],
    ["layers", "initialisers", "kernels", "models", "moments", "norms", "precision"],
    ["net", "attachment", "sparse_kernels"],
    ["micro"],
    ["probe", "masks", "interchange", "schedules", "selection", "cost", "sanity", "reach", "spectrum"],
    ["taps", "jacobian", "lanczos"],
    ["ntk"],
    ["kernel_change"],
    ["diagnosis"],
    ["pruning"],
    ["homogeneity"],
    ["methods"],
    ["api"],
    ["budget"],
    ["recipe", "checkpoint", "data"],
    ["training", "settings", "pruning_data"],
    ["run_folder", "report"],
    ["runs"],
    ["store", "mask_runs", "spectra"],
    ["engine", "ray_cluster"],
    ["sweep", "sweep_ray"],
    ["reproduce"],
    ["cli"],
    ["__init__", "__main__"],
]
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}


def imports(path: Path) -> set[str]:
    """The parts of ntksap that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "ntksap":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("ntksap.")}
    return found


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    own = part_of(path)
    for other in imports(path) - {own}:
        assert LEVEL[other] <= LEVEL[own], f"{own} imports {other}, which stands above it"


@pytest.mark.parametrize("path", sorted((SOURCE / "methods").glob("*.py")), ids=lambda path: path.stem)
def test_a_method_sees_the_net_the_probe_and_masks_only(path):
    if path.stem not in ("__init__", "registry"):
        allowed = {"net", "probe", "masks", "moments", "errors", "seeds"}
        pruners = [getattr(method.pruner, "__module__", "").split(".")[-1] for method in METHODS.values()]
        if path.stem in pruners:
            allowed |= {"pruning", "schedules", "selection", "methods"}  # a loop of its own, and its own helper
        assert imports(path) <= allowed


def test_public_names_exist_and_are_sorted():
    assert all(hasattr(ntksap, name) for name in ntksap.__all__)
    assert sorted(ntksap.__all__) == ntksap.__all__


def test_no_file_names_a_machine():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    pattern = re.compile(rb"[\"'= (`]/(?:" + b"|".join([b"work", b"root", b"home"]) + rb")/")
    assert files
    for name in files:
        if (ROOT / name).is_file():
            assert not pattern.search((ROOT / name).read_bytes()), f"{name} holds an absolute path"
