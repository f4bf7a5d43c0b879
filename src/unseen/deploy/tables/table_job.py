"""What a job says about a table: columns to sum, or the encoding that every site applies to its own rows."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from unseen.checksums import crc_of
from unseen.data.dataset import Column, DataSet
from unseen.data.tables.encoding import SCALINGS, TableEncoding, encode
from unseen.errors import UnseenError
from unseen.fileio import write_json

SAME_VERSION = "run the same version of Unseen everywhere"
Target = tuple[float, float]
"""Mean and std by which targets were standardized."""


def read_columns(values: object) -> tuple[Column, ...]:
    """Read columns from JSON values of any kind."""
    if not isinstance(values, list | tuple):
        raise UnseenError(f"the job's columns cannot be read; {SAME_VERSION}")
    found = tuple(map(_read_column, values))
    if len({column.name for column in found}) < len(found):
        raise UnseenError(f"the job names a column twice; {SAME_VERSION}")
    return found


def _read_column(value: object) -> Column:
    name, levels = (value.get("name"), value.get("levels")) if isinstance(value, dict) else (None, None)
    texts = levels is None or (
        isinstance(levels, list | tuple) and all(isinstance(level, str) for level in levels)
    )
    if not isinstance(name, str) or not texts:
        raise UnseenError(f"a column of the job cannot be read; {SAME_VERSION}")
    return Column(name, None if levels is None else tuple(levels))


def read_encoding(values: object) -> TableEncoding:
    """Read an encoding from JSON values of any kind; whatever does not fit together is an UnseenError."""
    try:
        if not isinstance(values, dict):
            raise TypeError("not an object")
        read_columns(values["columns"])
        encoding = TableEncoding.from_dict(values)
        _check(encoding)
        return encoding
    except (KeyError, TypeError, ValueError) as error:
        raise UnseenError(f"the encoding of the table cannot be read ({error}); {SAME_VERSION}") from error


def _check(encoding: TableEncoding) -> None:
    """Require one entry per column, usable numbers, and levels that exist."""
    width = len(encoding.columns)
    scales = (*encoding.means, *encoding.stds, encoding.target_mean, encoding.target_std)
    if not all(isinstance(value, int | float) and math.isfinite(value) for value in scales):
        raise ValueError("a mean or std is not finite")
    if min(*encoding.stds, encoding.target_std) <= 0:
        raise ValueError("a std is not above 0")
    lengths = {len(encoding.means), len(encoding.stds), len(encoding.seen), len(encoding.flagged)}
    if {*lengths, len(encoding.known)} != {width}:
        raise ValueError("it has not one entry per column")
    for column, known in zip(encoding.columns, encoding.known, strict=True):
        if not all(type(number) is int and 0 <= number < len(column.levels or ()) for number in known):
            raise ValueError(f"column {column.name!r} has other levels")
    if encoding.statistics not in SCALINGS or not encoding.feature_names:
        raise ValueError("it gives no inputs")


def apply_encoding(data: DataSet, encoding: TableEncoding | None) -> tuple[DataSet, Target]:
    """Encode a site's rows as the job says; images stay as they are."""
    if bool(data.columns) != (encoding is not None):
        own, asked = ("a table", "images") if data.columns else ("no table", "a table")
        raise UnseenError(f"its data is {own}, the job is about {asked}; {SAME_VERSION}")
    if encoding is None:
        return data, (0.0, 1.0)
    return encode(data, encoding), (encoding.target_mean, encoding.target_std)


def save_encoding(path: Path, encoding: TableEncoding) -> None:
    """Keep the encoding of a run with its checksum, for when it is resumed."""
    described: dict[str, Any] = encoding.to_dict()
    write_json(path, {"checksum": _checksum(described), "encoding": described})


def load_encoding(path: Path) -> TableEncoding | None:
    """Read what `save_encoding` wrote; None if there is no such file."""
    if not path.exists():
        return None
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["checksum"] != _checksum(values["encoding"]):
            raise ValueError("its checksum differs")
        return read_encoding(values["encoding"])
    except (OSError, ValueError, KeyError, TypeError, UnseenError) as error:
        raise UnseenError(
            f"{path} cannot be used ({error}): restore it from a backup, or start again with another --out"
        ) from error


def _checksum(described: dict[str, Any]) -> str:
    return crc_of(json.dumps(described, sort_keys=True).encode())
