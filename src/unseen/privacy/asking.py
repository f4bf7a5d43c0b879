"""Asking clients in turn until one answers, and lists of bytes in the form in which messages travel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy.facts import Ask, Message


def first_answer(clients: Sequence[str], message: Message, ask: Ask) -> tuple[str, Message] | None:
    """The first client that answers, and its answer; the refusals of others go to the records."""
    for client in clients:
        answer = ask({client: message}).get(client)
        if answer is not None:
            return client, answer
    return None


def to_tensor(parts: Sequence[bytes]) -> Tensor:
    """Byte strings in one tensor: their number, their lengths, then the strings."""
    head = np.array([len(parts), *map(len, parts)], dtype="<i8").tobytes()
    return torch.frombuffer(bytearray(b"".join([head, *parts])), dtype=torch.uint8)


def number_of_parts(value: Tensor) -> int:
    """How many byte strings a tensor says it holds."""
    return int.from_bytes(value[:8].numpy().tobytes(), "little", signed=True)


def to_parts(value: Tensor) -> list[bytes]:
    """The way back; refuses what is cut."""
    whole = value.numpy().tobytes()
    number = number_of_parts(value)
    place = 8 * (number + 1)
    if number < 0 or len(whole) < place:
        raise UnseenError("a message with ciphertexts is cut or changed")
    lengths = np.frombuffer(whole[8:place], dtype="<i8")
    ends = place + np.cumsum(lengths)
    if bool((lengths < 0).any()) or (int(ends[-1]) if number else place) != len(whole):
        raise UnseenError("a message with ciphertexts is cut or changed")
    return [whole[end - length : end] for length, end in zip(lengths, ends, strict=True)]
