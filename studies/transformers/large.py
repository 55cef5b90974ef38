"""CPU time and peak memory on shapes of Llama-2-7B, on the meta device.

    python -m studies.transformers.large allocate erk-logits
    python -m studies.transformers.large allocate ntk-sap
    python -m studies.transformers.large write random
    python -m studies.transformers.large write balanced

Both take the whole model, and need the extra `transformers`. `allocate` is given 64 tokens; `write` draws and writes
6.6 billion mask entries at uniform density into a temporary file of 800 MB, and counts what one of its layers holds.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor, nn

import ntksap
from ntksap._base import peak_memory_mib


def tokens(batch: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Return random tokens."""
    return {"input_ids": torch.randint(32000, (batch, 64), generator=generator)}


def llama() -> nn.Module:
    """Return Llama-2-7B without numbers."""
    import transformers

    with torch.device("meta"):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig())


def allocate(rule: str) -> Any:
    """Return the allocation of the whole model."""
    model = llama()
    start = time.process_time()
    plan = ntksap.allocate(model, 0.9, rule, inputs=tokens)
    return plan, time.process_time() - start


def write(places: str) -> Any:
    """Write the masks of the whole model."""
    model = llama()
    plan = ntksap.allocate(model, 0.9, "uniform")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "masks.safetensors"
        start = time.process_time()
        ntksap.write_masks(file, model, plan, places=places)
        seconds = time.process_time() - start
        print(f"{file.stat().st_size / 2**20:.0f} MiB in the file")
        name = list(plan)[-1]
        with safe_open(file, "pt") as stored:
            key = next(key for key in stored.keys() if name in key)  # noqa: SIM118
            bits = np.unpackbits(stored.get_tensor(key).numpy())
        assert bits.sum() == plan[name], f"{name}: {bits.sum()} of {plan[name]}"
    return plan, seconds


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
