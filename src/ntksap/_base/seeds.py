"""Randomness that depends on a key alone, never on global state."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(*key: int | str) -> int:
    """Return a 63-bit seed that depends on the whole key and on nothing else.

    >>> seed_of(0, "draw", 1) == seed_of(0, "draw", 1) != seed_of(0, "draw", 2)
    True
    """
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator_of(*key: int | str) -> torch.Generator:
    """Return a CPU generator seeded by the key. Draws are made on the CPU so that the device cannot change them."""
    return torch.Generator().manual_seed(seed_of(*key))


@contextmanager
def global_seed(*key: int | str) -> Iterator[None]:
    """Seed torch's global generators by the key inside the block and restore them afterwards, even after an error.

    For foreign code that draws from the global state: initialisers, and forward passes that use noise.
    """
    generators = [torch.default_generator]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        generators += torch.cuda.default_generators
    states = [generator.get_state() for generator in generators]
    try:
        for generator in generators:
            generator.manual_seed(seed_of(*key))
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)
