"""A message that reached the server, read as a gradient as well as an attacker can.

Readable states give the gradient itself. Masked numbers and ciphertexts are taken for what they would be
without their protection: if masks were zero, the reading would be the gradient.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.privacy.secagg.packing import HEAD
from unseen.privacy.secagg.protocol import MASKED
from unseen.training import Update


class Reading(NamedTuple):
    """A flat gradient, and whether it was to be read at all."""

    gradient: Tensor
    readable: bool


def read_message(update: Update, start: Tensor, *, lr: float, bits: int = 24) -> Reading:
    """What the server can make of one client's message.

    bits  digits behind the point of secure summation, which everybody knows
    """
    if len(update.weights) == len(start):
        return Reading(read_state(update.weights, start, lr=lr), True)
    if MASKED in update.extras:
        return Reading(_read_masked(update.extras[MASKED], start, lr=lr, bits=bits), False)
    return Reading(_read_bytes(update.extras, len(start)), False)


def read_state(weights: Tensor, start: Tensor, *, lr: float) -> Tensor:
    """A state's way from the start, over the learning rate: the gradient, after one plain step."""
    return (start - weights.detach().cpu()) / lr


def _read_masked(masked: Tensor, start: Tensor, *, lr: float, bits: int) -> Tensor:
    """Undo the fixed point as if nothing had been added; the weight of the client stands in the head."""
    numbers = masked.numpy().astype(np.float64) / 2.0**bits
    weight = numbers[1] if numbers[1] else 1.0
    state = torch.from_numpy(numbers[HEAD : HEAD + len(start)] / weight)
    return ((start.double() - state) / lr).float()


def _read_bytes(extras: Mapping[str, Tensor], size: int) -> Tensor:
    """Take the largest tensor's bytes for numbers, as many as the model has."""
    largest = max(extras.values(), key=lambda value: value.nbytes)
    raw = largest.contiguous().view(torch.uint8).flatten()[-size:].float()
    numbers = (raw - raw.mean()) / raw.std().clamp(min=1e-12)
    return numbers.repeat(-(-size // max(len(numbers), 1)))[:size]
