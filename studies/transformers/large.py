"""CPU time and peak memory on shapes of Llama-2-7B, on the meta device.

    python studies/transformers/large.py allocate erk-logits
    python studies/transformers/large.py allocate ntk-sap
    python studies/transformers/large.py write random
    python studies/transformers/large.py write balanced

`allocate` takes the whole model and 64 tokens, and needs the extra `transformers`; `write` its three largest kinds of
layers, 221 million weights, and a temporary file.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import ntksap
from ntksap._base import peak_memory_mib


def tokens(batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return random tokens."""
    return {"input_ids": torch.randint(32000, (batch, 64), generator=generator)}


def allocate(rule: str) -> Any:
    """Return the allocation of the whole model."""
    import transformers

    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig())
    start = time.process_time()
    plan = ntksap.allocate(model, 0.9, rule, inputs=tokens)
    return plan, time.process_time() - start


def write(places: str) -> Any:
    """Write masks of the largest layers."""
    with torch.device("meta"):
        shapes = [(4096, 11008), (11008, 4096), (4096, 32000)]
        model = nn.Sequential(*(nn.Linear(*shape, bias=False) for shape in shapes))
    plan = ntksap.allocate(model, 0.9, "uniform")
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        ntksap.write_masks(Path(folder) / "masks", model, plan, places=places)
    return plan, time.process_time() - start


def main() -> int:
    """Do one of the two and print what it took."""
    torch.set_num_threads(1)
    what, how = sys.argv[1:]
    before = peak_memory_mib()
    plan, seconds = {"allocate": allocate, "write": write}[what](how)
    print(f"{plan!r}: {seconds:.1f} s of CPU time, {before:.0f} MiB before, peak {peak_memory_mib():.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
