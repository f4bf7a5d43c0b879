"""`unseen card` as users meet it: write, sign, verify, and errors of one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tiny_data import tiny_data
from unseen.deploy.identity.keys import site_key
from unseen.runner.run import train


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("card") / "run"
    options = {"rounds": 1, "batch_size": 8, "model": "mnist-cnn", "workers": 1}
    return train(tiny_data(), hold_out="held", out=out, **options).folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def test_an_unsigned_card_says_so_and_damage_is_found(unseen, run):
    (run / "model-card.json").unlink()
    answer = unseen("card", run)
    assert answer.code == 0 and "Unsigned" in answer.out and (run / "model-card.json").exists()
    verified = unseen("card", run, "--verify", "--json")
    assert verified.code == 0 and json.loads(verified.out) == {"signed": False, "files": 6}
    (run / "result.json").write_text((run / "result.json").read_text() + " ")
    broken = unseen("card", run, "--verify")
    assert (broken.code, broken.out) == (1, "")
    assert "not as the card says: result.json" in broken.err and len(broken.err.strip().splitlines()) == 1


def test_a_signed_card_is_verified_against_its_key(unseen, run, tmp_path):
    keys = {name: site_key(tmp_path, name) for name in ("ours", "theirs")}
    signed = json.loads(unseen("card", run, "--sign-key", keys["ours"].private, "--json").out)
    assert signed["signed"] and Path(signed["signature"]).name == "model-card.json.sig"
    assert signed["fingerprint"].startswith("SHA256:")
    assert "Signed:" in (run / "model-card.md").read_text()
    assert unseen("card", run, "--verify", "--public-key", keys["ours"].public).code == 0
    other = unseen("card", run, "--verify", "--public-key", keys["theirs"].public)
    assert other.code == 1 and "signed by another key" in other.err
    again = unseen("card", run)
    assert again.code == 2 and "is signed" in again.err
    card = run / "model-card.json"
    card.write_text(card.read_text().replace('"seed": 0', '"seed": 1'))
    changed = unseen("card", run, "--verify")
    assert changed.code == 1 and "does not fit" in changed.err
    (run / "model-card.json.sig").unlink()
    missing = unseen("card", run, "--verify")
    assert missing.code == 1 and "model-card.json.sig is missing" in missing.err


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("none",), 2, "not a folder"),
        (("RUN", "--public-key", "k.pub"), 2, "add --verify"),
        (("RUN", "--verify", "--sign-key", "k"), 2, "give one of them"),
        (("RUN", "--sign-key", "k"), 1, "cannot read the private key"),
        (("RUN", "--verify", "--public-key", "k.pub"), 1, "has no signature"),
        ((".", "--verify"), 2, "'unseen card"),
    ],
)
def test_errors_are_one_line(unseen, run, words, code, text):
    answer = unseen("card", *(run if word == "RUN" else word for word in words))
    assert (answer.code, answer.out) == (code, "")
    assert text in answer.err and len(answer.err.strip().splitlines()) == 1
