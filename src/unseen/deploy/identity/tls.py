"""The federation's certificate authority (CA), and the coordinator's server certificate signed by it.

The CA is created once and kept: sites store its certificate, so a new CA would lock them out. Its private key
is needed only to sign, and may be kept elsewhere. The server certificate is valid for a year and can be
renewed. Key files are readable by their owner only.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from unseen.deploy.flower.processes import Certificates
from unseen.errors import UnseenError, UsageError, missing_extra

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

ALWAYS = ("localhost", "127.0.0.1", "::1")
"""Names in every certificate: the coordinator's own processes connect over loopback."""
CA_DAYS, SERVER_DAYS = 3650, 365
WARN_DAYS = 30
"""A certificate with fewer days left is announced."""
_NEXT = "renewed"
"""Name of a certificate and key that are written, but not yet in the place of the former ones."""
PRIVATE, PUBLIC = 0o600, 0o644


def make_certificates(
    folder: Path, hosts: Sequence[str], *, renew: bool = False, ca_key: Path | None = None
) -> Certificates:
    """Create the CA and a server certificate for `hosts`, or load those in `folder`.

    renew   replace the server certificate and its key by new ones; the CA stays
    ca_key  the CA's private key, if it is not kept in `folder`
    """
    require_cryptography()
    files = Certificates(folder / "server.crt", folder / "server.key", folder / "ca.crt")
    authority_key = ca_key or folder / "ca.key"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not files.ca.exists():
        if files.certificate.exists():
            raise UnseenError(f"{files.ca} is missing: restore it; every site has a copy in its home")
        _make_authority(files.ca, authority_key)
    _finish_renewal(files)
    if renew and files.certificate.exists():
        waiting = _renew(files)
        waiting.key.unlink(missing_ok=True)
        _make_server(waiting, authority_key, hosts)
        _finish_renewal(files)
    elif files.certificate.exists() and files.key.exists():
        _require_good_for(files, hosts)
    else:
        _make_server(files, authority_key, hosts)
    return files


def _renew(files: Certificates) -> Certificates:
    folder = files.ca.parent
    return Certificates(folder / f"{_NEXT}.crt", folder / f"{_NEXT}.key", files.ca)


def _finish_renewal(files: Certificates) -> None:
    """Put a complete renewed pair in its place; its certificate is written last and moved last."""
    waiting = _renew(files)
    if waiting.certificate.exists():
        if waiting.key.exists():
            waiting.key.replace(files.key)
        waiting.certificate.replace(files.certificate)


def days_left(files: Certificates) -> int:
    """Return the days until the first of server certificate and CA expires."""
    ends = (read_certificate(path.read_bytes()).not_valid_after_utc for path in (files.certificate, files.ca))
    return (min(ends) - datetime.now(UTC)).days


def read_certificate(pem: bytes) -> x509.Certificate:
    """Read a certificate; an unusable one raises an error of one line."""
    require_cryptography()
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise UsageError("the certificate is damaged: it is not PEM of X.509") from error


def require_cryptography() -> None:
    """Raise an error that names the extra if the library is missing."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise missing_extra("cryptography", "flower", "a federation across machines") from None


def write_new(path: Path, content: bytes, *, mode: int) -> None:
    """Write a new file that has these permissions from its creation on; refuse to overwrite.

    It gets its name when it is complete, so a crash leaves no key or certificate that is cut short.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(handle)
        os.link(temporary, path)
    except FileExistsError:
        raise UnseenError(
            f"{path} already exists and is not overwritten; its counterpart is missing: restore that, "
            "or move this file away"
        ) from None
    except OSError as error:
        raise UnseenError(f"could not write {path}: {error.strerror}") from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _make_authority(certificate: Path, key_file: Path) -> None:
    """Create the CA; a key without its certificate, which a crash leaves behind, gets one."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    if not key_file.exists():
        write_new(key_file, _pem(ec.generate_private_key(ec.SECP384R1())), mode=PRIVATE)
    key = _load_key(key_file)
    names = _make_name("Unseen federation: certificate authority")
    builder = (
        _begin(names, key.public_key(), days=CA_DAYS)
        .issuer_name(names)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    write_new(certificate, _sign(builder, key), mode=PUBLIC)


def _make_server(files: Certificates, authority_key: Path, hosts: Sequence[str]) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    authority = read_certificate(files.ca.read_bytes())
    signer = _signing_key(authority_key, authority)
    key = ec.generate_private_key(ec.SECP384R1())
    names = x509.SubjectAlternativeName([_general(host) for host in dict.fromkeys((*hosts, *ALWAYS))])
    builder = (
        _begin(_make_name("Unseen federation: coordinator"), key.public_key(), days=SERVER_DAYS)
        .issuer_name(authority.subject)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    for half in (files.key, files.certificate):
        half.unlink(missing_ok=True)  # a crash between the two leaves one of them, which is of no use
    write_new(files.key, _pem(key), mode=PRIVATE)
    write_new(files.certificate, _sign(builder, signer), mode=PUBLIC)


def _signing_key(path: Path, authority: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    """Load the CA's private key, and check that it is this CA's."""
    key = _load_key(path)
    if key.public_key() != authority.public_key():
        raise UsageError(f"{path} is not the key of this federation's CA; expected its ca.key")
    return key


def _load_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Load a private key of the CA."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except FileNotFoundError:
        raise UsageError(
            f"a new certificate must be signed with the CA's private key, and there is no {path}: put it "
            "back for this command, or name it with --ca-key FILE"
        ) from None
    except OSError as error:
        raise UnseenError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError) as error:
        raise UsageError(f"{path} is not a private key; expected the ca.key of `unseen up`") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UsageError(f"{path} is not the key of this federation's CA; expected its ca.key")
    return key


def _require_good_for(files: Certificates, hosts: Sequence[str]) -> None:
    """Raise an error for a server certificate that sites would reject."""
    from cryptography import x509

    certificate = read_certificate(files.certificate.read_bytes())
    known = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    missing = [host for host in hosts if _general(host) not in set(known)]
    if missing:
        raise UsageError(
            f"the coordinator's certificate is not for {', '.join(missing)}; make a new one with --renew "
            "(sites keep their invitations)"
        )
    if certificate.not_valid_after_utc < datetime.now(UTC):
        raise UsageError("the coordinator's certificate has expired; make a new one: unseen up --renew")


def _general(host: str) -> x509.GeneralName:
    from cryptography import x509

    with suppress(ValueError):
        return x509.IPAddress(ip_address(host))
    return x509.DNSName(host)


def _make_name(name: str) -> x509.Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _begin(subject: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int) -> x509.CertificateBuilder:
    from cryptography import x509

    start = datetime.now(UTC) - timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _sign(builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import hashes, serialization

    return builder.sign(key, hashes.SHA384()).public_bytes(serialization.Encoding.PEM)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
