"""Numbers and names as people read them."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.config import RunConfig
from unseen.report.charts import downsample, round_ticks
from unseen.report.formatting import (
    HELD_OUT_MARK,
    format_bytes,
    format_clock,
    format_count,
    format_duration,
    format_value,
    join_names,
    shorten_names,
)
from unseen.report.run_page import train_command


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (0.91249, "accuracy", "91.2 %"),
        (1, "worst_class_accuracy", "100.0 %"),
        (1.5, "rmse", "1.500"),
        (0.000123456, "loss", "0.0001235"),
        (123456.7, "rmse", "123 457"),
        (None, "accuracy", "–"),
        (float("nan"), "rmse", "–"),
        (float("inf"), "loss", "–"),
        (True, "accuracy", "–"),
    ],
)
def test_numbers(value: object, metric: str, text: str) -> None:
    assert _plain(format_value(value, metric)) == text


def test_spans_and_sizes() -> None:
    assert [_plain(format_duration(s)) for s in (0.04, 4.4, 42.4, 65, 100, 7199, 7620, 9000, None)] == [
        "0.0 s", "4.4 s", "42 s", "1 min 05 s", "1 min 40 s", "1 h 59 min", "2 h 07 min", "2 h 30 min", "–",
    ]  # fmt: skip
    assert [format_clock(s) for s in (5, 83.4, 7620)] == ["0:05", "1:23", "2:07:00"]
    assert [_plain(format_bytes(b)) for b in (0, 999, 1000, 14_809_440, 2e15)] == [
        "0 B", "999 B", "1 kB", "14.8 MB", "2000 TB",
    ]  # fmt: skip
    assert _plain(format_count(1234567)) == "1 234 567"


def test_listings() -> None:
    assert join_names(["a"]) == "‘a’"
    assert join_names(["a", "b", "c"]) == "‘a’, ‘b’ and ‘c’"
    assert join_names(list("abcdefgh"), limit=2) == "‘a’, ‘b’ and 6 more"
    assert join_names([]) == ""


@given(st.lists(st.text(alphabet="ab(2) ", max_size=40)), st.integers(14, 30))
def test_shortened_names_stay_different(names: list[str], most: int) -> None:
    short = shorten_names(names, most)
    assert set(short) == set(names)
    assert len(set(short.values())) == len(short)


def test_shortened_names_keep_both_ends_and_the_mark() -> None:
    long = "Hospital of a very long name, ward 7"
    assert shorten_names([long], 16)[long].startswith("Hospital")
    assert shorten_names([long], 16)[long].endswith("ward 7")
    assert shorten_names([long + HELD_OUT_MARK], 26)[long + HELD_OUT_MARK].endswith("d 7" + HELD_OUT_MARK)
    assert shorten_names(["short"], 16) == {"short": "short"}


@given(st.lists(st.integers(), min_size=1), st.integers(2, 50))
def test_thinning_keeps_the_ends_and_the_order(items: list[int], most: int) -> None:
    kept = downsample(list(enumerate(items)), most)
    assert len(kept) == min(len(items), most)
    assert kept[0] == (0, items[0])
    assert kept[-1] == (len(items) - 1, items[-1])
    assert kept == sorted(set(kept))


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_round_ticks_are_few_and_inside(first: int, more: int) -> None:
    ticks = round_ticks([first, first + more])
    assert 1 <= len(ticks) <= 9
    assert all(first <= tick <= first + more for tick in ticks)


def test_the_command_repeats_the_configuration(tmp_path: Path) -> None:
    config = RunConfig(
        data="my data/", hold_out=("a b", "it's"), method="csac", rounds=3, lr=0.1, skip_unreadable=True,
        settings={"align": True, "weight": 0.6}, workers=2,
    )  # fmt: skip
    config.save(tmp_path / "config.toml")
    words = shlex.split(" ".join(train_command(tomllib.loads((tmp_path / "config.toml").read_text()))))
    assert words == [
        "unseen", "train", "my data/", "--hold-out", "a b", "--hold-out", "it's", "--skip-unreadable",
        "--method", "csac", "--rounds", "3", "--lr", "0.1", "--set", "align=true", "--set", "weight=0.6",
    ]  # fmt: skip
    assert train_command({"rounds": 3}) == []


def _plain(text: str) -> str:
    return text.replace("\u00a0", " ").replace("\u202f", " ")
