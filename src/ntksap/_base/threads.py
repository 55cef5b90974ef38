"""Work that is too small to be divided among threads."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

SMALL = 2**19
"""Numbers of a network up to which one example gains next to nothing by a second thread (see docs/speed.md)."""


@contextmanager
def threads_for(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block, one example meets these weights; if they are few, torch uses one thread.

    Each operation then takes microseconds. Where another program wants the core of a second thread, all of them wait
    for it, and the whole becomes several times slower. The rule looks at nothing but the size, so that what is computed
    does not depend on who else uses the machine.
    """
    small = sum(weight.numel() for weight in weights.values()) < SMALL
    if not small or getattr(_this, "single", False):
        yield
        return
    global _inside, _outside
    with _lock:  # the number is one of each thread of Python, but a new thread takes over the last one that was set
        if not _inside:
            _outside = torch.get_num_threads()
        _inside += 1
        torch.set_num_threads(1)
    _this.single = True
    try:
        yield
    finally:
        _this.single = False
        with _lock:
            _inside -= 1
            torch.set_num_threads(_outside)


_this, _lock = threading.local(), threading.Lock()
_inside, _outside = 0, 1
