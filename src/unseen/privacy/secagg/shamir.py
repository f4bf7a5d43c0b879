"""Shamir's secret sharing: any `threshold` shares give the secret, fewer reveal nothing about it.

A secret of 32 bytes is the value at zero of a polynomial of degree threshold - 1 over the integers modulo
the prime 2^521 - 1; the share at position x (from 1 on) is its value there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

PRIME = 2**521 - 1
SECRET_BYTES = 32
SHARE_BYTES = 66


def split(secret: bytes, *, threshold: int, shares: int, random: Callable[[int], bytes]) -> list[bytes]:
    """Split a secret into shares; `random(n)` returns n unpredictable bytes."""
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    if not 1 <= threshold <= shares:
        raise ValueError(f"{threshold} of {shares} shares cannot be needed")
    drawn = random((threshold - 1) * 2 * SHARE_BYTES)
    size = 2 * SHARE_BYTES
    coefficients = [int.from_bytes(secret, "big")]
    coefficients += [
        int.from_bytes(drawn[n * size : (n + 1) * size], "big") % PRIME for n in range(threshold - 1)
    ]
    return [_value(coefficients, place).to_bytes(SHARE_BYTES, "big") for place in range(1, shares + 1)]


def join(shares: Mapping[int, bytes]) -> bytes:
    """Reconstruct the secret from shares by position; wrong ones give a wrong secret or an error."""
    total = 0
    for place, share in shares.items():
        above, below = 1, 1
        for other in shares:
            if other != place:
                above = above * other % PRIME
                below = below * (other - place) % PRIME
        total += int.from_bytes(share, "big") * above * pow(below, -1, PRIME)
    secret = total % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("the shares do not belong to one secret, or there are too few of them")
    return secret.to_bytes(SECRET_BYTES, "big")


def _value(coefficients: list[int], place: int) -> int:
    """Evaluate the polynomial by Horner's rule."""
    value = 0
    for coefficient in reversed(coefficients):
        value = (value * place + coefficient) % PRIME
    return value
