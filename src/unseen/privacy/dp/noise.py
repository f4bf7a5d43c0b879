"""Noise from a key: normal and uniform numbers that only the holder of the key can foresee.

The numbers come from SHAKE-256 over (key, name, counter), so that a key of 32 secret bytes makes noise that
nobody can take off again; the same key and name give the same numbers wherever they are drawn.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import MutableMapping
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from unseen.seeding import Key, derive_seed

NoiseSeed = Literal["secret", "run"]
Real = npt.NDArray[np.float64]
_KEY = "noise key"
_KEY_BYTES = 32
_UNIFORM_BITS = 53


def noise_key(kind: NoiseSeed, *, seed: int, memory: MutableMapping[str, Tensor]) -> bytes:
    """The key that `memory` keeps (drawn from the operating system's entropy once), or the run's own.

    A kept key lets a round that is repeated after a crash draw the same noise: two noises on the same
    values would tell more than one.
    """
    if kind == "run":
        return derive_seed(seed, "differential privacy: noise").to_bytes(_KEY_BYTES, "little")
    if _KEY not in memory:
        memory[_KEY] = torch.frombuffer(bytearray(os.urandom(_KEY_BYTES)), dtype=torch.uint8).clone()
    return bytes(memory[_KEY].tolist())


class NoiseStream:
    """The numbers of one key and name; every call draws further ones."""

    def __init__(self, key: bytes, *name: Key) -> None:
        text = "\x1f".join(f"{type(part).__name__}:{part}" for part in name)
        self._start = hashlib.shake_256(key + text.encode())
        self._drawn = 0

    def uniform(self, count: int) -> Real:
        """Numbers in [0, 1)."""
        source = self._start.copy()
        source.update(self._drawn.to_bytes(8, "little"))
        self._drawn += 1
        whole = np.frombuffer(source.digest(8 * count), dtype="<u8") >> np.uint64(64 - _UNIFORM_BITS)
        return whole.astype(np.float64) * 2.0**-_UNIFORM_BITS

    def normal(self, count: int) -> Real:
        """Standard normal numbers (Box and Muller)."""
        pairs = -(-count // 2)
        lengths = np.sqrt(-2 * np.log1p(-self.uniform(pairs)))
        angles = 2 * np.pi * self.uniform(pairs)
        return np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])[:count]

    def chosen(self, count: int, rate: float) -> Tensor:
        """Positions of those of `count` that are drawn, each on its own with probability `rate` (Poisson)."""
        return torch.from_numpy(np.flatnonzero(self.uniform(count) < rate))
