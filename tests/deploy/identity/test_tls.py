"""Certificates, keys and invitations: what they are good for, who can read them, what is refused."""

from __future__ import annotations

import socket
import ssl
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from unseen.deploy.coordinator.coordinator_home import CoordinatorHome, open_home
from unseen.deploy.identity.invitation import Invitation
from unseen.deploy.identity.keys import fingerprint, read_public_key, site_key
from unseen.deploy.identity.members import Members
from unseen.deploy.identity.tls import make_certificates
from unseen.errors import UnseenError, UsageError


def handshake(certificates: Path, *, trusted: Path, name: str) -> None:
    """Shake hands with a server that shows the certificate of one folder, trusting that of another."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)

        def serve() -> None:
            line, _ = listener.accept()
            try:
                server.wrap_socket(line, server_side=True).close()
            except OSError:
                line.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with socket.create_connection(listener.getsockname(), timeout=10) as line:
                ssl.create_default_context(cafile=trusted / "ca.crt").wrap_socket(line, server_hostname=name)
        finally:
            thread.join()


def test_a_certificate_is_good_for_its_names_and_under_its_own_authority_only(tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    make_certificates(ours, ["fed.example.org", "10.1.2.3"])
    make_certificates(other, ["fed.example.org"])
    for name in ("fed.example.org", "10.1.2.3", "localhost", "127.0.0.1"):
        handshake(ours, trusted=ours, name=name)
    with pytest.raises(ssl.SSLCertVerificationError, match=r"doesn't match|mismatch"):
        handshake(ours, trusted=ours, name="elsewhere.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(other, trusted=ours, name="fed.example.org")


def test_private_files_are_for_their_owner_and_nothing_is_written_over(tmp_path: Path) -> None:
    make_certificates(tmp_path / "tls", ["a.example"])
    site_key(tmp_path / "site", "a")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in before if path.suffix == ".key"} == {0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700
    make_certificates(tmp_path / "tls", ["a.example"])
    site_key(tmp_path / "site", "a")
    assert {path: path.read_bytes() for path in before} == before
    (tmp_path / "tls" / "ca.crt").unlink()
    with pytest.raises(UnseenError, match=r"ca.crt is missing: restore it"):
        make_certificates(tmp_path / "tls", ["a.example"])


def test_a_pair_of_which_a_crash_left_one_half_is_completed(tmp_path: Path) -> None:
    """Crash points: killed between a key and its certificate, `unseen up` and `unseen join` went on never."""
    files = make_certificates(tmp_path / "tls", ["a.example"])
    key, authority = site_key(tmp_path / "site", "a"), files.ca.read_bytes()
    line = key.line
    key.public.unlink()
    assert site_key(tmp_path / "site", "a").line == line
    files.certificate.unlink()
    make_certificates(tmp_path / "tls", ["a.example"])
    assert files.ca.read_bytes() == authority
    secret = (tmp_path / "tls" / "ca.key").read_bytes()
    for path in (files.certificate, files.key, files.ca):
        path.unlink()
    make_certificates(tmp_path / "tls", ["a.example"])
    assert (tmp_path / "tls" / "ca.key").read_bytes() == secret


def test_a_home_goes_on_with_what_it_was_and_says_what_its_certificate_lacks(tmp_path: Path) -> None:
    first = open_home(tmp_path / "home", hosts=["fed.example.org"], port=12345)
    assert open_home(tmp_path / "home") == first == CoordinatorHome.load(tmp_path / "home")
    assert (first.address, first.listens_on) == ("fed.example.org:12345", "0.0.0.0")
    assert open_home(tmp_path / "try").listens_on == "127.0.0.1"
    with pytest.raises(UsageError, match=r"not for other\.example"):
        open_home(tmp_path / "home", hosts=["fed.example.org", "other.example"])
    assert CoordinatorHome.load(tmp_path / "home") == first
    with pytest.raises(UsageError, match="neither a host name nor an address"):
        open_home(tmp_path / "bad", hosts=["https://fed.example.org"])


def test_public_keys_are_taken_as_file_or_line_and_private_ones_are_refused(tmp_path: Path) -> None:
    key = site_key(tmp_path, "a")
    line = read_public_key(str(key.public))
    assert line == read_public_key(key.line)
    assert line.split()[0] == "ecdsa-sha2-nistp384"
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(key.public)], capture_output=True, text=True, check=True
    )
    assert fingerprint(line) in shown.stdout
    with pytest.raises(UsageError, match="is a private key, which must never leave"):
        read_public_key(str(key.private))
    (tmp_path / "other.pub").write_text("ssh-rsa AAAA nonsense")
    with pytest.raises(UsageError, match="is not a public key"):
        read_public_key(str(tmp_path / "other.pub"))
    with pytest.raises(UsageError, match="cannot read nowhere"):
        read_public_key("nowhere.pub")


def test_an_invitation_comes_back_as_it_was_written_and_holds_no_secret(tmp_path: Path) -> None:
    files = make_certificates(tmp_path / "tls", ["fed.example.org"])
    invitation = Invitation.issue("hospital_a", "fed.example.org:9600", files)
    invitation.save(tmp_path / "a.invitation")
    assert Invitation.load(tmp_path / "a.invitation") == invitation
    assert "PRIVATE" not in (tmp_path / "a.invitation").read_text()
    (tmp_path / "bad.invitation").write_text("site = 'a'\n")
    with pytest.raises(UsageError, match="is not an invitation"):
        Invitation.load(tmp_path / "bad.invitation")
    Invitation("../escape", "a:1", invitation.ca).save(tmp_path / "evil.invitation")
    with pytest.raises(UsageError, match="cannot be the name of a site"):
        Invitation.load(tmp_path / "evil.invitation")


def test_a_site_has_one_key_and_a_key_one_site(tmp_path: Path) -> None:
    lines = [read_public_key(site_key(tmp_path / site, site).line) for site in ("a", "b")]
    members = Members(tmp_path)
    members.add("a", lines[0])
    members.add("a", lines[0])
    with pytest.raises(UsageError, match="already has another key"):
        members.add("a", lines[1])
    with pytest.raises(UsageError, match="already belongs to site a"):
        members.add("b", lines[0])
    assert [member.site for member in Members(tmp_path)] == ["a"]
    members.revoke("a", None)
    with pytest.raises(UsageError, match="was revoked and cannot be used again"):
        members.add("a", lines[0])
    members.add("a", lines[1])
    assert [member.key for member in Members(tmp_path)] == [lines[1]]
