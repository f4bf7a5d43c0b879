"""A site's key pair. It is created at the site; only the public key, one line of text, leaves it."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unseen.deploy.identity.tls import PRIVATE, PUBLIC, require_cryptography, write_new
from unseen.errors import UnseenError, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

CURVES = ("secp256r1", "secp384r1", "secp521r1")
"""Curves that Flower accepts."""


@dataclass(frozen=True)
class SiteKey:
    """Paths of a key pair."""

    private: Path
    public: Path

    @property
    def line(self) -> str:
        """Public key, one line of text."""
        return self.public.read_text(encoding="utf-8").strip()


def site_key(folder: Path, site: str) -> SiteKey:
    """Load a site's key pair, or create it."""
    key = SiteKey(folder / f"{site}.key", folder / f"{site}.pub")
    if not key.private.exists():
        _make(key, site)
    elif not key.public.exists():
        _write_public(key, load_private_key(key.private).line, site)
    return key


def _make(key: SiteKey, site: str) -> None:
    require_cryptography()
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    pair = ec.generate_private_key(ec.SECP384R1())
    private = pair.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    key.private.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_new(key.private, private, mode=PRIVATE)
    _write_public(key, public_line(pair), site)


def _write_public(key: SiteKey, line: str, site: str) -> None:
    """Write the public half, which follows from the private one; a crash may have left that alone."""
    write_new(key.public, f"{line} {site}\n".encode(), mode=PUBLIC)


@dataclass(frozen=True)
class PrivateKey:
    """A loaded private key and the line of its public key."""

    secret: ec.EllipticCurvePrivateKey
    line: str


def load_private_key(path: Path) -> PrivateKey:
    """Load a private key of a site (or of the coordinator) from its file."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric import ec

    secret = read_secret(path, expected="is not a private key of Unseen; restore it from a copy")
    if not isinstance(secret, ec.EllipticCurvePrivateKey):
        raise UnseenError(f"{path} is not an elliptic-curve key of Unseen; restore it from a copy")
    return PrivateKey(secret, public_line(secret))


def public_line(secret: Any) -> str:
    """Return the line of the public half of a private key."""
    from cryptography.hazmat.primitives import serialization

    public: bytes = secret.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return public.decode()


def read_secret(path: Path, *, expected: str) -> Any:
    """Read a private key of any kind, without a passphrase, from its file.

    expected  what is said of a file that is none
    """
    require_cryptography()
    from cryptography.hazmat.primitives import serialization

    try:
        content = path.read_bytes()
        load = (
            serialization.load_ssh_private_key
            if b"OPENSSH" in content[:64]
            else serialization.load_pem_private_key
        )
        return load(content, password=None)
    except OSError as error:
        raise UnseenError(f"cannot read the private key {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise UnseenError(f"{path} {expected}") from error


def sign(key: PrivateKey, content: bytes) -> bytes:
    """Sign bytes: ECDSA with SHA-384."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec

    return key.secret.sign(content, ec.ECDSA(hashes.SHA384()))


def verify_signature(line: str, content: bytes, signature: bytes) -> bool:
    """Check a signature of `sign` against a public key, given as its line; False for anything unusable."""
    require_cryptography()
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_ssh_public_key(line.encode())
        if not isinstance(key, ec.EllipticCurvePublicKey):
            return False
        key.verify(signature, content, ec.ECDSA(hashes.SHA384()))
    except (ValueError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True


def read_public_key(given: str) -> str:
    """Read a public key from a file or the line itself; refuse anything else, above all a private key."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    text = given if given.startswith("ecdsa-") else _file(given)
    if "PRIVATE KEY" in text:
        raise UsageError(
            f"{given} is a private key, which must never leave its site: that site should delete it, run "
            "`unseen join` again and send the .pub file"
        )
    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UsageError(
            f"{given} is not a public key; expected the .pub file that `unseen join` created"
        ) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name not in CURVES:
        raise UsageError(f"{given}: expected an ECDSA key as `unseen join` makes it, not {text.split()[0]}")
    return " ".join(text.split()[:2])


def _file(given: str) -> str:
    try:
        return Path(given).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {given}: expected a site's public key (SITE.pub)") from error


def fingerprint(line: str) -> str:
    """Return the fingerprint that `ssh-keygen -l` shows, for two people to compare over the phone."""
    digest = hashlib.sha256(base64.b64decode(line.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"
