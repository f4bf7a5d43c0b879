"""Rows as a data frame of whichever library is installed: pandas, else polars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from unseen.errors import missing_extra, unknown_name

LIBRARIES = ("pandas", "polars")
"""Libraries of data frames, the preferred one first."""


def make_frame(rows: Sequence[Mapping[str, Any]], *, library: str | None = None) -> Any:
    """Make a data frame with one line per row and a column for every key that any row has.

    library  "pandas" or "polars"; if not given, pandas where it is installed, else polars
    """
    if library is not None and library not in LIBRARIES:
        raise unknown_name("library of data frames", library, LIBRARIES)
    wanted = LIBRARIES if library is None else (library,)
    found = next((name for name in wanted if find_spec(name)), None)
    if found is None:
        raise missing_extra(" or ".join(wanted), "frames" if "pandas" in wanted else "polars", "frame()")
    keys = dict.fromkeys(key for row in rows for key in row)
    columns = {key: [row.get(key) for row in rows] for key in keys}
    options = {"strict": False} if found == "polars" else {}
    return import_module(found).DataFrame(columns, **options)
