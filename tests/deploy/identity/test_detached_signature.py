"""Detached signatures: ours pass OpenSSH's check and its pass ours; whatever was changed does not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.deploy.identity.detached_signature import NAMESPACE, Signer, require_signer, verify_detached
from unseen.deploy.identity.keys import site_key
from unseen.errors import UnseenError, UsageError

CARD = b'{"format": 1}\n'
SSH = shutil.which("ssh-keygen")
needs_ssh = pytest.mark.skipif(SSH is None, reason="needs ssh-keygen")


def ed25519_key(folder: Path, *, passphrase: bytes = b"") -> Path:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import ed25519

    lock = form.BestAvailableEncryption(passphrase) if passphrase else form.NoEncryption()
    key = ed25519.Ed25519PrivateKey.generate()
    file = folder / "key"
    file.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, lock))
    return file


@pytest.fixture(scope="module")
def signers(tmp_path_factory) -> dict[str, Signer]:
    folder = tmp_path_factory.mktemp("keys")
    return {"ed25519": Signer(ed25519_key(folder)), "site": Signer(site_key(folder, "north").private)}


@pytest.mark.parametrize("kind", ["ed25519", "site"])
def test_what_was_signed_verifies_and_nothing_else(signers, kind):
    signature = signers[kind].sign(CARD)
    assert verify_detached(CARD, signature) == signers[kind].line
    with pytest.raises(UnseenError, match="was changed"):
        verify_detached(CARD + b" ", signature)


@needs_ssh
@pytest.mark.parametrize("kind", ["ed25519", "site"])
def test_openssh_accepts_our_signatures(signers, kind, tmp_path):
    (tmp_path / "card.sig").write_text(signers[kind].sign(CARD))
    (tmp_path / "allowed").write_text(f"us {signers[kind].line}\n")
    command = [SSH, "-Y", "verify", "-f", "allowed", "-I", "us", "-n", NAMESPACE.decode(), "-s", "card.sig"]
    done = subprocess.run(command, cwd=tmp_path, input=CARD, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    changed = subprocess.run(command, cwd=tmp_path, input=CARD + b" ", capture_output=True, check=False)
    assert changed.returncode != 0


@needs_ssh
def test_we_accept_openssh_signatures_for_cards_only(tmp_path):
    subprocess.run([SSH, "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "k"], check=True)
    card = tmp_path / "card"
    for namespace in (NAMESPACE.decode(), "file"):
        card.write_bytes(CARD)
        (tmp_path / "card.sig").unlink(missing_ok=True)
        command = [SSH, "-Y", "sign", "-f", tmp_path / "k", "-n", namespace, card]
        subprocess.run(command, check=True, capture_output=True)
        signature = (tmp_path / "card.sig").read_text()
        if namespace != "file":
            require_signer(verify_detached(CARD, signature), str(tmp_path / "k.pub"))
    with pytest.raises(UnseenError, match="another purpose"):
        verify_detached(CARD, signature)


@given(place=st.integers(0, 10_000), letter=st.sampled_from("AZaz09+/=\n-"))
def test_a_changed_signature_is_refused_in_one_line(signers, place, letter):
    signature = signers["ed25519"].sign(CARD)
    place %= len(signature)
    changed = signature[:place] + letter + signature[place + 1 :]
    try:
        assert verify_detached(CARD, changed) == signers["ed25519"].line
        assert changed.split() == signature.split(), "only white space may differ"
    except UnseenError as error:
        assert "\n" not in str(error)


def test_other_keys_are_refused(signers, tmp_path):
    line = signers["ed25519"].line
    require_signer(line, f"{line} somebody")
    with pytest.raises(UnseenError, match="another key: SHA256:"):
        require_signer(line, signers["site"].line)
    with pytest.raises(UsageError, match="cannot read"):
        require_signer(line, str(tmp_path / "none.pub"))
    with pytest.raises(UsageError, match="no public key"):
        require_signer(line, str(ed25519_key(tmp_path)))


def test_keys_that_cannot_sign_are_refused(tmp_path):
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    locked = ed25519_key(tmp_path, passphrase=b"secret")
    with pytest.raises(UnseenError, match="without a passphrase"):
        Signer(locked)
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    file = tmp_path / "rsa"
    file.write_bytes(key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()))
    with pytest.raises(UsageError, match="another kind"):
        Signer(file)
    with pytest.raises(UnseenError, match="cannot read"):
        Signer(tmp_path / "none")
