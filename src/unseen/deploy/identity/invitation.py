"""The invitation: a small file, without any secret, by which a site finds and recognizes its coordinator.

It is signed with the key of the coordinator's certificate, which the CA in the invitation has signed. So
nothing in it can be changed without replacing the CA too, whose fingerprint two people compare.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import tomllib
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.deploy.identity.keys import load_private_key, sign, verify_signature
from unseen.deploy.identity.tls import read_certificate
from unseen.deploy.safe_names import require_safe_name
from unseen.errors import UsageError
from unseen.fileio import write_text

if TYPE_CHECKING:
    from cryptography import x509

    from unseen.deploy.flower.processes import Certificates

SUFFIX = ".invitation"
VALID_DAYS = 14.0
_ASK = "ask the coordinator for another (`unseen invite`)"
_TEXT = """\
# An invitation to train with Unseen. It contains no secret. At the site, next to its data:
#     unseen join {file} --data FOLDER
site = {site}
coordinator = {address}
expires = {expires}
signature = {signature}
ca = '''
{ca}'''
certificate = '''
{certificate}'''
"""


@dataclass(frozen=True)
class Invitation:
    """The site's name, the coordinator's address (host:port) and its CA certificate (PEM).

    expires      when it can no longer be used to join for the first time; empty in those of older versions
    certificate  of the coordinator, whose key signed the invitation
    """

    site: str
    address: str
    ca: str
    expires: str = ""
    certificate: str = ""
    signature: str = ""

    @classmethod
    def issue(
        cls, site: str, address: str, certificates: Certificates, *, days: float = VALID_DAYS
    ) -> Invitation:
        """Write and sign an invitation that is valid for some days."""
        expires = datetime.now(UTC) + timedelta(days=days)
        unsigned = cls(
            site,
            address,
            certificates.ca.read_text(encoding="utf-8"),
            expires.isoformat(timespec="seconds"),
            certificates.certificate.read_text(encoding="utf-8"),
        )
        signature = sign(load_private_key(certificates.key), unsigned.content)
        return replace(unsigned, signature=base64.b64encode(signature).decode())

    @property
    def content(self) -> bytes:
        """What is signed."""
        return json.dumps([self.site, self.address, self.ca, self.expires, self.certificate]).encode()

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the CA, for two people to compare over the phone."""
        return ca_fingerprint(self.ca)

    def save(self, path: Path) -> None:
        """Write the file."""
        texts = {
            name: json.dumps(getattr(self, name)) for name in ("site", "address", "expires", "signature")
        }
        write_text(path, _TEXT.format(file=path.name, ca=self.ca, certificate=self.certificate, **texts))

    @classmethod
    def load(cls, path: Path) -> Invitation:
        """Read the file; one that was damaged or changed is refused."""
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
            found = cls(
                *(str(values[name]) for name in ("site", "coordinator", "ca")),
                *(str(values.get(name, "")) for name in ("expires", "certificate", "signature")),
            )
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, KeyError) as error:
            raise UsageError(
                f"{path} is not an invitation; expected the file of `unseen invite SITE`"
            ) from error
        require_site_name(found.site)
        if not re.fullmatch(r".+:\d+", found.address):
            raise UsageError(f"{path} is incomplete; {_ASK}")
        _read(found.ca, f"{path}: its CA is damaged; {_ASK}")
        if found.signature and not found.is_signed():
            raise UsageError(f"{path} was changed after the coordinator signed it; {_ASK}")
        return found

    def is_signed(self) -> bool:
        """Check that its CA vouches for its certificate, and the certificate's key for all of it."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import serialization

        authority = _read(self.ca, "the invitation's CA is damaged")
        try:
            certificate = read_certificate(self.certificate.encode())
            certificate.verify_directly_issued_by(authority)
            signature = base64.b64decode(self.signature, validate=True)
        except (UsageError, ValueError, TypeError, InvalidSignature, binascii.Error):
            return False
        line = certificate.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        return verify_signature(line.decode(), self.content, signature)

    def require_fresh(self) -> None:
        """Refuse an invitation to join for the first time that is unsigned or has expired."""
        if not self.signature:
            raise UsageError(f"the invitation is not signed: it is of an older version; {_ASK}")
        try:
            expires = datetime.fromisoformat(self.expires)
        except ValueError as error:
            raise UsageError(f"the invitation has no date of expiry; {_ASK}") from error
        if expires < datetime.now(UTC):
            raise UsageError(f"the invitation expired on {self.expires[:10]}; {_ASK}")


def _read(pem: str, problem: str) -> x509.Certificate:
    try:
        return read_certificate(pem.encode())
    except UsageError as error:
        raise UsageError(problem) from error


def ca_fingerprint(ca: str) -> str:
    """Return the SHA-256 of a CA certificate, as a text to compare."""
    from cryptography.hazmat.primitives import serialization

    content = _read(ca, "the CA is damaged").public_bytes(serialization.Encoding.DER)
    return f"SHA256:{base64.b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')}"


def require_site_name(site: str) -> str:
    """Check that a name can serve as file name and domain name."""
    return require_safe_name(site, "a site")
