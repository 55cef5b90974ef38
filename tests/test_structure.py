"""The plan of the house: rooms import to their left, by what the front door of a room offers."""

import ast
import importlib.util
import re
import subprocess
from pathlib import Path

import pytest

import ntksap
from ntksap.methods import METHODS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "ntksap"

# A room imports only rooms to its left. Those that stand together import neither each other.
ROOMS = (
    ["_version", "_lab"],
    ["_base"],
    ["net"],
    ["pruning"],
    ["compaction"],
    ["methods"],
    ["_prune"],
    ["analysis", "integrations"],
    ["models", "data"],
    ["training"],
    ["runs"],
    ["report"],
    ["experiments"],
    ["paper"],
    ["cli"],
    ["__init__", "__main__"],
)
PLACE = {room: place for place, rooms in enumerate(ROOMS) for room in rooms}


def imports(path: Path) -> set[tuple[str, str]]:
    """What a file imports of ntksap: (module, name) for each name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ntksap":
            found |= {(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "ntksap"}
    return found


def room_of(module: str, name: str = "") -> str:
    """The room that ``from module import name`` reaches into."""
    parts = module.split(".")[1:]
    return parts[0] if parts else name


def exported(package: str) -> set[str]:
    """The names in ``__all__`` of a package, read from its file; a package without one offers nothing."""
    tree = ast.parse((SOURCE.joinpath(*package.split(".")[1:]) / "__init__.py").read_text())
    lists = [n.value for n in tree.body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"]
    return {element.value for one in lists for element in one.elts}


def is_package(module: str) -> bool:
    return SOURCE.joinpath(*module.split(".")[1:], "__init__.py").exists()


FILES = sorted([*SOURCE.rglob("*.py"), SOURCE / "__init__.pyi"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_room_imports_rooms_to_its_left_through_their_front_door(path):
    own = path.relative_to(SOURCE).with_suffix("").parts[0]
    for module, name in imports(path):
        other = room_of(module, name)
        if other == own or name in ("__version__", "main", "say_what_is_missing"):
            continue
        assert PLACE[other] < PLACE[own], f"{own} imports {other}, which does not stand to its left"
        if module != "ntksap":
            assert is_package(module), f"{path.name} reaches behind the front door of {other}: {module}"
            assert name in exported(module), f"{module} does not export {name}"


def test_no_room_is_unknown():
    found = {path.relative_to(SOURCE).with_suffix("").parts[0] for path in FILES}
    assert found <= PLACE.keys()


LOOP = {"Selector", "first_round", "kept_of", "prune_rounds", "select"}  # for pruners, which have a loop of their own


@pytest.mark.parametrize("path", sorted((SOURCE / "methods").glob("*.py")), ids=lambda path: path.stem)
def test_a_method_knows_nothing_of_processes_of_the_loop_or_of_another_method(path):
    if path.stem in ("__init__", "registry", "homogeneity", "layer_densities", "default"):  # no methods
        return
    pruner = path.stem in [getattr(method.pruner, "__module__", "").split(".")[-1] for method in METHODS.values()]
    for module, name in imports(path):
        assert name not in {"Ranks", "ALONE", "join_job"}
        assert pruner or name not in LOOP
        of_methods = module.startswith("ntksap.methods")
        assert (
            not of_methods
            or "moments" in (name, *module.split("."))
            or module.startswith(f"ntksap.methods.{path.stem}_")
        )


FACTORY = re.compile(
    r"torch\.(arange|empty|empty_strided|eye|full|linspace|logspace|normal|ones|rand|randint|randn|randperm|scalar_tensor"
    r"|tensor|zeros)"
)


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_new_tensors_say_on_which_device_they_are(path):
    """Else they would be on torch's default device, which a user may have set to a GPU."""
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    made = [call for call in calls if FACTORY.fullmatch(ast.unparse(call.func))]
    silent = [call for call in made if not {"device", None} & {keyword.arg for keyword in call.keywords}]
    assert not [f"line {call.lineno}: {ast.unparse(call)}" for call in silent]


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


SCRIPTS = sorted(path for folder in ("benchmarks", "studies") for path in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_script_beside_the_package_imports_of_it_exists(path):
    for module, name in imports(path):
        found = importlib.import_module(module)
        assert not name or hasattr(found, name) or importlib.util.find_spec(f"{module}.{name}"), f"{module}.{name}"
