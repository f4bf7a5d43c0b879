"""`unseen data get`: explains, asks for consent, downloads with checksums, and can be stopped."""

import json
import signal
import time

import pytest

from file_server import serving

NAME = "train-images-idx3-ubyte.gz"


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.delenv("UNSEEN_OFFLINE")
    with serving() as running:
        running.files[NAME] = b"0123456789" * 100_000
        yield running


def test_a_set_that_must_be_got_by_hand_is_explained(unseen, tmp_path):
    answer = unseen("data", "get", "office-home", "--data-root", tmp_path)
    assert answer.code == 1
    for line in ("licence: a fair use notice", "where: www.hemanthdv.org", f"below {tmp_path}"):
        assert line in answer.out
    assert "then: unseen data check office-home" in answer.out


def test_as_json(unseen, tmp_path):
    answer = unseen("data", "get", "pacs", "--data-root", tmp_path, "--json")
    told = json.loads(answer.out)
    assert answer.code == 1
    assert told["to_do"]["licence"] == "none stated"
    assert told["downloaded"] == []


def test_nothing_to_get(unseen):
    answer = unseen("data", "get", "rotated-digits")
    assert (answer.code, answer.err) == (0, "")
    assert "comes with the package" in answer.out


def test_without_a_root_or_with_a_wrong_name(unseen, monkeypatch, tmp_path):
    monkeypatch.delenv("UNSEEN_DATA", raising=False)
    assert unseen("data", "get", "pacs").code == 2
    answer = unseen("data", "get", "pasc", "--data-root", tmp_path)
    assert answer.code == 2
    assert "'pacs'" in answer.err


def test_another_file_is_refused_in_one_line(unseen, server, tmp_path):
    answer = unseen("data", "get", "rotated-mnist", "--data-root", tmp_path, "--mirror", server.url())
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert len(answer.err.splitlines()) == 1
    assert "MD5" in answer.err


def test_files_that_are_there_are_left_alone(unseen, tmp_path):
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "mnist.npz").write_bytes(b"mine")
    answer = unseen("data", "get", "rotated-mnist", "--data-root", tmp_path)
    assert answer.code == 0
    assert "MNIST: already there" in answer.out
    assert (tmp_path / "digits" / "mnist.npz").read_bytes() == b"mine"


def test_terms_have_to_be_accepted(unseen, tmp_path):
    (tmp_path / "digits").mkdir()
    for name in ("mnist", "usps"):
        (tmp_path / "digits" / f"{name}.npz").touch()
    answer = unseen("data", "get", "digits", "--data-root", tmp_path)
    assert answer.code == 1
    assert "SVHN: not downloaded; licence: for non-commercial use only" in answer.out
    assert "--accept-terms" in answer.out


def test_ctrl_c_keeps_the_part_and_says_how_to_go_on(start_unseen, server, tmp_path):
    server.breaks_after, server.holds = 600_000, True
    process = start_unseen("data", "get", "rotated-mnist", "--data-root", tmp_path, "--mirror", server.url())
    part = tmp_path / ".downloads" / f"{NAME}.part"
    deadline = time.monotonic() + 60
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "The same command resumes where it was" in err
    assert 0 < part.stat().st_size <= 600_000
    assert not part.with_suffix("").exists()
