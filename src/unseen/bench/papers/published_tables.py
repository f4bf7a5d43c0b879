"""Published results: every row of every table of the papers, as printed, to compare with our own.

One TOML file (in `published/`) per table, or per part where a table joins several data sets or networks.
Cells that our copy of a paper lacks are `nan` in the file and None here. Captions and notes are in our words.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

from unseen.errors import unknown_name

_DATA = files(__package__) / "published"
_SUFFIX = ".toml"
_PAPERS = "papers"
_LACKING = Decimal("nan")


@dataclass(frozen=True)
class PublishedPaper:
    """A paper with published numbers."""

    key: str
    name: str
    title: str
    authors: str
    year: int
    venue: str


@dataclass(frozen=True)
class PublishedRow:
    """One printed row.

    label          the method or variant, as the paper calls it
    values         one per column, in the table's unit; None where our copy of the paper lacks the cell
    errors         the numbers after the plus-minus sign; empty if the row has none
    average        the printed average, which need not be the mean (see the tests)
    decimals       decimal places that the paper prints
    method, model  our names for them, where we have them
    sources        "pooled" for methods that see all source data in one place, "separated" for federated ones
    """

    label: str
    values: tuple[float | None, ...]
    errors: tuple[float | None, ...] = ()
    average: float | None = None
    average_error: float | None = None
    decimals: int = 2
    method: str | None = None
    model: str | None = None
    sources: str | None = None


@dataclass(frozen=True)
class PublishedTable:
    """One printed table, or the part of it that belongs to one data set and network.

    name       what `load_published` takes
    table      the paper's number for it
    data       our name of the data set
    columns    our names of the columns, mostly held-out domains; `headings` as they are printed
    average    heading of the column of averages; empty if there is none
    metric     accuracy, in-domain accuracy, pearson, hours, p
    unit       percent, r, hours, p
    selection  how the authors chose the round that they report
    runs       what was averaged
    model      our name of the network; None where the paper leaves it open, and rows fit any model
    """

    name: str
    paper: PublishedPaper
    table: str
    caption: str
    data: str
    columns: tuple[str, ...]
    headings: tuple[str, ...]
    rows: Mapping[str, PublishedRow]
    metric: str
    unit: str
    selection: str
    runs: str
    average: str = ""
    model: str | None = None
    note: str = ""

    @property
    def scale(self) -> float:
        """Factor from our values (such as 0.9) to the table's unit."""
        return 100.0 if self.unit == "percent" else 1.0


def list_published() -> list[str]:
    """List the names of all published tables."""
    names = (entry.name for entry in _DATA.iterdir())
    return sorted(
        name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and name != _PAPERS + _SUFFIX
    )


@cache
def load_published(name: str) -> PublishedTable:
    """Read a published table by its name, such as `csac-table3`."""
    known = list_published()
    if name not in known:
        raise unknown_name("published table", name, known)
    values = _read(name)
    rows = [_row(row) for row in values.pop("row", [])]
    return PublishedTable(
        name=name,
        paper=published_papers()[values.pop("paper")],
        columns=tuple(values.pop("columns")),
        headings=tuple(values.pop("headings")),
        rows={row.label: row for row in rows},
        **values,
    )


@cache
def published_papers() -> dict[str, PublishedPaper]:
    """Read the papers, by key."""
    return {key: PublishedPaper(key=key, **facts) for key, facts in _read(_PAPERS).items()}


def _read(name: str) -> dict[str, Any]:
    text = _DATA.joinpath(name + _SUFFIX).read_text(encoding="utf-8")
    return tomllib.loads(text, parse_float=Decimal)


def _row(printed: Mapping[str, Any]) -> PublishedRow:
    """Convert decimals to floats, and keep the number of printed places."""
    given = dict(printed)
    values, errors = given.pop("values"), given.pop("errors", ())
    places = [-int(value.as_tuple().exponent) for value in values if value.is_finite()]
    return PublishedRow(
        values=tuple(map(_number, values)),
        errors=tuple(map(_number, errors)),
        average=_number(given.pop("average", _LACKING)),
        average_error=_number(given.pop("average_error", _LACKING)),
        decimals=max(places, default=0),
        **given,
    )


def _number(printed: Decimal) -> float | None:
    value = float(printed)
    return None if math.isnan(value) else value
