"""``python -m studies.protocol.runs DATA RUNS [--pack]``: carry out the protocol's runs in turn, with one thread.

The recipe is the paper's (160 epochs). A run that was begun resumes after its last epoch, even on another machine:
unfinished runs are kept in ``unfinished/``, packed, and are first unpacked into RUNS, unless they are there. ``--pack``
puts the present state of RUNS back into the repository and ends: finished runs into ``docs/results/protocol/``, with
the spectra of their checkpoints, the others into ``unfinished/``. ``python -m studies.protocol.page`` shows them.
"""

import argparse
import lzma
import os
import shutil
import subprocess
import sys
from pathlib import Path

from ntksap import Masks
from ntksap._base import write_sealed
from ntksap.runs import spectra_during

UNFINISHED = Path(__file__).parent / "unfinished"
FINISHED = Path(__file__).parents[2] / "docs" / "results" / "protocol"
SPARSITY = 1 - 0.8**18
INPUTS = 100
"""Inputs of the kernels, as in the plans of the paper's figures 7 and 8."""
PRUNED = ["--model", "resnet20", "--sparsity", repr(SPARSITY)]
ORDER = [
    [*PRUNED, "--method", "ntk-sap", "--seed", "0"],
    [*PRUNED, "--method", "ntk-sap-analytic", "--scope", "global", "--seed", "0"],
    [
        "--model",
        "resnet20-w4",
        "--method",
        "dense",
        "--seed",
        "0",
    ],  # thin: 2.75e6 multiply-adds, as NTK-SAP's masks have
    [*PRUNED, "--method", "random-erk", "--seed", "0"],
    [*PRUNED, "--method", "synflow", "--seed", "0"],
    [*PRUNED, "--method", "ntk-sap", "--seed", "1"],
    [*PRUNED, "--method", "magnitude", "--seed", "0"],
]


def unpack(runs: Path) -> None:
    """Unpack the unfinished runs that are not in ``runs``, and the finished ones, which are then not done again."""
    for packed in [*UNFINISHED.glob("*/"), *FINISHED.glob("*/")]:
        folder = runs / packed.name
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        for file in packed.iterdir():
            if file.suffix == ".xz":
                (folder / file.stem).write_bytes(lzma.decompress(file.read_bytes()))
            else:
                shutil.copy(file, folder)


def pack(runs: Path, data: Path) -> None:
    """Keep finished runs as small files, and what unfinished ones need to resume: pruned weights are zeros."""
    shutil.rmtree(UNFINISHED, ignore_errors=True)
    for folder in sorted(path.parent for path in runs.glob("*/metrics.jsonl")):
        done = (folder / "result.json").exists()
        packed = (FINISHED if done else UNFINISHED) / folder.name
        packed.mkdir(parents=True, exist_ok=True)
        if (folder / "masks.safetensors").exists():
            Masks.load(folder / "masks.safetensors").save(packed / "masks.safetensors")  # as bits
        spectra = folder / f"spectra-{INPUTS}.json"
        if done and not spectra.exists() and list(folder.glob("epoch-*.safetensors")):
            write_sealed(spectra, spectra_during(folder, data_dir=data, inputs=INPUTS))
        for name in ("settings.toml", "metrics.jsonl", *(("result.json", spectra.name) if done else ())):
            if (folder / name).exists():
                shutil.copy(folder / name, packed)
        for file in [] if done else [folder / "checkpoint.safetensors", *folder.glob("epoch-*.safetensors")]:
            (packed / f"{file.name}.xz").write_bytes(lzma.compress(file.read_bytes(), preset=9))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.protocol.runs", description=__doc__)
    parser.add_argument("data", type=Path, help="the folder with CIFAR-10")
    parser.add_argument("runs", type=Path, help="the folder for runs; somewhere that no clean-up removes")
    parser.add_argument("--pack", action="store_true", help="put the runs back into the repository, and end")
    given = parser.parse_args()
    if given.pack:
        pack(given.runs, given.data)
        return
    unpack(given.runs)
    for job in ORDER:
        command = [sys.executable, "-m", "ntksap", "train", "--data", "cifar10", "--data-dir", str(given.data)]
        command += [*job, "--recipe", "cifar10-resnet20", "--keep-epochs", "0,40,80,120,160", "--out", str(given.runs)]
        subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)


if __name__ == "__main__":
    main()
