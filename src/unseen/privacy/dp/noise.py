"""Keyed noise: normal and uniform numbers that only the holder of the key can predict.

The numbers come from SHAKE-256 over (key, name, counter). With a secret key of 32 bytes, nobody can subtract
the noise; the same key and name give the same numbers on every machine.
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


def noise_key(
    kind: NoiseSeed, *, seed: int, state: MutableMapping[str, Tensor], secret: bytes = b""
) -> bytes:
    """Return the secret if there is one, else the key kept in `state` (drawn once), or the run's.

    With a stored key, a round repeated after a crash draws the same noise: two noises on the same values
    would reveal more than one.
    """
    if kind == "run":
        return derive_seed(seed, "differential privacy: noise").to_bytes(_KEY_BYTES, "little")
    if secret:
        return secret
    if _KEY not in state:
        state[_KEY] = torch.frombuffer(bytearray(os.urandom(_KEY_BYTES)), dtype=torch.uint8).clone()
    return bytes(state[_KEY].tolist())


class NoiseStream:
    """Stream of numbers of one key and name; every call draws the next ones."""

    def __init__(self, key: bytes, *name: Key) -> None:
        text = "\x1f".join(f"{type(part).__name__}:{part}" for part in name)
        self._start = hashlib.shake_256(key + text.encode())
        self._drawn = 0

    def uniform(self, count: int) -> Real:
        """Draw numbers in [0, 1)."""
        source = self._start.copy()
        source.update(self._drawn.to_bytes(8, "little"))
        self._drawn += 1
        whole = np.frombuffer(source.digest(8 * count), dtype="<u8") >> np.uint64(64 - _UNIFORM_BITS)
        return whole.astype(np.float64) * 2.0**-_UNIFORM_BITS

    def normal(self, count: int) -> Real:
        """Draw standard normal numbers (Box and Muller)."""
        pairs = -(-count // 2)
        lengths = np.sqrt(-2 * np.log1p(-self.uniform(pairs)))
        angles = 2 * np.pi * self.uniform(pairs)
        return np.concatenate([lengths * np.cos(angles), lengths * np.sin(angles)])[:count]

    def sample(self, count: int, rate: float) -> Tensor:
        """Sample positions below `count`, each independently with probability `rate` (Poisson)."""
        return torch.from_numpy(np.flatnonzero(self.uniform(count) < rate))
