"""The journal of answers: one question per round and purpose, whatever happens to the process or the file."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen.errors import UnseenError
from unseen.privacy.answer_journal import (
    AnswerJournal,
    FileJournal,
    MemoryJournal,
    append_line,
    digest_tensors,
    own_secret,
    read_lines,
)


@pytest.fixture(params=["memory", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AnswerJournal:
    return MemoryJournal() if request.param == "memory" else FileJournal(tmp_path / "answered" / "run.jsonl")


def test_the_same_question_passes_again_and_another_one_is_refused(journal: AnswerJournal) -> None:
    journal.admit(client="a", round=1, purpose="train", digest=b"one")
    journal.admit(client="a", round=1, purpose="train", digest=b"one")
    with pytest.raises(UnseenError, match="'a' has answered round 1 already"):
        journal.admit(client="a", round=1, purpose="train", digest=b"two")


def test_other_rounds_clients_and_purposes_are_other_questions(journal: AnswerJournal) -> None:
    journal.admit(client="a", round=1, purpose="train", digest=b"one")
    journal.admit(client="a", round=2, purpose="train", digest=b"two")
    journal.admit(client="b", round=1, purpose="train", digest=b"three")
    journal.admit(client="a", round=1, purpose="unmask", digest=b"four")


def test_a_file_journal_survives_its_process_and_keeps_strange_names_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    FileJournal(path).admit(client="a\n2 é", round=1, purpose="train", digest=b"one")
    assert FileJournal(path).read() == {("a\n2 é", 1, "train"): b"one".hex()}
    with pytest.raises(UnseenError, match="already"):
        FileJournal(path).admit(client="a\n2 é", round=1, purpose="train", digest=b"two")


def test_of_many_at_once_with_different_questions_one_is_admitted(tmp_path: Path) -> None:
    def ask(number: int) -> bool:
        try:
            FileJournal(tmp_path / "run.jsonl").admit(
                client="a", round=1, purpose="train", digest=bytes([number])
            )
        except UnseenError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(ask, range(8))) == 1


def test_a_line_cut_off_by_a_crash_counts_as_not_answered(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    journal = FileJournal(path)
    journal.admit(client="a", round=1, purpose="train", digest=b"one")
    whole = path.read_bytes()
    journal.admit(client="a", round=2, purpose="train", digest=b"two")
    for length in range(len(whole), -1 + path.stat().st_size):
        os.truncate(path, length)
        journal.admit(client="a", round=2, purpose="train", digest=b"two")
        assert len(journal.read()) == 2


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_never_lets_a_second_question_pass(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "run.jsonl"
    journal = FileJournal(path)
    for round in (1, 2, 3):
        journal.admit(client="a", round=round, purpose="train", digest=b"one")
    content = bytearray(path.read_bytes())
    place %= len(content)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    for round in (1, 2, 3):
        with pytest.raises(UnseenError):
            journal.admit(client="a", round=round, purpose="train", digest=b"two")


def test_a_journal_that_cannot_be_written_refuses_the_answer(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnseenError, match="nothing was answered"):
        FileJournal(tmp_path / "file" / "run.jsonl").admit(
            client="a", round=1, purpose="train", digest=b"one"
        )


def test_the_journal_and_the_secret_are_for_their_owner_only(tmp_path: Path) -> None:
    FileJournal(tmp_path / "run.jsonl").admit(client="a", round=1, purpose="train", digest=b"one")
    own_secret(tmp_path / "secret.key")
    assert {(tmp_path / name).stat().st_mode & 0o077 for name in ("run.jsonl", "secret.key")} == {0}


def test_a_secret_is_drawn_once_and_a_short_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret.key"
    assert own_secret(path) == own_secret(path) != own_secret(tmp_path / "other.key")
    path.write_bytes(b"short")
    with pytest.raises(UnseenError, match="has 5 bytes"):
        own_secret(path)


def test_lines_come_back_as_they_were_written(tmp_path: Path) -> None:
    append_line(tmp_path / "lines", ["a", 1.5])
    append_line(tmp_path / "lines", [])
    assert read_lines(tmp_path / "lines") == [["a", 1.5], []]


def test_digests_differ_with_every_part_of_what_is_hashed() -> None:
    one = torch.arange(4.0)
    digests = [
        digest_tensors({"w": one}),
        digest_tensors({"w": one}, about="job"),
        digest_tensors({"v": one}),
        digest_tensors({"w": one.double()}),
        digest_tensors({"w": one.reshape(2, 2)}),
        digest_tensors({"w": one}, {}),
        digest_tensors({}, {"w": one}),
        digest_tensors({"w": one + 1e-7}),
    ]
    assert len(set(digests)) == len(digests)
    assert digest_tensors({"w": one}) == digest_tensors({"w": one.clone()})
    assert digest_tensors({"w": torch.tensor(1.0), "e": torch.empty(0)})
