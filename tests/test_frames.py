"""Data frames from rows, with either library or none."""

from __future__ import annotations

import pytest

from unseen import frames
from unseen.errors import UnseenError, UsageError
from unseen.frames import make_frame

ROWS = [{"domain": "a", "accuracy": 0.5}, {"domain": "b", "accuracy": None, "loss": 1.5}]


@pytest.mark.parametrize("library", frames.LIBRARIES)
def test_rows_become_lines_and_every_key_a_column(library):
    pytest.importorskip(library)
    frame = make_frame(ROWS, library=library)
    assert type(frame).__module__.startswith(library)
    assert list(frame.columns) == ["domain", "accuracy", "loss"]
    assert frame.shape == (2, 3)
    assert list(frame["domain"]) == ["a", "b"]
    assert frame["accuracy"].sum() == 0.5
    assert frame["loss"].max() == 1.5


@pytest.mark.parametrize("library", frames.LIBRARIES)
def test_whole_and_broken_numbers_share_a_column(library):
    pytest.importorskip(library)
    rows = [{"value": 1}] * 200 + [{"value": 0.5}]
    assert make_frame(rows, library=library)["value"].sum() == 200.5


def test_what_is_installed_is_used(monkeypatch):
    pytest.importorskip("polars")
    monkeypatch.setattr(frames, "find_spec", lambda name: name == "polars" or None)
    assert type(make_frame(ROWS)).__module__.startswith("polars")


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (None, r"needs pandas or polars, .* pip install 'unseen\[frames\]'"),
        ("polars", r"needs polars, .* pip install 'unseen\[polars\]'"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(monkeypatch, library, words):
    monkeypatch.setattr(frames, "find_spec", lambda name: None)
    with pytest.raises(UnseenError, match=words):
        make_frame(ROWS, library=library)


def test_other_libraries_are_refused():
    with pytest.raises(UsageError, match="unknown library of data frames: 'numpy'"):
        make_frame(ROWS, library="numpy")
