"""Reading a table file, CSV or Parquet, into an Arrow table with one name a column."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from unseen.errors import UnseenError, missing_extra

DELIMITERS = ",;\t"
LARGEST_BLOCK = 2**31 - 1


def read_arrow(path: Path) -> Any:
    """Read the file as a `pyarrow.Table`; refuse an unreadable one in one line."""
    try:
        import pyarrow
    except ImportError as error:
        raise missing_extra("pyarrow", "tables", "reading a table") from error
    try:
        table = _read_csv(path) if path.suffix.lower() == ".csv" else _read_parquet(path)
        names = table.column_names
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UnseenError(
            f"{path}: not readable as a table ({reason}); expected UTF-8 CSV or Parquet"
        ) from error
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise UnseenError(
            f"{path}: column {twice[0]!r} occurs more than once; give every column its own name"
        )
    if not table.num_rows:
        raise UnseenError(f"{path}: the table has no rows; expected one row a sample")
    return _without_dictionaries(table)


def _without_dictionaries(table: Any) -> Any:
    """Spell out columns that are stored as numbered levels, as data frames write them."""
    from pyarrow import types

    for position, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            spelled_out = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.name, spelled_out)
    return table


def _read_csv(path: Path) -> Any:
    """Read CSV; one block for the whole file, so that every value has a say in its column's type."""
    from pyarrow import csv

    with path.open("rb") as file:
        header = file.readline().decode("utf-8", errors="replace")
    delimiter = max(DELIMITERS, key=header.count)
    block = min(max(path.stat().st_size + 1, 1 << 20), LARGEST_BLOCK)
    return csv.read_csv(
        path,
        read_options=csv.ReadOptions(block_size=block),
        parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
    )


def _read_parquet(path: Path) -> Any:
    from pyarrow import parquet

    return parquet.ParquetFile(path).read()
