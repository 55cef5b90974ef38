"""``python -m studies.protocol.runs DATA RUNS [--pack]``: carry out the protocol's runs in turn, with one thread.

The recipe is the paper's (160 epochs). A run that was begun resumes after its last epoch, on another machine too:
unfinished runs are kept in ``unfinished/``, packed, and are laid out in RUNS first, unless they are there. ``--pack``
puts the present state of RUNS back into ``unfinished/`` and ends; finished runs go into ``docs/results/protocol/``.
"""

import argparse
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

UNFINISHED = Path(__file__).parent / "unfinished"
SPARSITY = 1 - 0.8**18
ORDER = [("ntk-sap", 0), ("ntk-sap-analytic", 0), ("synflow", 0), ("ntk-sap", 1), ("magnitude", 0)]


def unpack(runs: Path) -> None:
    """Lay out the unfinished runs that are not in ``runs``."""
    for packed in UNFINISHED.iterdir():
        folder = runs / packed.name
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        for file in packed.iterdir():
            if file.suffix == ".xz":
                (folder / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
            else:
                shutil.copy(file, folder)


def pack(runs: Path) -> None:
    """Keep what an unfinished run needs to resume, as small files: pruned weights are zeros."""
    shutil.rmtree(UNFINISHED, ignore_errors=True)
    for folder in sorted(path for path in runs.iterdir() if (path / "checkpoint.safetensors").exists()):
        if (folder / "result.json").exists():
            continue
        packed = UNFINISHED / folder.name
        packed.mkdir(parents=True)
        for name in ("settings.toml", "metrics.jsonl", "masks.safetensors"):
            if (folder / name).exists():
                shutil.copy(folder / name, packed)
        for file in [folder / "checkpoint.safetensors", *folder.glob("epoch-*.safetensors")]:
            (packed / f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes(), preset=9))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.protocol.runs", description=__doc__)
    parser.add_argument("data", type=Path, help="the folder with CIFAR-10")
    parser.add_argument("runs", type=Path, help="the folder for runs; somewhere that no clean-up removes")
    parser.add_argument("--pack", action="store_true", help="put unfinished runs back into the repository, and end")
    given = parser.parse_args()
    if given.pack:
        pack(given.runs)
        return
    unpack(given.runs)
    for method, seed in ORDER:
        command = [sys.executable, "-m", "ntksap", "train", "--data", "cifar10", "--data-dir", str(given.data)]
        command += ["--model", "resnet20", "--method", method, "--seed", str(seed), "--sparsity", repr(SPARSITY)]
        command += ["--recipe", "cifar10-resnet20", "--keep-epochs", "0,40,80,120,160", "--out", str(given.runs)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    main()
