"""Signatures of a round's keys with the sites' registered keys, so that no server can put in keys of its own.

A site knows the other sites' keys from `peers.toml` in its home: fingerprints that people exchanged, not the
coordinator. Without that file, the coordinator introduces the sites to one another.
"""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from unseen.deploy.identity.keys import SiteKey, fingerprint, read_public_key
from unseen.errors import UnseenError, UsageError
from unseen.fileio import write_text

PEERS = "peers.toml"
_PURPOSE = "unseen round keys 1"
_NUMBER_BYTES = 66
"""Enough for a number of a signature on every curve of `keys.CURVES`."""
log = logging.getLogger("unseen.site")


@dataclass(frozen=True)
class SiteIdentity:
    """A site's key for one run, and the fingerprints of the sites that it trusts; no peers = none is checked.

    run  identity of the run, which signatures are bound to
    """

    site: str
    run: str
    key: SiteKey
    peers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def find(cls, home: Path, site: str, run: str) -> SiteIdentity | None:
        """Load the identity of a site from its home; None where it has no key, as in tests of one process."""
        key = SiteKey(home / f"{site}.key", home / f"{site}.pub")
        if not key.private.exists() or not key.public.exists():
            return None
        return cls(site, run, key, read_peers(home / PEERS))

    def sign(self, *, client: str, round: int, keys: bytes) -> list[bytes]:
        """Sign a client's public keys of a round; return the site's public key and the signature."""
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.serialization import load_ssh_private_key

        if not self.peers:
            log.warning(
                "round %s: this site has no %s, so the coordinator introduces the other sites' keys",
                round,
                PEERS,
            )
        private = load_ssh_private_key(self.key.private.read_bytes(), password=None)
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise UnseenError(f"{self.key.private} is not an ECDSA key as `unseen join` makes it")
        text = _signed_text(self.run, client=client, round=round, keys=keys)
        numbers = decode_dss_signature(private.sign(text, ec.ECDSA(SHA256())))
        line = " ".join(self.key.line.split()[:2])
        return [line.encode(), *(number.to_bytes(_NUMBER_BYTES, "big") for number in numbers)]

    def objection(self, *, client: str, round: int, keys: bytes, proof: Sequence[bytes]) -> str:
        """Say why the keys of a client are not those that its site signed; empty if they are.

        Without `peers.toml` nothing can be checked.
        """
        if not self.peers:
            return ""
        trusted = {**self.peers, self.site: fingerprint(self.key.line)}
        site = _site_of(client, trusted)
        if site is None:
            return f"client {client!r} belongs to no site of {PEERS}; add its key, or leave it out of the run"
        if _is_signed(_signed_text(self.run, client=client, round=round, keys=keys), proof, trusted[site]):
            return ""
        return (
            f"the keys of client {client!r} in this round are not signed by the key of site {site} in "
            f"{PEERS} ({trusted[site]}): somebody put in others, or the site has a new key. Nothing was sent"
        )


def read_peers(path: Path) -> dict[str, str]:
    """Read the fingerprints of other sites' keys by site; none if there is no file."""
    if not path.exists():
        return {}
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8")).get("sites", {})
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    if not isinstance(values, dict) or not values:
        raise UsageError(
            f'{path} names no site; expected a table [sites] with lines such as b = "SHA256:..."'
        )
    return {str(site): _as_fingerprint(path, site, value) for site, value in values.items()}


def copy_peers(given: Path, home: Path) -> dict[str, str]:
    """Check a file of peers and keep it in the site's home."""
    if not given.exists():
        raise UsageError(f"cannot read {given}: expected a file with the other sites' fingerprints")
    found = read_peers(given)
    write_text(home / PEERS, given.read_text(encoding="utf-8"))
    return found


def _as_fingerprint(path: Path, site: str, value: object) -> str:
    if isinstance(value, str) and value.startswith("SHA256:"):
        return value.strip()
    if isinstance(value, str) and value.startswith("ecdsa-"):
        return fingerprint(read_public_key(value))
    raise UsageError(
        f"{path}: site {site} has {value!r}; expected the fingerprint (SHA256:...) that `unseen join` shows "
        "at that site, or the line of its .pub file"
    )


def _site_of(client: str, sites: Mapping[str, str]) -> str | None:
    """Find a client's site: clients are named after it, with a number where a site has several."""
    if client in sites:
        return client
    site, _, number = client.rpartition("-")
    return site if site in sites and number.isdecimal() else None


def _signed_text(run: str, *, client: str, round: int, keys: bytes) -> bytes:
    return json.dumps([_PURPOSE, run, client, round, keys.hex()]).encode()


def _is_signed(text: bytes, proof: Sequence[bytes], trusted: str) -> bool:
    """Check that a proof is a signature of the text by the key with the trusted fingerprint."""
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    try:
        line, *numbers = proof
        one, other = (int.from_bytes(number, "big") for number in numbers)
        if fingerprint(line.decode()) != trusted:
            return False
        public = load_ssh_public_key(line)
        if not isinstance(public, ec.EllipticCurvePublicKey):
            return False
        public.verify(encode_dss_signature(one, other), text, ec.ECDSA(SHA256()))
    except (ValueError, IndexError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True
