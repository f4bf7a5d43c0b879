"""The CKKS scheme by TenSEAL: parameters, and the one object that holds the secret key.

One level of multiplication is enough: Gram entries multiply two fresh ciphertexts, the
weighted sum multiplies a fresh ciphertext by a plain number. So two primes are for data (60 and 40 bits) and
one is for the library; 160 bits at degree 8192 are well inside the 218 that give 128-bit security.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from unseen.errors import UnseenError, missing_extra

Real = NDArray[np.float64]

DEGREE = 8192
"""Degree of the polynomial modulus."""
PRIMES = (60, 40, 60)
"""Bits of the coefficient modulus."""
SCALE = 2.0**40
"""Numbers are multiplied by this before rounding to integers."""
SLOTS = DEGREE // 2
"""Numbers per ciphertext."""
LARGEST = 2.0 ** (PRIMES[0] - 40 - 1)
"""Largest value in a multiplied ciphertext; larger ones wrap around."""
NOISE, NOISE_PER_ROW = 1e-5, 1e-6
"""Bounds on the scheme's error of a sum of products (measured: 2e-6, and 1.3e-7 per summand)."""


def import_tenseal() -> Any:
    """Import TenSEAL, or raise an error that names the extra to install."""
    try:
        import tenseal
    except ImportError as error:
        raise missing_extra("tenseal", "he", "--protect encrypted") from error
    return tenseal


class KeyHolder:
    """Holder of the secret key, a client; the server must never get this object or `secret`.

    All clients hold the same key and encrypt with it, so no public key is needed.
    """

    def __init__(self, context: Any) -> None:
        self._context = context

    @classmethod
    def make(cls, *, products: bool) -> KeyHolder:
        """Draw a new key from the operating system's randomness.

        products  whether the server multiplies ciphertexts and sums their slots
        """
        tenseal = import_tenseal()
        context = tenseal.context(
            tenseal.SCHEME_TYPE.CKKS,
            DEGREE,
            coeff_mod_bit_sizes=list(PRIMES),
            encryption_type=tenseal.ENCRYPTION_TYPE.SYMMETRIC,
            n_threads=1,
        )
        context.global_scale = SCALE
        if products:
            context.generate_galois_keys()
        return cls(context)

    @classmethod
    def open(cls, secret: bytes) -> KeyHolder:
        """Load a key that was stored or received."""
        context = open_context(secret)
        if not context.is_private():
            raise UnseenError("this is not a secret key of the encryption: it has only the public part")
        return cls(context)

    @cached_property
    def secret(self) -> bytes:
        """Serialized key, for other clients and for the client's own state."""
        return self._save(secret=True, products=False)

    def public(self, *, products: bool) -> bytes:
        """Serialize the public context for the server: enough to compute, not to decrypt."""
        return self._save(secret=False, products=products)

    def encrypt(self, numbers: Real) -> bytes:
        """Encrypt up to `SLOTS` numbers."""
        return bytes(import_tenseal().ckks_vector(self._context, numbers).serialize())

    def decrypt(self, ciphertext: bytes) -> Real:
        """Decrypt a ciphertext."""
        return np.array(open_ciphertext(self._context, ciphertext).decrypt(), dtype=np.float64)

    def _save(self, *, secret: bool, products: bool) -> bytes:
        saved = self._context.serialize(
            save_public_key=False,
            save_secret_key=secret,
            save_galois_keys=products,
            save_relin_keys=products,
        )
        return bytes(saved)


def open_context(saved: bytes) -> Any:
    """Deserialize a context, public or secret."""
    try:
        return import_tenseal().context_from(saved, n_threads=1)
    except ValueError as error:
        raise UnseenError(
            f"an encryption key cannot be read ({error}); was it truncated or changed?"
        ) from error


def open_ciphertext(context: Any, ciphertext: bytes) -> Any:
    """Deserialize a ciphertext, still encrypted."""
    try:
        return import_tenseal().ckks_vector_from(context, ciphertext)
    except (ValueError, RuntimeError) as error:
        raise UnseenError(f"a ciphertext cannot be read ({error}); was it truncated or changed?") from error
