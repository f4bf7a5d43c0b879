"""Extras that a method merges over the clients: ciphertexts that are added up and opened only as a sum.

A ciphertext that is never multiplied keeps its whole modulus (100 bits) for data, so one public scale
suffices for all numbers, and a client discloses nothing about its own, not even their order of magnitude. A
sum is correct to 2^-40 and, because numbers are encoded in double precision, to about 1e-14 of the largest
number in its ciphertext. Each number may be as large as 2^38 divided by the number of clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unseen.errors import UnseenError
from unseen.privacy.context import Message, MethodTraits, ReceivedUpdate
from unseen.privacy.he.ciphertext_packing import count_rows, from_rows, to_rows
from unseen.privacy.he.ckks import KeyHolder, Real
from unseen.privacy.serialization import join_parts, json_from_tensor, json_to_tensor, split_parts
from unseen.training import Update

ADDENDS, CONTENTS = "ciphertexts to add up", "what the ciphertexts to add up are"
ADDED, PEERS = "sums over the clients", "number of clients"
MAGNITUDE = -5
"""Power of sixteen of the numbers' unit: they are multiplied by 2^20 before encryption."""
RANGE = 2.0**38
"""Largest sum over the clients; with scale and unit it takes 98 of the modulus's 100 bits."""
FEWEST = 2


class RangeError(UnseenError):
    """A number that is too large to be added up encrypted."""


def encrypt_extras(
    update: Update, holder: KeyHolder, *, method: MethodTraits, clients: int
) -> dict[str, Tensor]:
    """Encrypt a client's extras, each in ciphertexts of its own; their names and shapes are readable.

    What is merged by the mean is multiplied by the client's weight.

    clients  number of clients in the round
    """
    if not update.extras:
        return {}
    parts: list[bytes] = []
    for kind, value in update.extras.items():
        numbers = value.detach().cpu().double().flatten().numpy()
        if method.merges[kind] == "mean":
            numbers = numbers * _weight(update.samples, method)
        _require_range(kind, numbers, clients=clients)
        parts += [holder.encrypt(row) for row in to_rows(numbers, MAGNITUDE)]
    return {ADDENDS: join_parts(parts), CONTENTS: json_to_tensor(describe_extras(update.extras))}


def describe_extras(extras: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """List name, shape and type of extras."""
    return [
        {"kind": kind, "shape": list(value.shape), "type": str(value.dtype).removeprefix("torch.")}
        for kind, value in extras.items()
    ]


def count_values(entry: Mapping[str, Any]) -> int:
    """Count the numbers of an entry of the contents."""
    return int(np.prod(entry["shape"], dtype=np.int64))


def count_addends(contents: Sequence[Mapping[str, Any]]) -> int:
    """Count the ciphertexts that extras need."""
    return sum(count_rows(count_values(entry)) for entry in contents)


def find_contents(received: Sequence[ReceivedUpdate]) -> list[dict[str, Any]]:
    """Return the contents of the clients' addends; they can be added up only if all have the same."""
    first, *others = (_contents(update.extras) for _, update in received)
    for (client, _), contents in zip(received[1:], others, strict=True):
        if contents != first:
            raise UnseenError(
                f"clients {received[0].client!r} and {client!r} sent different kinds of values, which "
                "cannot be added up"
            )
    return first


def check_addends(
    client: str, extras: Mapping[str, Tensor], contents: Sequence[Mapping[str, Any]]
) -> list[bytes]:
    """Check the number of ciphertexts that a client sent to be added up, and return them."""
    try:
        parts = split_parts(extras[ADDENDS]) if ADDENDS in extras else []
    except UnseenError as error:
        raise UnseenError(f"client {client!r}: {error}") from error
    if len(parts) != count_addends(contents):
        raise UnseenError(
            f"client {client!r} sent {len(parts)} ciphertexts to add up, expected were "
            f"{count_addends(contents)}"
        )
    return parts


def added_request(ciphertexts: list[bytes], contents: list[dict[str, Any]], *, clients: int) -> Message:
    """Build the request to decrypt sums, for a key holder; empty if there are none."""
    if not contents:
        return {}
    return {
        ADDENDS: join_parts(ciphertexts),
        CONTENTS: json_to_tensor(contents),
        PEERS: torch.tensor([clients]),
    }


def decrypt_added(message: Message, holder: KeyHolder) -> Message:
    """Decrypt the sums at a key holder, one after another in one row.

    The leading ones count the addends, so a single client's numbers are not decrypted by mistake.
    """
    if ADDENDS not in message:
        return {}
    clients = int(message[PEERS])
    if clients < FEWEST:
        raise UnseenError(f"a sum over {clients} client is that client's own numbers; it is not decrypted")
    rows = [holder.decrypt(part) for part in split_parts(message[ADDENDS])]
    vectors, place = [], 0
    for entry in _contents(message):
        numbers = count_values(entry)
        end = place + count_rows(numbers)
        vectors.append(
            from_rows(rows[place:end], numbers=numbers, magnitude=MAGNITUDE, leading=float(clients))
        )
        place = end
    return {ADDED: torch.from_numpy(np.concatenate(vectors))}


def unpack_added(
    added: Tensor, contents: Sequence[Mapping[str, Any]], *, method: MethodTraits, weight: float
) -> dict[str, Tensor]:
    """Split decrypted sums into extras; a mean is a sum divided by the clients' total weight."""
    extras = {}
    for entry, part in zip(contents, added.split([count_values(entry) for entry in contents]), strict=True):
        dtype = getattr(torch, entry["type"])
        value = part / weight if method.merges[entry["kind"]] == "mean" else part
        value = value if dtype.is_floating_point else value.round()
        extras[entry["kind"]] = value.to(dtype).reshape(entry["shape"])
    return extras


def measure_addends(extras: Mapping[str, Tensor]) -> list[tuple[str, int, int]]:
    """List kind, number of values and bytes of what a client sent to be added up."""
    sizes = [len(part) for part in split_parts(extras[ADDENDS])] if ADDENDS in extras else []
    found, place = [], 0
    for entry in _contents(extras):
        numbers = count_values(entry)
        end = place + count_rows(numbers)
        found.append((str(entry["kind"]), numbers, sum(sizes[place:end])))
        place = end
    return found


def _contents(message: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    return json_from_tensor(message[CONTENTS]) if CONTENTS in message else []


def _weight(samples: int, method: MethodTraits) -> float:
    return float(samples) if method.weighting == "samples" else 1.0


def _require_range(kind: str, numbers: Real, *, clients: int) -> None:
    room = RANGE / max(clients, FEWEST)
    found = float(np.abs(numbers).max(initial=0.0))
    if not found < room:
        raise RangeError(
            f"{kind}: a number of magnitude {found:.3g} cannot be added up encrypted, {clients} clients may "
            f"send up to {room:.3g} each: are the features or targets of that size? Rescale them, or use "
            "--protect secure-sum with fewer bits"
        )
