"""Certificates, invitations and keys end, are renewed, changed and withdrawn."""

from __future__ import annotations

import os
import re
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from test_tls import handshake

from unseen.deploy.coordinator.coordinator_home import open_home
from unseen.deploy.identity import key_rotation, tls
from unseen.deploy.identity.invitation import Invitation
from unseen.deploy.identity.key_rotation import finish_rotation, read_rotation, rotate_key
from unseen.deploy.identity.keys import load_private_key, read_public_key, site_key
from unseen.deploy.identity.members import Members
from unseen.deploy.identity.tls import days_left, make_certificates, read_certificate
from unseen.deploy.site.ledger_chain import append_line, verify_ledger
from unseen.deploy.site.site_home import open_site
from unseen.errors import UnseenError, UsageError


def test_a_server_certificate_lasts_a_year_and_is_renewed_under_the_same_ca(tmp_path: Path) -> None:
    """Section 5: ten years for CA and server, and rotation by moving files."""
    files = make_certificates(tmp_path, ["a.example"])
    assert 360 <= days_left(files) <= 365
    before = files.certificate.read_bytes(), files.key.read_bytes(), files.ca.read_bytes()
    make_certificates(tmp_path, ["a.example", "b.example"], renew=True)
    after = files.certificate.read_bytes(), files.key.read_bytes(), files.ca.read_bytes()
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False, True]
    handshake(tmp_path, trusted=tmp_path, name="b.example")
    assert stat.S_IMODE(files.key.stat().st_mode) == 0o600
    assert not list(tmp_path.glob("renewed*"))


def test_a_renewal_that_was_interrupted_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path, ["a.example"])
    moved, replace = [], Path.replace

    def power_failure(self: Path, target: Path) -> Path:
        if moved:
            raise KeyboardInterrupt
        moved.append(self)
        return replace(self, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Path, "replace", power_failure)
        make_certificates(tmp_path, ["a.example"], renew=True)
    make_certificates(tmp_path, ["a.example"])
    handshake(tmp_path, trusted=tmp_path, name="a.example")


def test_the_key_of_the_ca_is_needed_only_to_sign(tmp_path: Path) -> None:
    """Section 5: the CA's private key had to stay on the coordinator's machine."""
    home, safe = open_home(tmp_path / "home", hosts=["a.example"]), tmp_path / "stick.key"
    (home.path / "tls" / "ca.key").rename(safe)
    assert open_home(tmp_path / "home") == home
    Invitation.issue("a", home.address, home.certificates())
    with pytest.raises(UsageError, match=r"signed with the CA's private key.* --ca-key FILE"):
        open_home(tmp_path / "home", renew=True)
    make_certificates(tmp_path / "other", ["a.example"])
    with pytest.raises(UsageError, match="is not the key of this federation's CA"):
        open_home(tmp_path / "home", renew=True, ca_key=tmp_path / "other" / "ca.key")
    open_home(tmp_path / "home", renew=True, ca_key=safe)
    assert not (home.path / "tls" / "ca.key").exists()


def test_an_expired_certificate_is_refused_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(tls, "SERVER_DAYS", 0)
        make_certificates(tmp_path, ["a.example"])
    with pytest.raises(UsageError, match="has expired; make a new one: unseen up --renew"):
        make_certificates(tmp_path, ["a.example"])
    make_certificates(tmp_path, ["a.example"], renew=True)
    assert days_left(make_certificates(tmp_path, ["a.example"])) > 300


@pytest.fixture
def invitation(tmp_path: Path) -> Path:
    files = make_certificates(tmp_path / "tls", ["fed.example.org"])
    Invitation.issue("a", "fed.example.org:9600", files).save(tmp_path / "a.invitation")
    return tmp_path / "a.invitation"


@pytest.mark.parametrize(
    ("pattern", "put"),
    [
        ("fed.example.org:9600", "evil.example.org:9600"),
        ('site = "a"', 'site = "b"'),
        (r'expires = "2', 'expires = "3'),
        (r'signature = ".{8}', 'signature = "AAAAAAAA'),
        (r'signature = "[^"]*"', 'signature = "not base64"'),
    ],
)
def test_a_changed_invitation_is_refused(invitation: Path, pattern: str, put: str) -> None:
    """Section 5: an invitation was unsigned."""
    text = invitation.read_text(encoding="utf-8")
    changed = re.sub(pattern, put, text, count=1)
    assert changed != text
    invitation.write_text(changed, encoding="utf-8")
    with pytest.raises(UsageError, match=r"was changed after the coordinator signed it; ask the coordinator"):
        Invitation.load(invitation)


def test_an_invitation_signed_by_another_federation_is_refused(invitation: Path, tmp_path: Path) -> None:
    other = Invitation.issue("a", "evil:1", make_certificates(tmp_path / "other", ["evil"]))
    mixed = Invitation(
        "a", "evil:1", Invitation.load(invitation).ca, other.expires, other.certificate, "AAAA"
    )
    assert not mixed.is_signed()


@pytest.mark.parametrize(
    "ca", ["-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n", "", "x"]
)
def test_a_broken_ca_in_an_invitation_is_one_line(tmp_path: Path, ca: str) -> None:
    """R5: `join` with a garbage CA ended in a traceback."""
    Invitation("a", "a:1", ca).save(tmp_path / "a.invitation")
    with pytest.raises(UsageError, match="its CA is damaged; ask the coordinator") as caught:
        Invitation.load(tmp_path / "a.invitation")
    assert "\n" not in str(caught.value)


def test_an_expired_invitation_opens_no_home_but_a_site_that_joined_keeps_its_own(
    invitation: Path, tmp_path: Path
) -> None:
    """Section 5: an invitation never expired."""
    files = make_certificates(tmp_path / "tls", ["fed.example.org"])
    late = Invitation.issue("a", "fed.example.org:9600", files, days=-1)
    with pytest.raises(UsageError, match=r"expired on 20.*; ask the coordinator for another"):
        open_site(tmp_path / "home", late)
    assert not (tmp_path / "home").exists()
    with pytest.raises(UsageError, match="is not signed"):
        open_site(tmp_path / "home", Invitation("a", "fed.example.org:9600", late.ca))
    open_site(tmp_path / "home", Invitation.load(invitation))
    open_site(tmp_path / "home", late)


def test_a_site_changes_its_key_and_the_coordinator_accepts_it_by_the_former_one(tmp_path: Path) -> None:
    home, members = tmp_path / "home", Members(tmp_path / "coordinator")
    old = site_key(home, "a")
    members.add("a", read_public_key(old.line))
    append_line(home, {"ask": "census", "values": {}}, key=old.private)
    before = old.private.read_bytes()
    file = rotate_key(home, "a")
    append_line(home, {"ask": "train", "values": {}}, key=old.private)
    new = read_public_key(str(home / "a.pub"))
    assert old.private.read_bytes() != before
    assert load_private_key(old.private).line == new
    assert stat.S_IMODE(old.private.stat().st_mode) == 0o600
    check = verify_ledger(home, public=new)
    assert (check.problem, check.lines, check.signed) == ("", 3, 3)

    known = members.get("a")
    assert known is not None
    assert read_rotation(file, site="a", known=known.key) == new
    with pytest.raises(UsageError, match="is not signed with the key of b"):
        read_rotation(file, site="b", known=known.key)
    with pytest.raises(UsageError, match="is not signed with the key of a"):
        read_rotation(file, site="a", known=read_public_key(site_key(tmp_path / "thief", "a").line))
    members.rotate("a", new, None)
    assert [member.key for member in Members(members.home)] == [new]
    with pytest.raises(UsageError, match="was revoked"):
        members.rotate("a", known.key, None)


def test_a_rotation_that_was_interrupted_is_finished_with_the_same_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace
    for crash in range(1, 4):
        home = tmp_path / str(crash)
        append_line(home, {"ask": "census"}, key=site_key(home, "a").private)
        calls: list[Path] = []

        def power_failure(self: Path, target: Path, *, calls: list[Path] = calls, at: int = crash) -> Path:
            if self.suffix in (".key", ".pub"):
                calls.append(self)
                if len(calls) > at:
                    raise KeyboardInterrupt
            return replace(self, target)

        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Path, "replace", power_failure)
            rotate_key(home, "a")
        finish_rotation(home, "a")
        named = re.search(r'^key = "(.*)"$', (home / "a.rotation").read_text(encoding="utf-8"), re.MULTILINE)
        assert named is not None
        assert read_public_key(site_key(home, "a").line) == named.group(1)
        assert verify_ledger(home, public=named.group(1)).problem == ""
        assert list(home.glob(f"{key_rotation.RETIRED}/*/a.key"))


def test_a_key_is_accepted_for_a_year_and_an_expired_one_not_again(tmp_path: Path) -> None:
    line = read_public_key(site_key(tmp_path / "a", "a").line)
    members = Members(tmp_path)
    added = members.add("a", line)
    assert datetime.fromisoformat(added.expires) > datetime.now(UTC) + timedelta(days=360)
    members.add("a", line, days=-1)
    with pytest.raises(UsageError, match=r"expired on .* unseen join --rotate-key"):
        members.add("a", line)


def test_keys_are_private_from_their_creation_whatever_the_umask(tmp_path: Path) -> None:
    """P7, as far as keys go."""
    before = os.umask(0)
    try:
        make_certificates(tmp_path / "tls", ["a.example"])
        site_key(tmp_path / "site", "a")
        rotate_key(tmp_path / "site", "a")
        append_line(tmp_path / "site", {"ask": "census"}, key=tmp_path / "site" / "a.key")
    finally:
        os.umask(before)
    secret = [*tmp_path.rglob("*.key"), tmp_path / "site" / "sent.jsonl", tmp_path / "site" / "sent.head"]
    assert len(secret) == 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in secret} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in secret} == {0o700}


def test_a_damaged_certificate_is_one_line() -> None:
    with pytest.raises(UnseenError, match="the certificate is damaged"):
        read_certificate(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----")
