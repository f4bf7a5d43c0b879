"""The table of one site: a file whose rows are all the site's, unless a domain column tells them apart.

A column without any value here may have values at other sites, so it is kept, with no level; a column whose
values cannot be used here (an identifier, a nested type) is named, and left out at all sites.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from unseen.data.dataset import Column
from unseen.data.site_data import SiteSamples, fingerprint_site
from unseen.data.sources import DataRequest
from unseen.data.tables.table_loader import (
    decide_task,
    explain_target,
    find_targets,
    read_groups,
    read_target,
    require_different,
)
from unseen.data.tables.table_reader import (
    EMPTY,
    ROW_NUMBERS,
    Floats,
    level_numbers,
    read_arrow,
    read_column,
)
from unseen.data.validate import DataCheck
from unseen.errors import UsageError


class SiteTableError(UsageError):
    """Reason why a site cannot take part with its table; it quotes the job's names only and may be sent."""


def load_site_table(site: str, request: DataRequest) -> SiteSamples:
    """Load the rows of a site that have a target."""
    path, target = request.path, request.target_column
    table, notes = own_rows(site, read_arrow(path), request)
    check_target(table, request)
    task = request.task or decide_task(table[target])
    table, left_out = rows_with_target(table, target)
    targets, classes = read_target(path, table, target, task)
    notes += [*left_out, *explain_target(table, request, classes)]
    keys, own = None, [request.domain_column, target]
    if request.group_column:
        own.append(request.group_column)
        keys, group_notes = read_groups(table[request.group_column], [site] * table.num_rows)
        notes += group_notes
    columns, inputs, unused, column_notes = _read_columns(_without(table, *own))
    content = repr((columns, unused)).encode() + inputs.tobytes()
    return SiteSamples(
        site=site,
        task=task,
        inputs=inputs,
        targets=targets,
        classes=classes,
        fingerprint=fingerprint_site(content, targets, classes),
        notes=(*notes, *column_notes),
        columns=columns,
        unused=unused,
        numeric_target=_is_number(table[target]),
        split_group_of=keys,
    )


def without_small_levels(samples: SiteSamples, least: int) -> SiteSamples:
    """Treat texts that fewer than `least` rows have as missing: they are neither named nor counted."""
    columns, inputs, hidden = list[Column](), samples.inputs, list[str]()
    for i, column in enumerate(samples.columns):
        if column.levels is None:
            columns.append(column)
            continue
        present = np.isfinite(inputs[:, i])
        codes = np.where(present, inputs[:, i], 0).astype(np.int64)
        counts = np.bincount(codes[present], minlength=len(column.levels))
        kept = [number for number, count in enumerate(counts) if count >= least]
        columns.append(Column(column.name, tuple(column.levels[number] for number in kept)))
        if len(kept) < len(column.levels):
            renumbered = np.full(max(len(column.levels), 1), np.nan, dtype=np.float32)
            renumbered[kept] = np.arange(len(kept))
            inputs = inputs.copy() if inputs is samples.inputs else inputs
            inputs[:, i] = np.where(present, renumbered[codes], np.nan)
            hidden.append(column.name)
    if not hidden:
        return samples
    note = f"texts in fewer than {least} rows count as missing in columns {', '.join(hidden)}"
    return replace(samples, columns=tuple(columns), inputs=inputs, notes=(*samples.notes, note))


def check_site_table(site: str, request: DataRequest) -> DataCheck:
    """Count a site's rows and list its columns; target and domain column are chosen by each job."""
    whole, problem, notes = read_arrow(request.path), "", list[str]()
    table = whole
    try:
        table, notes = own_rows(site, whole, request)
    except SiteTableError as error:
        problem = str(error)
    columns, _, _, column_notes = _read_columns(_without(table, request.domain_column))
    listed = ", ".join(f"{each.name} ({_kind(each)})" for each in columns)
    return DataCheck(
        name=request.path.name,
        total=table.num_rows,
        counts={site: {"rows": table.num_rows}},
        problem=problem,
        unreadable={},
        unusual={},
        warnings=(),
        notes=(*notes, f"columns: {listed}; each job names the one to predict", *column_notes),
    )


def _kind(column: Column) -> str:
    if column.levels is None:
        return "numbers"
    return "text" if column.levels else "empty"


def own_rows(site: str, table: Any, request: DataRequest) -> tuple[Any, list[str]]:
    """Keep the rows whose domain is the site's name; all of them in a table without a domain column."""
    import pyarrow

    name = request.domain_column
    if name not in table.column_names or name == request.target_column:
        return table, []
    if pyarrow.types.is_nested(table[name].type):
        raise SiteTableError(f"its column {name!r} cannot name domains; choose another with --domain-column")
    codes, domains = level_numbers(table[name])
    if site not in domains:
        raise SiteTableError(
            f"its table has a column {name!r} in which no row is {site!r}: rows are the site's if that "
            "column has its name, or if there is no such column (--domain-column)"
        )
    own = codes == domains.index(site)
    if own.all():
        return table, []
    note = f"left out {np.count_nonzero(~own)} of {len(own)} rows: their {name!r} is not {site!r}"
    return table.filter(pyarrow.array(own)), [note]


def check_target(table: Any, request: DataRequest) -> None:
    """Refuse a site's table without the columns that a job names."""
    import pyarrow

    name = request.target_column
    if name not in table.column_names:
        raise SiteTableError(f"its table has no column {name!r}, which --target names")
    group = request.group_column
    if group and group not in table.column_names:
        raise SiteTableError(f"its table has no column {group!r}, which --group-column names")
    roles = {"--domain-column": request.domain_column, "--target": name}
    require_different(roles | ({"--group-column": group} if group else {}), SiteTableError)
    if pyarrow.types.is_nested(table[name].type):
        raise SiteTableError(f"its column {name!r} cannot be a target; name another one with --target")


def rows_with_target(table: Any, target: str) -> tuple[Any, list[str]]:
    """Keep the rows that have a usable target."""
    import pyarrow

    keep = find_targets(table[target])
    if not keep.any():
        raise SiteTableError(f"its column {target!r} has no usable value; name another one with --target")
    if keep.all():
        return table, []
    note = f"left out {np.count_nonzero(~keep)} of {len(keep)} rows without a usable {target!r}"
    return table.filter(pyarrow.array(keep)), [note]


def _read_columns(table: Any) -> tuple[tuple[Column, ...], Floats, tuple[str, ...], list[str]]:
    """Read the features: columns, raw values, names of the unused ones, and notes."""
    columns, values = list[Column](), list[npt.NDArray[np.float32]]()
    unused, notes = list[str](), list[str]()
    for name in table.column_names:
        read = read_column(name, table[name])
        if read == EMPTY:
            columns.append(Column(name, ()))
            values.append(np.full(table.num_rows, np.nan, dtype=np.float32))
        elif isinstance(read, str):
            unused += [] if read == ROW_NUMBERS else [name]
            notes.append(f"left out column {name!r}: {read}")
        else:
            column, raw, note = read
            columns.append(column)
            values.append(raw)
            notes += [note] if note else []
    if not columns:
        raise SiteTableError("its table has no usable column besides domain and target")
    return tuple(columns), np.ascontiguousarray(np.column_stack(values)), tuple(unused), notes


def _without(table: Any, *names: str) -> Any:
    return table.drop_columns([name for name in names if name in table.column_names])


def _is_number(target: Any) -> bool:
    from pyarrow import types

    kind = target.type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))
