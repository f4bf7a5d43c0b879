"""Detached signatures of files, in OpenSSH's format: `ssh-keygen -Y verify` checks them without Unseen.

Keys are Ed25519 keys, as `ssh-keygen -t ed25519` makes them, and the keys that `unseen join` makes.
"""

from __future__ import annotations

import base64
import hashlib
import struct
from pathlib import Path
from typing import Any

from unseen.deploy.identity.keys import fingerprint, public_line, read_secret
from unseen.deploy.identity.tls import require_cryptography
from unseen.errors import UnseenError, UsageError

NAMESPACE = b"unseen-model-card"
"""What is signed, so that a signature of a card counts for nothing else."""
_MAGIC, _VERSION, _HASH = b"SSHSIG", 1, b"sha512"
_FIRST, _LAST = "-----BEGIN SSH SIGNATURE-----", "-----END SSH SIGNATURE-----"
_CURVE_HASHES = {"secp256r1": "SHA256", "secp384r1": "SHA384", "secp521r1": "SHA512"}


class Signer:
    """A private key that signs; `line` is its public key."""

    def __init__(self, path: Path) -> None:
        require_cryptography()
        from cryptography.hazmat.primitives.asymmetric import ec, ed25519

        kinds = "an Ed25519 key without a passphrase (ssh-keygen -t ed25519 -N ''), or one of 'unseen join'"
        self._secret = read_secret(path, expected=f"is no private key that can sign; expected {kinds}")
        if not isinstance(self._secret, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
            raise UsageError(f"{path} is a key of another kind; expected {kinds}")
        self.line = public_line(self._secret)

    def sign(self, content: bytes) -> str:
        """Return the detached signature as text."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

        name, key = (part.encode() for part in self.line.split()[:2])
        message = _signed_part(content)
        if isinstance(self._secret, ec.EllipticCurvePrivateKey):
            raw = self._secret.sign(message, ec.ECDSA(_curve_hash(self._secret.curve.name)))
            numbers = b"".join(_string(_integer(value)) for value in decode_dss_signature(raw))
        else:
            numbers = self._secret.sign(message)
        parts = (base64.b64decode(key), NAMESPACE, b"", _HASH, _string(name) + _string(numbers))
        blob = _MAGIC + struct.pack(">I", _VERSION) + b"".join(map(_string, parts))
        text = base64.b64encode(blob).decode()
        lines = [text[start : start + 70] for start in range(0, len(text), 70)]
        return "\n".join([_FIRST, *lines, _LAST]) + "\n"


def verify_detached(content: bytes, signature: str) -> str:
    """Return the line of the key that signed these bytes; refuse a signature that does not fit them."""
    require_cryptography()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

    try:
        first, *lines, last = signature.strip().splitlines()
        if (first, last) != (_FIRST, _LAST):
            raise ValueError("no OpenSSH signature")
        blob = base64.b64decode("".join(lines), validate=True)
        if blob[:6] != _MAGIC or struct.unpack(">I", blob[6:10]) != (_VERSION,):
            raise ValueError("another version")
        public, namespace, _, digest, inner = _strings(blob[10:], 5)
        if (namespace, digest) != (NAMESPACE, _HASH):
            raise ValueError("signed for another purpose")
        kind, numbers = _strings(inner, 2)
        line = f"{_strings(public)[0].decode()} {base64.b64encode(public).decode()}"
        key: Any = serialization.load_ssh_public_key(line.encode())
        if kind != _strings(public)[0]:
            raise ValueError("key and signature are of different kinds")
        if isinstance(key, ec.EllipticCurvePublicKey):
            pair = [int.from_bytes(part, "big") for part in _strings(numbers, 2)]
            key.verify(
                encode_dss_signature(*pair), _signed_part(content), ec.ECDSA(_curve_hash(key.curve.name))
            )
        else:
            key.verify(numbers, _signed_part(content))
    except InvalidSignature:
        raise UnseenError("the signature does not fit: card or signature was changed") from None
    except (ValueError, TypeError, struct.error, UnsupportedAlgorithm) as error:
        raise UnseenError(f"the signature cannot be read ({' '.join(str(error).split())[:100]})") from error
    return line


def require_signer(line: str, given: str) -> None:
    """Refuse a signature by another key than a given one: its line, or the file that has it."""
    text = given
    if not given.startswith(("ssh-", "ecdsa-")):
        try:
            text = Path(given).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read {given}: expected a public key (KEY.pub)") from error
    if "PRIVATE KEY" in text or len(text.split()) < 2:
        raise UsageError(f"{given} is no public key: expected the .pub file next to the private key")
    if text.split()[:2] != line.split()[:2]:
        raise UnseenError(f"signed by another key: {fingerprint(line)}, not the one of {given}")


def _signed_part(content: bytes) -> bytes:
    parts = (NAMESPACE, b"", _HASH, hashlib.sha512(content).digest())
    return _MAGIC + b"".join(map(_string, parts))


def _string(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content


def _strings(content: bytes, count: int | None = None) -> list[bytes]:
    """Take strings apart that `_string` made; `count` is how many there must be."""
    found = []
    while content:
        (size,) = struct.unpack(">I", content[:4])
        if len(content) < 4 + size:
            raise ValueError("cut short")
        found.append(content[4 : 4 + size])
        content = content[4 + size :]
    if count not in (None, len(found)) or not found:
        raise ValueError("another number of parts")
    return found


def _integer(value: int) -> bytes:
    """Write a positive number as an mpint, whose highest bit is its sign."""
    return value.to_bytes(value.bit_length() // 8 + 1, "big")


def _curve_hash(curve: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    return getattr(hashes, _CURVE_HASHES[curve])()
