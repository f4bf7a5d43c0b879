"""What an attacker sees of a round, read as a gradient: one client's message, or the merged model.

Readable states give the gradient itself. Masked numbers and ciphertexts are read as if they were
not protected: if masks were zero, the reading would be the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unseen.audit.replay import ReplayedRound
from unseen.privacy.secagg.message_forms import MASKED
from unseen.privacy.secagg.packing import HEAD
from unseen.training import Update

Kind = Literal["message", "merged"]


@dataclass(frozen=True)
class GradientView:
    """A gradient as an attacker sees it.

    clients   clients whose images are in it
    count     how many images the attacker searches for
    readable  whether the numbers were readable; if not, the gradient is made of the sealed bytes
    """

    kind: Kind
    clients: tuple[str, ...]
    gradient: list[Tensor]
    count: int
    readable: bool


def gradient_views(
    observed: ReplayedRound, clients: Sequence[str], *, images: int, lr: float, bits: int
) -> Iterator[GradientView]:
    """Yield the messages of these clients, one by one, then the round's merged model.

    images  how many each client of the round trained on
    """
    for client in clients:
        reading = read_message(observed.messages[client], observed.start, lr=lr, bits=bits)
        gradient = observed.gradient(reading.gradient)
        yield GradientView("message", (client,), gradient, images, reading.readable)
    if observed.merged is not None:
        everyone = tuple(observed.messages)
        flat = read_state(observed.merged, observed.start, lr=lr)
        yield GradientView("merged", everyone, observed.gradient(flat), images * len(everyone), True)


class Reading(NamedTuple):
    """A flat gradient, and whether the message was readable at all."""

    gradient: Tensor
    readable: bool


def read_message(update: Update, start: Tensor, *, lr: float, bits: int = 24) -> Reading:
    """Read one client's message as the server can.

    bits  fractional bits of secure summation, which are public
    """
    if len(update.weights) == len(start):
        return Reading(read_state(update.weights, start, lr=lr), True)
    if MASKED in update.extras:
        return Reading(_read_masked(update.extras[MASKED], start, lr=lr, bits=bits), False)
    return Reading(_read_bytes(update.extras, len(start)), False)


def read_state(weights: Tensor, start: Tensor, *, lr: float) -> Tensor:
    """Divide the change of the state by the learning rate: the gradient, after one plain step."""
    return (start - weights.detach().cpu()) / lr


def _read_masked(masked: Tensor, start: Tensor, *, lr: float, bits: int) -> Tensor:
    """Undo the fixed point as if nothing had been added; the client's weight is in the head."""
    numbers = masked.numpy().astype(np.float64) / 2.0**bits
    weight = numbers[1] if numbers[1] else 1.0
    state = torch.from_numpy(numbers[HEAD : HEAD + len(start)] / weight)
    return ((start.double() - state) / lr).float()


def _read_bytes(extras: Mapping[str, Tensor], size: int) -> Tensor:
    """Read the largest tensor's bytes as numbers, as many as the model has."""
    largest = max(extras.values(), key=lambda value: value.nbytes)
    raw = largest.contiguous().view(torch.uint8).flatten()[-size:].float()
    numbers = (raw - raw.mean()) / raw.std().clamp(min=1e-12)
    return numbers.repeat(-(-size // max(len(numbers), 1)))[:size]
