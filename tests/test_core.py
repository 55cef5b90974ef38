"""The core works where only torch, numpy and safetensors are installed, and where the system is no Unix."""

import subprocess
import sys
from pathlib import Path

from ntksap._lab import LAB

# What Windows does not have, and what only the lab brings, is hidden from every finder, so that it is absent for all.
HIDE = f"""
import sys

class Hide:
    absent = {sorted(LAB | {"fcntl", "resource", "pwd", "grp", "termios"})}

    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in self.absent else self.finder.find_spec(name, path, target)

for name in Hide.absent:
    sys.modules.pop(name, None)
sys.meta_path[:] = [Hide(finder) for finder in sys.meta_path]
"""

EVERYTHING = """
import torch, ntksap
model = ntksap.models.build("lenet-300-100")
shape = (1, 28, 28)
masks = ntksap.prune(model, sparsity=0.9, method="synflow", rounds=2, input_shape=shape)
masks.save("masks.safetensors")
assert ntksap.Masks.load("masks.safetensors") == masks
assert ntksap.cost(model, masks, input_shape=shape).sparse < ntksap.cost(model, input_shape=shape).dense
assert ntksap.diagnose(model, masks, input_shape=shape).sentences()
assert ntksap.ntk(model, torch.randn(2, *shape), masks).trace > 0
batches = [(torch.randn(20, *shape), torch.arange(20) % 10)]
options = {"ntt": {"epoch_steps": 1, "kernel": "projected", "projections": 2}, "ntk-sap": {"batch": 4},
           "dpai": {"round_steps": 2}}
for name, method in ntksap.methods.METHODS.items():
    if name == "phew":
        continue  # torch.export imports filelock, which torch brings along but this script hides
    rounds = None if method.rounds == 1 else 2
    given = {"train": lambda module, masks: [0]} if method.trains else {"data": batches}
    ntksap.prune(model, 0.5, name, rounds=rounds, input_shape=shape, **given, **options.get(name, {}))
masks.attach(model)
with ntksap.sparse_kernels(model, masks):
    model(torch.randn(2, *shape))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
assert not ntksap.Regrowth(model, masks, optimizer, steps=10).step()
from ntksap._base import peak_memory_mib
assert peak_memory_mib() >= 0
assert "ntksap._base.toml" not in sys.modules  # Python 3.10 has no reader of TOML
print("all of it")
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", HIDE + code], capture_output=True, text=True, cwd=folder)


def test_the_core_needs_three_packages_and_no_unix(tmp_path):
    done = run(EVERYTHING, tmp_path)
    assert done.stdout.strip() == "all of it", done.stderr


NAMES = """
import ntksap
for name in ("compare", "spectrum", "reproduce", "budget_rows", "data"):
    try:
        getattr(ntksap, name)
        print(name)
    except ModuleNotFoundError as error:
        print(name, error)
"""


def test_a_name_of_the_lab_says_in_one_sentence_what_to_install(tmp_path):
    lines = run(NAMES, tmp_path).stdout.splitlines()
    assert len(lines) == 5
    for line in lines:
        name, _, sentence = line.partition(" ")
        assert sentence.startswith(f"ntksap.{name} needs ")
        assert sentence.endswith("pip install 'ntksap[lab]'")


def test_the_command_says_in_one_sentence_what_to_install(tmp_path):
    command = "from ntksap.cli import main; sys.exit(main(['{}']))"
    done = run(command.format("prune"), tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "error: the ntksap command needs tyro: pip install 'ntksap[lab]'\n"
    done = run(command.format("--help"), tmp_path)
    assert done.returncode == 0
    assert "prune" in done.stdout
