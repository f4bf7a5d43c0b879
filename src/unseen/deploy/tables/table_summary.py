"""The columns of a site's table as its summary names them, and the columns of all sites together.

Names of columns and, of texts, the different values leave a site; how often a value occurs does not leave
here, but in the sums of `table_statistics.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from unseen.data.dataset import Column
from unseen.data.site_data import SiteSamples
from unseen.data.tables.table_reader import MOST_LEVELS, like_identifier
from unseen.errors import UnseenError
from unseen.printable import is_printable

MOST_COLUMNS, LONGEST_NAME = 20_000, 255
"""Bounds of a summary: columns, and characters of a name or of a text in a column."""
Columns = tuple[Column, ...]


@dataclass(frozen=True)
class TableSummary:
    """The columns of one site's table.

    columns  the usable ones, texts with their different values; a column with none at all is empty here
    unused   columns whose values cannot be used at this site, such as identifiers
    numeric_target  whether classes are numbers, which are sorted as such
    """

    columns: Columns
    unused: tuple[str, ...] = ()
    numeric_target: bool = False

    @classmethod
    def of(cls, samples: SiteSamples) -> TableSummary | None:
        """Describe the columns of a site's samples; None if they are no table.

        Columns with texts that no summary can hold (very long ones, several lines) are not used.
        """
        if not samples.columns:
            return None
        fine = tuple(column for column in samples.columns if all(map(_is_name, column.levels or ())))
        names = {column.name for column in fine}
        spoilt = [column.name for column in samples.columns if column.name not in names]
        return cls(fine, (*samples.unused, *spoilt), samples.numeric_target)

    @classmethod
    def from_dict(cls, values: object, classes: tuple[str, ...]) -> TableSummary | None:
        """Read what a site sent, JSON values of any kind; refuse what no table can have.

        classes  the site's class names, as they were read already
        """
        if values is None:
            return None
        if not isinstance(values, dict):
            raise UnseenError("sent an unusable summary of its data: its table cannot be")
        columns, unused, numeric = (values.get(key) for key in ("columns", "unused", "numeric_target"))
        if (
            not isinstance(columns, list | tuple)
            or not isinstance(unused, list | tuple)
            or not 0 < len(columns) + len(unused) <= MOST_COLUMNS
        ):
            raise UnseenError("sent an unusable summary of its data: its columns cannot be")
        found = tuple(map(_read_column, columns))
        names = [*(column.name for column in found), *unused]
        if not all(map(_is_name, unused)) or len(set(names)) < len(names):
            raise UnseenError("sent an unusable summary of its data: its column names cannot be")
        if not isinstance(numeric, bool) or (numeric and not all(map(_is_finite, classes))):
            raise UnseenError("sent an unusable summary of its data: its target cannot be")
        return cls(found, tuple(unused), numeric)

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON values."""
        return asdict(self)

    @property
    def texts(self) -> list[str]:
        """All names and levels that the summary discloses."""
        levels = [level for column in self.columns for level in column.levels or ()]
        return [*(column.name for column in self.columns), *self.unused, *levels]


def _read_column(value: object) -> Column:
    name, levels = (value.get("name"), value.get("levels")) if isinstance(value, dict) else (None, None)
    if not _is_name(name):
        raise UnseenError("sent an unusable summary of its data: its column names cannot be")
    if levels is None:
        return Column(str(name))
    fine = isinstance(levels, list | tuple) and len(levels) <= MOST_LEVELS and all(map(_is_name, levels))
    if not fine or len(set(levels)) < len(levels):
        raise UnseenError(f"sent an unusable summary of its data: the texts of {name!r} cannot be")
    return Column(str(name), tuple(levels))


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != "" and is_printable(value, longest=LONGEST_NAME)


def _is_finite(name: str) -> bool:
    try:
        return math.isfinite(float(name))
    except ValueError:
        return False


def merge_columns(tables: Mapping[str, TableSummary], *, rows: int) -> tuple[Columns, tuple[str, ...]]:
    """Return the columns of all sites, in the order of the first, and notes on those left out.

    Every site must have every column, of the same kind; it may be empty. A column that one site cannot use
    is used nowhere.

    rows  of all sites together
    """
    _require_same_names(tables)
    columns, notes = list[Column](), list[str]()
    of_site = {site: {each.name: each for each in table.columns} for site, table in tables.items()}
    for name in _names(next(iter(tables.values()))):
        found = {site: own.get(name) for site, own in of_site.items()}
        merged = _merge_column(name, found, rows=rows)
        if isinstance(merged, str):
            notes.append(f"left out column {name!r}: {merged}")
        else:
            columns.append(merged)
    if not columns:
        raise UnseenError(f"the sites' tables have no usable column: {'; '.join(notes)}")
    return tuple(columns), tuple(notes)


def _names(table: TableSummary) -> list[str]:
    return [*(column.name for column in table.columns), *table.unused]


def _require_same_names(tables: Mapping[str, TableSummary]) -> None:
    names = {site: dict.fromkeys(_names(table)) for site, table in tables.items()}
    for having, theirs in names.items():
        for site, own in names.items():
            missing = [name for name in theirs if name not in own]
            if missing:
                raise UnseenError(
                    f"site {site} has no column {missing[0]!r}, which site {having} has: all sites need the "
                    "same columns; add it (it may be empty), or remove it everywhere"
                )


def _merge_column(name: str, found: Mapping[str, Column | None], *, rows: int) -> Column | str:
    """Merge what the sites say of a column; a text is the reason why it is left out."""
    kinds: dict[str, str] = {}
    levels: set[str] = set()
    for site, column in found.items():
        if column is None:
            return f"site {site} cannot use its values (its own log says why)"
        if column.levels == ():
            continue
        kinds.setdefault("numbers" if column.levels is None else "text", site)
        levels |= set(column.levels or ())
    if len(kinds) > 1:
        raise UnseenError(
            f"column {name!r} has numbers at site {kinds['numbers']} and text at site {kinds['text']}: all "
            "sites need the same kind"
        )
    if not kinds:
        return "empty"
    if "numbers" in kinds:
        return Column(name)
    return like_identifier(len(levels), rows=rows) or Column(name, tuple(sorted(levels)))


def sort_numbers(names: set[str]) -> tuple[str, ...]:
    """Sort class names that are numbers by their value."""
    return tuple(sorted(names, key=lambda name: (float(name), name)))
