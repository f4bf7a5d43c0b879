"""Named randomness: every draw comes from a generator derived from (seed, purpose, keys).

Two draws with different names never influence each other, so adding a client, a figure or a worker
changes nothing else, and a run is a pure function of its configuration.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Key = str | int


def derive_seed(seed: int, purpose: str, *keys: Key) -> int:
    """Hash (seed, purpose, keys) into a 63-bit seed."""
    name = "\x1f".join([str(seed), purpose, *(f"{type(key).__name__}:{key}" for key in keys)])
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") >> 1


def numpy_generator(seed: int, purpose: str, *keys: Key) -> np.random.Generator:
    """Create the NumPy generator for (seed, purpose, keys)."""
    return np.random.default_rng(derive_seed(seed, purpose, *keys))


def torch_generator(seed: int, purpose: str, *keys: Key) -> torch.Generator:
    """Create the torch generator (on the CPU) for (seed, purpose, keys)."""
    import torch

    return torch.Generator().manual_seed(derive_seed(seed, purpose, *keys))


@contextmanager
def global_torch_seed(seed: int, purpose: str, *keys: Key) -> Iterator[None]:
    """Seed torch's global generators inside the block and restore them afterwards.

    Only for code that accepts no generator: weight initialization and dropout.
    """
    import torch

    derived = derive_seed(seed, purpose, *keys)
    generators = [torch.default_generator]
    if torch.cuda.is_available():
        torch.cuda.init()
        generators += list(torch.cuda.default_generators)
    before = [generator.get_state() for generator in generators]
    for generator in generators:
        generator.manual_seed(derived)
    try:
        yield
    finally:
        for generator, state in zip(generators, before, strict=True):
            generator.set_state(state)
