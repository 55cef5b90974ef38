"""``python -m studies.torch_sparse``: a pruned linear layer with torch's CSR and BSR matrices, and with our kernels.

They take turns in one process with one thread; the least processor time counts, in milliseconds.
"""

import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear

from ntksap.net.kernels.sparse_linear import sparse_linear

REPEATS = 5


def ways(weight: Tensor, kept: Tensor, x: Tensor) -> dict[str, Callable[[], Tensor]]:
    """Return x · Wᵀ in several ways; torch's input is already transposed where the name says so."""
    csr, bsr, turned = weight.to_sparse_csr(), weight.to_sparse_bsr((16, 16)), x.t().contiguous()
    return {
        "dense": lambda: linear(x, weight),
        "CSR, transposed before": lambda: csr @ turned,
        "CSR": lambda: (csr @ x.t().contiguous()).t().contiguous(),
        "BSR": lambda: (bsr @ x.t().contiguous()).t().contiguous(),
        "kernels here": lambda: sparse_linear(x, weight, None, kept),
    }


def main() -> None:
    warnings.simplefilter("ignore")  # torch warns that CSR is beta
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = (4096, 1024)
    blocks = (torch.rand(shape[0] // 16, shape[1] // 16) < 0.1).repeat_interleave(16, 0).repeat_interleave(16, 1)
    for title, kept in (("90 %", torch.rand(shape) < 0.1), ("98 %", torch.rand(shape) < 0.02), ("blocks", blocks)):
        works = ways(torch.randn(shape) * kept, kept, torch.randn(256, shape[1]))
        least = dict.fromkeys(works, float("inf"))
        for _ in range(REPEATS + 1):
            for name, work in works.items():
                start = time.thread_time()
                work()
                least[name] = min(least[name], 1e3 * (time.thread_time() - start))
        print(title, {name: round(taken, 1) for name, taken in least.items()}, flush=True)


if __name__ == "__main__":
    main()
