"""The ledger of what left a site."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_sites import LoopbackGrid, tiny_job
from typer.testing import CliRunner

from unseen.callbacks.base import Callback
from unseen.cli.main import app
from unseen.deploy.coordinator import coordinator
from unseen.deploy.coordinator.coordinator import RoundPolicy, coordinate
from unseen.deploy.identity.keys import read_public_key, site_key
from unseen.deploy.site.ledger import Ledger, append_entry, describe_entry
from unseen.deploy.site.ledger_chain import HEAD, LEDGER, LedgerCheck, append_line, verify_ledger
from unseen.errors import UnseenError


def test_the_ledger_names_every_kind_of_value_that_left(
    grid: LoopbackGrid, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator, "SETTLED_SECONDS", 0.0)
    coordinate(
        grid,  # type: ignore[arg-type]
        tiny_job(images, method="scaffold", rounds=1),
        out=tmp_path / "run",
        resume=False,
        terms=RoundPolicy(deadline=30.0),
        callbacks=Callback(),
    )
    ledger = Ledger(tmp_path)
    for site, question, answer in grid.log:
        if site == "a":
            append_entry(tmp_path, question, answer)
    lines = ledger.new()
    assert ledger.new() == []
    assert [line["ask"] for line in lines][:3] == ["census", "train", "evaluate"]
    (trained,) = [line for line in lines if line["ask"] == "train"]
    (update,) = [
        answer for site, question, answer in grid.log if site == "a" and question.header["ask"] == "train"
    ]
    assert trained["values"]["model weights"] == update.arrays["a/weights"].nbytes
    assert len(trained["values"]) == 3, "weights, the control variate, numbers"
    assert trained["bytes"] == update.nbytes == sum(trained["values"].values())
    assert trained["round"] == 1
    (sentence,) = describe_entry(trained)
    assert sentence.startswith("round 1: trained; sent model weights")


def test_errors_and_notices_are_told() -> None:
    line = {"ask": "train", "round": 2, "values": {}, "error": "disk full", "notice": "round 1: set aside"}
    assert list(describe_entry(line)) == [
        "the coordinator says: round 1: set aside",
        "request failed: disk full",
    ]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with a key and a ledger of four lines."""
    key = site_key(tmp_path / "home", "a").private
    for number in range(4):
        append_line(tmp_path / "home", {"ask": "train", "round": number, "values": {}}, key=key)
    return tmp_path / "home"


def check(home: Path) -> tuple[int, str]:
    found = verify_ledger(home, public=read_public_key(str(home / "a.pub")))
    return found.line, found.problem


def rewrite(home: Path, change: Callable[[list[str]], object]) -> None:
    lines = (home / LEDGER).read_text(encoding="utf-8").splitlines(keepends=True)
    change(lines)
    (home / LEDGER).write_text("".join(lines), encoding="utf-8")


def test_a_ledger_that_nobody_touched_is_whole(home: Path) -> None:
    assert verify_ledger(home, public=read_public_key(str(home / "a.pub"))) == LedgerCheck(4, 0, 4)
    assert (home / LEDGER).stat().st_mode & 0o777 == 0o600
    result = CliRunner().invoke(app, ["ledger", "verify", str(home)])
    assert "4 lines; 4 chained and signed with SHA256:" in result.stdout


@pytest.mark.parametrize(
    ("change", "line", "said"),
    [
        (lambda lines: lines.__setitem__(1, lines[1].replace('"round": 1', '"round": 9')), 2, "signature"),
        (lambda lines: lines.pop(1), 2, "does not follow"),
        (lambda lines: lines.insert(1, lines[0]), 2, "does not follow"),
        (lambda lines: lines.insert(2, '{"ask": "train"}\n'), 3, "is not chained"),
        (lambda lines: lines.pop(), 0, "lines at the end are missing: 4 were written, 3 are left"),
        (lambda lines: lines.clear(), 0, "lines at the end are missing"),
        (lambda lines: lines.append(lines[-1]), 5, "does not follow"),
        (lambda lines: lines.__setitem__(0, lines[0].replace('"key"', '"kex"')), 1, "not signed"),
    ],
    ids=["changed", "removed", "inserted", "unchained", "cut", "emptied", "repeated", "anonymous"],
)
def test_any_change_is_found_at_its_line(
    home: Path, change: Callable[[list[str]], object], line: int, said: str
) -> None:
    """D1: whoever could write into the home could also rewrite what had left."""
    rewrite(home, change)
    assert check(home)[0] == line
    assert said in check(home)[1]
    result = CliRunner().invoke(app, ["ledger", "verify", str(home)])
    assert isinstance(result.exception, UnseenError)
    assert "\n" not in str(result.exception)


def test_a_ledger_rewritten_with_another_key_is_not_this_sites(home: Path, tmp_path: Path) -> None:
    other = site_key(tmp_path / "other", "a").private
    (home / LEDGER).unlink()
    (home / HEAD).unlink()
    append_line(home, {"ask": "census"}, key=other)
    assert check(home) == (0, "it is signed, but not with this site's key")


def test_a_deleted_head_is_missed(home: Path) -> None:
    (home / HEAD).unlink()
    assert "sent.head is missing" in check(home)[1]


def test_a_line_that_a_crash_cut_short_is_replaced_and_one_not_in_the_head_counts(home: Path) -> None:
    before = (home / HEAD).read_text(encoding="utf-8")
    with (home / LEDGER).open("ab") as file:
        file.write(b'{"ask": "train", "li')
    append_line(home, {"ask": "evaluate"}, key=home / "a.key")
    assert check(home) == (0, "")
    (home / HEAD).write_text(before, encoding="utf-8")
    assert check(home) == (0, ""), "the process ended between the ledger and the head"


def test_a_ledger_of_an_older_version_stays_readable_and_is_said_to_be_old(tmp_path: Path) -> None:
    key = site_key(tmp_path, "a").private
    old = '{"time": "2026", "ask": "census", "values": {}, "bytes": 3}\n'
    (tmp_path / LEDGER).write_text(old * 3, encoding="utf-8")
    assert verify_ledger(tmp_path, public=None) == LedgerCheck(3, 3, 0)
    ledger = Ledger(tmp_path)
    append_line(tmp_path, {"ask": "train", "values": {}}, key=key)
    assert [line["line"] for line in ledger.new()] == [4]
    result = CliRunner().invoke(app, ["ledger", "verify", str(tmp_path)])
    assert "the first 3 written by a version without chain" in result.stdout
    rewrite(tmp_path, lambda lines: lines.__setitem__(1, old.replace("3", "4")))
    assert check(tmp_path)[0] == 4


def test_nothing_is_sent_that_cannot_be_written_down(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnseenError, match=r"cannot be written .* nothing is sent"):
        append_line(tmp_path / "file" / "home", {"ask": "train"}, key=None)
