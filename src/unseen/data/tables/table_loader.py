"""Tables as domains: a domain column, a target column, and features left raw.

Scaling and one-hot columns come later (`encoding`), once it is known which domains are held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column, DataSet, Indices
from unseen.data.formats import FORMATS, GROUP_COLUMN, DataFormat
from unseen.data.grouping import group_keys, note_groups
from unseen.data.site_data import SiteSamples
from unseen.data.sources import DataRequest
from unseen.data.tables.table_reader import (
    TABLE_SUFFIXES,
    Floats,
    finite,
    is_text,
    level_numbers,
    numbers,
    read_arrow,
    read_column,
)
from unseen.errors import UnseenError, UsageError, unknown_name
from unseen.tasks import TASKS

if TYPE_CHECKING:
    from unseen.data.validate import DataCheck

MOST_CLASSES_OF_INTEGERS = 20


@FORMATS.register("table")
class TableFormat(DataFormat):
    """Tables in CSV or Parquet files, with a domain column and a target column."""

    expects = f"a table ({', '.join(TABLE_SUFFIXES)})"
    contents = "table"
    group_options = (GROUP_COLUMN,)

    def matches(self, path: Path) -> bool:
        """Match files by suffix."""
        return path.is_file() and path.suffix.lower() in TABLE_SUFFIXES

    def load(self, request: DataRequest) -> DataSet:
        """Load all rows that have a domain and a target."""
        return load_table(request.path, request)

    def load_site(self, site: str, request: DataRequest) -> SiteSamples:
        """Load a site's rows of its own table."""
        from unseen.data.tables.site_table import load_site_table

        return load_site_table(site, request)

    def check_site(self, site: str, request: DataRequest) -> DataCheck:
        """Check the table of a site; which column is the target, jobs say."""
        from unseen.data.tables.site_table import check_site_table

        return check_site_table(site, request)


def load_table(path: Path, request: DataRequest) -> DataSet:
    """Load a CSV or Parquet file; rows without a domain or a target are left out with a note."""
    table = read_arrow(path)
    check_columns(path, table, request)
    task = request.task or decide_task(table[request.target_column])
    table, notes = complete_rows(path, table, request)
    domain_of, domains = level_numbers(table[request.domain_column])
    check_domains(path, request.domain_column, domains, table.num_rows)
    targets, classes = read_target(path, table, request.target_column, task)
    notes += explain_target(table, request, classes)
    own = [request.domain_column, request.target_column]
    keys = None
    if request.group_column:
        own.append(request.group_column)
        places = [domains[number] for number in domain_of]
        keys, group_notes = read_groups(table[request.group_column], places)
        notes += group_notes
    columns, inputs, column_notes = _read_features(path, table.drop_columns(own))
    return DataSet(
        name=path.stem,
        task=task,
        inputs=inputs,
        targets=targets,
        domain_of=domain_of,
        domains=domains,
        classes=classes,
        notes=(*notes, *column_notes),
        columns=columns,
        split_group_of=keys,
    )


def read_groups(column: Any, domains: Sequence[str]) -> tuple[Indices, list[str]]:
    """Read the group of each row, with a note; a row without a value is a group of one."""
    names = read_names(column)
    return group_keys(names, domains), note_groups(names, "--group-column")


def read_names(column: Any) -> list[str | None]:
    """Read a column as texts, None where there is no value."""
    codes, levels = level_numbers(column)
    return [levels[code] if code >= 0 else None for code in codes]


def load_rows(path: Path, columns: tuple[Column, ...]) -> Floats:
    """Read raw inputs for columns that are known already, such as those of a trained model.

    Texts get the numbers of the given levels, and NaN if they are none of these; the file needs no
    domain and no target.
    """
    table = read_arrow(path)
    raw = np.full((table.num_rows, len(columns)), np.nan, dtype=np.float32)
    for position, column in enumerate(columns):
        if column.name not in table.column_names:
            raise unknown_name(f"column of {path.name} (the model needs it)", column.name, table.column_names)
        array = table[column.name]
        if array.null_count == len(array):
            continue
        if column.levels is not None:
            codes, names = level_numbers(array)
            known = {name: number for number, name in enumerate(column.levels)}
            raw[:, position] = np.array([*(known.get(name, np.nan) for name in names), np.nan])[codes]
            continue
        values = numbers(array)
        if values is None:
            raise UnseenError(
                f"{path}: column {column.name!r} holds {array.type} values; the model was trained on numbers"
            )
        raw[:, position] = finite(values)[0]
    return raw


def check_columns(path: Path, table: Any, request: DataRequest) -> None:
    """Refuse columns that are missing or cannot be a domain or a target."""
    from pyarrow import types

    roles = {"--domain-column": request.domain_column, "--target": request.target_column}
    if request.group_column:
        roles["--group-column"] = request.group_column
    for option, name in roles.items():
        if name not in table.column_names:
            raise unknown_name(f"column of {path.name} ({option})", name, table.column_names)
        kind = table[name].type
        if types.is_nested(kind):
            raise UsageError(f"{path}: column {name!r} holds {kind} values; name another one with {option}")
    require_different(roles)


def require_different(roles: Mapping[str, str], error: type[UsageError] = UsageError) -> None:
    """Refuse one column for two purposes; `roles` maps options to columns."""
    seen: dict[str, str] = {}
    for option, name in roles.items():
        if name in seen:
            raise error(f"{seen[name]} and {option} both name {name!r}; they must differ")
        seen[name] = option


def check_domains(path: Path, column: str, domains: Sequence[str], rows: int) -> None:
    """Refuse a column whose values are mostly different, so that they cannot be meant as domains."""
    if _are_mostly_different(len(domains), rows):
        raise UsageError(
            f"{path}: column {column!r} would make {len(domains)} domains of {rows} rows; name another one "
            "with --domain-column"
        )


def _are_mostly_different(groups: int, rows: int) -> bool:
    """Check whether most rows have different values, so that the column cannot be meant to group them."""
    return groups > max(MOST_CLASSES_OF_INTEGERS, rows / 2)


def decide_task(target: Any) -> str:
    """Choose the task: texts, booleans and few different integers are classes, all else is a quantity."""
    from pyarrow import types

    if is_text(target) or types.is_boolean(target.type):
        return "classification"
    if is_integer(target) and len(level_numbers(target)[1]) <= MOST_CLASSES_OF_INTEGERS:
        return "classification"
    return "regression"


def explain_target(table: Any, request: DataRequest, classes: tuple[str, ...]) -> list[str]:
    """Say how whole numbers in the target column were read, unless the user chose the task."""
    if request.task is not None or not is_integer(table[request.target_column]):
        return []
    read_as = f"{len(classes)} classes" if classes else "a quantity (regression)"
    return [f"target {request.target_column!r} read as {read_as}; --task changes that"]


def is_integer(array: Any) -> bool:
    """Check whether a column contains whole numbers."""
    from pyarrow import types

    return bool(types.is_integer(array.type))


def complete_rows(path: Path, table: Any, request: DataRequest) -> tuple[Any, list[str]]:
    """Keep the rows that have both a domain and a target."""
    import pyarrow

    has_domain = level_numbers(table[request.domain_column])[0] >= 0
    has_target = find_targets(table[request.target_column])
    keep = has_domain & has_target
    if not keep.any():
        raise UnseenError(
            f"{path}: no row has both a value in {request.domain_column!r} and in {request.target_column!r}"
        )
    if keep.all():
        return table, []
    note = (
        f"left out {np.count_nonzero(~keep)} of {len(keep)} rows: "
        f"{np.count_nonzero(~has_domain)} without {request.domain_column!r}, "
        f"{np.count_nonzero(~has_target)} without a usable {request.target_column!r}"
    )
    return table.filter(pyarrow.array(keep)), [note]


def find_targets(target: Any) -> npt.NDArray[np.bool_]:
    """Find the rows that have a usable target."""
    values = numbers(target)
    if values is None:
        return level_numbers(target)[0] >= 0
    return np.isfinite(finite(values)[0])


def read_target(path: Path, table: Any, name: str, task: str) -> tuple[npt.NDArray[Any], tuple[str, ...]]:
    """Read class numbers and their names, or quantities."""
    if TASKS[task].has_classes:
        codes, classes = level_numbers(table[name])
        if _are_mostly_different(len(classes), table.num_rows):
            raise UsageError(
                f"{path}: target {name!r} would make {len(classes)} classes of {table.num_rows} rows; "
                "name another column with --target or use --task regression"
            )
        return codes, classes
    values = numbers(table[name])
    if values is None:
        example = table[name][0].as_py()
        raise UsageError(
            f"{path}: target column {name!r} holds {example!r}, but regression needs numbers; use "
            "--task classification or another --target"
        )
    return finite(values)[0], ()


def _read_features(path: Path, table: Any) -> tuple[tuple[Column, ...], Floats, list[str]]:
    columns: list[Column] = []
    values: list[Floats] = []
    notes: list[str] = []
    for name in table.column_names:
        read = read_column(name, table[name])
        if isinstance(read, str):
            notes.append(f"left out column {name!r}: {read}")
            continue
        column, raw, note = read
        columns.append(column)
        values.append(raw)
        notes += [note] if note else []
    if not columns:
        reason = "; ".join(notes) or "there is none besides domain and target"
        raise UnseenError(
            f"{path}: no usable feature column ({reason}); add columns with numbers or categories"
        )
    return tuple(columns), np.ascontiguousarray(np.column_stack(values)), notes
