"""Read table files, CSV or Parquet: the whole table through Arrow, one column as numbers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column, Indices
from unseen.errors import UnseenError, missing_extra

TABLE_SUFFIXES = (".csv", ".parquet")
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
        raise UnseenError(f"{path}: the table has no rows; expected one row per sample")
    return _expand_dictionaries(table)


def _expand_dictionaries(table: Any) -> Any:
    """Decode dictionary-encoded columns, as data frames write them."""
    from pyarrow import types

    for position, field in enumerate(table.schema):
        if types.is_dictionary(field.type):
            spelled_out = table.column(position).cast(field.type.value_type)
            table = table.set_column(position, field.name, spelled_out)
    return table


def _read_csv(path: Path) -> Any:
    """Read CSV; one block for the whole file, so that every value counts for its column's type."""
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


Floats = npt.NDArray[np.float32]
MISSING_WORDS = ("", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NULL", "null", "?")
EMPTY, ROW_NUMBERS = "empty", "row numbers without a name"
"""Reasons why a column has nothing to learn from; any other is about values that cannot be used."""
MOST_LEVELS = 100
FEW_LEVELS = 10
MICROSECONDS_A_DAY = 86_400_000_000


def level_numbers(array: Any, missing: tuple[str, ...] = ("",)) -> tuple[Indices, tuple[str, ...]]:
    """Number a column's distinct values in sorted order; -1 where there is none."""
    import pyarrow

    coded = pyarrow.chunked_array([array.combine_chunks()]).dictionary_encode().chunk(0)
    values = coded.dictionary.to_pylist()
    codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    present = [i for i, value in enumerate(values) if not _is_missing(value, missing)]
    present.sort(key=lambda i: values[i])
    renumbered = np.full(len(values) + 1, -1, dtype=np.int64)
    renumbered[present] = np.arange(len(present))
    return renumbered[codes], tuple(_name(values[i]) for i in present)


def numbers(array: Any) -> npt.NDArray[np.float64] | None:
    """Read a column of numbers, booleans or dates (days since 1970), NaN where missing; else None."""
    import pyarrow
    from pyarrow import types

    kind = array.type
    scale = 1
    if types.is_date(kind) or types.is_timestamp(kind):
        zone = kind.tz if types.is_timestamp(kind) else None
        array = array.cast(pyarrow.timestamp("us", tz=zone), safe=False).cast(pyarrow.int64())
        scale = MICROSECONDS_A_DAY
    elif types.is_boolean(kind):
        array = array.cast(pyarrow.int8())
    elif not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
        return None
    values: npt.NDArray[np.float64] = array.cast(pyarrow.float64(), safe=False).to_numpy() / scale
    return values


def is_text(array: Any) -> bool:
    """Check whether a column contains texts."""
    from pyarrow import types

    kind = array.type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def read_column(name: str, array: Any) -> tuple[Column, Floats, str] | str:
    """Return a feature column, its raw values and a note (or ""); only a reason if it cannot be used."""
    if not name or name.startswith("__index_level_"):
        return ROW_NUMBERS
    values = numbers(array)
    if values is not None and not np.isnan(values).all():
        raw, broken = finite(values)
        note = f"column {name!r}: {broken} values are not finite and count as missing" if broken else ""
        return Column(name), raw, note
    if not is_text(array):
        return f"unusable type {array.type}" if values is None and array.null_count < len(array) else EMPTY
    codes, levels = level_numbers(array, MISSING_WORDS)
    if reason := like_identifier(len(levels), rows=len(array)):
        return reason
    raw = np.where(codes < 0, np.nan, codes).astype(np.float32)
    return (Column(name, levels), raw, "") if levels else EMPTY


def like_identifier(levels: int, *, rows: int) -> str:
    """Explain why a column of so many different texts tells rows apart instead of grouping them, or ""."""
    if levels > MOST_LEVELS or levels > max(FEW_LEVELS, rows / 2):
        return f"{levels} different texts in {rows} rows, like an identifier"
    return ""


def finite(values: npt.NDArray[np.float64]) -> tuple[Floats, int]:
    """Convert values to float32 with NaN for those that are infinite there, and count these."""
    with np.errstate(over="ignore"):
        raw = values.astype(np.float32)
    broken = np.isinf(raw)
    return np.where(np.isfinite(raw), raw, np.float32(np.nan)), int(broken.sum())


def _is_missing(value: Any, missing: tuple[str, ...]) -> bool:
    return value is None or value in missing or (isinstance(value, float) and np.isnan(value))


def _name(value: Any) -> str:
    """Format a value as a name; whole numbers without a point, booleans in lower case."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
