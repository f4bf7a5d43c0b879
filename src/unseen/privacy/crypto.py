"""Keys, masks and authenticated encryption by the `cryptography` library: X25519, HKDF, ChaCha20, Poly1305.

Secrets come from the operating system, never from a run's seed: whoever knows the seed must not know the
masks. Masks cancel in the sum to the last bit, so a run remains a function of its configuration.
"""

from __future__ import annotations

import secrets

import numpy as np
import numpy.typing as npt

from unseen.errors import UnseenError, missing_extra

KEY_BYTES = 32
TAG_BYTES = 16
_PURPOSE = b"unseen secure sum 1: "


def require_cryptography(extra: str, needed_for: str) -> None:
    """Raise an error that names the extra to install if `cryptography` is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise missing_extra("cryptography", extra, needed_for) from error


def new_secret() -> bytes:
    """Draw an unpredictable secret."""
    return secrets.token_bytes(KEY_BYTES)


def derive(secret: bytes, purpose: str, *, salt: bytes = b"") -> bytes:
    """Derive a key for one purpose (HKDF with SHA-256)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = _PURPOSE + purpose.encode()
    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt or None, info=info).derive(secret)


def public_key(private: bytes) -> bytes:
    """Return the public half of an X25519 key."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agree(private: bytes, public: bytes) -> bytes:
    """Agree on the secret that only the holders of two X25519 keys can compute."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

    try:
        return X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise UnseenError(f"a public key in the roster is not usable ({error})") from error


def stream(seed: bytes, size: int) -> bytes:
    """Expand a seed to pseudorandom bytes (ChaCha20); use a seed only once."""
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    return Cipher(ChaCha20(seed, bytes(16)), mode=None).encryptor().update(bytes(size))


def mask(seed: bytes, size: int) -> npt.NDArray[np.uint64]:
    """Expand a seed to a mask of integers modulo 2^64."""
    return np.frombuffer(stream(seed, 8 * size), dtype="<u8").astype(np.uint64, copy=False)


def lock(text: bytes, key: bytes) -> bytes:
    """Encrypt with authentication (ChaCha20-Poly1305); use a key only once."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(key).encrypt(bytes(12), text, None)


def unlock(box: bytes, key: bytes) -> bytes:
    """Decrypt the output of `lock`; another key or a changed text is an error."""
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), box, None)
    except InvalidTag:
        raise UnseenError("a share was encrypted with another key or changed in transit") from None
