"""The cost of encryption, measured on a few ciphertexts just before a run."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from unseen.privacy.he.ciphertext_packing import CiphertextLayout
from unseen.privacy.he.ckks import SLOTS, KeyHolder
from unseen.privacy.he.server_process import EncryptedServer

R = TypeVar("R")


@dataclass(frozen=True)
class Calibration:
    """Seconds and bytes per ciphertext on this machine.

    multiply  a product of two ciphertexts, added up; `slots` is the closing sum over a product's slots
    weigh     a ciphertext times a number, added up; `add` without the number
    """

    encrypt: float
    decrypt: float
    weigh: float
    add: float
    multiply: float
    slots: float
    fresh_bytes: int
    summed_bytes: int
    context_bytes: int
    secret_bytes: int


@dataclass(frozen=True)
class RoundCost:
    """Estimated cost of a round.

    opening_down  bytes sent to the client that decrypts
    """

    at_client: float
    at_server: float
    opening: float
    client_up: int
    opening_down: int
    once: int


def calibrate(*, products: bool, times: int = 2) -> Calibration:
    """Time encryption, arithmetic and decryption of a few rows with a throwaway key."""
    holder, server = KeyHolder.make(products=products), EncryptedServer()
    public = holder.public(products=products)
    server.open(public)
    row = np.linspace(-1, 1, SLOTS)
    encrypt, fresh = _time(lambda: [holder.encrypt(row) for _ in range(times)])
    for client in ("a", "b"):
        server.take(client, fresh)
    weigh, summed = _time(lambda: server.weighted_sum(range(times), {"a": 0.3, "b": 0.7}))
    add, _ = _time(lambda: server.plain_sum(range(times)))
    decrypt, _ = _time(lambda: [holder.decrypt(part) for part in summed])
    multiply = slots = 0.0
    if products:
        one, _ = _time(lambda: server.gram(1))
        more, _ = _time(lambda: server.gram(times))
        multiply = max(more - one, 0.0) / (3 * (times - 1))
        slots = max(one / 3 - multiply, 0.0)
    return Calibration(
        encrypt=encrypt / times,
        decrypt=decrypt / times,
        weigh=weigh / (2 * times),
        add=add / (2 * times),
        multiply=multiply,
        slots=slots,
        fresh_bytes=len(fresh[0]),
        summed_bytes=len(summed[0]),
        context_bytes=len(public),
        secret_bytes=len(holder.secret),
    )


def estimate(
    measured: Calibration, packing: CiphertextLayout, *, clients: int, products: bool, addends: int = 0
) -> RoundCost:
    """Scale the calibration to a round's ciphertexts.

    addends  ciphertexts of a client's extras, which are only added up
    """
    parameters, rows = len(packing.rows[0]), sum(map(len, packing.rows))
    pairs = clients * (clients + 1) // 2 if products else 0
    return RoundCost(
        at_client=(rows + addends) * measured.encrypt,
        at_server=clients * (rows * measured.weigh + addends * measured.add)
        + pairs * (parameters * measured.multiply + measured.slots),
        opening=(rows + addends) * measured.decrypt,
        client_up=(rows + addends) * measured.fresh_bytes,
        opening_down=(rows + pairs) * measured.summed_bytes + addends * measured.fresh_bytes,
        once=measured.context_bytes + (clients - 1) * measured.secret_bytes,
    )


def describe(cost: RoundCost, *, clients: int, plain: int, when: str = "for every round") -> str:
    """Describe the cost in a sentence for the user, before the run starts.

    plain  bytes that a client would send unprotected
    """
    whole = clients * cost.at_client + cost.at_server + cost.opening
    return (
        f"encrypted: about {whole:.2g} s more {when} on one core ({cost.at_client:.2g} s at each of "
        f"{clients} clients, {cost.at_server:.2g} s at the server, {cost.opening:.2g} s to decrypt; measured "
        f"just now); a client sends {cost.client_up / 1e6:.3g} MB a round ({plain / 1e6:.3g} MB "
        f"without), and one of them gets {cost.opening_down / 1e6:.3g} MB to decrypt; keys take "
        f"{cost.once / 1e6:.3g} MB once"
    )


def _time(do: Callable[[], R]) -> tuple[float, R]:
    started = time.perf_counter()
    result = do()
    return time.perf_counter() - started, result
