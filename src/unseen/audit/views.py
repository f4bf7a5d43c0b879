"""What an attacker has before it: one client's message, or what came of the round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from unseen.audit.observed import Observed
from unseen.audit.reading import read_message, read_state

Kind = Literal["message", "merged"]


@dataclass(frozen=True)
class View:
    """A gradient as somebody gets to see it.

    clients   whose images are in it
    count     how many images the attacker looks for
    readable  whether the numbers lay open; if not, the gradient is what the sealed bytes look like
    """

    kind: Kind
    clients: tuple[str, ...]
    gradient: list[Tensor]
    count: int
    readable: bool


def views(observed: Observed, clients: Sequence[str], *, images: int, lr: float, bits: int) -> Iterator[View]:
    """The messages of these clients, one by one, then the round's merged model.

    images  how many each client of the round trained on
    """
    for client in clients:
        reading = read_message(observed.messages[client], observed.start, lr=lr, bits=bits)
        gradient = observed.gradient(reading.gradient)
        yield View("message", (client,), gradient, images, reading.readable)
    if observed.merged is not None:
        everyone = tuple(observed.messages)
        flat = read_state(observed.merged, observed.start, lr=lr)
        yield View("merged", everyone, observed.gradient(flat), images * len(everyone), True)
