"""Wrong types are refused at the door, in one line that names the field, the value and what was expected."""

from __future__ import annotations

import string
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen.bench.grid import Grid
from unseen.config import RunConfig
from unseen.errors import UnseenError, UsageError

GOOD = {"data": "rotated-digits", "hold_out": ["75"]}
WRONG = [
    ("rounds", "many", "expected a whole number, not text"),
    ("rounds", 2.5, "expected a whole number, not 2.5"),
    ("rounds", True, "expected a whole number, not true or false"),
    ("batch_size", "four", "expected a whole number"),
    ("data", 5, "expected text"),
    ("settings", 3, "expected a table"),
    ("protect", 5, "protect = 5: expected"),
    ("hold_out", [75], "a list of texts, not a list with a whole number"),
    ("hold_out", 75, "expected a list of texts"),
    ("lr", "fast", "expected a finite number"),
    ("lr", float("nan"), "expected a finite number, not nan"),
    ("lr", float("inf"), "expected a finite number"),
    ("skip_unreadable", "yes", "expected true or false"),
    ("data", "caf\udce9", "expected UTF-8 text"),
    ("data", "a\0b", "without NUL"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG, ids=repr)
def test_a_wrong_type_is_named_with_its_field(name, value, words):
    """R5: a job file with rounds = 'many', settings = 3 or data = 5 ended in a traceback."""
    with pytest.raises(UsageError) as refused:
        RunConfig.from_mapping({**GOOD, name: value})
    assert str(refused.value).startswith(f"{name} = ") and words in str(refused.value)
    str(refused.value).encode()


@pytest.mark.parametrize(("name", "value", "words"), WRONG, ids=repr)
def test_grids_are_checked_by_the_same_rules(name, value, words):
    """R5: the options of a grid are options of a run."""
    if name == "hold_out":
        given = {"hold_out": value, "common": {"data": "x"}, "methods": {"fedavg": {}}}
    else:
        given = {"hold_out": "all", "common": {"data": "x", name: value}, "methods": {"fedavg": {}}}
    with pytest.raises(UsageError, match=name):
        Grid.from_mapping(given)


def test_whole_numbers_are_numbers_and_nothing_is_converted():
    config = RunConfig.from_mapping({**GOOD, "lr": 1, "hold_out": "75", "sources": ("0",)})
    assert config.lr == 1 and isinstance(config.lr, int), "the identity of a run depends on it"
    assert config.hold_out == ("75",)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.printable, max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(name=st.sampled_from([item.name for item in fields(RunConfig)]), value=VALUES)
def test_any_value_of_any_field_is_taken_or_refused_in_one_line(name: str, value: Any):
    """R5: whatever a file contains, there is no other exception."""
    try:
        RunConfig.from_mapping({**GOOD, name: value})
    except UnseenError as error:
        assert "\n" not in str(error)
